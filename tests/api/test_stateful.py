"""Tests tokens, agents and the boot lease against plain models: Hypothesis searches for steps that tell them apart.

The server is the real one behind its HTTP door. The test sets the clock of the database, so that requests arrive
exactly at the end of a lease as often as a second before and after it.
"""

import asyncio
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import asyncpg
import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from agent.keys import AgentKeys
from database.embedded import EmbeddedPostgres
from models import ids
from models.fleet import leases
from tests.conftest import _execute
from tests.models.test_redemption import own_clock
from tests.support.agent_world import Joined, enroll
from tests.support.world import World, make_world

T = TypeVar("T")

START = datetime(2030, 1, 1, tzinfo=UTC)
TTL = 15

EXAMPLES = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class Bench:
    """A server whose clock the test sets, driven from synchronous code."""

    def __init__(self, runner: asyncio.Runner, world: World, clock: asyncpg.Connection) -> None:
        self.world = world
        self.now = START
        self.numbers = count(1)
        self._runner = runner
        self._clock = clock

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of ``work``. The server runs meanwhile."""
        return self._runner.run(work)

    def set_clock(self, now: datetime) -> None:
        """Sets the clock of the database."""
        self.now = now
        self.run(self._clock.execute("UPDATE own.clock SET at = $1", now))

    def post(self, path: str, **body: Any) -> httpx.Response:
        """Returns the response of an operator's method."""
        return self.run(self.world.post("acme-admin", path, {"tenantId": "acme"} | body))

    def ask(self, agent: Joined, path: str, **body: Any) -> httpx.Response:
        """Returns the response of an agent's method, called with a JWT of the current time."""
        token = agent.keys.request_token(agent.id, self.now.timestamp())
        headers = {"authorization": f"Bearer {token}"}
        return self.run(self.world.client.post(f"/api/compute/{path}", json=body, headers=headers))

    def site(self, ttl: int = TTL) -> str:
        """Creates a site and returns its id."""
        key = f"k{next(self.numbers)}"
        new = {"kind": "custom", "name": "n", "region": "r", "idempotencyKey": key, "bootLeaseTtlSeconds": ttl}
        return str(self.post("sites/create", **new).json()["id"])

    def token(self, site: str, max_uses: int, ttl: int = 3600) -> tuple[str, str]:
        """Mints a token and returns its id and bearer."""
        body = {"siteId": site, "ttlSeconds": ttl, "maxUses": max_uses, "idempotencyKey": f"k{next(self.numbers)}"}
        answer = self.post("siteTokens/create", **body).json()
        return answer["id"], answer["token"]

    def join(self, bearer: str, keys: AgentKeys) -> Joined | None:
        """Enrols an agent. Returns None if the enrolment is refused, which is always UNAUTHENTICATED."""
        answer = self.run(enroll(self.world, bearer, keys))
        if answer.status_code != 200:
            assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED")
            return None
        enrolment = answer.json()
        return Joined(keys, enrolment["agentId"], enrolment["tenantId"], enrolment["siteId"], enrolment)


