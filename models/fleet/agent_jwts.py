"""Agents' JWTs as PostgreSQL takes them: each is good for one request, over all servers.

One statement decides whether a JWT is fresh and unused, whether its key is in force, and whether its agent is revoked.
A revocation therefore counts at once on every server. All ages are measured by the database's clock, which agents learn
from ``serverTime``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from joserfc.jwk import OKPKey
from sqlalchemy import (
    ColumnElement,
    DateTime,
    Interval,
    TableValuedAlias,
    Text,
    bindparam,
    column,
    delete,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.types import TypeEngine

from database.pool import Database
from database.statement import Statement
from models.fleet.agent_keys import IN_FORCE
from models.fleet.agents import AGENTS, KEYS, Agent
from models.tables import UsedJti, table

USED = table(UsedJti)

LEEWAY = timedelta(seconds=5)
"""How far an agent's clock may differ from the database's."""

_TIME = DateTime(timezone=True)
_LEEWAY: Any = bindparam("leeway", LEEWAY, type_=Interval)
_COLUMNS: dict[str, TypeEngine[Any]] = {
    "agent_id": Text(),
    "jti": Text(),
    "tenant_id": Text(),
    "thumbprint": Text(),
    "issued_at": _TIME,
    "expires_at": _TIME,
}


class SigningKey(NamedTuple):
    """A public key that an agent may sign with."""

    thumbprint: str
    key: OKPKey
    used: bool
    """Whether the agent has signed with it before."""


class Claims(NamedTuple):
    """The claims of a JWT that PostgreSQL checks."""

    jti: str
    issued_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True, eq=False)
class AgentJwt:
    """A JWT whose signature was verified, its agent, and the key that signed it.

    An object equals only itself: when two requests carry the same JWT, only one of them may take it.
    """

    agent: Agent
    key: SigningKey
    claims: Claims

    @property
    def use(self) -> tuple[str, str]:
        """The agent's id and the JWT's id: each pair is taken once."""
        return self.agent.id, self.claims.jti


def jwt_rows(**extra: TypeEngine[Any]) -> TableValuedAlias:
    """Returns the JWTs to take as rows of a FROM clause. Each column is an array parameter of the same name."""
    columns = _COLUMNS | extra
    arrays = [bindparam(name, type_=ARRAY(kind)) for name, kind in columns.items()]
    return func.unnest(*arrays).table_valued(*(column(*named) for named in columns.items())).render_derived("brought")


def jwt_parameters(jwts: Sequence[AgentJwt]) -> dict[str, list[Any]]:
    """Returns the parameters of ``jwt_rows`` for these JWTs."""
    return {
        "agent_id": [jwt.agent.id for jwt in jwts],
        "jti": [jwt.claims.jti for jwt in jwts],
        "tenant_id": [jwt.agent.tenant_id for jwt in jwts],
        "thumbprint": [jwt.key.thumbprint for jwt in jwts],
        "issued_at": [jwt.claims.issued_at for jwt in jwts],
        "expires_at": [jwt.claims.expires_at for jwt in jwts],
    }


def insert_used(rows: TableValuedAlias, *conditions: ColumnElement[bool]) -> ReturningInsert[Any]:
    """Returns the INSERT that takes JWTs. It returns the id of the agent and of the JWT for each one that it takes.

    It takes a JWT that is fresh and unused, whose key is in force and whose agent is not revoked. The rows are sorted,
    so that two servers that receive the same JWTs cannot deadlock.
    """
    jwt = rows.c
    fresh = (
        select(jwt.agent_id, jwt.jti, jwt.expires_at + _LEEWAY)
        .join(AGENTS, (AGENTS.c.tenant_id == jwt.tenant_id) & (AGENTS.c.id == jwt.agent_id))
        .join(KEYS, (KEYS.c.tenant_id == AGENTS.c.tenant_id) & (KEYS.c.agent_id == AGENTS.c.id))
        .where(
            AGENTS.c.revoked_at.is_(None),
            KEYS.c.thumbprint == jwt.thumbprint,
            IN_FORCE,
            func.clock_timestamp() >= jwt.issued_at - _LEEWAY,
            func.clock_timestamp() < jwt.expires_at + _LEEWAY,
            *conditions,
        )
        .order_by(jwt.agent_id, jwt.jti)
    )
    return (
        upsert(USED)
        .from_select(["agent_id", "jti", "expires_at"], fresh)
        .on_conflict_do_nothing(index_elements=["agent_id", "jti"])
        .returning(USED.c.agent_id, USED.c.jti)
    )


# The commit is not waited for. A crash of the database may lose the used JWTs of the last half second, each of which
# works for a minute at most. A flush of the disk for each request would cost too much to prevent that.
_TAKE = Statement(insert_used(jwt_rows(), func.set_config("synchronous_commit", "off", True) == "off"))
_FORGET = Statement(delete(USED).where(USED.c.expires_at < func.clock_timestamp()))


def by_use(jwts: Iterable[AgentJwt]) -> dict[tuple[str, str], AgentJwt]:
    """Returns one request's JWT for each use. Other requests that carry the same JWT do not get it."""
    return {jwt.use: jwt for jwt in jwts}


async def take(database: Database, jwts: list[AgentJwt]) -> dict[AgentJwt, bool]:
    """Takes JWTs, and returns those that were taken, each with True."""
    uses = by_use(jwts)
    return {uses[row]: True for row in await database.all(_TAKE, **jwt_parameters(list(uses.values())))}


async def forget_used(database: Database) -> None:
    """Deletes the used JWTs that would be refused for their age by now."""
    await database.all(_FORGET)
