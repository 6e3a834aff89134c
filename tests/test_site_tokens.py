"""Minting, replaying and revoking site tokens, through both doors."""

import asyncio
import re

import pytest

from models.ids import BEARER_PATTERN
from tests.world import World

pytestmark = pytest.mark.anyio

CREATE = """mutation ($input: CreateSiteTokenInput!) {
  createSiteToken(input: $input) { token siteToken { id tenantId siteId role state maxUses uses createdAt expiresAt } }
}"""


async def test_a_mint_shows_the_bearer_once(world: World) -> None:
    """A mint answers a bearer of the published form; the same key again answers the record without it."""
    site = await world.site_id("Acme Berlin")
    given = {"tenantId": "acme", "siteId": site, "ttlSeconds": 600, "idempotencyKey": "k1"}
    first = (await world.graphql("acme-admin", CREATE, input=given))["data"]["createSiteToken"]
    assert re.fullmatch(BEARER_PATTERN, first["token"])
    assert first["token"].startswith(f"bc{first['siteToken']['id']}.")
    again = (await world.graphql("acme-admin", CREATE, input=given))["data"]["createSiteToken"]
    assert again == {"token": None, "siteToken": first["siteToken"]}
    by_http = (await world.post("acme-admin", "siteTokens/create", given)).json()
    assert "token" not in by_http
    assert by_http["id"] == first["siteToken"]["id"]
    assert await world.count("join_tokens") == 1
    assert await world.count("outbox", "type = 'security.site-token.created'") == 1
    assert await world.count("audit_events") == 1


async def test_64_parallel_mints_with_one_key_make_one_token(world: World) -> None:
    """I1, R2: one row, one event, one decision, one hash, and one answer with a bearer."""
    site = await world.site_id("Acme Berlin")
    given = {"tenantId": "acme", "siteId": site, "ttlSeconds": 600, "idempotencyKey": "k1"}
    answers = await asyncio.gather(*(world.post("acme-admin", "siteTokens/create", given) for _ in range(64)))
    assert {answer.status_code for answer in answers} == {200}
    assert sum("token" in answer.json() for answer in answers) == 1
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await world.count("join_tokens") == 1
    assert await world.count("outbox") == 1
    assert await world.count("audit_events") == 1
