"""Serves the pages that browsers load: the console, GraphiQL, their assets, and how people sign in."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from doors.health import Handler
from settings import Settings

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; worker-src 'self'; "
    "style-src 'self' 'unsafe-inline'; font-src 'self' data:; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
}
"""Pages load from this origin alone, run no inline script, and cannot be framed."""


def page(path: Path, issuer: str | None = None) -> Response:
    """Returns a built page, or one that says how to build it. Its scripts may call ``issuer`` too."""
    headers = PAGE_HEADERS
    if issuer is not None:
        parts = urlsplit(issuer)
        allowed = f"connect-src 'self' {parts.scheme}://{parts.netloc};"
        policy = headers["content-security-policy"].replace("connect-src 'self';", allowed)
        headers = headers | {"content-security-policy": policy}
    if path.is_file():
        return FileResponse(path, headers=headers, media_type="text/html")
    return HTMLResponse(
        "<!doctype html><html lang=en><title>Not built</title><h1>This page was not built</h1>"
        "<p>Run <code>make console</code> with Node.js 20 or newer, then reload. The API works without it.</p></html>",
        status_code=503,
        headers=headers,
    )


def console(settings: Settings) -> Callable[[Request], Response]:
    """Returns the handler of the console's page."""
    return lambda _request: page(settings.console_dir / "index.html", _issuer(settings))


def graphiql(settings: Settings) -> Callable[[], Response] | None:
    """Returns the function that makes GraphiQL's page, or None if the settings turn it off."""
    return (lambda: page(settings.console_dir / "graphiql.html")) if settings.graphiql else None


def sign_in(settings: Settings) -> Handler:
    """Returns the handler that tells the console how people sign in other than by API key. None of that is secret."""
    login = {"issuer": settings.oidc_issuer, "clientId": settings.oidc_client_id, "audience": settings.oidc_audience}
    document = {"oidc": login if _issuer(settings) else None}

    async def handler(_request: Request) -> Response:
        return JSONResponse(document, headers={"cache-control": "no-cache"})

    return handler


def _issuer(settings: Settings) -> str | None:
    """Returns the issuer at which people sign in to the console, or None."""
    return None if settings.oidc_client_id is None else settings.oidc_issuer


class Assets(StaticFiles):
    """The files that pages load. A file's name holds a digest of its content, so browsers may keep it for ever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Returns the file with headers that let a browser keep it."""
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        response.headers["x-content-type-options"] = "nosniff"
        return response
