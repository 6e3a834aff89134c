"""Tests the console and GraphiQL in a real browser, which reaches only the running server."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from database.embedded import EmbeddedPostgres
from models.access import identities
from tests.support import agent_world
from tests.support import browser_support as support
from tests.support.browser_support import Visit, dialog, traces
from tests.support.outside import new_database
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio

SECRET = "correct-horse-battery-staple-4711"
ROW = "tbody tr"
CREATE_SITE = "mutation ($input: CreateSiteInput!) { createSite(input: $input) { site { id } } }"


@pytest.fixture(scope="module")
async def served(
    cluster: EmbeddedPostgres, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """One demo world with the console and GraphiQL, for all tests of this file."""
    support.build_console()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(new_database(cluster, template))
        folder = tmp_path_factory.mktemp("browser")
        yield await stack.enter_async_context(make_world(url, folder, graphiql=True, graphql_introspection=True))


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests of this file."""
    async with support.open_browser() as opened:
        yield opened


@pytest.fixture
async def visit(browser: Browser, served: World) -> AsyncIterator[Visit]:
    """A visit. At its end it asserts that no request left the origin and nothing broke the content security policy."""
    async with support.visit(browser, served, permissions=["clipboard-read", "clipboard-write"]) as opened:
        yield opened


async def mint(page: Page) -> str:
    """Mints a token in the dialog and returns its bearer."""
    await page.get_by_role("button", name="Mint token").click()
    await dialog(page).get_by_role("button", name="Mint", exact=True).click()
    return await page.get_by_test_id("bearer").inner_text()


async def leave(page: Page) -> None:
    """Closes the dialog and waits until it is gone."""
    await dialog(page).get_by_role("button", name="Close", exact=True).last.click()
    await expect(dialog(page)).to_have_count(0)


async def site_path(world: World, name: str) -> str:
    """Returns the path of the page of a site."""
    return f"/#/sites/{await world.site_id(name)}"


async def new_caller(world: World) -> str:
    """Returns a new key of acme's admin, which a test may revoke."""
    async with world.owner.transaction() as tx:
        identity = await identities.find_identity(tx, "acme", "acme-admin")
        assert identity is not None
        return (await identities.add_key(tx, "acme", identity)).reveal()


async def test_a_wrong_key_is_told_and_a_right_one_opens_the_sites(visit: Visit) -> None:
    page = await visit.tab()
    await support.sign_in(page, "bck_" + "0" * 26 + ".nonsense")
    await expect(page.get_by_role("alert")).to_contain_text("unauthenticated")
    await support.sign_in(page, visit.world.keys["acme-admin"])
    await expect(page.get_by_role("heading", name="Sites")).to_be_visible()
    await expect(page.get_by_role("link", name="Acme Berlin lab")).to_be_visible()
    await expect(page.get_by_role("link", name="Globex Osaka")).to_have_count(0)
    await page.reload()
    await expect(page.get_by_label("API key")).to_have_value("")


@pytest.mark.alone
async def test_the_first_load_is_small_and_soon_ready(browser: Browser, served: World) -> None:
    """The first paint takes less than a second: the page paints nothing before its scripts show the sign-in form.

    The best of three visits with empty caches counts, because other programs use the processor too.
    """
    assert support.first_load() < 300 * 1024
    painted: list[float] = []
    for _ in range(3):
        async with support.visit(browser, served) as opened:
            page = await opened.tab()
            await page.get_by_label("API key").fill("typed")
            paint = "performance.getEntriesByName('first-contentful-paint')"
            await page.wait_for_function(f"{paint}.length")  # the form can be filled before it is painted
            painted.append(await page.evaluate(f"{paint}[0].startTime"))
    assert min(painted) < 1000


async def test_signing_out_leaves_no_key_behind(visit: Visit) -> None:
    page = await visit.signed_in("acme-admin")
    key = visit.world.keys["acme-admin"]
    assert set(await traces(page, key)) <= {"heap"}
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("API key")).to_have_value("")
    assert set(await traces(page, key)) <= {"heap"}


