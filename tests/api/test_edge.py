"""Tests the limits of the GraphQL door: the setting of each, and how hostile documents are refused.

The tests talk to a real server, mostly by raw bytes.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from database.embedded import EmbeddedPostgres
from doors.graphql import GraphQL
from engine.engine import Engine
from engine.limits import Limits
from resolvers.root import schema
from schema.rules import INPUT_RULES
from settings import Settings
from tests.support.outside import JSON, new_database, request, send
from tests.support.world import World, make_world

pytestmark = [pytest.mark.anyio, pytest.mark.alone]

MODERN = "accept: application/graphql-response+json"

SMALL = {
    "graphql_max_tokens": 120,
    "graphql_max_depth": 5,
    "graphql_max_aliases": 3,
    "graphql_max_repeats": 4,
    "graphql_max_directives": 3,
    "graphql_max_cost": 1000,
    "max_body_bytes": 4096,
    "request_timeout_seconds": 0.5,
    "graphql_introspection": True,
    "graphiql": True,
    "graphql_suggestions": True,
}
"""A value other than the default for every setting of the GraphQL door."""


@pytest.fixture(scope="module")
async def world(
    cluster: EmbeddedPostgres, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """A server with the defaults of `bcd serve`, for all tests of this file."""
    async with new_database(cluster, template) as url, make_world(url, tmp_path_factory.mktemp("edge")) as opened:
        yield opened


@pytest.fixture(scope="module")
async def small(
    cluster: EmbeddedPostgres, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """A server with small limits, and with the features that are off by default."""
    async with (
        new_database(cluster, template) as url,
        make_world(url, tmp_path_factory.mktemp("small"), **SMALL) as opened,
    ):
        yield opened


async def ask(world: World, query: str, **variables: Any) -> tuple[int, list[str], str]:
    """Returns the status, the codes and the first message of the response to a query, in the modern media type."""
    body = json.dumps({"query": query, "variables": variables}).encode()
    answer = await send(world.url, request("POST", "/graphql", body, JSON, MODERN, key=world.keys["acme-admin"]))
    errors = answer.json.get("errors", [])
    return answer.status, [error["extensions"]["code"] for error in errors], errors[0]["message"] if errors else ""


# --- limits ----------------------------------------------------------------------------------------------------------

BOUNDS = [
    pytest.param("{ viewer { " + "name " * 4 + "} }", "{ viewer { " + "name " * 5 + "} }", "REPEATS", id="repeats"),
    pytest.param(
        "{ viewer { name ...F } } fragment F on Viewer { name name name }",
        "{ viewer { name ...F ...F } } fragment F on Viewer { name name }",
        "REPEATS",
        id="repeats by fragments",
    ),
    pytest.param(
        "{ viewer { a: name b: name c: name } }",
        "{ viewer { a: name b: name c: name d: name } }",
        "ALIASES",
        id="aliases",
    ),
    pytest.param(
        "{ x: viewer { ...F } } fragment F on Viewer { a: name b: name }",
        "{ x: viewer { ...F } y: viewer { ...F } } fragment F on Viewer { a: name b: name }",
        "ALIASES",
        id="aliases by fragments",
    ),
    pytest.param(
        "{ viewer { name @skip(if: false) @include(if: true) tenantId @skip(if: false) } }",
        "{ viewer { name @skip(if: false) @include(if: true) tenantId @skip(if: false) @include(if: true) } }",
        "DIRECTIVES",
        id="directives",
    ),
    pytest.param(
        "{ sites(first: 1) { nodes { siteTokens(first: 1) { nodes { id } } } } }",
        "{ sites(first: 1) { nodes { siteTokens(first: 1) { nodes { site { id } } } } } }",
        "DEPTH",
        id="depth",
    ),
    pytest.param(
        "{ sites(first: 20) { nodes { siteTokens(first: 20) { nodes { id } } } } }",
        "{ sites(first: 200) { nodes { siteTokens(first: 200) { nodes { id } } } } }",
        "COST",
        id="cost",
    ),
    pytest.param(
        "{ viewer { name } }" + " " * 2000 + "," * 500,
        "{ viewer { " + "name " * 4 + "} }" + " # comment\n" * 120,
        "TOKENS",
        id="tokens, and comments",
    ),
    pytest.param("{ viewer { name } }", "{ " + "viewer { name } " * 40 + "}", "TOKENS", id="tokens"),
]


@pytest.mark.parametrize(("within", "beyond", "setting"), BOUNDS)
async def test_each_limit_has_its_setting(small: World, world: World, within: str, beyond: str, setting: str) -> None:
    """A document within the limit is answered. One beyond it is RESOURCE_EXHAUSTED, and the message names the setting.
    The default limits accept both documents (except for the cost), so it is the setting that decides.
    """
    assert await ask(small, within) == (200, [], "")
    status, codes, message = await ask(small, beyond)
    assert (status, codes) == (429, ["RESOURCE_EXHAUSTED"])
    assert f"(BC_GRAPHQL_MAX_{setting})" in message
    if setting != "COST":
        assert await ask(world, beyond) == (200, [], "")


async def test_the_cost_counts_what_variables_ask_for(small: World, world: World) -> None:
    """Nested ``first`` arguments multiply, whether literal, variable or default. Execution does not begin."""
    query = "query ($n: Int!) { sites(first: $n) { nodes { siteTokens(first: $n) { nodes { id } } } } }"
    assert (await ask(small, query, n=20))[:2] == (200, [])
    assert (await ask(small, query, n=100))[:2] == (429, ["RESOURCE_EXHAUSTED"])
    default = "{ sites { nodes { siteTokens { nodes { id } } } } }"
    assert (await ask(small, default))[:2] == (429, ["RESOURCE_EXHAUSTED"])
    assert (await ask(world, default))[:2] == (200, [])
    tokens = "siteTokens(first: 200) { nodes { id site { id } } }"
    deep = f"{{ sites(first: 200) {{ nodes {{ {tokens} }} }} }}"
    status, codes, message = await ask(world, deep)
    assert (status, codes) == (429, ["RESOURCE_EXHAUSTED"])
    assert "BC_GRAPHQL_MAX_COST" in message


async def test_the_body_and_the_deadline_have_settings_too(small: World) -> None:
    """BC_MAX_BODY_BYTES and BC_REQUEST_TIMEOUT_SECONDS hold at both doors. A request that timed out changed nothing."""
    key = small.keys["acme-admin"]
    for path in ("/graphql", "/api/compute/sites/list"):
        answer = await send(small.url, request("POST", path, b"{}".ljust(4097), JSON, key=key))
        assert answer.status == 413
        assert b"4096 bytes (BC_MAX_BODY_BYTES)" in answer.body
    put = {"tenantId": "acme", "name": "late", "value": "v"}
    assert (await small.post("acme-admin", "secrets/put", put)).json()["version"] == 1
    mutation = "mutation ($input: PutSecretInput!) { putSecret(input: $input) { version } }"
    async with small.owner.transaction() as tx:
        await tx._connection.fetch("SELECT 1 FROM secrets FOR UPDATE")
        began = time.monotonic()
        by_http, by_graphql = await asyncio.gather(
            small.post("acme-admin", "secrets/put", put), small.graphql("acme-admin", mutation, input=put)
        )
        assert time.monotonic() - began < 2
    assert (by_http.status_code, by_http.json()["code"]) == (503, "UNAVAILABLE")
    assert by_graphql["errors"][0]["extensions"]["code"] == "UNAVAILABLE"
    assert "took too long" in by_http.json()["detail"]
    half = request("POST", "/graphql", b"{", JSON, "content-length: 100", key=key)
    assert (await send(small.url, half)).status == 503
    assert (await small.post("acme-admin", "secrets/put", put)).json()["version"] == 2


# --- hostile documents -----------------------------------------------------------------------------------------------


def chain(length: int, spread: str = "{next} {next}") -> str:
    """Returns the document of G1, in which each fragment spreads the next one twice."""
    links = [
        f"fragment f{n} on Site {{ {spread.format(next=f'...f{n + 1}') if n < length - 1 else 'id'} }}"
        for n in range(length)
    ]
    return "{ sites { nodes { ...f0 } } } " + " ".join(links)


def inline(depth: int) -> str:
    """Returns the document of G2: inline fragments within inline fragments, each twice."""
    inside = "id"
    for _ in range(depth):
        inside = f"... on Site {{ {inside} }} ... on Site {{ {inside} }}"
    return f"{{ sites {{ nodes {{ {inside} }} }} }}"


HOSTILE = {
    "G1: a chain of 30 fragments, each spread twice": chain(30),
    "G1: a chain of 30, each spread thrice under aliases": chain(30, "a: id {next} {next} {next}"),
    "a chain of fragments as long as the tokens allow": chain(150),
    "G2: inline fragments within inline fragments": inline(8),
    "G3: a fragment that spreads itself": "{ sites { nodes { ...a } } } fragment a on Site { id ...a }",
    "G3: a circle of three": "{ sites { nodes { ...a } } } fragment a on Site { ...b } fragment b on Site { ...c } "
    "fragment c on Site { ...a }",
    "G3: a circle through fields": "{ sites { nodes { ...a } } } "
    "fragment a on Site { siteTokens { nodes { site { ...a } } } }",
    "G3: a circle that nobody spreads": "{ viewer { name } } fragment a on Site { ...b } fragment b on Site { ...a }",
    "deep fields": "{ sites " + "{ nodes { siteTokens { nodes { site " * 40 + "{ id }" + " } } } }" * 40 + " }",
    "deep lists": "{ site(id: " + "[" * 900 + "]" * 900 + ") { id } }",
    "deep objects": "{ sites(filter: " + "{kinds: " * 400 + "1" + "}" * 400 + ") { nodes { id } } }",
    "deep types": "query ($a: " + "[" * 900 + "Int" + "]" * 900 + ") { viewer { name } }",
    "brackets that never close": "{" * 1990,
    "many aliases": "{ " + " ".join(f"a{n}: viewer {{ name }}" for n in range(200)) + " }",
    "many directives": "{ viewer { name " + "@skip(if: false) " * 300 + "} }",
    "many operations": " ".join(f"query q{n} {{ viewer {{ name }} }}" for n in range(240)),
    "many variables": "query (" + " ".join(f"$v{n}: Int" for n in range(450)) + ") { viewer { name } }",
    "many unknown fields": "{ " + " ".join(f"x{n}" for n in range(1900)) + " }",
    "a long name": "{ " + "a" * 100_000 + " }",
    "a string that never ends": '{ site(id: "' + '\\"' * 60_000,
    "quotes": '"' * 120_000,
    "a million digits": "{ sites(first: " + "9" * 100_000 + ") { nodes { id } } }",
    "comments": "#\n" * 60_000 + "{ viewer { name } }",
    "commas": "," * 130_000 + "{",
    "longer than all": " " * 140_000 + "{ viewer { name } }",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_documents_are_refused_at_once(world: World, name: str) -> None:
    """G1, G2, G3 and similar documents get a 4xx with a code over the wire. In the engine, the best of seven runs takes
    less than 5 ms of processor time for the known attacks, and less than 250 ms for documents of the largest size.
    """
    status, codes, _ = await ask(world, HOSTILE[name])
    assert status in {400, 429}
    assert set(codes) <= {"RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"}
    engine = GraphQL(
        Engine(schema._schema, Limits(cost=100_000), inputs=INPUT_RULES, introspection=False, suggestions=False),
        lambda _error: None,
    )
    seconds = []
    for _ in range(7):
        began = time.thread_time()
        answer = await engine.run(HOSTILE[name], None, None, None)  # type: ignore[arg-type]
        seconds.append(time.thread_time() - began)
        assert not answer.executed
    assert min(seconds) < (0.005 if name.startswith("G") else 0.25), name


INTROSPECTIONS = [
    "{ __schema { types { name } } }",
    '{ __type(name: "Site") { name } }',
    '{ x: __type(name: "Site") { name } }',
    "{ ...F } fragment F on Query { __schema { queryType { name } } }",
    "{ ... { __schema { queryType { name } } } }",
    "query A { viewer { name } __schema { queryType { name } } }",
]


async def test_introspection_and_graphiql_are_where_the_settings_allow(small: World, world: World) -> None:
    """Introspection and GraphiQL are off by default and on if set. ``__typename`` always works."""
    for query in INTROSPECTIONS:
        status, codes, message = await ask(world, query)
        assert (status, codes) == (400, ["INVALID_ARGUMENT"]), query
        assert "BC_GRAPHQL_INTROSPECTION" in message
        assert await ask(small, query) == (200, [], "")
    assert await ask(world, "{ __typename viewer { __typename } }") == (200, [], "")
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    assert (await world.client.get("/graphql", headers=browser)).status_code in {400, 401}
    assert (await world.client.get("/graphql", headers={"accept": "text/html"})).status_code == 406
    page = await small.client.get("/graphql", headers=browser)
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert page.headers["x-content-type-options"] == "nosniff"


NEAR_MISSES = [
    "{ viewr { name } }",
    "{ viewer { nam } }",
    '{ site(idd: "x") { id } }',
    "{ sites(filter: {kinds: [CUSTM]}) { nodes { id } } }",
    "{ sites(filter: {kind: [CUSTOM]}) { nodes { id } } }",
    "query ($x: SiteFiltr) { sites(filter: $x) { nodes { id } } }",
    "{ node(id: 1) { ... on Sit { id } } }",
    "fragment F on Sites { id } { node(id: 1) { ...F } }",
    "{ viewer { name @skp(if: true) } }",
    "{ viewer { name @skip(iff: true) } }",
    'mutation { putSecret(input: {tenantId: "acme", name: "n", valu: "v"}) { version } }',
    'mutation { putSecret(input: {tenantId: "acme", name: "n", value: "v", scope: TENAN}) { version } }',
    'mutation { putSecret(input: {tenantId: "acme", name: "n", value: "v", scope: "TENANT"}) { version } }',
    'mutation { putSecre(input: {tenantId: "acme"}) { version } }',
    "subscription { siteEvent { id } }",
]


async def test_g9_no_suggestions(small: World, world: World) -> None:
    """G9: the errors of misspelt fields, arguments, enum values, types, fragments, directives and input fields suggest
    no name. They do if the setting is on.
    """
    for query in NEAR_MISSES:
        status, _, _ = await ask(world, query)
        answer = await world.graphql("acme-admin", query)
        assert status == 400
        assert "did you mean" not in json.dumps(answer).lower(), query
    variables = {"input": {"tenantId": "acme", "name": "n", "value": "v", "scop": "TENANT", "scope": "TENAN"}}
    mutation = "mutation ($input: PutSecretInput!) { putSecret(input: $input) { version } }"
    answer = await world.graphql("acme-admin", mutation, **variables)
    assert "did you mean" not in json.dumps(answer).lower()
    assert "Did you mean" in (await ask(small, NEAR_MISSES[0]))[2]


def test_every_setting_of_the_edge_is_tried() -> None:
    """Every limit of the settings has a small value in ``SMALL``, so a new one needs a test here."""
    limits = {name for name in Settings.model_fields if name.startswith("graphql_max_")} - {"graphql_max_subscriptions"}
    assert limits <= SMALL.keys()
