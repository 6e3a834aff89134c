"""API keys and OIDC subjects: who a credential belongs to, kept in process for a few seconds at most.

A key ``bck_<id>.<secret>`` is looked up by its id and proven by SHA-256 of its secret in constant time; a subject
``iss|sub`` was proven by its JWT. What was proven is kept for ``ttl_seconds``, a key by SHA-256 of its whole text, and
dropped at once when PostgreSQL notifies that the key, its identity or a binding changed.
"""

import hashlib
import hmac
import time
from typing import NamedTuple

from sqlalchemy import ColumnElement, Text, any_, bindparam, exists, func, select, update
from sqlalchemy.dialects.postgresql import ARRAY, insert

from models.db import Database, Statement, Transaction
from models.iam import Actor, Binding, Resource, Role
from models.ids import new_id, new_secret, parse_api_key
from models.sensitive import BearerToken
from models.tables import ApiKey, IdentityRecord, RoleBinding, table

KEYS, IDENTITIES, BINDINGS = table(ApiKey), table(IdentityRecord), table(RoleBinding)

IAM_CHANNEL = "bc_iam"
"""NOTIFY channel of changed keys, identities and bindings; the payload is the identity's id."""

MAX_KEPT = 10_000


class _Kept(NamedTuple):
    actor: Actor
    until: float
    key_id: str | None
    """Of a key; a subject has none."""


class _KeyRow(NamedTuple):
    secret_sha256: bytes
    identity_id: str
    name: str
    tenant_id: str
    resources: list[str]
    roles: list[str]


def _bound(column: ColumnElement[str]) -> ColumnElement[list[str]]:
    """``column`` of the identity's bindings as an array; two such arrays have the same order."""
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
    _KeyRow,
)
_BY_SUBJECT = Statement(
    select(bindparam("none", b"", type_=KEYS.c.secret_sha256.type), *_ACTOR_COLUMNS).where(
        IDENTITIES.c.subject == bindparam("subject")
    ),
    _KeyRow,
)
_TOUCH = Statement(
    update(KEYS)
    .where(KEYS.c.id == any_(bindparam("key_ids", type_=ARRAY(Text))))
    .values(last_used_at=func.clock_timestamp())
)


class Keyring:
    """Turns credentials into actors."""

    def __init__(self, database: Database, *, ttl_seconds: float) -> None:
        self._database = database
        self._ttl_seconds = ttl_seconds
        self._kept: dict[bytes | str, _Kept] = {}
        self._used: set[str] = set()
        self._forgotten = 0

    def known(self, credential: BearerToken) -> Actor | None:
        """The actor of an API key that was proven a moment ago; None if `by_key` has to find out. Awaits nothing."""
        return self._recall(_digest(credential))

    async def by_key(self, credential: BearerToken) -> Actor | None:
        """The actor of an API key; None for a malformed, unknown, wrong or revoked one."""
        actor = self.known(credential)
        if actor is not None:
            return actor
        parsed = parse_api_key(credential.reveal())
        if parsed is None:
            return None
        key_id, secret = parsed
        forgotten = self._forgotten
        row = await self._database.first(_BY_KEY, key_id=key_id)
        if row is None or not hmac.compare_digest(row.secret_sha256, hashlib.sha256(secret.encode()).digest()):
            return None
        self._used.add(key_id)
        return self._keep(_digest(credential), row, key_id, forgotten)

    async def by_subject(self, subject: str) -> Actor | None:
        """The actor of a verified OIDC subject ``iss|sub``, or None if no identity carries it."""
        actor = self._recall(subject)
        if actor is not None:
            return actor
        forgotten = self._forgotten
        row = await self._database.first(_BY_SUBJECT, subject=subject)
        return None if row is None else self._keep(subject, row, None, forgotten)

    def forget(self, identity_id: str | None = None) -> None:
        """Drop what is kept of an identity, or everything. Called on notification, or if one may have been missed."""
        self._forgotten += 1
        self._kept = {
            key: kept
            for key, kept in self._kept.items()
            if identity_id is not None and kept.actor.identity_id != identity_id
        }

    async def flush_last_use(self) -> None:
        """Write when keys were last used, in one statement; called every few seconds, off the request's path."""
        used, self._used = self._used, set()
        if not used:
            return
        try:
            await self._database.all(_TOUCH, key_ids=sorted(used))
        except BaseException:
            self._used |= used
            raise

    def _recall(self, proof: bytes | str) -> Actor | None:
        kept = self._kept.get(proof)
        if kept is None or kept.until < time.monotonic():
            return None
        if kept.key_id is not None:
            self._used.add(kept.key_id)
        return kept.actor

    def _keep(self, proof: bytes | str, row: _KeyRow, key_id: str | None, forgotten: int) -> Actor:
        """The row's actor, kept unless something was forgotten since it was asked for: a change that is notified while
        the row is on its way must not be overwritten by the row from before it.
        """
        actor = _actor(row)
        if forgotten == self._forgotten and self._ttl_seconds > 0:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[proof] = _Kept(actor, time.monotonic() + self._ttl_seconds, key_id)
        return actor


def _digest(credential: BearerToken) -> bytes:
    """What a key is kept by: to look it up tells nothing of those that are kept, however long it takes."""
    return hashlib.sha256(credential.reveal().encode()).digest()


def _actor(row: _KeyRow) -> Actor:
    bindings = tuple(Binding(*pair) for pair in zip(row.resources, row.roles, strict=True))
    return Actor(row.identity_id, row.name, row.tenant_id, bindings)


# --- making identities and keys ----------------------------------------------------------------------------------

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
    """A new identity of the tenant; returns its id."""
    identity_id = new_id("idn")
    await tx.all(_ADD_IDENTITY, tenant_id=tenant_id, id=identity_id, name=name)
    return identity_id


async def find_identity(tx: Transaction, tenant_id: str, name: str) -> str | None:
    """The id of the tenant's oldest identity of that name."""
    found = await tx.first(_FIND_IDENTITY, tenant_id=tenant_id, name=name)
    return None if found is None else str(found[0])


async def bind(tx: Transaction, tenant_id: str, identity_id: str, resource: Resource, role: Role) -> None:
    """Give the identity a role on a resource."""
    await tx.all(_ADD_BINDING, tenant_id=tenant_id, identity_id=identity_id, resource=str(resource), role=role.value)


async def add_key(tx: Transaction, tenant_id: str, identity_id: str) -> BearerToken:
    """A new API key of the identity. The caller shows it once; only SHA-256 of its 256 random bits is stored."""
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
    """Revoke the key; every server drops it at once. False if it was revoked already or does not exist."""
    return await tx.first(_REVOKE_KEY, key_id=key_id) is not None


async def give_subject(tx: Transaction, tenant_id: str, identity_id: str, subject: str) -> bool:
    """Let the OIDC subject ``iss|sub`` act as the identity; False if either has another of the kind already."""
    return await tx.first(_GIVE_SUBJECT, tenant=tenant_id, identity=identity_id, subject_=subject) is not None


async def take_subject(tx: Transaction, subject: str) -> bool:
    """Let the subject act as nobody; every server refuses it at once. False if it acts as nobody already."""
    return await tx.first(_TAKE_SUBJECT, subject_=subject) is not None
