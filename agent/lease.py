"""The boot lease as one agent sees it: a state machine without I/O, driven by the caller's elapsed time.

Safety rests on one inequality. A grant is counted from the moment its request was *sent*, which is before the
server began the same TTL; less a margin for clocks that run at different rates. So this agent stops being
holder before the server may give the lease to another. Every event looks at the clock first: an answer that
was waiting while the process was stopped cannot revive a lease whose time has passed.
"""

import random
from collections.abc import Callable
from typing import Literal, NamedTuple

from agent.backoff import Backoff

REFUSED_CAP_SECONDS = 30.0
OFFLINE_CAP_SECONDS = 10.0
LONGEST_RETRY_AFTER_SECONDS = 60.0


class Request(NamedTuple):
    """What to ask of the server: to renew ``epoch``, or to acquire where that is None."""

    epoch: int | None


class Change(NamedTuple):
    """The agent became holder of ``epoch``, or ceased to be."""

    kind: Literal["acquired", "lost"]
    epoch: int
    reason: str


class Grant(NamedTuple):
    """An answer to acquire or renew.

    ``remaining_seconds`` is until the lease, whoever holds it, ends by the server.
    """

    held: bool
    epoch: int | None
    ttl_seconds: float
    remaining_seconds: float | None


def margin_seconds(ttl_seconds: float) -> float:
    """How much earlier than the TTL the agent stops: a tenth of it, within 0.5 to 5 s."""
    return min(5.0, max(0.5, ttl_seconds / 10))


class Lease:
    """Whether this agent is holder, until when, and when to speak to the server next.

    Times are elapsed seconds.
    """

    def __init__(self, now: float, ttl_seconds: float, jitter: Callable[[], float] = random.random) -> None:
        self.epoch: int | None = None
        self.deadline = now
        self.next_at = now
        self.ttl_seconds = ttl_seconds
        self._jitter = jitter
        self._backoff = Backoff(jitter)

    def holds(self, now: float) -> bool:
        """Whether the agent may act as holder at ``now``."""
        return self.epoch is not None and now < self.deadline

    def request(self) -> Request:
        """What to ask at ``next_at``. Call ``expire`` first."""
        return Request(self.epoch)

    def timeout_seconds(self) -> float:
        """How long to wait for an answer, so that several tries fit into a TTL."""
        return min(10.0, max(1.0, self.ttl_seconds / 4))

    def expire(self, now: float) -> list[Change]:
        """Give the lease up if its deadline has passed."""
        if self.epoch is not None and now >= self.deadline:
            return self._lose("the deadline passed without a renewal")
        return []

    def answered(self, request: Request, grant: Grant, *, sent_at: float, now: float) -> list[Change]:
        """The server answered ``request``, which was sent at ``sent_at``."""
        changes = self.expire(now)
        self._backoff.reset()
        self.ttl_seconds = grant.ttl_seconds
        if request.epoch != self.epoch:  # the lease that was renewed is given up by now
            self.next_at = now
            return changes
        if not grant.held or grant.epoch is None:
            if self.epoch is not None:
                changes += self._lose("another agent holds it")
            self._poll(grant, now)
            return changes
        if self.epoch is not None and grant.epoch != self.epoch:
            changes += self._lose("the server renewed another epoch")
            self.next_at = now
            return changes
        deadline = sent_at + grant.ttl_seconds - margin_seconds(grant.ttl_seconds)
        if now >= deadline:  # the answer took too long to be of use
            if self.epoch is not None:
                changes += self._lose("the answer came too late")
            self.next_at = now
            return changes
        if self.epoch is None:
            changes.append(Change("acquired", grant.epoch, "granted by the server"))
        self.epoch, self.deadline = grant.epoch, deadline
        self.next_at = sent_at + grant.ttl_seconds / 3 * (0.9 + 0.1 * self._jitter())
        return changes

    def fenced(self, request: Request, *, now: float) -> list[Change]:
        """The server said that the epoch of ``request`` is not current any more (CONFLICT)."""
        changes = self.expire(now)
        if self.epoch is not None and request.epoch == self.epoch:
            changes += self._lose("the server has a newer epoch")
        self.next_at = now + self._backoff.delay(self.ttl_seconds / 3)
        return changes

    def refused(self, *, now: float, reason: str) -> list[Change]:
        """The server does not know this agent, or not any more: it holds nothing, and asks rarely."""
        changes = self.expire(now)
        if self.epoch is not None:
            changes += self._lose(reason)
        self.next_at = now + self._backoff.delay(REFUSED_CAP_SECONDS)
        return changes

    def failed(self, *, now: float, retry_after_seconds: float | None = None) -> list[Change]:
        """No usable answer: the lease stands until its deadline, and the next try comes well before."""
        changes = self.expire(now)
        tries = 3 if self.epoch is None else 6
        delay = self._backoff.delay(min(OFFLINE_CAP_SECONDS, self.ttl_seconds / tries))
        asked = min(retry_after_seconds or 0.0, LONGEST_RETRY_AFTER_SECONDS)
        self.next_at = now + max(delay, asked)
        return changes

    def _poll(self, grant: Grant, now: float) -> None:
        """Ask again at a third of the TTL, or just after the holder's lease ends if that is sooner."""
        wait = grant.ttl_seconds / 3
        if grant.remaining_seconds is not None:
            wait = min(wait, max(0.0, grant.remaining_seconds))
        self.next_at = now + wait + 0.05 + 0.25 * self._jitter()

    def _lose(self, reason: str) -> list[Change]:
        if self.epoch is None:
            return []
        change = Change("lost", self.epoch, reason)
        self.epoch = None
        return [change]
