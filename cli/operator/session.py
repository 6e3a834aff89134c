"""An operator's HTTP session: calls of the API with one API key, on behalf of one tenant."""

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from agent.errors import CommandError, Exit
from agent.http import TIMEOUT_SECONDS, USER_AGENT, decode, unreachable
from agent.terminal import note

PAGE_SIZE = 200


class Session:
    """Calls the API as one caller. ``close`` ends the session."""

    def __init__(self, server: str, key: str, tenant: str | None) -> None:
        self.server = server
        self._tenant = tenant
        self._http = httpx.Client(
            base_url=server,
            timeout=TIMEOUT_SECONDS,
            headers={"user-agent": USER_AGENT, "authorization": f"Bearer {key}"},
        )

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def read(self, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Calls a reading ``resource/method``. If the session has no tenant, the server takes the caller's own."""
        return self._post(f"/api/compute/{method}", {"tenantId": self._tenant, **body})

    def change(self, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Calls a ``resource/method`` that changes something of the session's tenant, else of the caller's own."""
        return self._post(f"/api/compute/{method}", {"tenantId": self._tenant or self._own_tenant(), **body})

    def change_once(self, method: str, body: Mapping[str, Any], idempotency_key: str | None) -> dict[str, Any]:
        """Calls ``resource/method`` with an idempotency key, which is a new one if None is given.

        Prints the key if it is unclear whether the server made the change, so that the call can be repeated.
        """
        key = idempotency_key or str(uuid.uuid4())
        try:
            return self.change(method, {**body, "idempotencyKey": key})
        except CommandError as error:
            if error.exit_code == Exit.UNAVAILABLE:
                note(f"If it is unclear whether it was done, repeat with --idempotency-key {key}", "yellow")
            raise

    def page(self, method: str, body: Mapping[str, Any], *, first: int, after: str | None) -> dict[str, Any]:
        """Returns one page of a list: ``{"items": [...], "nextCursor": ...}``."""
        return self.read(method, {**body, "first": first, "after": after})

    def pages(self, method: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields every item of a list. It requests a page when the items of the page before are used up."""
        after = None
        while True:
            page = self.page(method, body, first=PAGE_SIZE, after=after)
            yield from page["items"]
            after = page.get("nextCursor")
            if after is None:
                return

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Sends ``body`` without the members that are None. Raises RefusedError or CommandError."""
        try:
            response = self._http.post(path, json={k: v for k, v in body.items() if v is not None})
        except httpx.TransportError as error:
            raise unreachable(error) from None
        return decode(response)

    def _own_tenant(self) -> str:
        answer = self._post("/graphql", {"query": "{ viewer { tenantId } }"})
        try:
            return str(answer["data"]["viewer"]["tenantId"])
        except (KeyError, TypeError):
            raise CommandError("The server does not say whose tenant this is: give --tenant.") from None
