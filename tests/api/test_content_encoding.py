"""Compressed request bodies are refused with 415 and a clear text, on both doors (case O6)."""

import gzip

import orjson
import pytest

from tests.support.world import World

pytestmark = pytest.mark.anyio

QUERY = orjson.dumps({"query": "{ viewer { name } }"})


@pytest.mark.parametrize("path", ["/graphql", "/api/compute/sites/list"])
@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "identity, gzip"])
async def test_o6_a_compressed_body_is_415(world: World, path: str, encoding: str) -> None:
    """O6 (measured: it was 400 for bad JSON): the answer says what to do, and which encoding is accepted."""
    headers = world.headers("acme-admin", **{"content-type": "application/json", "content-encoding": encoding})
    answer = await world.client.post(path, content=gzip.compress(QUERY), headers=headers)
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "identity"
    body = answer.json()
    error = body["errors"][0] if path == "/graphql" else body
    assert "Content-Encoding" in (error.get("message") or error["detail"])
    assert (error.get("extensions") or error)["code"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
async def test_an_uncompressed_body_may_say_so(world: World, encoding: str) -> None:
    """``identity`` is no encoding (RFC 9110, 8.4)."""
    headers = world.headers("acme-admin", **{"content-type": "application/json", "content-encoding": encoding})
    answer = await world.client.post("/graphql", content=QUERY, headers=headers)
    assert answer.json() == {"data": {"viewer": {"name": "acme-admin"}}}
