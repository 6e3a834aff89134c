"""Takes pictures of every page in light and dark for `docs/screenshots`: `python -m tests.support.screenshots`."""

import asyncio
import re
import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, get_args

import asyncpg
from playwright.async_api import Browser, expect

from database.embedded import EmbeddedPostgres
from database.migrate import upgrade
from tests.support import browser_support as support
from tests.support.agent_world import join, mint
from tests.support.browser_support import Scheme, dialog
from tests.support.world import World, make_world

FOLDER = Path(__file__).parent.parent.parent / "docs" / "screenshots"


async def seed(world: World) -> None:
    """Makes agents that hold the lease in turn, a second token, secrets, and a refusal for the audit trail."""
    token = (await mint(world, max_uses=4))[1]
    first, second = [await join(world, token=token, name=name) for name in ("rack-1-a", "rack-1-b")]
    for agent in (first, second):
        lease = await agent.acquire(world)
        await agent.ok(world, "compute/bootLeases/release", epoch=lease["epoch"])
    await first.acquire(world)
    await mint(world)
    for name in ("bmc/rack-1", "bmc/rack-2", "registry/pull"):
        body = {"tenantId": "acme", "name": name, "value": "for the picture"}
        assert (await world.post("acme-admin", "secrets/put", body)).status_code == 200
    body = {"tenantId": "acme", "name": "bmc/rack-1", "value": "of a viewer"}
    assert (await world.post("acme-viewer", "secrets/put", body)).status_code == 403


async def shoot(browser: Browser, world: World, scheme: Scheme) -> None:
    """Visits all pages once in one colour scheme and takes their pictures."""
    options: dict[str, Any] = {"color_scheme": scheme, "reduced_motion": "reduce", "permissions": ["clipboard-write"]}
    async with support.visit(browser, world, **options) as visit:
        page = await visit.tab()

        async def keep(name: str) -> None:
            await support.settled(page)
            await page.screenshot(path=FOLDER / f"{name}-{scheme}.png", animations="disabled", caret="hide")

        await page.get_by_label("API key").wait_for()
        await keep("sign-in")
        await support.sign_in(page, world.keys["acme-admin"])
        await page.get_by_role("link", name="Acme Berlin lab").wait_for()
        await keep("sites")
        await page.get_by_role("link", name="Acme Berlin lab").click()
        await expect(page.locator("[aria-labelledby=lease]")).to_contain_text("rack-1-b")
        await keep("site")
        await page.locator("[aria-labelledby=lease]").scroll_into_view_if_needed()
        await keep("lease")
        await page.get_by_role("button", name="Mint token").click()
        await dialog(page).get_by_role("button", name="Mint", exact=True).wait_for()
        await keep("mint")
        await dialog(page).get_by_role("button", name="Mint", exact=True).click()
        await page.get_by_test_id("bearer").wait_for()
        await keep("token")
        await dialog(page).get_by_role("button", name="Copy token").click()
        await page.keyboard.press("Escape")
        await page.locator("[aria-labelledby=tokens]").get_by_role("button", name="Revoke").last.click()
        await dialog(page).get_by_label("Revoke its agents too").wait_for()
        await keep("revoke")
        await page.keyboard.press("Escape")
        for name in ("secrets", "audit"):
            await page.evaluate(f"location.hash = '#/{name}'")
            await expect(page.get_by_role("heading", level=1)).to_contain_text(re.compile(name, re.IGNORECASE))
            await page.locator("tbody tr").first.wait_for()
            await keep(name)
        await page.goto(world.url + "/graphql")
        await page.get_by_label("API key").fill(world.keys["acme-admin"])
        await page.get_by_role("button", name="Use").click()
        await expect(page.get_by_role("region", name="Operation Editor")).to_contain_text("Viewer")
        await page.get_by_role("button", name="Execute query").click()
        await expect(page.get_by_label("Result Window")).to_contain_text("acme-admin")
        await page.get_by_role("button", name="Show GraphiQL Explorer").click()
        await page.locator(".graphiql-explorer-root").wait_for()
        await keep("graphiql")


async def main(postgres: EmbeddedPostgres, folder: Path) -> None:
    """Builds the console, makes the world and takes the pictures."""
    support.build_console()
    FOLDER.mkdir(parents=True, exist_ok=True)
    connection = await asyncpg.connect(postgres.dsn("postgres"))
    await connection.execute("CREATE DATABASE pictures")
    await connection.close()
    await asyncio.to_thread(lambda: asyncio.run(upgrade(postgres.dsn("pictures"))))
    async with AsyncExitStack() as stack:
        opening = make_world(postgres.dsn("pictures"), folder, graphiql=True, graphql_introspection=True)
        world = await stack.enter_async_context(opening)
        browser = await stack.enter_async_context(support.open_browser())
        await seed(world)
        for scheme in get_args(Scheme):
            await shoot(browser, world, scheme)


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(prefix="bc-pictures-"))
    try:
        with EmbeddedPostgres(place / "postgres") as started:
            asyncio.run(main(started, place))
    finally:
        shutil.rmtree(place)
