"""What Strawberry's resolvers get of a request."""

import strawberry

from engine.fields import Selected
from models.pages import PageSelection
from schema.relay import selection_of
from services.requests import RequestContext


class Info(strawberry.Info[RequestContext, None]):
    """Strawberry's info, with what the document selects of a page."""

    def selection(self, type_name: str) -> PageSelection:
        """Returns what to read for a field that answers a connection of that type."""
        selected: Selected | None = getattr(self._raw_info, "selected", None)
        return selection_of(selected, type_name)
