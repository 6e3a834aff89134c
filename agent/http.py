"""HTTP to the API: checks the server's address, and decodes answers and errors.

Each method of the API is one POST. TLS certificates are verified.
"""

import contextlib
import ipaddress
import json
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlsplit

import httpx

from agent.errors import BadField, CommandError, Exit, RefusedError

TIMEOUT_SECONDS = 15.0
_UNAVAILABLE_FROM = 500
_TOO_MANY_REQUESTS = 429


def client_version() -> str:
    """Returns the version of this package, which the agent sends to the server at enrolment."""
    try:
        return version("better-compute-control-api")
    except PackageNotFoundError:
        return "unknown"


USER_AGENT = f"bcd/{client_version()}"


def server_url(text: str) -> str:
    """Returns ``text`` as a base URL without a final slash.

    Raises CommandError unless it is http(s)://host[:port][/path].
    """
    try:
        parts = urlsplit(text.strip())
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        port_is_valid = False
    if (
        not port_is_valid
        or parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.username is not None
        or parts.query
        or parts.fragment
    ):
        raise CommandError("The server must be given as http(s)://HOST[:PORT].", Exit.USAGE)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def sends_in_clear(server: str) -> bool:
    """Whether requests to ``server`` cross a network unencrypted: plain HTTP to another host."""
    parts = urlsplit(server)
    host = parts.hostname or ""
    with contextlib.suppress(ValueError):
        return parts.scheme == "http" and not ipaddress.ip_address(host).is_loopback
    return parts.scheme == "http" and host != "localhost"


def unreachable(error: httpx.TransportError) -> CommandError:
    """Returns the error for a request without an answer. Whether the server acted on it is unknown."""
    reason = str(error) or type(error).__name__
    return CommandError(f"The server cannot be reached: {reason}", Exit.UNAVAILABLE)


def decode(response: httpx.Response) -> dict[str, Any]:
    """Returns the JSON object of a successful answer.

    Raises RefusedError for an error of the API, and CommandError for any other answer. A CommandError never quotes the
    body, because a misrouted answer may come from any server.
    """
    document = _document(response)
    if document is not None and isinstance(document.get("errors"), list):
        raise _graphql_refusal(document["errors"])
    if response.is_success and document is not None:
        return document
    if document is not None and isinstance(document.get("code"), str):
        raise RefusedError(
            document["code"],
            str(document.get("detail") or document.get("title") or ""),
            fields=_fields(document.get("fields")),
            request_id=document["requestId"] if isinstance(document.get("requestId"), str) else None,
            retry_after_seconds=_retry_after(response),
            server_time=_date(response),
        )
    busy = response.status_code >= _UNAVAILABLE_FROM or response.status_code == _TOO_MANY_REQUESTS
    raise CommandError(
        f"HTTP {response.status_code} from {response.url.host} is not of this API: is the address right?",
        Exit.UNAVAILABLE if busy else Exit.UNEXPECTED,
    )


def _graphql_refusal(errors: list[Any]) -> CommandError:
    """Returns the exception for the first of a GraphQL answer's errors."""
    try:
        return RefusedError(str(errors[0]["extensions"]["code"]), str(errors[0]["message"]))
    except (LookupError, TypeError):
        return CommandError("The server answered with an error without a code.")


def _document(response: httpx.Response) -> dict[str, Any] | None:
    try:
        document = json.loads(response.content)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _fields(value: object) -> list[BadField]:
    if not isinstance(value, list):
        return []
    return [
        BadField(str(item.get("path", "?")), str(item.get("message", "is not valid")))
        for item in value
        if isinstance(item, dict)
    ]


def _retry_after(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None


def _date(response: httpx.Response) -> float | None:
    """Returns the server's time by the Date header, which has whole seconds: the middle of that second."""
    with contextlib.suppress(ValueError, TypeError):
        return parsedate_to_datetime(response.headers["date"]).timestamp() + 0.5
    return None
