"""Runs ``bcd site run``: contends for the boot lease, keeps it, and runs the hooks, until it is told to stop."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from datetime import UTC, datetime

from agent.client import ACQUIRE, RELEASE, RENEW, AgentClient, LeaseAnswer, new_http, understood
from agent.clock import Clock, boot_id
from agent.errors import CommandError, Exit, RefusedError
from agent.hooks import Hooks
from agent.lease import Change, Lease, Request
from agent.state import Phase, StateDir, Status

WATCH_SECONDS = 0.25
"""How often the deadline is checked.

The event loop's timers stand still during suspend. The check reads a clock that does not.
"""

RELEASE_TIMEOUT_SECONDS = 3.0

Log = Callable[..., None]


class Runner:
    """Runs one agent in its state dir.

    ``log`` is called with each event and its facts, ``show`` with each new status.
    """

    def __init__(
        self,
        state: StateDir,
        clock: Clock,
        *,
        on_acquire: list[str] | None,
        on_release: list[str] | None,
        hook_timeout_seconds: float,
        log: Log,
        show: Callable[[Status], None] = lambda _: None,
    ) -> None:
        self._show = show
        self._state = state
        self._clock = clock
        self._log = log
        self._profile, self._enrolment, _ = state.joined()
        last = state.status()
        skew = last.clock_skew_seconds if last is not None else self._profile.clock_skew_seconds
        self._status = Status(
            phase="starting",
            boot_id=boot_id(),
            pid=os.getpid(),
            last_contact_at=last.last_contact_at if last is not None else None,
            clock_skew_seconds=skew,
            owed_release=last.owed_release if last is not None else None,
        )
        self._http = new_http(self._profile.server)
        self._client = AgentClient(state, self._http, clock, skew)
        self._lease = Lease(clock.elapsed(), self._enrolment.boot_lease_ttl_seconds)
        self._hooks = Hooks(
            on_acquire=on_acquire,
            on_release=on_release,
            timeout_seconds=hook_timeout_seconds,
            environment={"BC_SITE_ID": self._enrolment.site_id, "BC_AGENT_ID": self._enrolment.agent_id},
            log=log,
            done=self._released,
        )
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Works until ``stop``, then runs on-release, and only then gives the lease back.

        It renews the lease while on-release runs, so that no other agent begins before this one has ended. If it is
        cancelled, it does neither, as if the process had been killed.
        """
        self._log(
            "started",
            agent_id=self._enrolment.agent_id,
            site_id=self._enrolment.site_id,
            server=self._profile.server,
        )
        self._publish("starting")
        async with self._http:
            hooks = asyncio.create_task(self._hooks.run())
            contend, watch = asyncio.create_task(self._contend()), asyncio.create_task(self._watch())
            stop = asyncio.create_task(self._stop.wait())
            if self._status.owed_release is not None:  # the last run was killed as holder
                self._hooks.released(self._status.owed_release)
            tasks = (stop, contend, watch, hooks)
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await self._wind_down(contend, hooks)
            finally:
                for task in tasks:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                self._publish("stopped")
            for result in results:  # the failure of a task must not look like an orderly end
                if isinstance(result, Exception):
                    raise result
        self._log("stopped")

    def stop(self) -> None:
        """Asks ``run`` to end in order. A second call makes it not wait for on-release."""
        if self._stop.is_set():
            self._hooks.hurry()
        self._stop.set()

    async def _wind_down(self, contend: asyncio.Task[None], hooks: asyncio.Task[None]) -> None:
        self._publish("stopping")
        epoch = self._lease.epoch
        if epoch is None:
            contend.cancel()  # else an answer on its way could make this agent holder now
        else:
            self._hooks.released(epoch)
        idle = asyncio.create_task(self._hooks.idle())
        await asyncio.wait([idle, hooks], return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        if epoch is not None and epoch == self._lease.epoch:
            await self._give_back(epoch)

    async def _give_back(self, epoch: int) -> None:
        self._apply(self._lease.refused(now=self._clock.elapsed(), reason="the agent stops"))
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_SECONDS):
                await self._client.call(RELEASE, {"epoch": epoch})
            self._publish("stopping", holder_agent_id=None, expires_at=None)
            self._log("lease released", epoch=epoch)
        except (CommandError, TimeoutError) as error:
            self._log("lease not released, it will expire", epoch=epoch, error=str(error) or "timed out")

    async def _contend(self) -> None:
        """Requests the lease, renews it, and waits in between."""
        while True:
            await self._sleep_until(self._lease.next_at)
            self._apply(self._lease.expire(self._clock.elapsed()))
            request = self._lease.request()
            if request.epoch is None:
                await self._hooks.idle()
                if self._stop.is_set():
                    return
            await self._ask(request)

    async def _ask(self, request: Request) -> None:
        path, body = (ACQUIRE, {}) if request.epoch is None else (RENEW, {"epoch": request.epoch})
        try:
            async with asyncio.timeout(self._lease.timeout_seconds()):
                sent = await self._client.call(path, body)
            answer = understood(LeaseAnswer, sent.body)
        except RefusedError as refusal:
            self._apply(self._after_refusal(request, refusal))
            self._trouble(_phase_after(refusal), str(refusal))
        except TimeoutError:
            self._apply(self._lease.failed(now=self._clock.elapsed()))
            self._trouble("offline", "The server did not answer in time.")
        except CommandError as failure:
            self._apply(self._lease.failed(now=self._clock.elapsed()))
            self._trouble("offline", str(failure))
        else:
            self._note(answer)
            now = self._clock.elapsed()
            self._apply(self._lease.answered(request, answer.grant(), sent_at=sent.sent_at, now=now))
            self._publish("holder" if self._lease.holds(now) else "standby", last_error=None)

    def _after_refusal(self, request: Request, refusal: RefusedError) -> list[Change]:
        now = self._clock.elapsed()
        if refusal.code == "CONFLICT":
            return self._lease.fenced(request, now=now)
        if _final(refusal):
            return self._lease.refused(now=now, reason=f"refused by the server: {refusal.code}")
        return self._lease.failed(now=now, retry_after_seconds=refusal.retry_after_seconds)

    async def _watch(self) -> None:
        """Gives the lease up at its deadline, even while a request waits for its answer."""
        while True:
            self._apply(self._lease.expire(self._clock.elapsed()))
            remaining = self._lease.deadline - self._clock.elapsed() if self._lease.epoch is not None else 1.0
            await asyncio.sleep(min(WATCH_SECONDS, max(0.001, remaining)))

    async def _sleep_until(self, moment: float) -> None:
        while (remaining := moment - self._clock.elapsed()) > 0:  # noqa: ASYNC110 time is not an event
            await asyncio.sleep(min(WATCH_SECONDS, remaining))

    def _apply(self, changes: list[Change]) -> None:
        """Reports changes to the hooks and the log, and in the status."""
        for change in changes:
            if change.kind == "acquired":
                self._status = self._status.model_copy(update={"owed_release": change.epoch})
                self._publish("holder")
                self._log("lease acquired", epoch=change.epoch)
                self._hooks.acquired(change.epoch)
            else:
                self._log("lease lost", epoch=change.epoch, reason=change.reason)
                self._hooks.released(change.epoch)
                self._publish("stopping" if self._stop.is_set() else "standby")

    def _released(self, epoch: int) -> None:
        if self._status.owed_release == epoch:
            self._status = self._status.model_copy(update={"owed_release": None})
            self._publish(self._status.phase)

    def _note(self, answer: LeaseAnswer) -> None:
        time = self._client.server_time
        if time.off and not self._status.clock_off:
            self._log("this host's clock is off", seconds=time.skew_seconds)
        self._status = self._status.model_copy(
            update={
                "expires_at": answer.expires_at,
                "ttl_seconds": answer.ttl_seconds,
                "holder_agent_id": answer.holder_agent_id,
                "last_contact_at": answer.server_time,
                "clock_skew_seconds": time.skew_seconds,
                "clock_off": time.off,
            }
        )

    def _trouble(self, phase: Phase, error: str) -> None:
        if error != self._status.last_error:
            self._log("no lease answer", error=error, since=datetime.now(UTC).isoformat(timespec="seconds"))
        holds = self._lease.holds(self._clock.elapsed())
        self._publish("holder" if holds else phase, last_error=error)

    def _publish(self, phase: Phase, **changes: object) -> None:
        holding = self._lease.epoch
        self._status = self._status.model_copy(
            update={
                "phase": "stopping" if self._stop.is_set() and phase not in ("stopping", "stopped") else phase,
                "epoch": holding,
                "deadline_elapsed": self._lease.deadline if holding is not None else None,
                **changes,
            }
        )
        self._show(self._status)
        with contextlib.suppress(CommandError):  # a full disk must not cost the lease
            self._state.save_status(self._status)


def _phase_after(refusal: RefusedError) -> Phase:
    if refusal.code == "CONFLICT":
        return "standby"
    return "refused" if _final(refusal) else "offline"


def _final(refusal: RefusedError) -> bool:
    """Whether the refusal means that this agent may hold nothing: it is unknown or revoked, or its site is deleted."""
    return refusal.exit_code in (Exit.UNAUTHENTICATED, Exit.DENIED, Exit.NOT_FOUND) or (refusal.code == "INVALID_STATE")
