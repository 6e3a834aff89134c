"""Tests sign-in to the console by OIDC with a real browser, a running server, and an issuer as a process of its own."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Error, Page, Response, Route, expect

from services.identity import oidc
from tests.support import browser_support as support
from tests.support.browser_support import CONSOLE, Visit, traces
from tests.support.identity_provider import AUDIENCE, enlist
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio

SUB = "johndoe"
CLIENT = "better-compute-console"


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests of this file."""
    support.build_console()
    async with support.open_browser() as opened:
        yield opened


@asynccontextmanager
async def issuer(*, seconds: int = 300, once: bool = False) -> AsyncIterator[str]:
    """Starts an issuer and yields its URL. Its access tokens live for ``seconds``, and cannot be renewed if
    ``once``.
    """
    command = ["node", "tests/issuer.mjs", AUDIENCE, str(seconds), *(["once"] if once else [])]
    process = await asyncio.create_subprocess_exec(*command, cwd=CONSOLE, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.communicate()


class Login:
    """A visitor at the console's sign-in page, and the tokens that the issuer sent."""

    def __init__(self, visit: Visit, page: Page, url: str) -> None:
        self.visit = visit
        self.page = page
        self.button = page.get_by_role("button", name=f"Sign in with {url.removeprefix('http://')}", exact=True)
        self.tokens: list[dict[str, Any]] = []
        page.on("response", self._hear)

    async def _hear(self, response: Response) -> None:
        if response.url.endswith("/token"):
            with contextlib.suppress(Error):  # the page was left before it read the response
                self.tokens.append(await response.json())

    async def enter(self) -> None:
        """Signs in with the issuer and waits until the console shows it."""
        await self.button.click()
        await self.page.get_by_role("button", name="Sign out").wait_for()


@asynccontextmanager
async def at_the_door(
    browser: Browser, database_url: str, folder: Path, path: str = "/", *, known: bool = True, **options: Any
) -> AsyncIterator[Login]:
    """Yields the sign-in page of a server that trusts a new issuer. If ``known``, johndoe is an administrator there."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(issuer(**options))
        overrides = {"oidc_issuer": url, "oidc_audience": AUDIENCE, "oidc_client_id": CLIENT}
        world: World = await stack.enter_async_context(make_world(database_url, folder, **overrides))
        if known:
            await enlist(world, url, SUB)
        visit = await stack.enter_async_context(support.visit(browser, world, issuer=url))
        yield Login(visit, await visit.tab(path), url)


async def test_signing_in_leaves_no_token_behind(browser: Browser, database_url: str, tmp_path: Path) -> None:
    """Sign-in uses a code with PKCE and returns to the page that was opened. No data of the redirect remains."""
    async with at_the_door(browser, database_url, tmp_path, "/#/secrets") as login:
        page = login.page
        assert not [url for url in login.visit.requested if "oidc-client" in url], "the library is loaded when needed"
        await login.enter()
        await expect(page.get_by_role("heading", name="Secrets")).to_be_visible()
        await expect(page.get_by_role("banner")).to_contain_text(SUB)
        assert page.url == f"{login.visit.world.url}/#/secrets"
        [went] = [url for url in login.visit.requested if "/authorize?" in url]
        assert "code_challenge_method=S256" in went
        assert "response_type=code" in went
        [given] = login.tokens
        for secret in (given["access_token"], given["refresh_token"], given["id_token"]):
            assert set(await traces(page, secret)) <= {"heap"}
        assert await page.evaluate("sessionStorage.length + localStorage.length") == 0
        await page.get_by_role("button", name="Sign out").click()
        await expect(login.button).to_be_visible()
        await page.reload()
        await expect(login.button).to_be_visible()
        await expect(page.get_by_role("button", name="Sign out")).to_have_count(0)


async def test_api_keys_stay(browser: Browser, database_url: str, tmp_path: Path) -> None:
    """API keys work beside the issuer's button, and the first load stays small."""
    async with at_the_door(browser, database_url, tmp_path) as login:
        await expect(login.button).to_be_visible()
        for scheme in ("light", "dark"):
            await login.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            await support.settled(login.page)
            assert await support.findings(login.page) == []
        await support.sign_in(login.page, login.visit.world.keys["acme-viewer"])
        await expect(login.page.get_by_role("banner")).to_contain_text("acme-viewer")
        assert support.first_load() < 300 * 1024


async def test_somebody_unknown_is_told_what_to_ask_for(browser: Browser, database_url: str, tmp_path: Path) -> None:
    async with at_the_door(browser, database_url, tmp_path, known=False) as login:
        await login.button.click()
        await expect(login.page.get_by_role("alert")).to_contain_text(f"subject {SUB}")
        await expect(login.button).to_be_visible()
        await enlist(login.visit.world, str(login.visit.issuer), SUB)
        await login.enter()


async def test_a_token_is_renewed_and_the_page_stays_live(
    browser: Browser, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first token expired, the page continues with a second one and still receives changes."""
    monkeypatch.setattr(oidc, "LEEWAY_SECONDS", 0)
    async with at_the_door(browser, database_url, tmp_path, seconds=4) as login:
        world, began = login.visit.world, time.monotonic()
        await login.enter()
        while len(login.tokens) < 3 or time.monotonic() - began < 5:
            await asyncio.sleep(0.1)
            assert time.monotonic() - began < 15
        renamed = {"tenantId": "acme", "siteId": await world.site_id("Acme Berlin"), "name": "Acme Bonn"}
        assert (await world.post("acme-admin", "sites/update", renamed)).status_code == 200
        await expect(login.page.get_by_role("link", name="Acme Bonn")).to_be_visible()
        assert len({token["access_token"] for token in login.tokens}) == len(login.tokens)
        for token in tuple(login.tokens):  # the page goes on to renew, about as fast as this looks for traces
            assert set(await traces(login.page, token["access_token"])) <= {"heap"}


async def test_an_expired_token_leads_back_and_is_told(
    browser: Browser, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the issuer gives no refresh token, the server ends the stream, and the sign-in page says that the token
    expired.
    """
    monkeypatch.setattr(oidc, "LEEWAY_SECONDS", 0)
    async with at_the_door(browser, database_url, tmp_path, seconds=4, once=True) as login:
        await login.enter()
        await expect(login.page.get_by_role("alert")).to_contain_text("expired")
        await expect(login.button).to_be_visible()
        await login.enter()


@pytest.mark.parametrize("answer", ["?error=access_denied&state={state}", "?code=forged&state=forged"])
async def test_a_sign_in_that_comes_to_nothing_is_told(
    browser: Browser, database_url: str, tmp_path: Path, answer: str
) -> None:
    """A refusal by the issuer and a forged redirect start no session, and their parameters leave the address."""
    async with at_the_door(browser, database_url, tmp_path) as login:
        page, world = login.page, login.visit.world

        async def refuse(route: Route) -> None:
            state = re.findall(r"[?&]state=([^&]+)", route.request.url)[0]
            await route.fulfill(status=302, headers={"location": f"{world.url}/{answer.format(state=state)}"})

        await page.route("**/authorize?*", refuse)
        await login.button.click()
        await expect(page.get_by_role("alert")).to_contain_text("not completed")
        assert page.url == f"{world.url}/"
        assert login.tokens == []


async def test_a_console_without_an_issuer_offers_none(browser: Browser, database_url: str, tmp_path: Path) -> None:
    """Its content security policy allows no other origin. An issuer without a client id is for the API alone."""
    for name, overrides in {
        "none": {},
        "api": {"oidc_issuer": "https://login.example.com", "oidc_audience": AUDIENCE},
    }.items():
        async with AsyncExitStack() as stack:
            folder = tmp_path / name
            folder.mkdir()
            world = await stack.enter_async_context(make_world(database_url, folder, **overrides))
            visit = await stack.enter_async_context(support.visit(browser, world))
            answer = await world.client.get("/api/sign-in.json")
            assert json.loads(answer.content) == {"oidc": None}
            page = await visit.tab()
            await expect(page.get_by_label("API key")).to_be_visible()
            await expect(page.get_by_role("button", name=re.compile("with"))).to_have_count(0)
            policy = (await world.client.get("/")).headers["content-security-policy"]
            assert "connect-src 'self';" in policy
