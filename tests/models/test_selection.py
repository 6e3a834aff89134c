"""Tests that only the selected members of a page's rows are read, and that no response shows it."""

import asyncio
import gc
from random import Random

import httpx
import pytest
from graphql import Source

from models.fleet.sites import SiteRow
from models.pages import Page, PageSelection
from tests.support.world import World, run_server

pytestmark = pytest.mark.anyio

SITE_MEMBERS = [
    "id",
    "tenantId",
    "kind",
    "name",
    "region",
    "labels{key}",
    "dedicatedTo",
    "revision",
    "createdAt",
    "updatedAt",
    "deletedAt",
]
TOKEN_MEMBERS = [
    "id",
    "tenantId",
    "siteId",
    "role",
    "state",
    "maxUses",
    "uses",
    "allowedCidrs",
    "createdAt",
    "createdBy",
    "expiresAt",
    "revokedAt",
]
TOKEN_MEMBERS += ["lastUsedAt", "site{name region}", "agents{totalCount}"]
PAGES = ["nodes { %s }", "edges { node { %s } }", "edges { cursor node { %s } }"]
MORE = ["", "totalCount", "pageInfo { hasNextPage }", "pageInfo { hasPreviousPage startCursor }"]
MORE += ["pageInfo { hasNextPage endCursor }"]


def test_what_was_not_read_is_an_error_and_no_null() -> None:
    """If code reads a member that it did not select, it gets an error and never a wrong value."""
    selection = PageSelection(frozenset({"name", "labels"}), cursors=False, more=False)
    narrow = selection.row_class(SiteRow, always="id", key=("name", "id"))
    row = narrow._make(["site_1", "Berlin", []])
    assert isinstance(row, SiteRow)
    assert (row.id, row.name, row.labels) == ("site_1", "Berlin", [])
    assert repr(row) == "SiteRow(id='site_1', name='Berlin', labels=[])"
    for name in set(SiteRow._fields) - {"id", "name", "labels"}:
        with pytest.raises(AttributeError, match="not read"):
            getattr(row, name)
    page = Page([row], first=1, after=None, cursor=str, count=asyncio.Future, more=selection.more)
    assert not hasattr(page, "has_next_page")
    whole = selection._replace(cursors=True).row_class(SiteRow, always="id", key=("tenant_id",))
    assert list(whole._fields) == ["id", "tenant_id", "name", "labels"]


async def test_what_is_selected_does_not_change_what_is_answered(world: World) -> None:
    """A response is the same whether all members are read, or only those that the document selects."""
    site_id = await world.site_id("Acme Berlin")
    for number in range(4):
        arguments = {"tenantId": "acme", "siteId": site_id, "ttlSeconds": 600, "idempotencyKey": f"members-{number}"}
        assert (await world.post("acme-admin", "siteTokens/create", arguments)).status_code == 200
    random = Random(1)  # noqa: S311 - data of a test
    settings = world.settings.model_copy(update={"graphql_compiled_executor": False})
    async with run_server(settings) as (url, _), httpx.AsyncClient(base_url=url) as interpreted:
        for _ in range(60):
            site, token = (" ".join(random.sample(members, 3)) for members in (SITE_MEMBERS, TOKEN_MEMBERS))
            tokens = f"siteTokens(first: 2) {{ {random.choice(PAGES) % token} {random.choice(MORE)} }}"
            lease = random.choice(["", "bootLease { epoch }"])
            how = random.choice(["first: 2", "orderBy: {field: NAME}", 'filter: {region: "eu-central"}'])
            page = random.choice(PAGES) % f"{site} {tokens} {lease}"
            body = {"query": f"{{ sites({how}) {{ {page} {random.choice(MORE)} }} }}"}
            answers = [
                await client.post("/graphql", json=body, headers=world.headers("acme-admin"))
                for client in (world.client, interpreted)
            ]
            assert "errors" not in answers[0].json(), (body, answers[0].text)
            assert answers[0].content == answers[1].content, body


async def test_what_was_asked_keeps_no_document(world: World) -> None:
    """A document with a secret, even in another of its operations, is released with its request."""
    secret = "Marker-of-a-value-91c7"
    put = f'mutation Put {{ putSecret(input: {{tenantId: "acme", name: "n", value: "{secret}"}}) {{ name }} }}'
    body = {"query": f"{put} query Sites {{ sites {{ nodes {{ id }} }} }}", "operationName": "Sites"}
    answer = await world.client.post("/graphql", json=body, headers=world.headers("acme-admin"))
    assert answer.json()["data"]["sites"]["nodes"]
    gc.collect()
    assert not [source for source in gc.get_objects() if isinstance(source, Source) and secret in source.body]