async def test_a_token_is_minted_shown_once_copied_and_forgotten(visit: Visit) -> None:
    page = await visit.signed_in("acme-admin", await site_path(visit.world, "Acme Berlin"))
    bearer = await mint(page)
    assert await traces(page, bearer) == ["dom", "heap"]  # proves that `traces` finds a text that is there
    await expect(dialog(page)).to_contain_text(f"bcd site join --server {visit.world.url}")
    await dialog(page).get_by_role("button", name="Copy token").click()
    assert await page.evaluate("navigator.clipboard.readText()") == bearer
    await leave(page)
    await expect(page.locator(ROW).first).to_contain_text("active")
    assert await traces(page, bearer) == []
    enrolled = await visit.world.post("acme-admin", "siteTokens/list", {"tenantId": "acme"})
    assert bearer.split(".")[0].removeprefix("bcjt_") in enrolled.text


async def test_leaving_an_uncopied_token_warns(visit: Visit) -> None:
    """The dialog asks before it closes, and the browser asks before it leaves the page."""
    page = await visit.signed_in("acme-admin", await site_path(visit.world, "Acme Berlin"))
    bearer = await mint(page)
    questions: list[str] = []

    async def refuse(question: Any) -> None:
        questions.append(question.type)
        await question.dismiss()

    page.on("dialog", refuse)
    await page.keyboard.press("Escape")
    await expect(dialog(page)).to_contain_text("was not copied")
    await page.close(run_before_unload=True)
    await expect(page.get_by_test_id("bearer")).to_have_text(bearer)
    assert questions == ["beforeunload"]
    await leave(page)
    assert await traces(page, bearer) == []


@pytest.mark.alone
async def test_a_token_minted_in_one_tab_appears_and_is_revoked_in_the_other_within_a_second(visit: Visit) -> None:
    path = await site_path(visit.world, "Acme Dublin")
    first, second = await visit.signed_in("acme-admin", path), await visit.signed_in("acme-admin", path)
    await expect(second.get_by_role("button", name="Mint token")).to_be_visible()
    await expect(second.locator(ROW)).to_have_count(0)
    await asyncio.sleep(0.5)
    await mint(first)
    await expect(second.locator(ROW)).to_have_count(1, timeout=1000)
    await second.locator(ROW).get_by_role("button", name="Revoke").click()
    await dialog(second).get_by_role("button", name="Revoke token").click()
    await expect(second.locator(ROW)).to_contain_text("revoked")
    await expect(first.locator(ROW)).to_contain_text("revoked", timeout=1000)


async def test_a_revocation_tells_whom_it_hits_and_the_lease_has_a_history(visit: Visit) -> None:
    """An open page shows how agents enrol, take the lease in turn, and are revoked with their token."""
    site = "Acme Dublin"
    page = await visit.signed_in("acme-admin", await site_path(visit.world, site))
    token_id, bearer = await agent_world.mint(visit.world, site, max_uses=2)
    agents = [await agent_world.join(visit.world, site, bearer, name=name) for name in ("rack-a", "rack-b")]
    await expect(page.locator("[aria-labelledby=agents]").locator(ROW)).to_have_count(2)
    first = await agents[0].acquire(visit.world)
    await agents[0].ok(visit.world, "compute/bootLeases/release", epoch=first["epoch"])
    await agents[1].acquire(visit.world)
    lease = page.locator("[aria-labelledby=lease]")
    await expect(lease).to_contain_text(re.compile(r"rack-b\s*Epoch 2, holds it since.*rack-a.*released", re.DOTALL))
    await expect(page.locator(ROW, has_text="rack-b")).to_contain_text("boots")
    row = page.locator("[aria-labelledby=tokens]").locator(ROW, has_text=token_id[:11]).first
    await row.get_by_role("button", name="Revoke").click()
    await expect(dialog(page)).to_contain_text("2 agents enrolled with it")
    await expect(dialog(page).get_by_role("listitem")).to_contain_text(["rack-b", "rack-a"])
    await dialog(page).get_by_label("Revoke its agents too").check()
    await dialog(page).get_by_role("button", name="Revoke token").click()
    await expect(page.locator("[aria-labelledby=agents]").get_by_text("revoked")).to_have_count(2)
    await expect(lease).to_contain_text("Nobody")
    await expect(lease).to_contain_text("the agent was revoked")


