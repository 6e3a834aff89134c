"""Tests renewals and uses of JWTs that share a statement: each one is decided as it would be alone."""

import asyncio
from collections import Counter
from typing import Any

import asyncpg
import pytest

from database import batch_loader as turns
from database.connection import plain_url
from database.pool import Database
from models.fleet.agent_jwts import AgentJwt
from models.sensitive import BearerToken
from services.identity.agent_keyring import AgentKeyring
from services.renewals import Renewals
from tests.support.agent_world import Joined, join
from tests.support.world import World

pytestmark = pytest.mark.anyio

SITES = ("Acme Berlin", "Globex", "Frankfurt")
FIRST_SECOND, LAST_MINUTE = -62_135_596_800, 253_402_300_799 - 60
"""The first second and the last minute of Python's times, in seconds since 1970."""


async def proven(world: World, agent: Joined, jwt: str | None = None) -> AgentJwt:
    """Verifies ``jwt``, or a new JWT of the agent."""
    agent_jwt = await world.services.callers.agents.recognize(BearerToken(jwt or agent.jwt()))
    assert agent_jwt is not None
    return agent_jwt


async def holders(world: World, sites: tuple[str, ...] = SITES) -> list[tuple[Joined, int]]:
    """Returns an agent of each site, and the epoch under which it holds the site's lease."""
    agents = [await join(world, site) for site in sites]
    return [(agent, (await agent.acquire(world))["epoch"]) for agent in agents]


class Counting(Database):
    """Counts the statements that it runs."""

    __slots__ = ("sent",)

    async def _run(self, *arguments: Any) -> Any:
        self.sent = getattr(self, "sent", 0) + 1
        return await super()._run(*arguments)


async def counting(url: str) -> Counting:
    return await Counting.open(url, role="bc_api", size=4, timeout_seconds=4)


async def test_renewals_of_one_turn_are_one_statement(world: World) -> None:
    """Renewals by agents of several tenants share one statement. Each agent gets its own lease."""
    held = await holders(world)
    database = await counting(str(world.settings.database_url))
    renewals = Renewals(database)
    requests = [(await proven(world, agent), epoch) for agent, epoch in held]
    before = {row[0]: row[1] for row in await world.rows("SELECT site_id, expires_at FROM boot_leases")}
    results = await asyncio.gather(*(renewals.renew(*request) for request in requests))
    assert database.sent == 1
    stored = {row["site_id"]: row for row in await world.rows("SELECT * FROM boot_leases")}
    for (agent, epoch), (taken, answer) in zip(held, results, strict=True):
        row = stored[agent.site_id]
        assert taken
        assert answer is not None
        assert (answer.held, answer.epoch, answer.holder_agent_id) == (True, epoch, agent.id)
        assert answer.expires_at == row["expires_at"] > before[agent.site_id]
    await database.close()


async def test_what_cannot_be_renewed_does_not_keep_the_rest_from_it(world: World) -> None:
    """A valid renewal shares its batch with a wrong epoch, an expired lease, a used JWT, a revoked agent, and JWTs of
    the first and the last possible times.
    """
    (good, first), (late, second), (gone, third) = await holders(world)
    await world.rows(
        "UPDATE boot_leases SET acquired_at = acquired_at - '1 h'::interval, expires_at = clock_timestamp() "
        "WHERE site_id = $1",
        late.site_id,
    )
    await world.rows("UPDATE site_agents SET revoked_at = now() WHERE id = $1", gone.id)
    used = good.jwt()
    renewals = world.services[Renewals]
    assert (await renewals.renew(await proven(world, good, used), first))[0]
    requests = [
        (await proven(world, good), first),
        (await proven(world, good), first + 1),
        (await proven(world, late), second),
        (await proven(world, good, used), first),
        (await proven(world, gone), third),
        (await proven(world, good, good.jwt(FIRST_SECOND)), first),
        (await proven(world, good, good.jwt(LAST_MINUTE)), first),
    ]
    results = await asyncio.gather(*(renewals.renew(*request) for request in requests))
    assert [(taken, answer is not None) for taken, answer in results] == [
        (True, True),
        (True, False),
        (True, False),
        (False, False),
        (False, False),
        (False, False),
        (False, False),
    ]


