"""Enrolment: redeems a site token for an identity of this agent.

The keys are on disk before the token leaves this host. If the answer is lost, the next try sends the same key with the
same token, and the server answers with the agent that it has already made. It counts no second use and makes no second
agent.
"""

import asyncio
import getpass
import sys
from datetime import datetime
from pathlib import Path

from agent.backoff import Backoff
from agent.client import ENROLL, new_http, post, understood
from agent.clock import Clock, ServerTime
from agent.errors import CommandError, Exit
from agent.http import client_version
from agent.keys import AgentKeys, public_jwk
from agent.state import Enrolment, Profile, StateDir

TRIES = 5
RETRY_CAP_SECONDS = 5.0
_LONGEST_TOKEN = 4096
_BYTE_ORDER_MARK = "\ufeff"


def read_token(source: str) -> str:
    """Returns the token in the file ``source``, or on standard input for ``-``, without the whitespace around it.

    Raises CommandError if the text cannot be a token, as editors and pastes add newlines and worse. The error does not
    show the text.
    """
    try:
        if source == "-" and sys.stdin.isatty():
            text = getpass.getpass("Site token: ")
        elif source == "-":
            text = sys.stdin.buffer.read(_LONGEST_TOKEN + 1).decode()
        else:
            with Path(source).open("rb") as file:
                text = file.read(_LONGEST_TOKEN + 1).decode()
    except OSError as error:
        raise CommandError(f"{source}: {error.strerror}", Exit.USAGE) from None
    except UnicodeDecodeError:
        raise CommandError("The site token is not text.", Exit.INVALID_ARGUMENT) from None
    token = text.strip().strip(_BYTE_ORDER_MARK).strip()
    if not token:
        raise CommandError("There is no site token in the file.", Exit.INVALID_ARGUMENT)
    if len(token) > _LONGEST_TOKEN:
        raise CommandError("The file is too long for a site token.", Exit.INVALID_ARGUMENT)
    for position, character in enumerate(token, start=1):
        if not "!" <= character <= "~":
            kind = "whitespace" if character.isspace() else "a character no token has"
            raise CommandError(
                f"The site token has {kind} inside (at character {position}): was it pasted in pieces?",
                Exit.INVALID_ARGUMENT,
            )
    return token


async def join(
    state: StateDir, *, server: str, token: str, name: str | None, default_name: str, clock: Clock
) -> Enrolment:
    """Enrols the agent of ``state``, or continues an enrolment that was begun.

    If the state dir has joined ``server`` already, it returns the stored enrolment and sends nothing. Raises
    RefusedError or CommandError.
    """
    with state.alone("keys"):
        profile = state.profile()
        if profile is not None and profile.enrolment is not None:
            if profile.server != server:
                raise CommandError(
                    f"This state dir has joined {profile.server}. Give another --state-dir.", Exit.CONFLICT
                )
            return profile.enrolment
        keys = state.keys()
        if keys is None:
            keys = AgentKeys.generate()
            state.save_keys(keys)
        profile = Profile(server=server, name=name or (profile.name if profile else default_name))
        state.save_profile(profile)
        enrolment, skew_seconds = await _enrol(profile, keys, token, clock)
        state.save_profile(profile.model_copy(update={"enrolment": enrolment, "clock_skew_seconds": skew_seconds}))
        return enrolment


class _EnrolAnswer(Enrolment):
    server_time: datetime


async def _enrol(profile: Profile, keys: AgentKeys, token: str, clock: Clock) -> tuple[Enrolment, float]:
    """Enrols with the server, and tries again while it cannot be reached.

    Returns the enrolment and this host's clock skew in seconds.
    """
    body = {
        "token": token,
        "name": profile.name,
        "publicKey": public_jwk(keys.signing),
        "encryptionKey": keys.encryption_key,
        "version": client_version(),
    }
    backoff = Backoff()
    async with new_http(profile.server) as http:
        while True:
            sent_at = clock.elapsed()
            try:
                document = await post(http, ENROLL, body)
            except CommandError as failure:
                if failure.exit_code != Exit.UNAVAILABLE or backoff.failures >= TRIES - 1:
                    raise
                await asyncio.sleep(backoff.delay(RETRY_CAP_SECONDS))
                continue
            answer = understood(_EnrolAnswer, document)
            time = ServerTime(clock)
            time.observe(answer.server_time.timestamp(), sent_at=sent_at, received_at=clock.elapsed())
            return Enrolment(**answer.model_dump(exclude={"server_time"})), time.skew_seconds
