"""Identities, the callers of the API: their API keys, OIDC subjects and role bindings.

A change of a key, an identity or a binding notifies ``IAM_CHANNEL``, so that every server drops its cached copy.
"""

import hashlib
from typing import NamedTuple

from sqlalchemy import ColumnElement, Text, any_, bindparam, exists, func, select, update
from sqlalchemy.dialects.postgresql import ARRAY, insert

from database.pool import Reader, Transaction
from database.statement import Statement
from models.access.iam import Actor, Binding, Resource, Role
from models.ids import new_id, new_secret
from models.sensitive import BearerToken
from models.tables import ApiKey, IdentityRecord, RoleBinding, table

KEYS, IDENTITIES, BINDINGS = table(ApiKey), table(IdentityRecord), table(RoleBinding)

IAM_CHANNEL = "bc_iam"
"""The NOTIFY channel of changed keys, identities and bindings. The payload is the identity's id."""


class ActorRow(NamedTuple):
    """An identity with its bindings, and the digest of the secret of the key that it was looked up by.

    The digest is empty if it was looked up by a subject.
    """

    secret_sha256: bytes
    identity_id: str
    name: str
    tenant_id: str
    resources: list[str]
    roles: list[str]

    @property
    def actor(self) -> Actor:
        """Returns the identity with its bindings, as a caller."""
        bindings = tuple(Binding(*pair) for pair in zip(self.resources, self.roles, strict=True))
        return Actor(self.identity_id, self.name, self.tenant_id, bindings)


# --- look-ups ----------------------------------------------------------------------------------------------------


def _bound(column: ColumnElement[str]) -> ColumnElement[list[str]]:
    """Returns ``column`` of the identity's bindings as an array. Arrays of two columns have the same order."""
    rows = (
        select(column)
        .where(BINDINGS.c.tenant_id == IDENTITIES.c.tenant_id, BINDINGS.c.identity_id == IDENTITIES.c.id)
        .order_by(BINDINGS.c.resource, BINDINGS.c.role)
        .correlate(IDENTITIES)
    )
    return func.array(rows.scalar_subquery(), type_=ARRAY(Text))


_ACTOR_COLUMNS = [
    IDENTITIES.c.id,
    IDENTITIES.c.name,
    IDENTITIES.c.tenant_id,
    _bound(BINDINGS.c.resource),
    _bound(BINDINGS.c.role),
]

_BY_KEY = Statement(
    select(KEYS.c.secret_sha256, *_ACTOR_COLUMNS)
    .join(IDENTITIES, (IDENTITIES.c.tenant_id == KEYS.c.tenant_id) & (IDENTITIES.c.id == KEYS.c.identity_id))
    .where(KEYS.c.id == bindparam("key_id"), KEYS.c.revoked_at.is_(None)),
    ActorRow,
)

_BY_SUBJECT = Statement(
    select(bindparam("none", b"", type_=KEYS.c.secret_sha256.type), *_ACTOR_COLUMNS).where(
        IDENTITIES.c.subject == bindparam("subject")
    ),
    ActorRow,
)

_TOUCH = Statement(
    update(KEYS)
    .where(KEYS.c.id == any_(bindparam("key_ids", type_=ARRAY(Text))))
    .values(last_used_at=func.clock_timestamp())
)
_BINDINGS = Statement(
    select(BINDINGS.c.resource, BINDINGS.c.role).where(
        BINDINGS.c.tenant_id == bindparam("tenant_id"),
        BINDINGS.c.identity_id == bindparam("identity_id"),
    ),
    Binding,
)


async def find_by_key(reader: Reader, key_id: str) -> ActorRow | None:
    """Returns the key's identity, and the digest that its secret must have. None: there is no active key of that id."""
    return await reader.first(_BY_KEY, key_id=key_id)


async def find_by_subject(reader: Reader, subject: str) -> ActorRow | None:
    """Returns the identity that carries the OIDC subject ``iss|sub``, or None."""
    return await reader.first(_BY_SUBJECT, subject=subject)


async def bindings_of(reader: Reader, tenant_id: str, identity_id: str) -> list[Binding]:
    """Returns the role bindings of an identity."""
    return await reader.all(_BINDINGS, tenant_id=tenant_id, identity_id=identity_id)


