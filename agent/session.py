"""An operator's session: which server, whose API key, which tenant.

The key comes from a file or the environment.

First match wins: ``--credentials`` or ``--as`` (a file as ``bcd dev`` writes it), BC_API_KEY_FILE,
BC_API_KEY, BC_CREDENTIALS, and the file of ``bcd dev`` in the working directory. A key is never an argument:
others can read those.
"""

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import httpx
import typer

from agent.errors import CommandError, Exit
from agent.http import TIMEOUT_SECONDS, USER_AGENT, decode, sends_in_clear, server_url, unreachable
from agent.terminal import note, reports_errors

P = ParamSpec("P")

PAGE_SIZE = 200
DEV_CREDENTIALS = Path(".data/dev-credentials.json")


class Session:
    """Calls of the API as one caller. ``close`` ends it."""

    def __init__(self, server: str, key: str, tenant: str | None) -> None:
        self.server = server
        self._tenant = tenant
        self._http = httpx.Client(
            base_url=server,
            timeout=TIMEOUT_SECONDS,
            headers={"user-agent": USER_AGENT, "authorization": f"Bearer {key}"},
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST ``body`` without its absent (None) members. Raises RefusedError or CommandError."""
        try:
            response = self._http.post(path, json={k: v for k, v in body.items() if v is not None})
        except httpx.TransportError as error:
            raise unreachable(error) from None
        return decode(response)

    def change(self, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Call ``resource/method``, which changes something of the session's tenant."""
        return self.post(f"/api/compute/{method}", {"tenantId": self._tenant or self._own_tenant(), **body})

    def read(self, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Call ``resource/method``, which reads; without a tenant the server takes the caller's own."""
        return self.post(f"/api/compute/{method}", {"tenantId": self._tenant, **body})

    def _own_tenant(self) -> str:
        answer = self.post("/graphql", {"query": "{ viewer { tenantId } }"})
        try:
            return str(answer["data"]["viewer"]["tenantId"])
        except (KeyError, TypeError):
            raise CommandError("The server does not say whose tenant this is: give --tenant.") from None

    def page(self, method: str, body: Mapping[str, Any], *, first: int, after: str | None) -> dict[str, Any]:
        """One page: ``{"items": [...], "nextCursor": ...}``."""
        return self.read(method, {**body, "first": first, "after": after})

    def pages(self, method: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Every item of a list, page after page, as they arrive."""
        after = None
        while True:
            page = self.page(method, body, first=PAGE_SIZE, after=after)
            yield from page["items"]
            after = page.get("nextCursor")
            if after is None:
                return


ServerOption = Annotated[
    str | None, typer.Option("--server", envvar="BC_SERVER", help="The API's address; else the credentials'.")
]
CredentialsOption = Annotated[
    Path | None, typer.Option("--credentials", help="File with addresses and keys, as `bcd dev` writes it.")
]
AsOption = Annotated[str | None, typer.Option("--as", help="Which key of the credentials, e.g. acme-admin.")]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="The tenant; the caller's own if absent.")]


def _connected(
    server: ServerOption = None,
    credentials: CredentialsOption = None,
    as_: AsOption = None,
    tenant: TenantOption = None,
) -> Session:
    """The session that the options and the environment describe. Raises CommandError."""
    url, key = _credential(credentials, as_)
    address = server or url
    if address is None:
        raise CommandError("No server: give --server or BC_SERVER.", Exit.USAGE)
    if not key or not all("!" <= character <= "~" for character in key):
        raise CommandError("The API key is empty or has a character inside that no key has.", Exit.USAGE)
    address = server_url(address)
    if sends_in_clear(address):
        note("Warning: plain HTTP to another host: the API key crosses the network readably.", "yellow")
    return Session(address, key, tenant)


def operator_command(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[Concatenate[Session, P], None]]:
    """Register a function of a session as the command ``name``; it gets every session's options too."""

    def register(
        function: Callable[Concatenate[Session, P], None],
    ) -> Callable[Concatenate[Session, P], None]:
        shared = inspect.signature(_connected).parameters

        @reports_errors
        def command(**given: Any) -> None:
            session = _connected(**{option: given.pop(option) for option in shared})
            try:
                function(session, **given)  # type: ignore[call-arg]
            finally:
                session.close()

        own = list(inspect.signature(function).parameters.values())[1:]
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *shared.values())]
        del command.__wrapped__  # type: ignore[attr-defined]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, help=inspect.getdoc(function))(command)
        return function

    return register


def _credential(credentials: Path | None, as_: str | None) -> tuple[str | None, str]:
    """``(address or None, key)``."""
    if credentials is None and as_ is None:
        if file := os.environ.get("BC_API_KEY_FILE"):
            return None, _read(Path(file)).strip()
        if key := os.environ.get("BC_API_KEY"):
            return None, key.strip()
    named = os.environ.get("BC_CREDENTIALS")
    path = credentials or (Path(named) if named else DEV_CREDENTIALS)
    if credentials is None and named is None and not path.exists():
        raise CommandError("No API key: give --credentials FILE, or set BC_API_KEY_FILE or BC_API_KEY.", Exit.USAGE)
    return _named_key(path, as_)


def _named_key(path: Path, as_: str | None) -> tuple[str | None, str]:
    try:
        document = json.loads(_read(path))
        keys = dict(document["keys"])
        url = document.get("url")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CommandError(f"{path} is not a credentials file.", Exit.USAGE) from None
    if as_ is None and len(keys) == 1:
        as_ = next(iter(keys))
    if as_ not in keys:
        raise CommandError(f"Say whose key of {path} to use: --as {' | '.join(sorted(keys))}", Exit.USAGE)
    return url, str(keys[as_])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", Exit.USAGE) from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not text.", Exit.USAGE) from None
