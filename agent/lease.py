"""The boot lease as one agent sees it: a state machine without I/O, driven by the caller's elapsed time.

Safety rests on one inequality. The agent counts a grant from the moment at which it *sent* the request, which is before
the server began the same TTL. It subtracts a margin for clocks that run at different rates. So it stops being holder
before the server may give the lease to another agent. Every event checks the clock first: an answer that was waiting
while the process was stopped cannot revive a lease whose time has passed.
"""

import random
from collections.abc import Callable
from typing import Literal, NamedTuple

from agent.backoff import Backoff

REFUSED_CAP_SECONDS = 30.0
OFFLINE_CAP_SECONDS = 10.0
LONGEST_RETRY_AFTER_SECONDS = 60.0


class Request(NamedTuple):
    """A request to the server: to renew ``epoch``, or to acquire if that is None."""

    epoch: int | None


class Change(NamedTuple):
    """A change of holder: the agent became holder of ``epoch``, or ceased to be."""

    kind: Literal["acquired", "lost"]
    epoch: int
    reason: str


class Grant(NamedTuple):
    """An answer to acquire or renew.

    ``remaining_seconds`` is the time until the lease ends at the server, whichever agent holds it.
    """

    held: bool
    epoch: int | None
    ttl_seconds: float
    remaining_seconds: float | None


def margin_seconds(ttl_seconds: float) -> float:
    """Returns how much earlier than the TTL the agent stops: a tenth of the TTL, within 0.5 to 5 s."""
    return min(5.0, max(0.5, ttl_seconds / 10))


class Lease:
    """Tracks whether this agent is holder, until when, and when it next contacts the server.

    All times are elapsed seconds.
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
        """Returns the request to send at ``next_at``. Call ``expire`` first."""
        return Request(self.epoch)

    def timeout_seconds(self) -> float:
        """Returns how long to wait for an answer, so that several tries fit into a TTL."""
        return min(10.0, max(1.0, self.ttl_seconds / 4))

    def expire(self, now: float) -> list[Change]:
        """Gives the lease up if its deadline has passed."""
        if self.epoch is not None and now >= self.deadline:
            return self._lose("the deadline passed without a renewal")
        return []

    def answered(self, request: Request, grant: Grant, *, sent_at: float, now: float) -> list[Change]:
        """Takes the server's answer to ``request``, which was sent at ``sent_at``."""
        changes = self.expire(now)
        self._backoff.reset()
        self.ttl_seconds = grant.ttl_seconds
        if request.epoch != self.epoch:  # the agent has given up the lease that this request renewed
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
        if now >= deadline:  # the answer took too long to be used
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
        """Takes a CONFLICT: the server says that the epoch of ``request`` is no longer current."""
        changes = self.expire(now)
        if self.epoch is not None and request.epoch == self.epoch:
            changes += self._lose("the server has a newer epoch")
        self.next_at = now + self._backoff.delay(self.ttl_seconds / 3)
        return changes

    def refused(self, *, now: float, reason: str) -> list[Change]:
        """Takes a refusal: the server does not, or no longer, know this agent.

        The agent gives up what it holds, and asks rarely from then on.
        """
        changes = self.expire(now)
        if self.epoch is not None:
            changes += self._lose(reason)
        self.next_at = now + self._backoff.delay(REFUSED_CAP_SECONDS)
        return changes

    def failed(self, *, now: float, retry_after_seconds: float | None = None) -> list[Change]:
        """Takes a request without a usable answer.

        The lease stands until its deadline, and the next try comes well before it.
        """
        changes = self.expire(now)
        tries = 3 if self.epoch is None else 6
        delay = self._backoff.delay(min(OFFLINE_CAP_SECONDS, self.ttl_seconds / tries))
        retry_after = min(retry_after_seconds or 0.0, LONGEST_RETRY_AFTER_SECONDS)
        self.next_at = now + max(delay, retry_after)
        return changes

    def _poll(self, grant: Grant, now: float) -> None:
        """Plans the next request after a third of the TTL, or just after the holder's lease ends if that is sooner."""
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
