"""Ciphertexts of the ``local`` secret store. The API's role may only insert them, the broker's may only read them."""

from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import Integer, bindparam, exists, func, insert, or_, select
from sqlalchemy import cast as sql_cast

from database.pool import Reader, Transaction
from database.statement import Statement
from models.fleet.agents import Agent
from models.secrets.references import Reference, SecretScope
from models.tables import BootLease, SecretCiphertext, SecretGrant, Site, SiteAgent, table

AGENTS, LEASES, GRANTS, SITES, STORE = (
    table(model) for model in (SiteAgent, BootLease, SecretGrant, Site, SecretCiphertext)
)


class Sealed(NamedTuple):
    """A sealed value as it is stored."""

    broker_key_id: str
    wrapped_key: bytes
    nonce: bytes
    ciphertext: bytes


class StoredValue(NamedTuple):
    """A version of a secret, with its sealed value."""

    version: int
    sealed: Sealed


class Withheld(StrEnum):
    """Why nothing was handed over: for the audit trail of the agent's tenant, never for the agent."""

    NO_REFERENCE = "no_such_reference"
    NO_ENCRYPTION_KEY = "no_encryption_key"
    NOT_HOLDER = "not_holder"
    NOT_GRANTED = "not_granted"
    NO_VERSION = "no_such_version"


_INSERT = Statement(insert(STORE).inline(), columns=["reference", "version", *Sealed._fields])

_HOLDS = (
    select(AGENTS.c.id)
    .join(LEASES, (LEASES.c.tenant_id == AGENTS.c.tenant_id) & (LEASES.c.site_id == AGENTS.c.site_id))
    .join(SITES, (SITES.c.tenant_id == AGENTS.c.tenant_id) & (SITES.c.id == AGENTS.c.site_id))
    .where(
        AGENTS.c.tenant_id == bindparam("agent_tenant"),
        AGENTS.c.id == bindparam("agent"),
        AGENTS.c.revoked_at.is_(None),
        SITES.c.deleted_at.is_(None),
        LEASES.c.holder_agent_id == AGENTS.c.id,
        LEASES.c.epoch == bindparam("epoch"),
        LEASES.c.expires_at > func.clock_timestamp(),
    )
)
_GRANTED = (
    select(GRANTS.c.site_id)
    .join(SITES, (SITES.c.tenant_id == GRANTS.c.site_tenant_id) & (SITES.c.id == GRANTS.c.site_id))
    .where(
        GRANTS.c.tenant_id == bindparam("tenant"),
        GRANTS.c.scope == bindparam("scope"),
        GRANTS.c.name == bindparam("name"),
        GRANTS.c.site_id == bindparam("site"),
        # Checked at each hand-over: a site that was since dedicated to another tenant has lost what it was granted.
        or_(
            GRANTS.c.scope == SecretScope.FLEET.value,
            SITES.c.tenant_id == GRANTS.c.tenant_id,
            SITES.c.dedicated_to == GRANTS.c.tenant_id,
        ),
    )
)
_VERSION = sql_cast(bindparam("version"), Integer)
_FETCH = Statement(
    select(STORE.c.version, *(STORE.c[name] for name in Sealed._fields))
    .where(
        STORE.c.reference == bindparam("reference"),
        or_(_VERSION.is_(None), STORE.c.version == _VERSION),
        exists(_HOLDS),
        exists(_GRANTED),
    )
    .order_by(STORE.c.version.desc())
    .limit(1),
    lambda record: StoredValue(record["version"], Sealed(*record[1:])),
)
_WHY_NOT = Statement(select(exists(_HOLDS), exists(_GRANTED)))


async def insert_sealed(tx: Transaction, reference: str, version: int, sealed: Sealed) -> None:
    """Stores a sealed value as ``version`` of ``reference``."""
    await tx.all(_INSERT, reference=reference, version=version, **sealed._asdict())


async def fetch_for_holder(
    tx: Transaction, agent: Agent, reference: Reference, *, version: int | None, epoch: int
) -> StoredValue | None:
    """Returns a version of a secret for an agent that holds its site's boot lease, None for the newest version.

    One statement decides, by the database's clock. It returns None unless the agent holds the lease under ``epoch`` and
    the site was granted the secret.
    """
    return await tx.first(_FETCH, **_parameters(agent, reference, version=version, epoch=epoch))


async def why_withheld(
    reader: Reader, agent: Agent, reference: Reference, *, version: int | None, epoch: int
) -> Withheld:
    """Returns why ``fetch_for_holder`` returned None for the same arguments."""
    holds, granted = await reader.one(_WHY_NOT, **_parameters(agent, reference, version=version, epoch=epoch))
    if not holds:
        return Withheld.NOT_HOLDER
    return Withheld.NO_VERSION if granted else Withheld.NOT_GRANTED


def _parameters(agent: Agent, reference: Reference, *, version: int | None, epoch: int) -> dict[str, object]:
    return reference._asdict() | {
        "tenant": reference.tenant_id,
        "reference": str(reference),
        "version": version,
        "agent_tenant": agent.tenant_id,
        "agent": agent.id,
        "site": agent.site_id,
        "epoch": epoch if 0 <= epoch < 2**63 else -1,
    }
