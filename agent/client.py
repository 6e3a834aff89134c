"""The agent's requests to the API.

Each request has a newly signed token. A request that failed because of a wrong clock or a rotated key is repeated.
"""

import functools
import ssl
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import httpx
from pydantic import ValidationError

from agent.clock import Clock, ServerTime
from agent.errors import CommandError, RefusedError
from agent.http import TIMEOUT_SECONDS, USER_AGENT, decode, unreachable
from agent.keys import AgentKeys
from agent.lease import Grant
from agent.state import Document, StateDir

ENROLL = "/api/compute/siteAgents/enroll"
SELF = "/api/compute/siteAgents/self"
ROTATE_KEY = "/api/compute/siteAgents/rotateKey"
ACQUIRE = "/api/compute/bootLeases/acquire"
RENEW = "/api/compute/bootLeases/renew"
RELEASE = "/api/compute/bootLeases/release"
RECORD_BOOT = "/api/compute/bootLeases/recordBoot"
READ_SECRET = "/api/broker/secrets/read"  # noqa: S105 a path

_RESYNC_FROM_SECONDS = 2.0

_Answer = TypeVar("_Answer", bound=Document)


class LeaseAnswer(Document):
    """The answer to acquire, renew and release."""

    held: bool
    epoch: int | None = None
    holder_agent_id: str | None = None
    expires_at: datetime | None = None
    ttl_seconds: float
    server_time: datetime

    def grant(self) -> Grant:
        """Returns the part of the answer that the lease's state machine needs."""
        remaining = None if self.expires_at is None else (self.expires_at - self.server_time).total_seconds()
        return Grant(self.held, self.epoch, self.ttl_seconds, remaining)


class SelfAnswer(Document):
    """The answer to self: the server's record of this agent."""

    agent_id: str
    server_time: datetime


class RecordedBoot(Document):
    """The answer to recordBoot."""

    id: str
    epoch: int
    recorded_at: datetime


class SealedSecret(Document):
    """The broker's answer: a value that only this agent can open."""

    reference: str
    version: int
    sealed: str


class Sent(NamedTuple):
    """A successful answer, and the time at which its request was sent (elapsed seconds)."""

    body: dict[str, Any]
    sent_at: float


def understood(kind: type[_Answer], body: Mapping[str, Any]) -> _Answer:
    """Returns ``body`` as an instance of ``kind``.

    Raises CommandError if the body does not fit, as the server then speaks another version of the contract. The error
    does not quote the body.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, fault["loc"])) for fault in error.errors(include_input=False))
        raise CommandError(f"The server's answer was not understood ({fields}). Is it of another version?") from None


@functools.cache
def _trust() -> ssl.SSLContext:
    """Returns the trusted certificates, read once. SSL_CERT_FILE or SSL_CERT_DIR says where they are, if set."""
    return httpx.create_ssl_context()


def new_http(server: str) -> httpx.AsyncClient:
    """Returns an HTTP client for ``server``. The caller closes it."""
    return httpx.AsyncClient(
        base_url=server, verify=_trust(), timeout=TIMEOUT_SECONDS, headers={"user-agent": USER_AGENT}
    )


async def post(
    http: httpx.AsyncClient, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Sends ``body`` as JSON by POST and returns the answer's object. Raises RefusedError or CommandError."""
    try:
        response = await http.post(path, json=body, headers=headers)
    except httpx.TransportError as error:
        raise unreachable(error) from None
    return decode(response)


class AgentClient:
    """Calls methods of the API as the agent that a state dir belongs to."""

    def __init__(self, state: StateDir, http: httpx.AsyncClient, clock: Clock, skew_seconds: float) -> None:
        _, enrolment, self.keys = state.joined()
        self.agent_id = enrolment.agent_id
        self.server_time = ServerTime(clock, skew_seconds)
        self._state = state
        self._http = http
        self._clock = clock

    async def call(self, path: str, body: Mapping[str, Any]) -> Sent:
        """Calls one method and returns its answer.

        Repeats the call once after a 401 if the server's clock turns out to differ from the estimate, or if another
        process has rotated the key meanwhile. Raises RefusedError or CommandError.
        """
        sent_at = self._clock.elapsed()
        try:
            return await self._once(path, body)
        except RefusedError as refusal:
            if refusal.code != "UNAUTHENTICATED" or not (self._resync(refusal, sent_at) | self._reload_keys()):
                raise
        return await self._once(path, body)

    async def _once(self, path: str, body: Mapping[str, Any]) -> Sent:
        token = self.keys.request_token(self.agent_id, self.server_time.now())
        sent_at = self._clock.elapsed()
        answer = await post(self._http, path, body, {"authorization": f"Bearer {token}"})
        if isinstance(answer.get("serverTime"), str):
            moment = understood(_Timed, answer).server_time.timestamp()
            self.server_time.observe(moment, sent_at=sent_at, received_at=self._clock.elapsed())
        return Sent(answer, sent_at)

    def _resync(self, refusal: RefusedError, sent_at: float) -> bool:
        """Corrects the estimate of the server's time if the refusal's Date shows that the token was dated wrongly.

        Returns whether it was.
        """
        if refusal.server_time is None or abs(refusal.server_time - self.server_time.now()) < _RESYNC_FROM_SECONDS:
            return False
        self.server_time.observe(refusal.server_time, sent_at=sent_at, received_at=self._clock.elapsed())
        return True

    def _reload_keys(self) -> bool:
        """Takes the signing key of the state dir if it differs from the one in use. Returns whether it did."""
        stored: AgentKeys | None = self._state.keys()
        if stored is None or stored.signing.thumbprint() == self.keys.signing.thumbprint():
            return False
        self.keys = stored
        return True


class _Timed(Document):
    server_time: datetime
