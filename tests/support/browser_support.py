"""The console in a real browser: Debian's Chromium, cut off from the network, with all that it asked for and told."""

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
"""The last one cuts the network: no name resolves."""

REFUSED = re.compile(r"^Failed to load resource: the server responded with a status of 4\d\d")
"""What Chromium says about a refusal, which tests provoke and pages show."""

Scheme = Literal["light", "dark"]


def build_console() -> None:
    """Build the console and GraphiQL, unless they are built."""
    if not (CONSOLE / "dist" / "index.html").exists():
        for command in (["npm", "ci"], ["npm", "run", "build"]):
            subprocess.run(command, cwd=CONSOLE, check=True, capture_output=True)


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """A browser that reaches nothing but this machine."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


@dataclass
class Visit:
    """One person's browser: tabs that share storage, and what they asked for and told meanwhile."""

    world: World
    context: BrowserContext
    asked: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    issuer: str | None = None
    """Where people sign in: the one other place that may be asked."""

    async def tab(self, path: str = "/") -> Page:
        """A new tab at ``path``."""
        page = await self.context.new_page()
        page.on("websocket", lambda socket: self.asked.append(socket.url))
        page.on("pageerror", lambda error: self.told.append(f"uncaught: {error}"))
        await page.goto(self.world.url + path)
        return page

    async def signed_in(self, caller: str, path: str = "/") -> Page:
        """A new tab in which ``caller`` signed in."""
        page = await self.tab(path)
        await sign_in(page, self.world.keys[caller])
        await page.get_by_role("button", name="Sign out").wait_for()
        return page

    def remember(self, request: BrowserRequest) -> None:
        """Note what was asked for, by a page or one of its workers."""
        self.asked.append(request.url)

    def hear(self, message: ConsoleMessage) -> None:
        """Note a warning or an error; violations of the content security policy are among them."""
        if message.type in {"error", "warning"} and not REFUSED.match(message.text):
            self.told.append(message.text)

    def strangers(self) -> list[str]:
        """What was asked for elsewhere than at the server."""
        own = (self.world.url + "/", self.world.url.replace("http:", "ws:") + "/", "data:")
        blobs = f"blob:{self.world.url}/"
        issuer = () if self.issuer is None else (self.issuer + "/",)
        return [url for url in self.asked if not url.startswith((*own, blobs, *issuer))]


@asynccontextmanager
async def visit(browser: Browser, world: World, *, issuer: str | None = None, **options: Any) -> AsyncIterator[Visit]:
    """Somebody's visit. Asserts at its end that no request left the origin and that nothing went wrong unseen."""
    context = await browser.new_context(**({"viewport": {"width": 1200, "height": 800}} | options))
    context.set_default_timeout(8000)
    made = Visit(world, context, issuer=issuer)
    context.on("request", made.remember)
    context.on("console", made.hear)
    try:
        yield made
    finally:
        await context.close()
    assert made.strangers() == []
    assert made.told == [], made.told


async def sign_in(page: Page, key: str) -> None:
    """Type the key, and send it."""
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Sign in", exact=True).click()


def dialog(page: Page) -> Locator:
    """The open dialog."""
    return page.get_by_role("dialog")


async def traces(page: Page, text: str) -> list[str]:
    """Where the page still holds ``text``: DOM, fields, storages, address, and all that its scripts can reach."""
    found: list[str] = await page.evaluate(
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
        # In two parts, so that the question leaves no trace of its own.
        [text[:12], text[12:]],
    )
    if text in await _heap(page):
        found.append("heap")
    return found


async def _heap(page: Page) -> str:
    """All strings that the page's scripts can reach, closures and caches included, after a collection of garbage."""
    session = await page.context.new_cdp_session(page)
    chunks: list[str] = []
    session.on("HeapProfiler.addHeapSnapshotChunk", lambda event: chunks.append(event["chunk"]))
    await session.send("HeapProfiler.collectGarbage")
    await session.send("HeapProfiler.takeHeapSnapshot", {"reportProgress": False})
    await session.detach()
    return "\n".join(json.loads("".join(chunks))["strings"])


def first_load() -> int:
    """Compressed bytes of the scripts that the console's page loads at first."""
    html = (CONSOLE / "dist" / "index.html").read_text()
    scripts = re.findall(r'(?:src|href)="/(assets/[^"]+\.js)"', html)
    assert scripts
    return sum(len(gzip.compress((CONSOLE / "dist" / script).read_bytes())) for script in scripts)


async def findings(page: Page) -> list[str]:
    """What axe finds on the page that is serious or critical. The page's context must bypass its content policy."""
    await page.evaluate((CONSOLE / "node_modules" / "axe-core" / "axe.min.js").read_text())
    report: dict[str, Any] = await page.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        f"{found['id']}: {node['html']} {node['failureSummary']}"
        for found in report["violations"]
        if found["impact"] in {"serious", "critical"}
        for node in found["nodes"]
    ]


async def overflow(page: Page) -> int:
    """How many pixels the page is wider than its window."""
    return int(await page.evaluate("document.documentElement.scrollWidth - innerWidth"))


async def settled(page: Page) -> None:
    """Wait until nothing moves: dialogs and colours are where they will stay."""
    await page.evaluate("Promise.all(document.getAnimations().map((a) => a.finished.catch(() => null)))")
    await asyncio.sleep(0)
