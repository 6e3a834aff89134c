"""Site agents: the inputs and payloads of operators, and the inputs of agents. The type is in :mod:`schema.nodes`."""

import base64
import binascii
from typing import Annotated, Any, Literal

import strawberry
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from pydantic import AfterValidator, AliasChoices, Field, GetPydanticSchema
from pydantic_core import core_schema

from models.ids import AGENT_ID_PATTERN
from models.sensitive import BearerToken
from schema.inputs import DEFAULT_FIRST, Cursor, First, Input, Name, SiteId, TenantId, TokenId
from schema.nodes import SiteAgent

AgentId = Annotated[strawberry.ID, Field(max_length=64, pattern=AGENT_ID_PATTERN)]
Epoch = Annotated[int, Field(ge=0, le=2**53 - 1)]


@strawberry.pydantic.input(description="Which site agents to list. All conditions must hold.")
class SiteAgentFilter(Input):
    """Conditions on agents."""

    token_id: strawberry.Maybe[TokenId | None] = Field(description="Enrolled with this site token.")
    revoked: strawberry.Maybe[bool | None] = Field(description="Revoked, or not.")


class ListSiteAgentsInput(Input):
    """List the site agents of a tenant, newest first."""

    tenant_id: TenantId | None = Field(None, description="The tenant; the caller's own if absent.")
    site_id: SiteId | None = Field(None, description="Only agents of this site.")
    first: First = Field(DEFAULT_FIRST, description="How many to answer.")
    after: Cursor | None = Field(None, description="The cursor that the page begins after.")
    filter: SiteAgentFilter | None = Field(None, description="Conditions that must all hold.")


class GetSiteAgentInput(Input):
    """Look one site agent up."""

    tenant_id: TenantId | None = Field(None, description="The tenant; the caller's own if absent.")
    agent_id: AgentId = Field(validation_alias=AliasChoices("agentId", "id"), description="The agent; also as `id`.")


@strawberry.pydantic.input(description="What `revokeSiteAgent` takes.")
class RevokeSiteAgentInput(Input):
    """Revoke a site agent."""

    tenant_id: TenantId = Field(description="The tenant that owns the site.")
    agent_id: AgentId = Field(description="The agent.")


@strawberry.type(description="What `revokeSiteAgent` answers.")
class RevokeSiteAgentPayload:
    """The record after the call."""

    site_agent: SiteAgent = strawberry.field(description="The agent's record, with `revokedAt`.")


# --- inputs of agents --------------------------------------------------------------------------------------------


def _raw(x: str) -> bytes:
    """Returns the 32 bytes of a JWK's ``x``. Raises ValueError unless ``x`` is their canonical form in base64url."""
    try:
        raw = base64.b64decode(x + "=", altchars=b"-_", validate=True)
    except binascii.Error:
        raw = b""
    if len(raw) != 32 or base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != x:  # noqa: PLR2004 - the size of a key
        raise ValueError("must be 32 bytes in base64url without padding")
    return raw


def _ed25519(x: str) -> str:
    _raw(x)
    return x


def _x25519(x: str) -> str:
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(_raw(x)))
    except ValueError:
        raise ValueError("must be an X25519 public key, 32 bytes in base64url without padding") from None
    return x


class _Jwk(Input):
    """A public JWK (RFC 8037). One with a private member is refused: that half never leaves its host."""

    kty: Literal["OKP"] = Field(description="`OKP`.")
    kid: str | None = Field(None, max_length=256, description="Not used.")
    use: str | None = Field(None, max_length=16, description="Not used.")
    alg: str | None = Field(None, max_length=16, description="Not used.")
    x: str = Field(description="The key, 32 bytes in base64url.")

    @property
    def raw(self) -> bytes:
        """The key's 32 bytes."""
        return _raw(self.x)


class SigningJwk(_Jwk):
    """An Ed25519 public key as a JWK (RFC 8037)."""

    crv: Literal["Ed25519"] = Field(description="`Ed25519`.")
    x: Annotated[str, AfterValidator(_ed25519)] = Field(description="The key, 32 bytes in base64url.")


class EncryptionJwk(_Jwk):
    """An X25519 public key as a JWK (RFC 8037)."""

    crv: Literal["X25519"] = Field(description="`X25519`.")
    x: Annotated[str, AfterValidator(_x25519)] = Field(description="The key, 32 bytes in base64url.")


def _bearer_schema(_source: Any, _handler: Any) -> core_schema.CoreSchema:
    """Accepts any text. The operation refuses a malformed token in the same way as a wrong one."""
    return core_schema.no_info_after_validator_function(BearerToken, core_schema.str_schema(strict=True))


class EnrollInput(Input):
    """Enrol a site agent."""

    token: Annotated[BearerToken, GetPydanticSchema(_bearer_schema)] = Field(
        description="The site token, as it was shown.", json_schema_extra={"writeOnly": True}
    )
    name: Name = Field(description="What the agent calls itself.")
    public_key: SigningJwk = Field(description="The key that will sign its requests.")
    encryption_key: EncryptionJwk | None = Field(
        None, description="The key that secrets are sealed to; without one it receives none."
    )
    version: Annotated[str, Field(max_length=64, pattern=r"^[ -~]*$")] | None = Field(
        None, description="The version of its program."
    )


class SelfInput(Input):
    """Nothing: the credential says who asks."""


class RotateKeyInput(Input):
    """Replace the key that signs an agent's requests."""

    new_public_key: SigningJwk = Field(description="The new key.")
    proof: Annotated[str, Field(max_length=4096)] = Field(
        description='A compact JWS by the new key over `{agentId, aud: "better-compute/rotate", exp, jti}`.'
    )