async def test_a_secret_goes_in_and_is_nowhere_afterwards(visit: Visit) -> None:
    page = await visit.signed_in("acme-admin", "/#/secrets")
    await page.get_by_role("button", name="Put secret").click()
    await dialog(page).get_by_label("Name").fill("bmc/rack-9")
    value = dialog(page).get_by_label("Value")
    await value.fill(SECRET)
    await dialog(page).get_by_role("button", name="Put", exact=True).click()
    await expect(dialog(page)).to_contain_text("version 1")
    assert await page.evaluate("[...document.querySelectorAll('input')].map((i) => i.value)") != []
    assert set(await traces(page, SECRET)) <= {"heap"}
    await leave(page)
    await expect(page.locator(ROW)).to_contain_text("secret://tenant/acme/bmc/rack-9")
    assert await traces(page, SECRET) == []


async def test_a_token_is_bound_to_networks(visit: Visit) -> None:
    """The dialog takes one network a line and marks a bad one. The list shows the networks of a token."""
    page = await visit.signed_in("globex-admin", await site_path(visit.world, "Globex Osaka"))
    await page.get_by_role("button", name="Mint token").click()
    networks = dialog(page).get_by_label("Networks")
    await networks.fill("10.1.0.0/16\nnot a network")
    await dialog(page).get_by_role("button", name="Mint", exact=True).click()
    await expect(networks).to_have_attribute("aria-invalid", "true")
    await networks.fill("10.1.0.0/16\n192.0.2.0/24")
    await dialog(page).get_by_role("button", name="Mint", exact=True).click()
    await expect(page.get_by_test_id("bearer")).to_be_visible()
    await leave_uncopied(page)
    await expect(page.locator(ROW).first).to_contain_text("from 10.1.0.0/16, 192.0.2.0/24")
    listed = await visit.world.post("globex-admin", "siteTokens/list", {"first": 1})
    assert listed.json()["items"][0]["allowedCidrs"] == ["10.1.0.0/16", "192.0.2.0/24"]


async def test_an_agent_is_revoked_alone(visit: Visit) -> None:
    """Its own button revokes it. Other agents of its token stay enrolled."""
    site = "Globex Osaka"
    _, bearer = await agent_world.mint(visit.world, site, max_uses=2)
    first, second = [await agent_world.join(visit.world, site, bearer, name=name) for name in ("rack-x", "rack-y")]
    await first.acquire(visit.world)
    page = await visit.signed_in("globex-admin", await site_path(visit.world, site))
    agents = page.locator("[aria-labelledby=agents]")
    await agents.locator(ROW, has_text="rack-x").get_by_role("button", name="Revoke").click()
    await expect(dialog(page)).to_contain_text("loses the boot lease")
    await dialog(page).get_by_role("button", name="Revoke agent").click()
    await expect(agents.locator(ROW, has_text="rack-x")).to_contain_text("revoked")
    await expect(agents.get_by_role("button", name="Revoke")).to_have_count(1)
    assert await first.refusal(visit.world, "compute/siteAgents/self") == agent_world.UNAUTHENTICATED
    await second.ok(visit.world, "compute/siteAgents/self")


async def test_a_secret_is_granted_to_a_site_and_taken_back(visit: Visit) -> None:
    """The page of a dedicated site offers grants too. A reference that does not exist is an error."""
    for name in ("bmc/grant-1", "bmc/grant-2"):
        body = {"tenantId": "acme", "name": name, "value": "v"}
        assert (await visit.world.post("acme-admin", "secrets/put", body)).status_code == 200
    page = await visit.signed_in("acme-admin", await site_path(visit.world, "Ashburn"))
    grants = page.locator("[aria-labelledby=grants]")
    await expect(grants).to_contain_text("No secret is granted")
    await grants.get_by_role("button", name="Grant secret").click()
    field = dialog(page).locator("input")
    for wrong, message in (("bmc/grant-1", "invalid argument"), ("secret://tenant/acme/no-such", "not found")):
        await field.fill(wrong)
        await field.press("Enter")
        await expect(dialog(page).get_by_role("alert")).to_contain_text(message)
    await field.fill("grant-2")
    await page.get_by_role("option", name="secret://tenant/acme/bmc/grant-2").click()
    await dialog(page).get_by_role("button", name="Grant", exact=True).click()
    await expect(grants.locator(ROW)).to_contain_text(["bmc/grant-2"])
    await grants.locator(ROW).get_by_role("button", name="Revoke").click()
    await dialog(page).get_by_role("button", name="Revoke grant").click()
    await expect(grants).to_contain_text("No secret is granted")
    listed = await visit.world.post("acme-admin", "secrets/listGrants", {})
    assert listed.json()["items"] == []
    shared = await visit.signed_in("acme-admin", await site_path(visit.world, "Frankfurt"))
    await expect(shared.get_by_role("heading", name="Frankfurt shared")).to_be_visible()
    await expect(shared.locator("[aria-labelledby=grants]")).to_have_count(0)


