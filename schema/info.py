"""The ``info`` argument of Strawberry's resolvers."""

import strawberry

from engine.fields import Selected
from models.pages import PageSelection
from schema.relay import selection_of
from services.requests import RequestContext


class Info(strawberry.Info[RequestContext, None]):
    """Strawberry's info, which also tells what the document selects of a page."""

    def selection(self, type_name: str) -> PageSelection:
        """Returns the parts of a page that a field must read if it answers a connection of that type."""
        selected: Selected | None = getattr(self._raw_info, "selected", None)
        return selection_of(selected, type_name)
