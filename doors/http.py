"""Reads HTTP requests: header fields, credentials, the client's address, exact content types, and bounded bodies."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address

from starlette.types import Receive, Scope, Send

from models.errors import ApiError, ErrorCode
from models.sensitive import BearerToken

Fields = Mapping[bytes, bytes]
"""A request's header fields, by their names in lower case."""

Network = IPv4Network | IPv6Network

MAX_CREDENTIAL_BYTES = 16_384


class HttpError(Exception):
    """The refusal of a request for its method, header fields or size. ``status`` replaces that of the error's code."""

    def __init__(self, status: int, error: ApiError, headers: dict[str, str] | None = None) -> None:
        super().__init__(error.detail)
        self.status = status
        self.error = error
        self.headers = headers or {}


class DisconnectedError(Exception):
    """The client went away before its request was complete. There is nobody to answer."""


class Success:
    """A response with status 200 and a body of JSON, as an ASGI application.

    Starlette's Response would compute the same headers for each response.
    """

    __slots__ = ("_body", "_content_type")

    def __init__(self, body: bytes, content_type: bytes = b"application/json") -> None:
        self._body = body
        self._content_type = content_type

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Sends the response."""
        headers = [
            (b"content-length", b"%d" % len(self._body)),
            (b"content-type", self._content_type),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


def request_id(scope: Scope) -> str:
    """Returns the request's id. The outermost middleware sets it."""
    id_: str = scope["state"]["request_id"]
    return id_


def fields_in(scope: Scope) -> Fields:
    """Returns the request's header fields. The outermost middleware sets them."""
    fields: Fields = scope["state"]["fields"]
    return fields


def fields_of(headers: Sequence[tuple[bytes, bytes]]) -> Fields:
    """Returns the header fields by name.

    The values of a repeated field are joined by commas, as RFC 9110, 5.3, allows. A field that allows only one value
    becomes invalid by that.
    """
    by_name = dict(headers)
    if len(by_name) < len(headers):
        by_name = {}
        for name, value in headers:
            by_name[name] = by_name[name] + b", " + value if name in by_name else value
    return by_name


def credential(fields: Fields) -> BearerToken | None:
    """Returns the bearer credential, or None if there is none, or it is too long."""
    value = fields.get(b"authorization", b"")
    token = value[7:]
    if value[:7].lower() != b"bearer " or not token or len(token) > MAX_CREDENTIAL_BYTES:
        return None
    return BearerToken(token.decode("latin-1"))


def client_address(scope: Scope, trusted: Sequence[Network]) -> str | None:
    """Returns the address that the request comes from.

    It is the peer's. If the peer is a trusted proxy, it is the last address in ``X-Forwarded-For`` that is not a
    trusted proxy's. The client itself may have written the addresses to the left of that one.
    """
    peer = scope.get("client")
    address = None if peer is None else str(peer[0])
    if not trusted or not _in(address, trusted):
        return address
    for hop in reversed(fields_in(scope).get(b"x-forwarded-for", b"").decode("latin-1").split(",")):
        address = hop.strip() or address
        if not _in(address, trusted):
            break
    return address


def _in(address: str | None, networks: Sequence[Network]) -> bool:
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return False
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(parsed in network for network in networks)


def require_json(fields: Fields) -> None:
    """Raises HttpError 415 unless the body is declared as uncompressed JSON in UTF-8.

    The content type must match exactly: a browser may send some other types across sites without asking first.
    """
    if fields.get(b"content-encoding", b"identity").strip().lower() not in {b"", b"identity"}:
        detail = "The body must not be compressed: send it without Content-Encoding."
        raise HttpError(415, ApiError(ErrorCode.INVALID_ARGUMENT, detail), {"accept-encoding": "identity"})
    content_type = fields.get(b"content-type", b"")
    if content_type == b"application/json":
        return
    media_type, *parameters = (part.strip().lower() for part in content_type.split(b";"))
    if media_type != b"application/json" or any(p not in {b"charset=utf-8", b'charset="utf-8"'} for p in parameters):
        error = ApiError(ErrorCode.INVALID_ARGUMENT, "The content type must be application/json, in UTF-8.")
        raise HttpError(415, error, {"accept-post": "application/json"})


async def read_body(fields: Fields, receive: Receive, max_bytes: int) -> bytes:
    """Returns the whole body. Raises HttpError 413 as soon as it is too large, DisconnectedError if it breaks off."""
    declared = fields.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        chunk: bytes = message.get("body", b"")
        if len(body) + len(chunk) > max_bytes:
            raise _too_large(max_bytes)
        more = message.get("more_body", False)
        if not more and not body:  # most bodies come in one piece
            return chunk
        body += chunk
        if not more:
            return bytes(body)


def _too_large(max_bytes: int) -> HttpError:
    detail = f"The body is larger than {max_bytes} bytes (BC_MAX_BODY_BYTES)."
    # The rest of the body is not read, so the connection cannot be used again.
    return HttpError(413, ApiError(ErrorCode.RESOURCE_EXHAUSTED, detail), {"connection": "close"})
