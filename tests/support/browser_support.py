"""Opens the console in Debian's Chromium without a network, and records its requests and its errors."""

import asyncio
import gzip
import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, async_playwright
from playwright.async_api import Request as BrowserRequest

from tests.support.world import World

CONSOLE = Path(__file__).parent.parent.parent / "console"
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
"""The flags of Chromium. The last one cuts the network off: no name resolves."""

REFUSED = re.compile(r"^Failed to load resource: the server responded with a status of 4\d\d")
"""Chromium's message about a 4xx response. Tests provoke these, and pages show them."""

Scheme = Literal["light", "dark"]


def build_console() -> None:
    """Builds the console and GraphiQL, unless they are built."""
    if not (CONSOLE / "dist" / "index.html").exists():
        for command in (["npm", "ci"], ["npm", "run", "build"]):
            subprocess.run(command, cwd=CONSOLE, check=True, capture_output=True)


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Yields a browser that reaches nothing but this machine."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


@dataclass
class Visit:
    """A browser context: tabs that share storage, the URLs that they requested, and the errors that they logged."""

    world: World
    context: BrowserContext
    requested: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    issuer: str | None = None
    """The OIDC issuer, the only other origin that pages may request."""

    async def tab(self, path: str = "/") -> Page:
        """Opens a tab at ``path``."""
        page = await self.context.new_page()
        page.on("websocket", lambda socket: self.requested.append(socket.url))
        page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))
        await page.goto(self.world.url + path)
        return page

    async def signed_in(self, caller: str, path: str = "/") -> Page:
        """Opens a tab at ``path`` and signs in as ``caller``."""
        page = await self.tab(path)
        await sign_in(page, self.world.keys[caller])
        await page.get_by_role("button", name="Sign out").wait_for()
        return page

    def remember(self, request: BrowserRequest) -> None:
        """Records the URL of a request by a page or one of its workers."""
        self.requested.append(request.url)

    def hear(self, message: ConsoleMessage) -> None:
        """Records a warning or an error of the console. Violations of the content security policy are among them."""
        if message.type in {"error", "warning"} and not REFUSED.match(message.text):
            self.errors.append(message.text)

    def strangers(self) -> list[str]:
        """Returns the requested URLs of other origins than the server and the issuer."""
        own = (self.world.url + "/", self.world.url.replace("http:", "ws:") + "/", "data:")
        blobs = f"blob:{self.world.url}/"
        issuer = () if self.issuer is None else (self.issuer + "/",)
        return [url for url in self.requested if not url.startswith((*own, blobs, *issuer))]


@asynccontextmanager
async def visit(browser: Browser, world: World, *, issuer: str | None = None, **options: Any) -> AsyncIterator[Visit]:
    """Yields a visit. At its end it asserts that no request left the origin and that nothing was logged as an error."""
    context = await browser.new_context(**({"viewport": {"width": 1200, "height": 800}} | options))
    context.set_default_timeout(8000)
    opened = Visit(world, context, issuer=issuer)
    context.on("request", opened.remember)
    context.on("console", opened.hear)
    try:
        yield opened
    finally:
        await context.close()
    assert opened.strangers() == []
    assert opened.errors == [], opened.errors


async def sign_in(page: Page, key: str) -> None:
    """Signs in with an API key."""
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Sign in", exact=True).click()


def dialog(page: Page) -> Locator:
    """Returns the open dialog."""
    return page.get_by_role("dialog")


async def traces(page: Page, text: str) -> list[str]:
    """Returns the places of a page that hold ``text``: DOM, fields, storages, cookies, address, and the heap of its
    scripts.
    """
    holding: list[str] = await page.evaluate(
        """async (parts) => {
          const text = parts.join("");
          const databases = await indexedDB.databases();
          const places = {
            dom: document.documentElement.outerHTML,
            fields: [...document.querySelectorAll("input, textarea")].map((field) => field.value).join("\\n"),
            localStorage: JSON.stringify({ ...localStorage }),
            sessionStorage: JSON.stringify({ ...sessionStorage }),
            indexedDB: JSON.stringify(databases),
            cookies: document.cookie,
            address: location.href + JSON.stringify(history.state),
          };
          return Object.keys(places).filter((place) => places[place].includes(text));
        }""",
        # In two parts, so that this call leaves no trace of its own.
        [text[:12], text[12:]],
    )
    if text in await _heap(page):
        holding.append("heap")
    return holding


async def _heap(page: Page) -> str:
    """Returns all strings on the heap of the page's scripts, closures and caches included, after a garbage
    collection.
    """
    session = await page.context.new_cdp_session(page)
    chunks: list[str] = []
    session.on("HeapProfiler.addHeapSnapshotChunk", lambda event: chunks.append(event["chunk"]))
    await session.send("HeapProfiler.collectGarbage")
    await session.send("HeapProfiler.takeHeapSnapshot", {"reportProgress": False})
    await session.detach()
    return "\n".join(json.loads("".join(chunks))["strings"])


def first_load() -> int:
    """Returns the size in compressed bytes of the scripts that the console's page loads first."""
    html = (CONSOLE / "dist" / "index.html").read_text()
    scripts = re.findall(r'(?:src|href)="/(assets/[^"]+\.js)"', html)
    assert scripts
    return sum(len(gzip.compress((CONSOLE / "dist" / script).read_bytes())) for script in scripts)


async def findings(page: Page) -> list[str]:
    """Returns the serious and critical findings of axe on the page."""
    await page.evaluate((CONSOLE / "node_modules" / "axe-core" / "axe.min.js").read_text())
    report: dict[str, Any] = await page.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        f"{violation['id']}: {node['html']} {node['failureSummary']}"
        for violation in report["violations"]
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"]
    ]


async def overflow(page: Page) -> int:
    """Returns by how many pixels the page is wider than its window."""
    return int(await page.evaluate("document.documentElement.scrollWidth - innerWidth"))


async def settled(page: Page) -> None:
    """Waits until all animations have ended, so that dialogs and colours are final."""
    await page.evaluate("Promise.all(document.getAnimations().map((a) => a.finished.catch(() => null)))")
    await asyncio.sleep(0)
