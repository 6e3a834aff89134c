"""The parts of a running server, grouped by what they are for. The composition root makes them once."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from database.batch_loader import BatchLoader
from database.pool import Database
from models.access.projection import View
from models.fleet.sites import SiteRow
from services.decisions import DecisionPoint
from services.identity import Callers

T = TypeVar("T")


class Access(NamedTuple):
    """What every operation uses: the database, who may do what, and which sites a caller sees."""

    database: Database
    decisions: DecisionPoint
    sites: BatchLoader[View, str, SiteRow]
    """Finds the sites that a view sees, by id."""


class Services:
    """The parts of a running server. An operation gets those that it names by type; see `resolvers.registry`."""

    def __init__(self, access: Access, callers: Callers, parts: Mapping[type, Any]) -> None:
        self.access = access
        self.callers = callers
        self._parts = parts

    def __getitem__(self, kind: type[T]) -> T:
        """Returns the part of this type. Raises KeyError if there is none."""
        part: T = self._parts[kind]
        return part