async def test_a_jwt_is_good_for_one_of_a_turn(world: World) -> None:
    """Of several requests with the same JWT in one statement, one takes it: for renewals and for other requests."""
    [(agent, epoch)] = await holders(world, SITES[:1])
    jwt = agent.jwt()
    copies = [await proven(world, agent, jwt) for _ in range(4)]
    results = await asyncio.gather(*(world.services[Renewals].renew(copy, epoch) for copy in copies))
    assert sorted(taken for taken, _ in results) == [False, False, False, True]
    assert [answer is not None for taken, answer in results if taken] == [True]
    copies = [await proven(world, agent, jwt := agent.jwt())] + [await proven(world, agent, jwt) for _ in range(3)]
    taken = await asyncio.gather(*(world.services.callers.agents.take(copy, address=None) for copy in copies))
    assert sorted(taken) == [False, False, False, True]


async def test_an_agent_renews_twice_in_one_turn(world: World) -> None:
    """An agent renews with two JWTs. One statement changes a row only once, but the other renewal is not lost."""
    [(agent, epoch)] = await holders(world, SITES[:1])
    twice = [(await proven(world, agent), epoch) for _ in range(2)]
    results = await asyncio.gather(*(world.services[Renewals].renew(*request) for request in twice))
    assert [taken and answer is not None for taken, answer in results] == [True, True]


async def test_a_locked_lease_keeps_no_other_waiting(world: World) -> None:
    """Another transaction has locked one lease. The others are renewed at once, and that one after its release."""
    held = await holders(world)
    locker = await asyncpg.connect(plain_url(str(world.settings.database_url)))
    await locker.execute("BEGIN")
    await locker.execute("SELECT FROM boot_leases WHERE site_id = $1 FOR UPDATE", held[1][0].site_id)
    waiting = [
        asyncio.create_task(world.services[Renewals].renew(await proven(world, agent), epoch)) for agent, epoch in held
    ]
    async with asyncio.timeout(4):
        await asyncio.gather(waiting[0], waiting[2])
    assert not waiting[1].done()
    await locker.execute("COMMIT")
    assert all(taken and answer is not None for taken, answer in await asyncio.gather(*waiting))
    await locker.close()


async def test_servers_that_are_sent_the_same_jwts_do_not_block_one_another(world: World) -> None:
    """Two servers take the same JWTs at the same time, in opposite orders. Each JWT is taken once, and neither server
    runs into a deadlock.
    """
    [(agent, _)] = await holders(world, SITES[:1])
    databases = [await counting(str(world.settings.database_url)) for _ in range(2)]
    keyrings = [AgentKeyring(database, ttl_seconds=5) for database in databases]
    for _ in range(20):
        jwts = [agent.jwt() for _ in range(40)]
        taking = [
            keyring.take(agent_jwt, address=None)
            for keyring, order in zip(keyrings, (jwts, jwts[::-1]), strict=True)
            for agent_jwt in [await proven(world, agent, jwt) for jwt in order]
        ]
        taken = await asyncio.gather(*taking)
        of_each = Counter(jwt for jwt, was in zip(jwts + jwts[::-1], taken, strict=True) if was)
        assert of_each == dict.fromkeys(jwts, 1)
    for database in databases:
        await database.close()


async def test_a_statement_takes_a_bounded_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """JWTs beyond the limit go into a second statement."""
    monkeypatch.setattr(turns, "MAX_BATCH_KEYS", 2)
    [(agent, _)] = await holders(world, SITES[:1])
    database = await counting(str(world.settings.database_url))
    keyring = AgentKeyring(database, ttl_seconds=5)
    agent_jwts = [await proven(world, agent) for _ in range(5)]
    assert all(await asyncio.gather(*(keyring.take(agent_jwt, address=None) for agent_jwt in agent_jwts)))
    assert database.sent == 3
    await database.close()