async def test_a_site_is_made_changed_and_deleted(visit: Visit) -> None:
    page = await visit.signed_in("acme-admin")
    await page.get_by_role("button", name="New site").click()
    await dialog(page).get_by_label("Name").fill("Acme Oslo")
    await dialog(page).get_by_label("Region").fill("not a region")
    await dialog(page).get_by_role("button", name="Create").click()
    await expect(dialog(page).get_by_label("Region")).to_have_attribute("aria-invalid", "true")
    await dialog(page).get_by_label("Region").fill("eu-north")
    await dialog(page).get_by_role("button", name="Create").click()
    await expect(page.get_by_role("heading", name="Acme Oslo")).to_be_visible()
    await page.get_by_role("button", name="Edit").click()
    await dialog(page).get_by_label("Name").fill("Acme Bergen")
    await dialog(page).get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="Acme Bergen")).to_be_visible()
    await page.get_by_role("button", name="Delete").click()
    await dialog(page).get_by_role("button", name="Delete site").click()
    await expect(page.get_by_role("heading", name="Sites")).to_be_visible()
    await expect(page.get_by_role("link", name=re.compile("Berlin"))).to_be_visible()
    await expect(page.get_by_role("link", name=re.compile("Bergen|Oslo"))).to_have_count(0)


async def test_a_viewer_is_offered_nothing_that_would_be_refused(visit: Visit) -> None:
    offers = re.compile(r"^(New|Mint|Edit|Delete|Revoke|Put|Grant)\b")
    page = await visit.signed_in("acme-viewer")
    for path, there in (
        ("/#/", page.get_by_role("link", name="Acme Berlin lab")),
        (await site_path(visit.world, "Acme Berlin"), page.get_by_role("heading", name="Acme Berlin")),
        ("/#/secrets", page.get_by_role("heading", name="Secrets")),
        ("/#/audit", page.get_by_role("heading", name="Audit trail")),
    ):
        await page.evaluate("(path) => { location.hash = path.slice(1); }", path)
        await expect(there).to_be_visible()
        await expect(page.get_by_role("button", name=offers)).to_have_count(0)


async def test_a_key_revoked_meanwhile_is_told(visit: Visit) -> None:
    key = await new_caller(visit.world)
    page = await visit.tab()
    follows = asyncio.Event()

    def watch(frame: str | bytes) -> None:
        if '"subscribe"' in str(frame):
            follows.set()

    page.on("websocket", lambda socket: socket.on("framesent", watch))
    await support.sign_in(page, key)
    await asyncio.wait_for(follows.wait(), 8)
    async with visit.world.owner.transaction() as tx:
        assert await identities.revoke_key(tx, key.split(".", maxsplit=1)[0])
    await expect(page.get_by_role("alert")).to_contain_text("was revoked")
    await expect(page.get_by_label("API key")).to_have_value("")
    await support.sign_in(page, visit.world.keys["acme-admin"])
    await expect(page.get_by_role("button", name="Sign out")).to_be_visible()


