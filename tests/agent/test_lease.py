"""Tests the agent's lease under simulated clocks of different rates and a network that delays and loses messages.

The server is the plain rule of the contract on true time. Requests and responses may be delayed without bound, lost, or
reordered. A process may be paused at any point (kubernetes 23731: a paused leader went on writing).
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agent.lease import Change, Grant, Lease, Request, margin_seconds

AGENTS = 3
AGENT = st.integers(0, AGENTS - 1)


@dataclass
class Server:
    """The model of the server: it has at most one holder by its clock, and each acquire that it grants raises the
    epoch.
    """

    ttl: float
    holder: int | None = None
    epoch: int = 0
    expires_at: float = 0.0

    def expire(self, now: float) -> None:
        if self.holder is not None and now >= self.expires_at:
            self.holder, self.expires_at = None, 0.0

    def act(self, agent: int, request: Request, now: float) -> Grant | None:
        """Returns the grant, or None for CONFLICT."""
        self.expire(now)
        if request.epoch is not None:
            if self.holder != agent or self.epoch != request.epoch:
                return None
        elif self.holder in (None, agent):
            self.holder, self.epoch = agent, self.epoch + 1
        else:
            return Grant(held=False, epoch=None, ttl_seconds=self.ttl, remaining_seconds=self.expires_at - now)
        # The end never moves to an earlier time: the response may be lost, and the holder then uses the former end.
        self.expires_at = max(now + self.ttl, self.expires_at)
        return Grant(held=True, epoch=self.epoch, ttl_seconds=self.ttl, remaining_seconds=self.ttl)


@dataclass
class Agent:
    """An agent: its lease, and the clock of its host."""

    rate: float
    lease: Lease
    waiting: int | None = None
    sent_at: float = 0.0
    changes: list[Change] = field(default_factory=list)

    def clock(self, now: float) -> float:
        return 1000.0 + now * self.rate


class Fleet(RuleBasedStateMachine):
    """Any interleaving of passing time, agents that send or give up, and messages that arrive or are lost."""

    @initialize(
        ttl=st.sampled_from([5.0, 8.0, 30.0, 300.0]),
        rates=st.lists(st.floats(0.985, 1.0), min_size=AGENTS, max_size=AGENTS),
        jitter=st.randoms(use_true_random=False),
    )
    def begin(self, ttl: float, rates: list[float], jitter) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
        self.now = 0.0
        self.server = Server(ttl)
        self.agents = [Agent(rate, Lease(1000.0, ttl, jitter.random)) for rate in rates]
        self.requests: dict[int, tuple[int, Request]] = {}
        self.answers: dict[int, tuple[int, Request, Grant | None]] = {}
        self.sent = 0
        self.granted: list[int] = []

    @rule(seconds=st.one_of(st.floats(0.01, 3.0), st.floats(3.0, 600.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def time_passes_to_the_end_of_the_lease(self) -> None:
        self.now = max(self.now, self.server.expires_at)

    @rule(ttl=st.sampled_from([5.0, 8.0, 30.0, 300.0]))
    def operator_sets_ttl(self, ttl: float) -> None:
        self.server.ttl = ttl

    @rule(index=AGENT)
    def agent_sends(self, index: int) -> None:
        """The agent also gives up its earlier request, which may still reach the server."""
        agent = self.agents[index]
        now = agent.clock(self.now)
        agent.changes += agent.lease.expire(now)
        if agent.waiting is not None:
            agent.changes += agent.lease.failed(now=now)
        self.sent += 1
        agent.waiting, agent.sent_at = self.sent, now
        self.requests[self.sent] = (index, agent.lease.request())

    @rule(pick=st.integers(0, 100))
    def request_arrives(self, pick: int) -> None:
        if self.requests:
            number = sorted(self.requests)[pick % len(self.requests)]
            index, request = self.requests.pop(number)
            grant = self.server.act(index, request, self.now)
            if grant is not None and grant.held and request.epoch is None and grant.epoch is not None:
                self.granted.append(grant.epoch)
            self.answers[number] = (index, request, grant)

    @rule(pick=st.integers(0, 100))
    def answer_arrives(self, pick: int) -> None:
        if self.answers:
            number = sorted(self.answers)[pick % len(self.answers)]
            index, request, grant = self.answers.pop(number)
            agent = self.agents[index]
            if agent.waiting != number:
                return  # the agent gave this request up
            agent.waiting = None
            now = agent.clock(self.now)
            if grant is None:
                agent.changes += agent.lease.fenced(request, now=now)
            else:
                agent.changes += agent.lease.answered(request, grant, sent_at=agent.sent_at, now=now)

    @rule(pick=st.integers(0, 100))
    def message_is_lost(self, pick: int) -> None:
        lot = self.requests if pick % 2 else self.answers
        if lot:
            lot.pop(sorted(lot)[pick % len(lot)])

    @rule(index=AGENT)
    def agent_is_refused(self, index: int) -> None:
        agent = self.agents[index]
        agent.waiting = None
        agent.changes += agent.lease.refused(now=agent.clock(self.now), reason="revoked")

    @invariant()
    def holder_is_the_servers(self) -> None:
        """An agent that holds the lease by its own clock is the holder by the server's clock, even if it is still
        paused.
        """
        if not hasattr(self, "agents"):
            return
        for index, agent in enumerate(self.agents):
            if agent.lease.holds(agent.clock(self.now)):
                self.server.expire(self.now)
                # The server may have granted the same agent a newer epoch, by a request that the agent gave up.
                assert self.server.holder == index
                assert agent.lease.epoch is not None
                assert agent.lease.epoch <= self.server.epoch

    @invariant()
    def epochs_rise(self) -> None:
        for agent in getattr(self, "agents", []):
            acquired = [change.epoch for change in agent.changes if change.kind == "acquired"]
            assert acquired == sorted(set(acquired))
            kinds = [change.kind for change in agent.changes]
            assert kinds == ["acquired", "lost"] * (len(kinds) // 2) + ["acquired"] * (len(kinds) % 2)
        granted = getattr(self, "granted", [])
        assert granted == sorted(set(granted))


Fleet.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_fleet = Fleet.TestCase


def held(epoch: int, ttl: float = 10.0) -> Grant:
    return Grant(held=True, epoch=epoch, ttl_seconds=ttl, remaining_seconds=ttl)


def holder_of(epoch: int, ttl: float = 10.0) -> Lease:
    lease = Lease(0.0, ttl, lambda: 0.0)
    assert lease.answered(Request(None), held(epoch, ttl), sent_at=0.0, now=0.1) == [
        Change("acquired", epoch, "granted by the server")
    ]
    return lease


def test_deadline_counts_from_when_the_request_left() -> None:
    lease = holder_of(1)
    assert lease.deadline == 10.0 - margin_seconds(10.0)
    assert lease.holds(lease.deadline - 0.001)
    assert not lease.holds(lease.deadline)


def test_paused_holder_is_none_when_it_wakes() -> None:
    """Kubernetes 23731: a paused leader went on writing. A renewal that was answered meanwhile does not restore the
    lease.
    """
    lease = holder_of(1)
    changes = lease.answered(Request(1), held(1), sent_at=3.0, now=30.0)
    assert [(change.kind, change.epoch) for change in changes] == [("lost", 1)]
    assert lease.request() == Request(None)
    assert lease.next_at <= 30.0


def test_acquire_answered_too_late_is_not_taken() -> None:
    lease = Lease(0.0, 10.0, lambda: 0.0)
    assert lease.answered(Request(None), held(7), sent_at=0.0, now=9.5) == []
    assert lease.epoch is None


def test_late_renewal_of_a_lost_epoch_is_ignored() -> None:
    lease = holder_of(1)
    lost = lease.expire(9.0)
    assert [change.kind for change in lost] == ["lost"]
    assert lease.answered(Request(1), held(1), sent_at=8.9, now=9.1) == []
    assert lease.epoch is None


def test_holder_tries_again_well_before_its_deadline() -> None:
    lease = holder_of(1, ttl=5.0)
    now, tries = lease.next_at, 0
    while not lease.failed(now=now):
        tries += 1
        now = lease.next_at
    assert tries >= 5
    assert now >= lease.deadline


def test_standby_asks_right_after_the_holders_lease_ends() -> None:
    lease = Lease(0.0, 30.0, lambda: 1.0)
    lease.answered(Request(None), Grant(False, None, 30.0, 1.5), sent_at=0.0, now=0.1)
    assert 1.6 <= lease.next_at <= 0.1 + 1.5 + 0.3


def test_retry_after_is_obeyed() -> None:
    lease = Lease(0.0, 30.0, lambda: 0.0)
    lease.failed(now=1.0, retry_after_seconds=20)
    assert lease.next_at == 21.0


def test_ttl_that_was_shortened_counts_from_the_next_renewal() -> None:
    lease = holder_of(1, ttl=300.0)
    lease.answered(Request(1), held(1, ttl=5.0), sent_at=100.0, now=100.1)
    assert lease.deadline == 100.0 + 5.0 - margin_seconds(5.0)
