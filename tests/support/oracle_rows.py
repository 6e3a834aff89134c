"""The rows of the oracle's worlds: rows as a database returns them, and every kind of page."""

from typing import Any, NamedTuple

from models.pages import WrappedList


class ThingRow(NamedTuple):
    """A row as a database returns it."""

    id: Any
    name: Any
    kind: Any
    level: Any
    rank: Any
    ratio: Any
    ready: Any
    born_at: Any
    gone_at: Any
    note: Any
    tags: Any
    spots: Any
    labels: Any
    owner: Any
    maker: Any
    blob: Any
    grid: Any
    mates: Any


class PersonRow(NamedTuple):
    """A row of another class."""

    id: Any
    name: Any
    age: Any
    best: Any


class PageRow:
    """A page whose members are computed when they are read."""

    def __init__(self, rows: Any, world: Any) -> None:
        self.rows = rows
        self.world = world

    @property
    def edges(self) -> Any:
        """The rows with their cursors."""
        if isinstance(self.rows, Exception):
            raise self.rows
        return [EdgeRow(row, self) for row in self.rows]

    @property
    def nodes(self) -> Any:
        """The rows."""
        return self.rows

    @property
    def first_name(self) -> Any:
        """Raises IndexError on an empty page."""
        return self.rows[0].name


class EdgeRow(NamedTuple):
    """A row of a page."""

    node: Any
    page: "PageRow | JoinedRow | WrappedRow"


class JoinedRow(NamedTuple):
    """A page whose members are stored."""

    edges: Any
    nodes: Any
    first_name: Any
    rows: Any


class WrappedRow:
    """A page whose edges need not be made."""

    edges = WrappedList(lambda self: [EdgeRow(row, self) for row in self.nodes], of="nodes", inner="node")

    def __init__(self, nodes: Any) -> None:
        self.nodes = self.rows = nodes
        self.first_name = "first"
