"""Tests ``bcd site run`` as processes: its lease and its hooks when the holder is killed, paused or stopped."""

import asyncio
import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.clock import SystemClock
from agent.runner import Runner
from agent.state import StateDir
from tests.support.agent_support import SITE, Bench, open_bench, wait_for

pytestmark = pytest.mark.anyio

TTL = 2.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    for bench in open_bench(tmp_path):
        bench.contract.ttl = TTL
        yield bench


@pytest.fixture
def pair(bench: Bench) -> Bench:
    """Two enrolled agents ``a`` and ``b`` of one name on one site (client-go 448)."""
    for name in ("a", "b"):
        bench.enrol(name)
    return bench


def hook(bench: Bench, file: str, *, then: str = "") -> str:
    """Returns the command of a hook that appends its environment to ``file`` and then runs ``then``."""
    line = 'echo "$BC_BOOT_EPOCH $BC_SITE_ID $BC_AGENT_ID"'
    return shlex.join(["sh", "-c", f"{line} >> {bench.folder / file}; {then}"])


def written(bench: Bench, file: str) -> list[str]:
    path = bench.folder / file
    return path.read_text().splitlines() if path.exists() else []


def holder(bench: Bench, name: str, epoch: int | None = None) -> bool:
    status = bench.status(name)
    return bool(status["holder"]) and epoch in (None, status["epoch"])


def test_killed_holder_is_followed_within_ttl_and_two_seconds(pair: Bench) -> None:
    first = pair.run("a")
    wait_for(lambda: holder(pair, "a", 1))
    pair.run("b")
    wait_for(lambda: pair.status("b")["state"] == "standby" and pair.status("b")["holderAgentId"])
    assert not holder(pair, "b")
    killed_at = time.monotonic()
    first.kill()
    first.wait()
    assert not holder(pair, "a")
    wait_for(lambda: holder(pair, "b", 2))
    assert time.monotonic() - killed_at < TTL + 2


def test_paused_holder_wakes_up_as_none(pair: Bench) -> None:
    """Kubernetes 23731: it checks the clock first and runs on-release. The server refuses writes of the old epoch."""
    first = pair.run("a", "--on-release", hook(pair, "released"))
    wait_for(lambda: holder(pair, "a", 1))
    os.kill(first.pid, signal.SIGSTOP)
    pair.run("b")
    wait_for(lambda: holder(pair, "b", 2))
    assert not holder(pair, "a")  # although its process exists and does not know yet
    renewals = len(pair.contract.requests)
    agent_id = pair.status("a")["agentId"]
    os.kill(first.pid, signal.SIGCONT)
    wait_for(lambda: written(pair, "released"))
    assert written(pair, "released") == [f"1 {SITE} {agent_id}"]
    wait_for(lambda: len(pair.contract.requests) > renewals + 4)
    assert not holder(pair, "a")
    assert [epoch for epoch, _ in pair.contract.history] == [1, 2]
    # The server fences off a hook of the old epoch that goes on.
    as_hook = {"BC_AGENT_ID": agent_id, "BC_BOOT_EPOCH": "1"}
    state = ("--state-dir", str(pair.state("a")))
    pair.contract.granted["secret://tenant/acme/bmc", 1] = b"value"
    assert pair.site("record-boot", "m1", *state, **as_hook).returncode == 7
    out = pair.folder / "out"
    got = pair.site("secret", "get", "secret://tenant/acme/bmc", "--out", str(out), *state, **as_hook)
    assert got.returncode == 5
    assert not out.exists()
    assert pair.contract.boots == []
    assert pair.site("record-boot", "m1", *state).returncode == 7  # not the holder by its own clock: it sends nothing


def test_sigterm_runs_on_release_under_a_live_lease_and_then_gives_it_back(pair: Bench) -> None:
    release = hook(pair, "released", then=f"sleep {TTL * 1.5}; echo end >> {pair.folder / 'released'}")
    first = pair.run("a", "--on-release", release)
    wait_for(lambda: holder(pair, "a", 1))
    pair.run("b", "--on-acquire", hook(pair, "released"))
    wait_for(lambda: pair.status("b")["state"] == "standby")
    first.terminate()
    assert first.wait(10) == 0
    given_back = time.monotonic()
    wait_for(lambda: holder(pair, "b", 2))
    assert time.monotonic() - given_back < TTL  # released, not expired
    wait_for(lambda: len(written(pair, "released")) == 3)
    assert [line.split()[0] for line in written(pair, "released")] == ["1", "end", "2"]
    assert pair.status("a")["state"] == "stopped"


