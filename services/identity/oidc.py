"""OIDC logins: a JWT of the one issuer that is trusted, proven by the public keys that the issuer publishes.

The keys are kept for as long as the issuer cannot be asked, asked for anew every few minutes, since a withdrawn one
must stop, and asked for at once, but at a bounded rate, when a JWT names one that is not known. Who a proven subject
is, and what it may do, is IAM's to say: see :meth:`models.keyring.Keyring.by_subject`.
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
"""Signatures by private keys alone: with ``none`` or an HMAC, whoever knows what is public could sign."""

TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""What ``typ`` may say, in lower case. Other JWTs, an agent's among them, have a type of their own for that reason."""

MAX_CHARACTERS = 16_384
SUBJECT_PATTERN = r"[ -~]{1,255}"
"""ASCII, as OpenID Connect Core has it."""

MIN_RSA_BITS = 2048
LEEWAY_SECONDS = 10
"""How far the issuer's clock and this one may be apart."""

LONGEST_SECONDS = 86_400.0
"""A stream ends after a day even if its JWT does not."""

KEYS_SECONDS = 300.0
"""The keys are asked for this often."""

PAUSE_SECONDS = 10.0
"""Unknown keys make this server ask again at most this often: their names are anybody's word."""

FETCH_SECONDS = 3.0
MAX_DOCUMENT_BYTES = 262_144

