"""References: the ``secret://`` name of a secret, which is the same in all stores."""

import re
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import ColumnElement, Table, case, literal

from models.access.iam import ROOT_TENANT_ID
from models.ids import TENANT_ID_PATTERN

NAME_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$"
"""Path segments of letters, digits and ``._-``. No segment begins with a dot, so that a reference has one spelling."""

REFERENCE_PATTERN = rf"^secret://(?:fleet|tenant/({TENANT_ID_PATTERN.strip('^$')}))/({NAME_PATTERN.strip('^$')})$"

_MAX_NAME_CHARACTERS = 128


class SecretScope(StrEnum):
    """Whose a secret is: one tenant's, or the fleet's."""

    TENANT = "tenant"
    FLEET = "fleet"


class Reference(NamedTuple):
    """The parts of a ``secret://`` reference. Fleet secrets belong to the root tenant."""

    tenant_id: str
    scope: SecretScope
    name: str

    def __str__(self) -> str:
        if self.scope is SecretScope.FLEET:
            return f"secret://fleet/{self.name}"
        return f"secret://tenant/{self.tenant_id}/{self.name}"


def parse(text: str) -> Reference | None:
    """Returns the parts of a reference, or None if no secret can have it."""
    match = re.fullmatch(REFERENCE_PATTERN, text)
    if match is None or len(match[2]) > _MAX_NAME_CHARACTERS:
        return None
    if match[1] is None:
        return Reference(ROOT_TENANT_ID, SecretScope.FLEET, match[2])
    return Reference(match[1], SecretScope.TENANT, match[2])


def reference_of(rows: Table) -> ColumnElement[str]:
    """Returns the reference as an expression over the columns ``tenant_id``, ``scope`` and ``name`` of ``rows``."""
    return case(
        (rows.c.scope == SecretScope.FLEET.value, literal("secret://fleet/") + rows.c.name),
        else_=literal("secret://tenant/") + rows.c.tenant_id + "/" + rows.c.name,
    )
