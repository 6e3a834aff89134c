"""The types of Relay: ``Node``, and connections over keyset pages (the Cursor Connections specification)."""

from typing import Generic, TypeVar

import strawberry

from engine.fields import Selected, derived
from models.pages import ALL, Page, PageSelection
from models.pages import Edge as PageEdge

T = TypeVar("T")


@strawberry.interface(description="An object with an id that is unique over all types.")
class Node:
    """An object that ``node(id:)`` finds."""

    id: strawberry.ID = strawberry.field(description="The id, unique over all types; its prefix tells the type.")


@strawberry.type(description="Where a page stands in its list.")
class PageInfo:
    """Resolved from the page itself."""

    has_next_page: bool = strawberry.field(description="Whether more items follow.")
    has_previous_page: bool = strawberry.field(description="Whether the page was asked for after a cursor.")
    start_cursor: str | None = strawberry.field(description="The cursor of the first item.")
    end_cursor: str | None = strawberry.field(description="The cursor of the last item; the next page's `after`.")


@strawberry.type(description="An item of a list, and its cursor.")
class Edge(Generic[T]):
    """Resolved from a row and its page."""

    node: T = strawberry.field(description="The item.")

    @strawberry.field(description="Where the item stands in this list; opaque, bound to its filter and order.")
    @derived
    def cursor(self: PageEdge) -> str:
        """Returns the row's cursor."""
        return self.cursor_of(self.node)


@strawberry.type(description="A page of a list.")
class Connection(Generic[T]):
    """Resolved from a page."""

    edges: list[Edge[T]] = strawberry.field(description="The items with their cursors.")
    nodes: list[T] = strawberry.field(description="The items.")

    @strawberry.field(description="Where the page stands in the list.", graphql_type=PageInfo)
    @derived
    def page_info(self: Page[T]) -> Page[T]:
        """Returns the page, which has the fields of ``PageInfo`` itself."""
        return self

    @strawberry.field(description="How many items the caller may see in the whole list; counted only if selected.")
    async def total_count(self: Page[T]) -> int:
        """Counts the rows by the list's own predicate."""
        return await self.total()


def selection_of(selected: Selected | None, type_name: str) -> PageSelection:
    """Returns the parts of a page that a field must read if it answers a connection of that type.

    ``selected`` None means that the selection is not known. Then the field reads everything.
    """
    if selected is None:
        return ALL
    edge, info = selected.members(f"{type_name}Edge"), selected.members("PageInfo")
    return PageSelection(
        selected.members(type_name),
        cursors=edge is None or info is None or not info.isdisjoint({"start_cursor", "end_cursor"}),
        more=info is None or "has_next_page" in info,
    )
