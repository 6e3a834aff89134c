"""Makes GraphQL enums of the models' Python enums, and describes each value.

GraphQL uses the names in capitals, and HTTP the values.
"""

from enum import Enum
from typing import Any

import strawberry

from models.access.iam import Role
from models.errors import DEFAULT_DETAIL, ErrorCode
from models.fleet.site_tokens import JoinTokenRole, JoinTokenState
from models.fleet.sites import SiteKind, SiteSort
from models.journal.journal import Decision
from models.secrets.references import SecretScope


def _enum(python: type[Enum], description: str, *, name: str | None = None, **values: str) -> None:
    """Makes ``python`` a GraphQL enum. ``values`` are the descriptions of its values, by name."""
    strawberry.enum(python, name=name, description=description)
    definition: Any = python.__strawberry_definition__  # type: ignore[attr-defined]
    for value in definition.values:
        value.description = values[value.name]


__all__ = [
    "Decision",
    "ErrorCode",
    "JoinTokenRole",
    "JoinTokenState",
    "Role",
    "SecretScope",
    "SiteKind",
    "SiteSort",
    "SortDirection",
]


class SortDirection(Enum):
    """Which end of the order comes first."""

    ASC = "asc"
    DESC = "desc"


_enum(
    SiteKind,
    "Whose hardware a site is, and who sees it.",
    SHARED="A platform site that every tenant sees.",
    DEDICATED="A platform site that one tenant sees.",
    CUSTOM="A site of a tenant's own hardware.",
)
_enum(
    SiteSort,
    "What sites can be ordered by; ties are broken by id.",
    name="SiteOrderField",
    CREATED_AT="By age.",
    NAME="By name, in the order of the database's collation.",
)
_enum(SortDirection, "Which end of the order comes first.", ASC="Smallest first.", DESC="Largest first.")
_enum(JoinTokenRole, "What a join token lets its bearer enrol as.", SITE="A `bcd site` agent of one site.")
_enum(
    JoinTokenState,
    "What a token is good for now, by the database's clock.",
    ACTIVE="It can be used.",
    EXHAUSTED="It was used as often as it may be.",
    EXPIRED="Its time is over.",
    REVOKED="It was revoked, or its site deleted.",
)
_enum(
    SecretScope,
    "Whose a secret is.",
    TENANT="One tenant's.",
    FLEET="The platform's; only in the root tenant.",
)
_enum(Decision, "How IAM decided.", name="AuditDecision", ALLOW="Allowed.", DENY="Denied.")
_enum(
    Role,
    "What a binding lets an identity do.",
    VIEWER="Read.",
    OPERATOR="Read, and manage sites and their tokens.",
    ADMIN="All that an operator may, and manage secrets.",
)
_enum(
    ErrorCode,
    "The codes in `errors[].extensions.code` and in HTTP problem documents.",
    **{code.name: text for code, text in DEFAULT_DETAIL.items()},
)
