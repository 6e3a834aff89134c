"""Tests that no input to the GraphQL door causes a fault, reveals hidden objects, or runs a change unasked."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as fuzz_settings
from hypothesis import strategies as st

from database.embedded import EmbeddedPostgres
from tests.api.test_edge import ask
from tests.support.outside import new_database
from tests.support.places import OPENAPI, SDL, graphql_places
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio

SENTINEL = "Sentinel-of-the-edge-3c77"


@pytest.fixture(scope="module")
async def world(
    cluster: EmbeddedPostgres, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """A server with the defaults of `bcd serve`, for all tests of this file."""
    async with new_database(cluster, template) as url, make_world(url, tmp_path_factory.mktemp("edge")) as opened:
        yield opened


async def test_g7_no_text_in_any_argument_is_an_internal_error(world: World) -> None:
    """G7: NUL, lone surrogates and similar texts, sent as a variable and as a literal to every text input of every
    field, are accepted or refused by a client error such as INVALID_ARGUMENT. They never cause INTERNAL or UNAVAILABLE,
    and no response repeats them.
    """
    headers = world.headers("acme-admin", **{"content-type": "application/json"})
    for place in graphql_places():
        for text in ("\0", "a\0b", "\ud800", "a\udfff", "\ufeff", "\r\n\u2028", "🔑\U0010ffff", "a" * 70_000, ""):
            body = json.dumps({"query": place.document, "variables": place.holding(text)}).encode()
            answer = await world.client.post("/graphql", content=body, headers=headers)
            where = (place.operation, place.member, text[:20], answer.text[:300])
            reported = {error["extensions"]["code"] for error in answer.json().get("errors", [])}
            assert reported <= {"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "CONFLICT", "INVALID_STATE"}, (
                where
            )
            assert "a" * 200 not in answer.text, where
    for text in ('"\\u0000"', '"\\uD800"', '"\\u{D800}"', '"\\u{110000}"', '"""\0"""', '"\ufffe"', '"\\udfff\\ud800"'):
        for field in ("site(id: %s) { id }", "node(id: %s) { id }", "sites(after: %s) { nodes { id } }"):
            _, codes, message = await ask(world, f"{{ {field % text} }}")
            assert set(codes) <= {"INVALID_ARGUMENT", "NOT_FOUND"}, (field, text, message)


# --- refused requests -------------------------------------------------------------------------------------------------


async def test_no_batches(world: World) -> None:
    """A list of requests is refused as a whole, and none of them runs."""
    put = {"query": 'mutation { putSecret(input: {tenantId: "acme", name: "b", value: "v"}) { version } }'}
    for batch in ([put], [put, put], [], [[put]]):
        answer = await world.client.post("/graphql", json=batch, headers=world.headers("acme-admin"))
        assert answer.status_code == 400
        assert answer.json()["errors"][0]["extensions"]["code"] == "INVALID_ARGUMENT"
    assert await world.count("secrets", "name = 'b'") == 0


async def test_no_mutation_over_get(world: World) -> None:
    """A mutation by GET is 405 with ``Allow`` and changes nothing, also beside a query or with overrides. A
    query runs.
    """
    put = 'mutation M { putSecret(input: {tenantId: "acme", name: "g", value: "v"}) { version } }'
    headers = world.headers("acme-admin", accept="application/json")
    for params in (
        {"query": put},
        {"query": put + " query Q { viewer { name } }", "operationName": "M"},
        {"query": put, "method": "POST"},
    ):
        answer = await world.client.get("/graphql", params=params, headers=headers | {"x-http-method-override": "POST"})
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert await world.count("secrets", "name = 'g'") == 0
    both = put + " query Q { viewer { name } }"
    answer = await world.client.get("/graphql", params={"query": both, "operationName": "Q"}, headers=headers)
    assert answer.json() == {"data": {"viewer": {"name": "acme-admin"}}}
    posted = await world.client.post("/graphql", params={"query": put}, json={}, headers=headers)
    assert posted.status_code == 400
    assert await world.count("secrets", "name = 'g'") == 0


async def test_g12_what_one_door_hides_the_other_hides(world: World) -> None:
    """G12 (gitlab-foss 63386): an object that the HTTP door answers with 404 looks like an unknown id in GraphQL,
    through every field that leads to it.
    """
    berlin = await world.site_id("Acme Berlin")
    members = {"tenantId": "acme", "siteId": berlin, "ttlSeconds": 600, "idempotencyKey": "g12"}
    token = (await world.post("acme-admin", "siteTokens/create", members)).json()["id"]
    queries = {
        "{ site(id: %s) { id name siteTokens { totalCount } } }": berlin,
        '{ site(tenantId: "acme", id: %s) { id } }': berlin,
        "{ node(id: %s) { id ... on Site { name siteTokens { nodes { id } } } } }": berlin,
        "{ a: node(id: %s) { ... on SiteToken { site { name } } } }": token,
        "{ siteTokens(siteId: %s) { totalCount nodes { id } } }": berlin,
        "{ sites { nodes { id } } siteAgents(siteId: %s) { totalCount } }": berlin,
    }
    headers = world.headers("globex-admin", **{"x-request-id": "one-request-id-for-all"})
    for query, hidden in queries.items():
        answers = []
        for id_ in (hidden, hidden[:-8] + "00000000"):
            document = {"query": query % json.dumps(id_)}
            answers.append((await world.client.post("/graphql", json=document, headers=headers)).content)
        assert answers[0] == answers[1], query
    for tenant in ("acme", "nobody"):
        for field in ("sites", "siteTokens", "secrets", "auditEvents", "siteAgents"):
            answer = await world.graphql("globex-admin", f'{{ {field}(tenantId: "{tenant}") {{ totalCount }} }}')
            assert answer["errors"][0]["extensions"]["code"] == "NOT_FOUND", field
    body = {"tenantId": "acme", "siteId": berlin}
    assert (await world.post("globex-admin", "sites/get", body)).status_code == 404


# --- fuzz ------------------------------------------------------------------------------------------------------------

TEXT = st.sampled_from(
    [SENTINEL, SENTINEL + "\0", "", "acme", "root", "site_" + "0" * 26, "\n", "%", "TENANT", "custom"]
)
LEAF = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
VALUE = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
MEMBERS = sorted({name for model in OPENAPI["components"]["schemas"].values() for name in model.get("properties", {})})
FIELDS = sorted({name for type_ in SDL.type_map.values() for name in getattr(type_, "fields", {})})
SIGNS = "{ } ( ) [ ] : $ @ ! = | & ... query mutation fragment on Site @skip(if: true null 1 -1e9 input: $input id:"
PIECES = st.sampled_from(
    [*FIELDS, *SIGNS.split(), "first:", "nodes", f'"{SENTINEL}"', f'"""{SENTINEL}"""', "#\n", "{ id }", "\ufeff"]
)
FUZZ = fuzz_settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@FUZZ
@given(
    path=st.sampled_from(sorted(OPENAPI["paths"])), body=st.dictionaries(st.sampled_from(MEMBERS), VALUE, max_size=6)
)
async def test_fuzz_the_http_door(world: World, path: str, body: Any) -> None:
    """Any member with any value gets a response below 500, and no refusal repeats a value."""
    content = json.dumps(body).encode()
    headers = world.headers("acme-admin", **{"content-type": "application/json"})
    answer = await world.client.post(path, content=content, headers=headers)
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert SENTINEL not in answer.text


@FUZZ
@given(pieces=st.lists(PIECES, max_size=40), variables=VALUE)
async def test_fuzz_documents(world: World, pieces: list[str], variables: Any) -> None:
    """Pieces of documents in any order cause no fault of the server."""
    body = {"query": " ".join(pieces), "variables": variables}
    await fuzz(world, body)


@FUZZ
@given(place=st.sampled_from(list(graphql_places())), value=VALUE)
async def test_fuzz_variables(world: World, place: Any, value: Any) -> None:
    """Any value for any argument of any field causes no fault of the server."""
    await fuzz(world, {"query": place.document, "variables": place.holding(value)})


async def fuzz(world: World, body: Any) -> None:
    """Sends a request, and asserts that the response is no fault of the server and that its errors repeat no value."""
    headers = world.headers("acme-admin", **{"content-type": "application/json"})
    answer = await world.client.post("/graphql", content=json.dumps(body).encode(), headers=headers)
    assert answer.status_code in {200, 400}
    errors = answer.json().get("errors", [])
    assert not {error["extensions"]["code"] for error in errors} & {"INTERNAL", "UNAVAILABLE"}, answer.text
    assert SENTINEL not in json.dumps(errors)