_MALFORMED = (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


class Login(NamedTuple):
    """A proven login: ``subject`` is ``iss|sub``, and ``until`` the end of it, by this process's monotonic clock."""

    subject: str
    until: float


class _Asymmetric(JWSRegistry):
    """ALGORITHMS alone, and without the library's warning that the name EdDSA leaves the curve open: the key says it.

    Unknown header members are passed over, as RFC 7515 wants it; issuers put certificates and nonces there.
    """

    max_header_length = 4096

    def get_alg(self, name: str) -> Any:
        if name not in ALGORITHMS:
            raise JoseError
        return self.algorithms[name]


_REGISTRY = _Asymmetric(strict_check_header=False)


class _Claimed(NamedTuple):
    """A JWT that says that it is a login for us; nothing of it is proven."""

    signed: jws.CompactSignature
    kid: str | None
    claims: dict[str, Any]


class Issuer:
    """An OIDC issuer that the server trusts."""

    refresh_seconds = KEYS_SECONDS

    def __init__(self, issuer: str, *, audience: str, jwks_url: str | None) -> None:
        """``audience`` is what JWTs for this API carry in ``aud``; without ``jwks_url`` the issuer is asked for it."""
        self._issuer = issuer
        self._audience = audience
        self._jwks_url = jwks_url
        self._keys: dict[str | None, PublicKey] = {}
        self._reached = False
        self._look: asyncio.Task[None] | None = None
        self._next_look = 0.0

    @classmethod
    def open(cls, settings: Settings) -> Self | None:
        """Returns the issuer that the settings name, or None."""
        if settings.oidc_issuer is None or settings.oidc_audience is None:
            return None
        return cls(settings.oidc_issuer, audience=settings.oidc_audience, jwks_url=settings.oidc_jwks_url)

    async def verify(self, credential: BearerToken) -> Login | None:
        """The login that ``credential`` proves; None for any other credential.

        Raises ApiError UNAVAILABLE if the key that it names is not known and the issuer cannot be asked.
        """
        claimed = _parse(credential)
        if claimed is None or claimed.claims.get("iss") != self._issuer:
            return None
        key = await self._key(claimed.kid)
        if key is None or not _signed_by(claimed.signed, key):
            return None
        return self._login(claimed.claims)

    async def refresh(self) -> None:
        """Ask the issuer for its keys; if it does not tell them, those that are known stay."""
        import httpx  # the start of a server without an issuer does not wait for it

        try:
            async with asyncio.timeout(FETCH_SECONDS), httpx.AsyncClient(timeout=FETCH_SECONDS) as client:
                self._keys = _public_keys(await _document(client, await self._keys_url(client)))
            self._reached = True
        except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError, *_MALFORMED) as error:
            self._reached = False
            log.warning("oidc.keys_unavailable", issuer=self._issuer, error=type(error).__name__)
        finally:
            self._next_look = time.monotonic() + PAUSE_SECONDS

    async def close(self) -> None:
        """Stop asking."""
        if self._look is not None:
            self._look.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._look

    async def _key(self, kid: str | None) -> PublicKey | None:
        """The key of that name, which is None for the one without a name."""
        if kid not in self._keys:
            if self._look is None or (self._look.done() and time.monotonic() >= self._next_look):
                self._look = asyncio.ensure_future(self.refresh())
            await asyncio.shield(self._look)  # it serves all who wait, so it does not end with the first who leaves
        if kid not in self._keys and not self._reached:
            raise ApiError(
                ErrorCode.UNAVAILABLE,
                "The login cannot be checked now, as its issuer is out of reach; nothing was changed.",
                retry_after_seconds=int(PAUSE_SECONDS),
            )
        return self._keys.get(kid)

    async def _keys_url(self, client: "httpx.AsyncClient") -> str:
        """Where the keys are, by setting or by OpenID Connect Discovery. Raises ValueError if the answer is odd."""
        if self._jwks_url is not None:
            return self._jwks_url
        document = await _document(client, f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        if document["issuer"] != self._issuer:
            raise ValueError("the document is of another issuer")
        return secure_url(document["jwks_uri"])

    def _login(self, claims: dict[str, Any]) -> Login | None:
        """What proven claims come to now."""
        needed: dict[str, Any] = {
            "iss": {"essential": True, "value": self._issuer},
            "aud": {"essential": True, "value": self._audience},
            "sub": {"essential": True},
            "exp": {"essential": True},
        }
        now = time.time()
        try:
            JWTClaimsRegistry(now=int(now), leeway=LEEWAY_SECONDS, **needed).validate(claims)
        except _MALFORMED:
            return None
        if not re.fullmatch(SUBJECT_PATTERN, claims["sub"]):
            return None
        left = min(claims["exp"] + LEEWAY_SECONDS - now, LONGEST_SECONDS)
        return Login(subject_of(self._issuer, claims["sub"]), time.monotonic() + left)


def subject_of(issuer: str, sub: str) -> str:
    """The name of a login in IAM. ``sub`` alone names nobody: another issuer may use it for somebody else."""
    return f"{issuer}|{sub}"


def _parse(credential: BearerToken) -> _Claimed | None:
    """The JWT, its signature unchecked: it says which key would prove it."""
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
    """Whether ``key`` made the signature, by an algorithm that is for this kind of key and that it allows."""
    try:
        return jws.validate_compact(signed, key, registry=_REGISTRY)
    except _MALFORMED:
        return False


async def _document(client: "httpx.AsyncClient", url: str) -> dict[str, Any]:
    """The JSON object at ``url``. Raises httpx.HTTPError, or ValueError for anything else."""
    body = bytearray()
    async with client.stream("GET", url, headers={"accept": "application/json"}) as answer:
        answer.raise_for_status()
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > MAX_DOCUMENT_BYTES:
                raise ValueError("the document is too large")
    document = orjson.loads(body)
    if not isinstance(document, dict):
        raise TypeError("not a JSON object")
    return document


def _public_keys(document: dict[str, Any]) -> dict[str | None, PublicKey]:
    """The keys of a JWK set that check signatures, by name. What else stands in it is for others, and no error.

    Raises ValueError if there is none: an issuer's mistake must not lock everybody out.
    """
    keys: dict[str | None, PublicKey] = {}
    for given in document["keys"]:
        if isinstance(given, dict) and (key := _public_key(given)) is not None:
            keys[key.kid] = key
    if not keys:
        raise ValueError("there is no key for signatures")
    return keys


def _public_key(given: dict[str, Any]) -> PublicKey | None:
    """The key of a JWK; None for a symmetric, short, unknown or malformed one, and for one that is not for signing."""
    try:
        kind = _KEY_TYPES.get(given["kty"])
        if kind is None or given.get("use", "sig") != "sig":
            return None
        if kind is RSAKey and len(given["n"]) * 6 < MIN_RSA_BITS:  # six bits a letter
            return None
        return kind.import_key(given)
    except _MALFORMED:
        return None
