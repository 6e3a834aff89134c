"""Renewals, and uses of JWTs, that share a statement: each is decided as it would be by itself."""

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
"""Of the times that Python has, in seconds since 1970."""


async def proven(world: World, agent: Joined, jwt: str | None = None) -> AgentJwt:
    """A request of the agent, by a new JWT or the given one."""
    found = await world.services.callers.agents.recognize(BearerToken(jwt or agent.jwt()))
    assert found is not None
    return found


async def holders(world: World, sites: tuple[str, ...] = SITES) -> list[tuple[Joined, int]]:
    """An agent on each of some sites, and the epoch under which it holds the site's lease."""
    agents = [await join(world, site) for site in sites]
    return [(agent, (await agent.acquire(world))["epoch"]) for agent in agents]


class Counting(Database):
    """Counts its statements."""

    __slots__ = ("sent",)

    async def _run(self, *given: Any) -> Any:
        self.sent = getattr(self, "sent", 0) + 1
        return await super()._run(*given)


async def counting(url: str) -> Counting:
    return await Counting.open(url, role="bc_api", size=4, timeout_seconds=4)


async def test_renewals_of_one_turn_are_one_statement(world: World) -> None:
    """Of agents of several tenants; each is answered its own lease."""
    held = await holders(world)
    database = await counting(str(world.settings.database_url))
    renewals = Renewals(database)
    asked = [(await proven(world, agent), epoch) for agent, epoch in held]
    before = {row[0]: row[1] for row in await world.rows("SELECT site_id, expires_at FROM boot_leases")}
    found = await asyncio.gather(*(renewals.renew(*one) for one in asked))
    assert database.sent == 1
    stored = {row["site_id"]: row for row in await world.rows("SELECT * FROM boot_leases")}
    for (agent, epoch), (taken, answer) in zip(held, found, strict=True):
        row = stored[agent.site_id]
        assert taken
        assert answer is not None
        assert (answer.held, answer.epoch, answer.holder_agent_id) == (True, epoch, agent.id)
        assert answer.expires_at == row["expires_at"] > before[agent.site_id]
    await database.close()


async def test_what_cannot_be_renewed_does_not_keep_the_rest_from_it(world: World) -> None:
    """In one turn with a renewal that is good: a wrong epoch, a lease that is over, a used JWT, a revoked agent, and
    JWTs of the first and the last times that there are.
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
    asked = [
        (await proven(world, good), first),
        (await proven(world, good), first + 1),
        (await proven(world, late), second),
        (await proven(world, good, used), first),
        (await proven(world, gone), third),
        (await proven(world, good, good.jwt(FIRST_SECOND)), first),
        (await proven(world, good, good.jwt(LAST_MINUTE)), first),
    ]
    found = await asyncio.gather(*(renewals.renew(*one) for one in asked))
    assert [(taken, answer is not None) for taken, answer in found] == [
        (True, True),
        (True, False),
        (True, False),
        (False, False),
        (False, False),
        (False, False),
        (False, False),
    ]


async def test_a_jwt_is_good_for_one_of_a_turn(world: World) -> None:
    """The same JWT twice in one statement: for a renewal, and for whatever else agents do."""
    [(agent, epoch)] = await holders(world, SITES[:1])
    jwt = agent.jwt()
    copies = [await proven(world, agent, jwt) for _ in range(4)]
    found = await asyncio.gather(*(world.services[Renewals].renew(copy, epoch) for copy in copies))
    assert sorted(taken for taken, _ in found) == [False, False, False, True]
    assert [answer is not None for taken, answer in found if taken] == [True]
    copies = [await proven(world, agent, jwt := agent.jwt())] + [await proven(world, agent, jwt) for _ in range(3)]
    taken = await asyncio.gather(*(world.services.callers.agents.take(copy, address=None) for copy in copies))
    assert sorted(taken) == [False, False, False, True]


async def test_an_agent_renews_twice_in_one_turn(world: World) -> None:
    """By two JWTs: a statement changes a row once, and the other renewal is not lost by that."""
    [(agent, epoch)] = await holders(world, SITES[:1])
    twice = [(await proven(world, agent), epoch) for _ in range(2)]
    found = await asyncio.gather(*(world.services[Renewals].renew(*one) for one in twice))
    assert [taken and answer is not None for taken, answer in found] == [True, True]


async def test_a_locked_lease_keeps_no_other_waiting(world: World) -> None:
    """Somebody is changing one of the leases: the others of the turn are renewed, and that one once it is free."""
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
    """Two servers take the same JWTs at once, in opposite orders: each JWT is taken once, and neither has to be broken
    off for a deadlock.
    """
    [(agent, _)] = await holders(world, SITES[:1])
    databases = [await counting(str(world.settings.database_url)) for _ in range(2)]
    keyrings = [AgentKeyring(database, ttl_seconds=5) for database in databases]
    for _ in range(20):
        jwts = [agent.jwt() for _ in range(40)]
        taking = [
            keyring.take(found, address=None)
            for keyring, order in zip(keyrings, (jwts, jwts[::-1]), strict=True)
            for found in [await proven(world, agent, jwt) for jwt in order]
        ]
        taken = await asyncio.gather(*taking)
        of_each = Counter(jwt for jwt, was in zip(jwts + jwts[::-1], taken, strict=True) if was)
        assert of_each == dict.fromkeys(jwts, 1)
    for database in databases:
        await database.close()


async def test_a_statement_takes_a_bounded_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for beyond it goes into another one beside it."""
    monkeypatch.setattr(turns, "MAX_BATCH_KEYS", 2)
    [(agent, _)] = await holders(world, SITES[:1])
    database = await counting(str(world.settings.database_url))
    keyring = AgentKeyring(database, ttl_seconds=5)
    found = [await proven(world, agent) for _ in range(5)]
    assert all(await asyncio.gather(*(keyring.take(one, address=None) for one in found)))
    assert database.sent == 3
    await database.close()