def test_hung_on_acquire_blocks_no_renewal_and_ends_with_the_lease(pair: Bench) -> None:
    """The children of a hook end too, and a hook that ignores SIGTERM ends as well."""
    pid_file = pair.folder / "pids"
    stubborn = f"trap '' TERM; echo $$ >> {pid_file}; sleep 600 & echo $! >> {pid_file}; while :; do wait; done"
    pair.run("a", "--on-acquire", shlex.join(["sh", "-c", stubborn]), "--on-release", hook(pair, "released"))
    wait_for(lambda: holder(pair, "a", 1) and len(written(pair, "pids")) == 2)
    renewals = [path for path, _ in pair.contract.requests if path.endswith("renew")]
    wait_for(lambda: len([p for p, _ in pair.contract.requests if p.endswith("renew")]) > len(renewals) + 4)
    assert holder(pair, "a", 1)
    pair.contract.unavailable = True
    wait_for(lambda: written(pair, "released"))
    wait_for(lambda: not any(alive(int(pid)) for pid in written(pair, "pids")))  # a killed process ends after a moment


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_hung_on_release_is_ended_in_time(pair: Bench) -> None:
    first = pair.run("a", "--on-release", "sleep 600", "--hook-timeout", "0.5")
    wait_for(lambda: holder(pair, "a"))
    first.terminate()
    assert first.wait(10) == 0
    assert pair.contract.holder is None
    assert any(line["event"] == "hook timed out" for line in pair.log("a"))


def test_second_signal_ends_the_hook(pair: Bench) -> None:
    first = pair.run("a", "--on-release", "sleep 600")
    wait_for(lambda: holder(pair, "a"))
    first.terminate()
    wait_for(lambda: any(line.get("hook") == "on-release" for line in pair.log("a")))
    first.terminate()
    assert first.wait(10) == 0


def test_on_release_that_a_killed_run_owed_is_run_by_the_next(pair: Bench) -> None:
    first = pair.run("a")
    wait_for(lambda: holder(pair, "a", 1))
    first.kill()
    first.wait()
    second = pair.run(
        "a", "--on-acquire", hook(pair, "hooks", then="true acquired"), "--on-release", hook(pair, "hooks")
    )
    wait_for(lambda: holder(pair, "a", 2) and len(written(pair, "hooks")) == 2)
    assert [line.split()[0] for line in written(pair, "hooks")] == ["1", "2"]
    second.terminate()
    second.wait(10)
    assert [line.split()[0] for line in written(pair, "hooks")] == ["1", "2", "2"]


def test_restarted_server_is_found_again(pair: Bench) -> None:
    pair.run("a")
    wait_for(lambda: holder(pair, "a"))
    pair.server.stop()
    wait_for(lambda: not holder(pair, "a") and pair.status("a")["state"] == "offline")
    assert "cannot be reached" in pair.status("a")["lastError"]
    pair.server.start()
    started = time.monotonic()
    wait_for(lambda: holder(pair, "a"))
    assert time.monotonic() - started < 2 * TTL
    wait_for(lambda: pair.status("a")["lastError"] is None)  # written after the state


def test_short_outage_costs_no_lease(pair: Bench) -> None:
    pair.run("a")
    wait_for(lambda: holder(pair, "a", 1))
    pair.contract.unavailable = True
    wait_for(lambda: pair.status("a")["lastError"])
    assert holder(pair, "a", 1)
    pair.contract.unavailable = False
    wait_for(lambda: pair.status("a")["lastError"] is None)
    assert holder(pair, "a", 1)
    assert pair.contract.history[-1][0] == 1


def test_revoked_agent_steps_down_at_once_and_says_so(pair: Bench) -> None:
    pair.contract.ttl = 6.0
    pair.run("a", "--on-release", hook(pair, "released"))
    wait_for(lambda: holder(pair, "a"))
    pair.contract.revoked.add(pair.status("a")["agentId"])
    wait_for(lambda: pair.status("a")["state"] == "refused")
    wait_for(lambda: written(pair, "released"))
    assert "UNAUTHENTICATED" in pair.status("a")["lastError"]
    [lost] = [line for line in pair.log("a") if line["event"] == "lease lost"]
    assert "refused" in lost["reason"]  # it did not wait for the deadline


def test_only_one_run_in_a_state_dir(pair: Bench) -> None:
    pair.run("a")
    wait_for(lambda: holder(pair, "a"))
    assert pair.site("run", "--state-dir", str(pair.state("a"))).returncode == 7
    assert holder(pair, "a", 1)


def test_offline_for_a_day_comes_back_without_a_new_token(pair: Bench) -> None:
    """Nomad 28555: a client that was offline longer than its lifetime could not recover."""
    first = pair.run("a")
    wait_for(lambda: holder(pair, "a"))
    first.terminate()
    first.wait(10)
    pair.contract.clock_ahead = 86_400.0  # to the agent, this is also a clock that is wrong by a day
    pair.run("a")
    wait_for(lambda: holder(pair, "a", 2))
    status = pair.status("a")
    assert status["clockOff"] is True
    assert status["clockSkewSeconds"] == pytest.approx(-86_400, abs=5)
    assert any("clock is off" in line["event"] for line in pair.log("a"))


