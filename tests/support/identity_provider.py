"""An OIDC issuer for tests: it publishes keys on a real socket and signs any claims."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from agent.keys import _REGISTRY as _EDDSA
from models.access.iam import Role, tenant_resource
from services import bootstrap
from services.identity import oidc
from tests.support.world import World

AUDIENCE = "better-compute-api"

SigningKey = RSAKey | ECKey | OKPKey | OctKey


@dataclass
class Provider:
    """The issuer. ``published`` is its JWK set, ``asked`` the requested paths. ``down`` makes it answer 503."""

    url: str = ""
    published: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    down: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    key: SigningKey = field(default_factory=lambda: ECKey.generate_key("P-256", {"kid": "k1"}))

    def publish(self, *keys: SigningKey) -> None:
        """Publishes these keys and signs with the first of them."""
        self.key = keys[0]
        self.published = [dict(key.as_dict(private=False)) for key in keys]

    def token(self, sub: str = "ada", key: Any = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Returns a signed JWT. Claims and header members that are None are left out."""
        now = int(time.time())
        usual = {"iss": self.url, "sub": sub, "aud": AUDIENCE, "iat": now, "exp": now + 300}
        protected = {"alg": "ES256", "kid": self.key.kid, "typ": "at+jwt"} | (header or {})
        return jwt.encode(
            {name: value for name, value in protected.items() if value is not None},
            {name: value for name, value in (usual | claims).items() if value is not None},
            key or self.key,
            algorithms=[protected["alg"]],
            registry=_EDDSA if protected["alg"] == "EdDSA" else None,
            default_type=None,
        )

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request of a connection. The client may disconnect at any time."""
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            self.asked.append(path)
            documents: dict[str, Any] = {
                "/.well-known/openid-configuration": {"issuer": self.url, "jwks_uri": f"{self.url}/keys"} | self.more,
                "/keys": {"keys": self.published},
            }
            status = "503 Down" if self.down else "200 OK" if path in documents else "404 Not Found"
            body = json.dumps(documents.get(path, {})).encode()
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
            await writer.drain()


@asynccontextmanager
async def open_provider() -> AsyncIterator[Provider]:
    """Yields an issuer that serves until the block ends."""
    provider = Provider()
    server = await asyncio.start_server(provider.answer, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    provider.publish(provider.key)
    async with server:
        yield provider


async def enlist(world: World, issuer: str, sub: str = "ada", role: Role = Role.ADMIN, *, name: str = "") -> None:
    """Binds a subject of the issuer to a role, as `bcd iam login-add` does."""
    async with world.owner.transaction() as tx:
        subject = oidc.subject_of(issuer, sub)
        await bootstrap.add_login(tx, "acme", name or sub, subject, tenant_resource("acme"), role)