async def touch_keys(reader: Reader, key_ids: list[str]) -> None:
    """Records that the keys were used now."""
    await reader.all(_TOUCH, key_ids=key_ids)


# --- changes -----------------------------------------------------------------------------------------------------

_ADD_IDENTITY = Statement(insert(IDENTITIES).inline(), columns=["tenant_id", "id", "name"])

_SUBJECT: ColumnElement[str] = bindparam("subject_", type_=Text)

_HOLDERS = IDENTITIES.alias("holders")

_GIVE_SUBJECT = Statement(
    update(IDENTITIES)
    .where(
        IDENTITIES.c.tenant_id == bindparam("tenant"),
        IDENTITIES.c.id == bindparam("identity"),
        func.coalesce(IDENTITIES.c.subject, _SUBJECT) == _SUBJECT,
        ~exists().where(_HOLDERS.c.subject == _SUBJECT, _HOLDERS.c.id != IDENTITIES.c.id),
    )
    .values(subject=_SUBJECT)
    .returning(IDENTITIES.c.id)
)

_TAKE_SUBJECT = Statement(
    update(IDENTITIES).where(IDENTITIES.c.subject == _SUBJECT).values(subject=None).returning(IDENTITIES.c.id)
)

_ADD_KEY = Statement(insert(KEYS).inline(), columns=["tenant_id", "id", "identity_id", "secret_sha256"])

_FIND_IDENTITY = Statement(
    select(IDENTITIES.c.id)
    .where(IDENTITIES.c.tenant_id == bindparam("tenant_id"), IDENTITIES.c.name == bindparam("name"))
    .order_by(IDENTITIES.c.id)
    .limit(1)
)

_ADD_BINDING = Statement(
    insert(BINDINGS).on_conflict_do_nothing().inline(),
    columns=["tenant_id", "identity_id", "resource", "role"],
)

_REVOKE_KEY = Statement(
    update(KEYS)
    .where(KEYS.c.id == bindparam("key_id"), KEYS.c.revoked_at.is_(None))
    .values(revoked_at=func.clock_timestamp())
    .returning(KEYS.c.id)
)


async def add_identity(tx: Transaction, tenant_id: str, name: str) -> str:
    """Adds an identity to the tenant, and returns its id."""
    identity_id = new_id("idn")
    await tx.all(_ADD_IDENTITY, tenant_id=tenant_id, id=identity_id, name=name)
    return identity_id


async def find_identity(tx: Transaction, tenant_id: str, name: str) -> str | None:
    """Returns the id of the tenant's oldest identity of that name, or None."""
    row = await tx.first(_FIND_IDENTITY, tenant_id=tenant_id, name=name)
    return None if row is None else str(row[0])


async def bind(tx: Transaction, tenant_id: str, identity_id: str, resource: Resource, role: Role) -> None:
    """Gives the identity a role on a resource."""
    await tx.all(_ADD_BINDING, tenant_id=tenant_id, identity_id=identity_id, resource=str(resource), role=role.value)


async def add_key(tx: Transaction, tenant_id: str, identity_id: str) -> BearerToken:
    """Adds an API key to the identity, and returns it. The caller shows it once.

    Only the SHA-256 of its 256 random bits is stored.
    """
    key_id, secret = new_id("bck"), new_secret()
    await tx.all(
        _ADD_KEY,
        tenant_id=tenant_id,
        id=key_id,
        identity_id=identity_id,
        secret_sha256=hashlib.sha256(secret.encode()).digest(),
    )
    return BearerToken(f"{key_id}.{secret}")


async def revoke_key(tx: Transaction, key_id: str) -> bool:
    """Revokes the key; every server drops it at once. Returns False if it was revoked before or does not exist."""
    return await tx.first(_REVOKE_KEY, key_id=key_id) is not None


async def give_subject(tx: Transaction, tenant_id: str, identity_id: str, subject: str) -> bool:
    """Lets the OIDC subject ``iss|sub`` act as the identity.

    Returns False if the identity has another subject, or the subject another identity.
    """
    return await tx.first(_GIVE_SUBJECT, tenant=tenant_id, identity=identity_id, subject_=subject) is not None


async def take_subject(tx: Transaction, subject: str) -> bool:
    """Takes the subject from its identity; every server refuses it at once. Returns False if it has no identity."""
    return await tx.first(_TAKE_SUBJECT, subject_=subject) is not None
