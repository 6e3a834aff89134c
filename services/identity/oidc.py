"""Verifies OIDC logins: JWTs of the one trusted issuer, by the public keys that the issuer publishes.

The server fetches the keys again every few minutes, because a withdrawn key must stop working. It fetches them at once,
but at a bounded rate, when a JWT names an unknown key. While the issuer is out of reach, the server keeps the keys that
it has. IAM decides which identity a proven subject is, and what it may do: see
:meth:`services.identity.keyring.Keyring.by_subject`.
"""

import asyncio
import contextlib
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import orjson
import structlog
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from models.errors import ApiError, ErrorCode
from models.sensitive import BearerToken
from settings import Settings, secure_url

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger(__name__)

PublicKey = RSAKey | ECKey | OKPKey
_KEY_TYPES: dict[object, type[PublicKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}

ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"}
)
"""The algorithms that sign with a private key. With ``none`` or an HMAC, anybody who knows public keys could sign."""

TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""The accepted values of the header ``typ``, in lower case.

Other kinds of JWTs, such as an agent's, have another type, so that they are not taken for logins.
"""

MAX_CHARACTERS = 16_384
SUBJECT_PATTERN = r"[ -~]{1,255}"
"""ASCII, at most 255 characters (OpenID Connect Core, section 2)."""

MIN_RSA_BITS = 2048
LEEWAY_SECONDS = 10
"""The largest accepted difference between the issuer's clock and this server's."""

LONGEST_SECONDS = 86_400.0
"""The longest time that a login lasts. A stream ends after a day even if its JWT is still valid."""

KEYS_SECONDS = 300.0
"""The time between two fetches of the keys."""

PAUSE_SECONDS = 10.0
"""The shortest time between two fetches for unknown keys. Anybody can send a JWT that names an unknown key."""

FETCH_SECONDS = 3.0
MAX_DOCUMENT_BYTES = 262_144

_MALFORMED = (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


class Login(NamedTuple):
    """A proven login. ``subject`` is ``iss|sub``, and ``until`` is its end by this process's monotonic clock."""

    subject: str
    until: float


class _Asymmetric(JWSRegistry):
    """Accepts ALGORITHMS alone, and ignores unknown header members.

    Issuers put certificates and nonces into the header, and RFC 7515 requires that unknown members are ignored. The
    library warns that the name EdDSA leaves the curve open. This class gives no such warning: the key names the curve.
    """

    max_header_length = 4096

    def get_alg(self, name: str) -> Any:
        if name not in ALGORITHMS:
            raise JoseError
        return self.algorithms[name]


_REGISTRY = _Asymmetric(strict_check_header=False)


class _Claimed(NamedTuple):
    """A JWT that claims to be a login. Nothing in it is proven."""

    signed: jws.CompactSignature
    kid: str | None
    claims: dict[str, Any]