@pytest.fixture(scope="module")
def bench(cluster: EmbeddedPostgres, template: str) -> Iterator[Bench]:
    """One server for all examples, each of which makes its own sites."""
    name = "stateful"
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory() as folder:
        runner.run(_execute(cluster, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy"))
        stack = AsyncExitStack()

        async def begin() -> tuple[World, asyncpg.Connection]:
            clock = await stack.enter_async_context(own_clock(cluster.dsn(name)))
            await clock.execute("UPDATE own.clock SET at = $1", START)
            limits = {"enroll_failures_per_address": 100_000, "enroll_failures_per_token": 100_000}
            return await stack.enter_async_context(make_world(cluster.dsn(name), Path(folder), **limits)), clock

        world, clock = runner.run(begin())
        try:
            yield Bench(runner, world, clock)
        finally:
            runner.run(stack.aclose())
            runner.run(_execute(cluster, f"DROP DATABASE {name} WITH (FORCE)"))


# --- tokens and agents -------------------------------------------------------------------------------------------


@dataclass
class Token:
    """A token in the model."""

    id: str
    bearer: str
    site: str
    max_uses: int
    expires_at: datetime
    uses: int = 0
    revoked: bool = False
    agents: "list[Member]" = field(default_factory=list)


@dataclass
class Member:
    """An agent in the model."""

    joined: Joined
    token: Token
    revoked: bool = False


class TokensAndAgents(RuleBasedStateMachine):
    """Mints, enrols, retries, guesses, expires, revokes and deletes sites, and checks who can enrol and who
    has access.
    """

    bench: ClassVar[Bench]
    tokens = Bundle("tokens")
    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Token] = []
        self.deleted: set[str] = set()

    @initialize()
    def begin(self) -> None:
        self.sites = [self.bench.site(), self.bench.site()]

    def alive(self, token: Token) -> bool:
        """Returns whether the token is neither revoked, expired, nor of a deleted site."""
        return not (token.revoked or token.site in self.deleted or self.bench.now >= token.expires_at)

    @rule(target=tokens, site=st.sampled_from([0, 1]), uses=st.integers(1, 3), ttl=st.sampled_from([60, 120]))
    def mint(self, site: int, uses: int, ttl: int) -> Any:
        chosen = self.sites[site]
        if chosen in self.deleted:
            body = {"siteId": chosen, "ttlSeconds": ttl, "maxUses": uses, "idempotencyKey": "late"}
            assert self.bench.post("siteTokens/create", **body).json()["code"] == "INVALID_STATE"
            return multiple()
        token = Token(*self.bench.token(chosen, uses, ttl), chosen, uses, self.bench.now + timedelta(seconds=ttl))
        self.all.append(token)
        return token

    @rule(target=members, token=tokens)
    def enrol(self, token: Token) -> Any:
        joined = self.bench.join(token.bearer, AgentKeys.generate())
        assert (joined is not None) == (self.alive(token) and token.uses < token.max_uses)
        if joined is None:
            return multiple()
        token.uses += 1
        token.agents.append(Member(joined, token))
        return token.agents[-1]

    @rule(member=members)
    def retry(self, member: Member) -> None:
        again = self.bench.join(member.token.bearer, member.joined.keys)
        assert (again is not None) == (self.alive(member.token) and not member.revoked)
        assert again is None or again.id == member.joined.id

    @rule(token=tokens)
    def guess(self, token: Token) -> None:
        secret = ids.new_secret()
        bearer = f"bc{token.id}.{secret}{ids.checksum(token.id, secret)}"
        assert self.bench.join(bearer, AgentKeys.generate()) is None

    @rule(token=tokens, agents=st.booleans())
    def revoke_token(self, token: Token, agents: bool) -> None:
        body = {"siteId": token.site, "tokenId": token.id, "revokeAgents": agents}
        assert self.bench.post("siteTokens/revoke", **body).status_code == 200
        token.revoked = True
        for member in token.agents if agents else ():
            member.revoked = True

    @rule(member=members)
    def revoke_agent(self, member: Member) -> None:
        assert self.bench.post("siteAgents/revoke", agentId=member.joined.id).status_code == 200
        member.revoked = True

    @rule(site=st.sampled_from([0, 1]))
    def delete_site(self, site: int) -> None:
        assert self.bench.post("sites/delete", siteId=self.sites[site]).status_code == 200
        self.deleted.add(self.sites[site])

    @rule(seconds=st.sampled_from([1, 59, 60]))
    def wait(self, seconds: int) -> None:
        self.bench.set_clock(self.bench.now + timedelta(seconds=seconds))

    @rule(member=members)
    def use(self, member: Member) -> None:
        answer = self.bench.ask(member.joined, "siteAgents/self")
        assert answer.status_code == (401 if member.revoked else 200)

    @rule(member=members)
    def acquire(self, member: Member) -> None:
        answer = self.bench.ask(member.joined, "bootLeases/acquire")
        expected = 401 if member.revoked else 404 if member.token.site in self.deleted else 200
        assert answer.status_code == expected

    @invariant()
    def the_rows_are_the_model(self) -> None:
        if not self.all:
            return
        rows = self.bench.run(
            self.bench.world.rows(
                "SELECT id, uses, (SELECT count(*) FROM site_agents a WHERE a.token_id = t.id), "
                "(SELECT count(*) FROM site_agents a WHERE a.token_id = t.id AND revoked_at IS NULL) "
                "FROM join_tokens t WHERE id = ANY ($1)",
                [token.id for token in self.all],
            )
        )
        stored = {row[0]: tuple(row)[1:] for row in rows}
        assert stored == {
            token.id: (token.uses, len(token.agents), sum(not member.revoked for member in token.agents))
            for token in self.all
        }


# --- the lease ---------------------------------------------------------------------------------------------------


class Lease(RuleBasedStateMachine):
    """Three agents of one site, their epochs, and a clock that can stop at any moment."""

    bench: ClassVar[Bench]
    agents: ClassVar[list[AgentKeys]] = [AgentKeys.generate() for _ in range(3)]

    @initialize()
    def begin(self) -> None:
        self.site = self.bench.site()
        _, bearer = self.bench.token(self.site, 3)
        joined = [self.bench.join(bearer, keys) for keys in self.agents]
        self.members = [member for member in joined if member is not None]
        assert len(self.members) == 3
        self.ttl = TTL
        self.epoch = 0
        self.holder: int | None = None
        self.expires_at = START
        self.revoked: set[int] = set()
        self.terms: list[tuple[int, int, str]] = []
        self.boots = 0

    def over(self) -> bool:
        """Returns whether the lease has expired."""
        return self.bench.now >= self.expires_at

    def end(self, reason: str) -> None:
        """Ends the term of the holder, if there is one."""
        if self.holder is not None:
            self.terms.append((self.epoch, self.holder, "expired" if self.over() else reason))
        self.holder = None

    def until(self) -> datetime:
        """Returns when a lease ends that is granted now."""
        return self.bench.now + timedelta(seconds=self.ttl)

    who = st.sampled_from([0, 1, 2])
    back = st.sampled_from([0, 0, 0, 1, -1])

    @rule(who=who)
    def acquire(self, who: int) -> None:
        answer = self.bench.ask(self.members[who], "bootLeases/acquire")
        if who in self.revoked:
            assert answer.status_code == 401
            return
        lease = answer.json()
        if self.holder not in {None, who} and not self.over():
            assert (lease["held"], lease["epoch"], lease["holderAgentId"]) == (
                False,
                None,
                self.members[self.holder or 0].id,
            )
            assert datetime.fromisoformat(lease["expiresAt"]) == self.expires_at
            return
        former = self.expires_at if self.holder == who else START
        self.end("reacquired")
        self.epoch, self.holder = self.epoch + 1, who
        self.expires_at = max(former, self.until())
        assert (lease["held"], lease["epoch"], lease["ttlSeconds"]) == (True, self.epoch, self.ttl)
        assert datetime.fromisoformat(lease["expiresAt"]) == self.expires_at

    def allowed(self, who: int, epoch: int) -> int:
        """Returns the status that a request with ``epoch`` gets."""
        if who in self.revoked:
            return 401
        return 200 if self.holder == who and not self.over() and epoch == self.epoch else 409

    @rule(who=who, back=back)
    def renew(self, who: int, back: int) -> None:
        epoch = max(0, self.epoch - back)
        answer = self.bench.ask(self.members[who], "bootLeases/renew", epoch=epoch)
        assert answer.status_code == self.allowed(who, epoch)
        if answer.status_code == 200:
            self.expires_at = max(self.expires_at, self.until())
            assert datetime.fromisoformat(answer.json()["expiresAt"]) == self.expires_at

    @rule(who=who, back=back)
    def record_boot(self, who: int, back: int) -> None:
        epoch = max(0, self.epoch - back)
        answer = self.bench.ask(self.members[who], "bootLeases/recordBoot", epoch=epoch, machine="m")
        assert answer.status_code == self.allowed(who, epoch)
        self.boots += answer.status_code == 200

    @rule(who=who, back=back)
    def release(self, who: int, back: int) -> None:
        epoch = max(0, self.epoch - back)
        answer = self.bench.ask(self.members[who], "bootLeases/release", epoch=epoch)
        assert answer.status_code == self.allowed(who, epoch)
        if answer.status_code == 200 or (self.holder == who and self.over() and epoch == self.epoch):
            self.end("released")

    @rule(seconds=st.sampled_from([1, 4, TTL - 1, TTL, TTL + 1]))
    def wait(self, seconds: int) -> None:
        self.bench.set_clock(self.bench.now + timedelta(seconds=seconds))

    @rule(who=who, early=st.sampled_from([0, 1]), renew=st.booleans())
    def come_at_the_very_end(self, who: int, early: int, renew: bool) -> None:
        if self.holder is None or self.over():
            return
        self.bench.set_clock(self.expires_at - timedelta(microseconds=early))
        if renew:
            self.renew(self.holder, 0)
        else:
            self.acquire(who)

    @rule()
    def sweep(self) -> None:
        async def once() -> None:
            async with self.bench.world.services.access.database.transaction() as tx:
                await leases.end_expired(tx)

        self.bench.run(once())
        if self.over():
            self.end("expired")

    @rule(ttl=st.sampled_from([5, TTL, 300]))
    def change_ttl(self, ttl: int) -> None:
        assert self.bench.post("sites/update", siteId=self.site, bootLeaseTtlSeconds=ttl).status_code == 200
        self.ttl = ttl

    @rule(who=who)
    def revoke(self, who: int) -> None:
        assert self.bench.post("siteAgents/revoke", agentId=self.members[who].id).status_code == 200
        if self.holder == who:
            self.end("revoked")
        self.revoked.add(who)

    @invariant()
    def what_is_shown_is_the_model(self) -> None:
        if not hasattr(self, "boots"):
            return
        shown = self.bench.run(
            self.bench.world.graphql(
                "acme-viewer",
                "query ($id: ID!) { site(id: $id) { bootLease { epoch holderAgentId "
                "history(first: 200) { epoch agentId reason } } } }",
                id=self.site,
            )
        )["data"]["site"]["bootLease"]
        holder = None if self.holder is None or self.over() else self.members[self.holder].id
        assert (shown["epoch"], shown["holderAgentId"]) == (self.epoch, holder)
        history = [(term["epoch"], term["agentId"], term["reason"]) for term in reversed(shown["history"])]
        expected = [(epoch, self.members[who].id, reason) for epoch, who, reason in self.terms]
        if self.holder is not None and self.over() and len(history) == len(expected) + 1:
            self.end("expired")  # the server's own sweep ended the term
            expected = [(epoch, self.members[who].id, reason) for epoch, who, reason in self.terms]
        assert history == expected
        assert self.bench.run(self.bench.world.count("boot_log", "site_id = $1", self.site)) == self.boots


@pytest.mark.parametrize("machine", [TokensAndAgents, Lease])
def test_it_is_the_model(bench: Bench, machine: Any) -> None:
    """After any steps in any order, the responses and the stored rows of the server agree with the model."""
    machine.bench = bench
    run_state_machine_as_test(machine, settings=EXAMPLES)
