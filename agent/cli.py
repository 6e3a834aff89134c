"""The commands of ``bcd site``: join a site, contend for its boot lease, and fetch secrets.

The command ``bcd`` mounts them.
"""

import asyncio
import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from agent import hooks
from agent.client import (
    READ_SECRET,
    RECORD_BOOT,
    ROTATE_KEY,
    SELF,
    AgentClient,
    RecordedBoot,
    SealedSecret,
    SelfAnswer,
    new_http,
    understood,
)
from agent.clock import SKEW_LIMIT_SECONDS, SystemClock
from agent.errors import CommandError, Exit, RefusedError
from agent.files import write_private
from agent.http import sends_in_clear, server_url
from agent.join import join as enrol
from agent.join import read_token
from agent.keys import public_jwk
from agent.runner import Runner
from agent.state import StateDir
from agent.terminal import RunLog, note, print_json, print_record, reports_errors

app = typer.Typer(no_args_is_help=True, help="The site agent: join a site, hold its boot lease, fetch secrets.")
secret_app = typer.Typer(no_args_is_help=True, help="Secrets that the site was granted.")
app.add_typer(secret_app, name="secret")

StateOption = Annotated[Path, typer.Option("--state-dir", help="The agent's folder, mode 0700.", file_okay=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for scripts.")]


@app.command()
@reports_errors
def join(
    server: Annotated[str, typer.Option(envvar="BC_SERVER", help="The API's address.")],
    token_file: Annotated[
        str, typer.Option(help="File with the site token, `-` for standard input. Never an argument.")
    ],
    state_dir: StateOption,
    name: Annotated[str | None, typer.Option(help="Name for people; the host's if absent.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Enrol this machine with a site token. Run it again with the same token if the answer was lost."""
    token = read_token(token_file)
    address = server_url(server)
    if sends_in_clear(address):
        note("Warning: plain HTTP to another host: the token crosses the network readably.", "yellow")
    state = StateDir.create(state_dir)
    known = state.profile()
    enrolment = asyncio.run(
        enrol(
            state,
            server=address,
            token=token,
            name=name,
            default_name=socket.gethostname() or "agent",
            clock=SystemClock(),
        )
    )
    if known is not None and known.enrolment is not None:
        note("This state dir had joined already; the token was not used.")
    profile = state.profile()
    if profile is not None:
        _warn_of_skew(profile.clock_skew_seconds)
    record = enrolment.model_dump(mode="json", by_alias=True)
    print_json(record) if as_json else print_record(record)


@app.command()
@reports_errors
def run(
    state_dir: StateOption,
    on_acquire: Annotated[
        str | None,
        typer.Option(help="Command run as holder, with BC_BOOT_EPOCH, BC_SITE_ID, BC_AGENT_ID; ended with the lease."),
    ] = None,
    on_release: Annotated[str | None, typer.Option(help="Command run when this agent ceased to be holder.")] = None,
    hook_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that --on-release may take; then it is killed.")
    ] = 30.0,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="One JSON object a line.")] = False,
) -> None:
    """Contend for the site's boot lease until stopped.

    SIGTERM runs --on-release, then gives the lease back.
    """
    state = StateDir.open(state_dir)
    log = RunLog(as_json=json_logs)
    with state.alone("run"), log:
        runner = Runner(
            state,
            SystemClock(),
            on_acquire=hooks.parse(on_acquire),
            on_release=hooks.parse(on_release),
            hook_timeout_seconds=hook_timeout,
            log=log,
            show=log.show,
        )
        asyncio.run(_run_until_signalled(runner))


async def _run_until_signalled(runner: Runner) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, runner.stop)
    await runner.run()


@app.command()
@reports_errors
def status(state_dir: StateOption, as_json: JsonOption = False) -> None:
    """Show who this agent is and whether it is holder now, without asking the server."""
    record = describe(StateDir.open(state_dir))
    if as_json:
        print_json(record)
    else:
        print_record(record)
        if record["clockOff"]:
            _warn_of_skew(record["clockSkewSeconds"])


def describe(state: StateDir) -> dict[str, Any]:
    """Returns the document of ``bcd site status --json``.

    ``holder`` is true only if the agent's process runs and its deadline has not passed.
    """
    profile, enrolment, _ = state.joined()
    last = state.status()
    running = state.running()
    holder = running and last is not None and last.holds(SystemClock())
    if last is None or not running:
        phase = "stopped"
    else:
        phase = "standby" if last.phase == "holder" and not holder else last.phase
    return {
        "agentId": enrolment.agent_id,
        "tenantId": enrolment.tenant_id,
        "siteId": enrolment.site_id,
        "name": enrolment.name,
        "server": profile.server,
        "state": phase,
        "running": running,
        "holder": holder,
        "epoch": last.epoch if last is not None and holder else None,
        "expiresAt": _time(last.expires_at if last else None),
        "ttlSeconds": last.ttl_seconds if last else None,
        "holderAgentId": last.holder_agent_id if last else None,
        "lastContactAt": _time(last.last_contact_at if last else None),
        "clockSkewSeconds": last.clock_skew_seconds if last else profile.clock_skew_seconds,
        "clockOff": abs(last.clock_skew_seconds if last else profile.clock_skew_seconds) > SKEW_LIMIT_SECONDS,
        "lastError": last.last_error if last else None,
    }


@app.command("record-boot")
@reports_errors
def record_boot(
    machine: Annotated[str, typer.Argument(help="The machine that is booted.")],
    state_dir: StateOption,
    remark: Annotated[str | None, typer.Option("--note", help="A remark for the site's boot log.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write to the site's boot log. The server refuses it (exit 7) when the epoch is not current."""
    state = StateDir.open(state_dir)
    body: dict[str, Any] = {"epoch": held_epoch(state), "machine": machine}
    if remark is not None:
        body["note"] = remark
    recorded = understood(RecordedBoot, asyncio.run(_call(state, RECORD_BOOT, body)))
    record = recorded.model_dump(mode="json", by_alias=True)
    print_json(record) if as_json else print_record(record)


@secret_app.command("get")
@reports_errors
def secret_get(
    reference: Annotated[str, typer.Argument(metavar="REF", help="secret://...")],
    state_dir: StateOption,
    out: Annotated[Path, typer.Option(help="File to write (0600, whole or not at all).", dir_okay=False)],
    version: Annotated[int | None, typer.Option(min=1, help="The newest if absent.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a secret that was granted to the site, as its holder. The value goes to the file only."""
    if not reference.startswith("secret://"):
        raise CommandError("A reference begins with secret://", Exit.INVALID_ARGUMENT)
    if str(out) == "-":
        raise CommandError("A value is written to a file, not to the terminal.", Exit.USAGE)
    state = StateDir.open(state_dir)
    _, enrolment, keys = state.joined()
    body: dict[str, Any] = {"reference": reference, "epoch": held_epoch(state)}
    if version is not None:
        body["version"] = version
    sealed = understood(SealedSecret, asyncio.run(_call(state, READ_SECRET, body)))
    if sealed.reference != reference or version not in (None, sealed.version):
        raise CommandError("The broker answered with another secret than the one asked for.")
    value = keys.open(sealed.sealed, agent_id=enrolment.agent_id, reference=sealed.reference, version=sealed.version)
    try:
        write_private(out, value)
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror}") from None
    record = {"reference": sealed.reference, "version": sealed.version, "file": str(out)}
    print_json(record) if as_json else print_record(record)


@app.command("rotate-key")
@reports_errors
def rotate_key(state_dir: StateOption) -> None:
    """Replace the signing key.

    Run it again if it was interrupted; a running agent takes the new key by itself.
    """
    state = StateDir.open(state_dir)
    with state.alone("keys"):
        agent_id = asyncio.run(_rotate(state))
    note(f"{agent_id} signs with its new key.", "green")


async def _rotate(state: StateDir) -> str:
    """Replaces the signing key and returns the agent's id.

    The new key is on disk before the server hears of it, and in force on disk before it is used. A rotateKey that
    fails with UNAUTHENTICATED is not an error yet: if the answer to an earlier rotateKey was lost and the old key's
    last hour has passed, the new key is in force already.
    """
    profile, enrolment, keys = state.joined()
    if keys.pending is None:
        keys = keys.with_pending()
        state.save_keys(keys)
    promoted = keys.promoted()
    async with new_http(profile.server) as http:
        client = AgentClient(state, http, SystemClock(), _skew(state))
        try:
            await client.call(SELF, {})  # corrects the client's estimate of the server's time, which dates the proof
            proof = keys.rotation_proof(enrolment.agent_id, client.server_time.now())
            await client.call(ROTATE_KEY, {"newPublicKey": public_jwk(promoted.signing), "proof": proof})
            state.save_keys(promoted)
        except RefusedError as refusal:
            if refusal.code != "UNAUTHENTICATED":
                raise
        client.keys = promoted
        understood(SelfAnswer, (await client.call(SELF, {})).body)
    state.save_keys(promoted)
    return enrolment.agent_id


async def _call(state: StateDir, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with new_http(state.joined()[0].server) as http:
        return (await AgentClient(state, http, SystemClock(), _skew(state)).call(path, body)).body


def held_epoch(state: StateDir) -> int:
    """Returns the epoch to act under: inside a hook of this agent the hook's own, else the running agent's.

    A hook that outlived its lease therefore still presents the epoch for which it was started, and the server refuses
    it. Raises CommandError if the agent is not holder by its own clock.
    """
    _, enrolment, _ = state.joined()
    if os.environ.get("BC_AGENT_ID") == enrolment.agent_id:
        with contextlib.suppress(KeyError, ValueError):
            return int(os.environ["BC_BOOT_EPOCH"])
    last = state.status()
    if last is None or last.epoch is None or not state.running() or not last.holds(SystemClock()):
        raise CommandError("This agent does not hold its site's boot lease now.", Exit.CONFLICT)
    return last.epoch


def _skew(state: StateDir) -> float:
    last, profile = state.status(), state.profile()
    return last.clock_skew_seconds if last else profile.clock_skew_seconds if profile else 0.0


def _warn_of_skew(skew_seconds: float) -> None:
    if abs(skew_seconds) > SKEW_LIMIT_SECONDS:
        way = "ahead of" if skew_seconds > 0 else "behind"
        note(f"Warning: this host's clock is {abs(skew_seconds):.0f} s {way} the server's.", "yellow")


def _time(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