async def test_sites_are_searched_and_paged(visit: Visit) -> None:
    for number in range(25):
        site = {"tenantId": "globex", "kind": "CUSTOM", "name": f"Hall {number:02}", "region": "eu-west"}
        answer = await visit.world.graphql("globex-admin", CREATE_SITE, input=site | {"idempotencyKey": f"h{number}"})
        assert "errors" not in answer
    page = await visit.signed_in("globex-admin")
    await expect(page.locator(ROW).first).to_be_visible()
    count = await page.locator(ROW).count()
    await page.get_by_role("button", name="Next").click()
    await expect(page.locator(ROW)).to_have_count(27 - count)
    await expect(page.get_by_role("button", name="Next")).to_be_disabled()
    await page.get_by_label("Search").fill("hall 07")
    await expect(page.locator(ROW)).to_have_count(1)
    await expect(page.locator(ROW)).to_contain_text("Hall 07")
    await page.get_by_label("Search").fill("nothing like it")
    await expect(page.locator("main")).to_contain_text("No site matches")


async def test_graphiql_explores_and_runs_operations(visit: Visit) -> None:
    page = await visit.tab("/graphql")
    await page.get_by_label("API key").fill(visit.world.keys["acme-admin"])
    await page.get_by_role("button", name="Use").click()
    await expect(page.get_by_role("region", name="Operation Editor")).to_contain_text("Viewer")
    await page.get_by_role("button", name="Execute query").click()
    await expect(page.get_by_label("Result Window")).to_contain_text("acme-admin")
    await page.get_by_role("button", name="Show GraphiQL Explorer").click()
    await expect(
        page.get_by_role("region", name="Explorer").or_(page.locator(".graphiql-explorer-root"))
    ).to_contain_text("siteTokens")
    await expect(page.get_by_role("tab")).to_have_count(8)
    assert any(".worker-" in url for url in visit.requested)
    assert set(await traces(page, visit.world.keys["acme-admin"])) <= {"heap"}


async def test_graphiql_puts_an_editor_away_without_a_word(visit: Visit) -> None:
    """Another key replaces all editors. Their unfinished work is cancelled, which is not reported as an error."""
    page = await visit.tab("/graphql")
    await expect(page.get_by_role("region", name="Operation Editor")).to_contain_text("Viewer")
    await page.evaluate(
        """(names) => names.forEach((name) => void Promise.reject(Object.assign(new Error(name), { name })))""",
        ["Canceled", "Broken"],
    )
    await page.evaluate("new Promise((resolve) => setTimeout(resolve))")
    assert visit.errors == ["uncaught: Broken"]
    visit.errors.clear()


async def test_pages_are_accessible_and_fit_small_windows(browser: Browser, served: World) -> None:
    """The checker axe finds nothing serious in either colour scheme, and no page is wider than a window of 400 px."""
    berlin = await site_path(served, "Acme Berlin")
    faults: dict[str, Any] = {}
    async with support.visit(browser, served) as opened:
        page = await opened.tab()

        async def examine(name: str) -> None:
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                await support.settled(page)
                if found := await support.findings(page):
                    faults[f"{name}, {scheme}"] = found
            await page.set_viewport_size({"width": 400, "height": 800})
            await support.settled(page)
            if wide := await support.overflow(page):
                faults[f"{name}, 400 px"] = wide
            await page.set_viewport_size({"width": 1200, "height": 800})

        await examine("sign-in")
        await support.sign_in(page, served.keys["acme-admin"])
        await expect(page.get_by_role("link", name="Acme Berlin lab")).to_be_visible()
        await examine("sites")
        await page.goto(served.url + berlin)
        await expect(page.get_by_role("heading", name="Acme Berlin")).to_be_visible()
        await examine("site")
        await mint(page)
        await examine("bearer")
        await leave_uncopied(page)
        await page.get_by_role("button", name="Revoke").first.click()
        await expect(dialog(page)).to_contain_text("enrolled with it")
        await examine("revoke")
        await page.keyboard.press("Escape")
        for name in ("secrets", "audit"):
            await page.evaluate(f"location.hash = '#/{name}'")
            await expect(page.get_by_role("heading", level=1)).to_contain_text(re.compile(name, re.IGNORECASE))
            await examine(name)
    assert not faults, json.dumps(faults, indent=1)


async def leave_uncopied(page: Page) -> None:
    """Closes the dialog of a token that nobody copied, which asks once."""
    await dialog(page).get_by_role("button", name="Close", exact=True).last.click()
    await leave(page)