class Issuer:
    """An OIDC issuer that the server trusts."""

    refresh_seconds = KEYS_SECONDS

    def __init__(self, issuer: str, *, audience: str, jwks_url: str | None) -> None:
        """``audience`` is the ``aud`` of JWTs for this API. Without ``jwks_url``, OpenID Connect Discovery finds it."""
        self._issuer = issuer
        self._audience = audience
        self._jwks_url = jwks_url
        self._keys: dict[str | None, PublicKey] = {}
        self._reached = False
        self._fetch: asyncio.Task[None] | None = None
        self._next_fetch = 0.0

    @classmethod
    def open(cls, settings: Settings) -> Self | None:
        """Returns the issuer that the settings name, or None."""
        if settings.oidc_issuer is None or settings.oidc_audience is None:
            return None
        return cls(settings.oidc_issuer, audience=settings.oidc_audience, jwks_url=settings.oidc_jwks_url)

    async def verify(self, credential: BearerToken) -> Login | None:
        """Returns the login that ``credential`` proves, or None for any other credential.

        Raises ApiError UNAVAILABLE if the credential names an unknown key and the issuer is out of reach.
        """
        claimed = _parse(credential)
        if claimed is None or claimed.claims.get("iss") != self._issuer:
            return None
        key = await self._key(claimed.kid)
        if key is None or not _signed_by(claimed.signed, key):
            return None
        return self._login(claimed.claims)

    async def refresh(self) -> None:
        """Fetches the issuer's keys. If that fails, it logs a warning and keeps the known keys."""
        import httpx  # here, so that a server without an issuer starts without importing it

        try:
            async with asyncio.timeout(FETCH_SECONDS), httpx.AsyncClient(timeout=FETCH_SECONDS) as client:
                self._keys = _public_keys(await _document(client, await self._keys_url(client)))
            self._reached = True
        except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError, *_MALFORMED) as error:
            self._reached = False
            log.warning("oidc.keys_unavailable", issuer=self._issuer, error=type(error).__name__)
        finally:
            self._next_fetch = time.monotonic() + PAUSE_SECONDS

    async def close(self) -> None:
        """Ends a fetch that still runs."""
        if self._fetch is not None:
            self._fetch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._fetch

    async def _key(self, kid: str | None) -> PublicKey | None:
        """Returns the key of that name, or None if there is none. The name None is that of a key without a name.

        Raises ApiError UNAVAILABLE if the key is unknown and the issuer is out of reach.
        """
        if kid not in self._keys:
            if self._fetch is None or (self._fetch.done() and time.monotonic() >= self._next_fetch):
                self._fetch = asyncio.ensure_future(self.refresh())
            # All callers share the fetch, so the cancellation of one of them must not end it.
            await asyncio.shield(self._fetch)
        if kid not in self._keys and not self._reached:
            raise ApiError(
                ErrorCode.UNAVAILABLE,
                "The login cannot be checked now, as its issuer is out of reach; nothing was changed.",
                retry_after_seconds=int(PAUSE_SECONDS),
            )
        return self._keys.get(kid)

    async def _keys_url(self, client: "httpx.AsyncClient") -> str:
        """Returns the URL of the keys, from the settings or by OpenID Connect Discovery.

        Raises ValueError if the discovered document is of another issuer, or its URL is not secure.
        """
        if self._jwks_url is not None:
            return self._jwks_url
        document = await _document(client, f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        if document["issuer"] != self._issuer:
            raise ValueError("the document is of another issuer")
        return secure_url(document["jwks_uri"])

    def _login(self, claims: dict[str, Any]) -> Login | None:
        """Returns the login that proven claims stand for, or None if they are not valid now or not for this API."""
        required: dict[str, Any] = {
            "iss": {"essential": True, "value": self._issuer},
            "aud": {"essential": True, "value": self._audience},
            "sub": {"essential": True},
            "exp": {"essential": True},
        }
        now = time.time()
        try:
            JWTClaimsRegistry(now=int(now), leeway=LEEWAY_SECONDS, **required).validate(claims)
        except _MALFORMED:
            return None
        if not re.fullmatch(SUBJECT_PATTERN, claims["sub"]):
            return None
        seconds = min(claims["exp"] + LEEWAY_SECONDS - now, LONGEST_SECONDS)
        return Login(subject_of(self._issuer, claims["sub"]), time.monotonic() + seconds)


def subject_of(issuer: str, sub: str) -> str:
    """Returns the name of a login in IAM. ``sub`` alone is not enough: another issuer may use it for somebody else."""
    return f"{issuer}|{sub}"


def _parse(credential: BearerToken) -> _Claimed | None:
    """Returns the JWT with its signature unchecked, or None for anything else. Its header names the key to check it."""
    text = credential.reveal()
    if text.count(".") != 2 or len(text) > MAX_CHARACTERS:  # noqa: PLR2004 - header.payload.signature
        return None
    try:
        signed = jws.extract_compact(text.encode(), registry=_REGISTRY)
        header, claims = signed.headers(), orjson.loads(signed.payload)
        kid, typ = header.get("kid"), header.get("typ", "JWT")
        if header["alg"] not in ALGORITHMS or typ.lower() not in TYPES:
            return None
    except _MALFORMED:
        return None
    if not isinstance(kid, str | None) or not isinstance(claims, dict):
        return None
    return _Claimed(signed, kid, claims)


def _signed_by(signed: jws.CompactSignature, key: PublicKey) -> bool:
    """Returns whether ``key`` made the signature, by an algorithm for this kind of key that the key allows."""
    try:
        return jws.validate_compact(signed, key, registry=_REGISTRY)
    except _MALFORMED:
        return False


async def _document(client: "httpx.AsyncClient", url: str) -> dict[str, Any]:
    """Returns the JSON object at ``url``.

    Raises httpx.HTTPError if it cannot be fetched, ValueError if it is too large or not JSON, and TypeError if it is
    not an object.
    """
    body = bytearray()
    async with client.stream("GET", url, headers={"accept": "application/json"}) as response:
        response.raise_for_status()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_DOCUMENT_BYTES:
                raise ValueError("the document is too large")
    document = orjson.loads(body)
    if not isinstance(document, dict):
        raise TypeError("not a JSON object")
    return document


def _public_keys(document: dict[str, Any]) -> dict[str | None, PublicKey]:
    """Returns the keys of a JWK set that check signatures, by name. Other members of the set are ignored.

    Raises ValueError if there is no such key, so that the known keys stay: an issuer's mistake must not lock everybody
    out.
    """
    keys: dict[str | None, PublicKey] = {}
    for jwk in document["keys"]:
        if isinstance(jwk, dict) and (key := _public_key(jwk)) is not None:
            keys[key.kid] = key
    if not keys:
        raise ValueError("there is no key for signatures")
    return keys


def _public_key(jwk: dict[str, Any]) -> PublicKey | None:
    """Returns the key of a JWK.

    Returns None for a symmetric, short, unknown or malformed key, and for one that is not for signatures.
    """
    try:
        kind = _KEY_TYPES.get(jwk["kty"])
        if kind is None or jwk.get("use", "sig") != "sig":
            return None
        if kind is RSAKey and len(jwk["n"]) * 6 < MIN_RSA_BITS:  # a character of base64url holds six bits
            return None
        return kind.import_key(jwk)
    except _MALFORMED:
        return None