def test_no_request_token_is_used_twice_or_logged(pair: Bench) -> None:
    pair.run("a")
    wait_for(lambda: len(pair.contract.authorizations) > 3)
    seen = pair.contract.authorizations
    assert len(set(seen)) == len(seen)
    log = (pair.folder / "a.log").read_text()
    assert all(token.removeprefix("Bearer ") not in log for token in seen)


def test_secret_is_opened_into_a_private_file(pair: Bench) -> None:
    value = "line\r\n\0 ü\n\n".encode()
    reference = "secret://tenant/acme/bmc"
    pair.contract.granted[reference, 1] = b"old"
    pair.contract.granted[reference, 2] = value
    pair.run("a")
    wait_for(lambda: holder(pair, "a"))
    out = pair.folder / "out"
    out.write_text("before")
    out.chmod(0o644)
    state = ("--state-dir", str(pair.state("a")))
    got = pair.site("secret", "get", reference, "--out", str(out), "--json", *state)
    assert got.returncode == 0, got.stderr
    assert json.loads(got.stdout) == {"reference": reference, "version": 2, "file": str(out)}
    assert out.read_bytes() == value
    assert out.stat().st_mode & 0o777 == 0o600
    assert "line" not in got.stdout + got.stderr
    assert pair.site("secret", "get", reference, "--version", "1", "--out", str(out), *state).returncode == 0
    assert out.read_bytes() == b"old"
    assert pair.site("secret", "get", reference, "--version", "9", "--out", str(out), *state).returncode == 5
    assert out.read_bytes() == b"old"
    assert sorted(path.name for path in pair.folder.glob(".out*")) == []


def test_rotated_key_is_taken_by_the_running_agent(pair: Bench) -> None:
    pair.run("a")
    wait_for(lambda: holder(pair, "a", 1))
    agent = pair.contract.agents[pair.status("a")["agentId"]]
    old = agent["key"]
    assert pair.site("rotate-key", "--state-dir", str(pair.state("a"))).returncode == 0
    assert agent["key"] != old
    answered = pair.status("a")["lastContactAt"]
    wait_for(lambda: pair.status("a")["lastContactAt"] > answered)
    time_of_rotation = pair.status("a")["lastContactAt"]
    wait_for(lambda: pair.status("a")["lastContactAt"] > time_of_rotation)
    assert holder(pair, "a", 1)


def test_interrupted_rotation_is_resumed_with_the_same_key(pair: Bench) -> None:
    state = ("--state-dir", str(pair.state("a")))
    pair.contract.lose_answers = 2  # the responses of self and of rotateKey
    assert pair.site("rotate-key", *state).returncode == 9
    assert pair.site("rotate-key", *state).returncode == 9
    assert pair.site("rotate-key", *state).returncode == 0
    assert len({body["newPublicKey"]["x"] for path, body in pair.contract.requests if "rotate" in path}) == 1


def test_status_command_prints_the_document(pair: Bench) -> None:
    done = pair.site("status", "--state-dir", str(pair.state("a")), "--json")
    document = json.loads(done.stdout)
    assert document["holder"] is False
    assert document["epoch"] is None
    assert document["state"] == "stopped"
    assert document.keys() >= {"agentId", "siteId", "expiresAt", "lastContactAt", "clockSkewSeconds", "server"}
    assert pair.site("status", "--state-dir", str(pair.folder / "none")).returncode == 7


class SuspendedHost(SystemClock):
    """The clock of a host that was suspended: elapsed time went on, and the timers of the event loop did not."""

    slept = 0.0

    def elapsed(self) -> float:
        return super().elapsed() + self.slept


async def test_holder_that_was_suspended_finds_out_though_a_request_hangs(pair: Bench) -> None:
    pair.contract.ttl = 60.0
    clock = SuspendedHost()
    lost: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    held = asyncio.Event()

    def log(event: str, **facts: object) -> None:
        if event == "lease acquired":
            held.set()
        if event == "lease lost":
            lost.put_nowait(facts)

    runner = Runner(
        StateDir.open(pair.state("a")), clock, on_acquire=None, on_release=None, hook_timeout_seconds=1, log=log
    )
    async with asyncio.timeout(10):
        running = asyncio.create_task(runner.run())
        await held.wait()
        pair.contract.hang.clear()
        try:
            clock.slept = 21.0  # the next renewal is due, and gets no response
            await asyncio.to_thread(wait_for, lambda: pair.contract.hung)
            clock.slept = 61.0
            assert (await lost.get())["epoch"] == 1
        finally:
            pair.contract.hang.set()
            runner.stop()
            await running


def test_deadline_of_another_boot_counts_for_nothing(pair: Bench) -> None:
    pair.run("a")
    wait_for(lambda: holder(pair, "a"))
    status_file = pair.state("a") / "status.json"
    stored = json.loads(status_file.read_text()) | {"bootId": "another", "deadlineElapsed": 1e12}
    os.kill(pair._processes[0].pid, signal.SIGSTOP)
    status_file.write_text(json.dumps(stored))
    assert not holder(pair, "a")
