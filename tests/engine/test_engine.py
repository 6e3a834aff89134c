"""The engine behind its door: documents are prepared once, faults are named without values, errors are masked."""

import gc
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
import structlog
from graphql import StringValueNode

from doors.graphql import Answer
from engine import documents as documents_module
from engine.limits import Limits
from services import logs
from tests.support.small_schema import SENTINEL, Context, ask, codes_of, fields_of, small_engine

pytestmark = pytest.mark.anyio

PUT = "mutation ($input: PutInput!) { put(input: $input) }"
GOOD = {"name": "abc", "value": "v", "ttlSeconds": 60}


@pytest.fixture(params=[True, False], ids=["compiled", "interpreted"])
def compiled(request: pytest.FixtureRequest) -> bool:
    """Whether operations run as generated code. The answers must not depend on it."""
    return bool(request.param)


@contextmanager
def engine_logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """Yields what is logged meanwhile, whatever logger configuration other tests have left."""
    capture = structlog.testing.LogCapture()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "log", structlog.wrap_logger(structlog.testing.ReturnLogger(), [capture]))
        yield capture.entries


# --- what runs -------------------------------------------------------------------------------------------------------


async def test_an_operation_with_variables_runs(compiled: bool) -> None:
    """The answer has data and nothing else."""
    source = "query A($n: Int) { things(first: $n) { id at children(first: 1) { name } } } query B { __typename }"
    body = await ask(small_engine(compiled=compiled), source, {"n": 1, "unused": 1}, operation_name="A")
    child = {"name": "thing 0"}
    assert body == {"data": {"things": [{"id": "t0", "at": "2026-01-02T00:00:00Z", "children": [child]}]}}


async def test_which_operation_is_meant() -> None:
    """The only operation or the named one runs. Anything else is INVALID_ARGUMENT."""
    engine = small_engine()
    two = "query A { __typename } query B { things(first: 1) { id } }"
    assert await ask(engine, two, operation_name="A") == {"data": {"__typename": "Query"}}
    for source, name in ((two, None), (two, "C"), ("fragment F on Thing { id }", None), ("{ __typename }", "A")):
        assert codes_of(await ask(engine, source, operation_name=name)) == {"INVALID_ARGUMENT"}


async def test_mutations_and_subscriptions_run_by_their_own_ways() -> None:
    """No mutation runs by GET, and no subscription as a single answer."""
    context = Context()
    answer = await small_engine().run(PUT, {"input": GOOD}, None, context, by_get=True)
    assert answer.not_by_get
    assert not answer.executed
    assert context.puts == []
    assert codes_of(await ask(small_engine(), "subscription { ticks }")) == {"INVALID_ARGUMENT"}


async def test_a_subscription_streams_and_masks() -> None:
    """Each event is an answer. A server error ends the stream and is masked as anywhere else."""
    engine = small_engine()
    answers = await engine.subscribe("subscription ($c: Int!) { ticks(count: $c) }", {"c": 2}, None, Context())
    assert isinstance(answers, AsyncIterator)
    bodies = [orjson.loads(answer.body) async for answer in answers]
    assert bodies[:2] == [{"data": {"ticks": 0}}, {"data": {"ticks": 1}}]
    assert codes_of(bodies[2]) == {"INTERNAL"}
    assert SENTINEL not in str(bodies)
    refused = await engine.subscribe("subscription ($c: Int!) { ticks(count: $c) }", {"c": "x"}, None, Context())
    assert isinstance(refused, Answer)
    assert fields_of(orjson.loads(refused.body)) == {"count": "must be a whole number of at most 32 bits"}
    answer = await engine.subscribe("{ __typename }", None, None, Context())
    assert isinstance(answer, Answer)
    assert answer.executed


async def test_cost_is_checked_by_each_requests_variables() -> None:
    """The document is kept. A page size that costs too much is refused."""
    engine = small_engine(Limits(cost=100))
    source = "query ($n: Int!) { things(first: $n) { id name } }"
    assert "data" in await ask(engine, source, {"n": 49})
    body = await ask(engine, source, {"n": 50})
    assert codes_of(body) == {"RESOURCE_EXHAUSTED"}
    assert "BC_GRAPHQL_MAX_COST" in body["errors"][0]["message"]


# --- what is kept ----------------------------------------------------------------------------------------------------


async def test_a_document_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second request with a document neither parses nor validates it."""
    engine = small_engine()
    first = await ask(engine, "{ things { id } }")
    for name in ("parse", "validate", "check_document"):
        monkeypatch.setattr(documents_module, name, None)
    assert await ask(engine, "{ things { id } }") == first


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept documents are bounded by number and length. The least recently used go first. Refused ones are not kept."""
    engine = small_engine()
    monkeypatch.setattr(documents_module, "MAX_KEPT", 2)
    documents = ["{ a: __typename }", "{ b: __typename }", "{ c: __typename }"]
    for source in (documents[0], documents[1], documents[0], documents[2], "{ nothing }", "{"):
        await ask(engine, source)
    assert [source for source, _ in engine.engine.documents._kept] == [documents[0], documents[2]]
    monkeypatch.setattr(documents_module, "MAX_KEPT_CHARACTERS", 40)
    await ask(engine, documents[1])
    await ask(engine, "{ __typename }" + " " * 41)
    assert not engine.engine.documents._kept
    assert engine.engine.documents._kept_characters == 0


@pytest.mark.parametrize(
    "source",
    [
        f'mutation {{ put(input: {{name: "abc", value: "{SENTINEL}", ttlSeconds: 60}}) }}',
        f'mutation {{ put(input: {{name: "abc", value: """{SENTINEL}""", ttlSeconds: 60}}) }}',
        f'mutation ($v: SecretValue! = "{SENTINEL}") {{ put(input: {{name: "abc", value: $v, ttlSeconds: 60}}) }}',
        f'mutation ($i: PutInput! = {{name: "abc", value: "{SENTINEL}", ttlSeconds: 60}}) {{ put(input: $i) }}',
    ],
)
async def test_a_document_that_holds_a_secret_is_not_kept(source: str, compiled: bool) -> None:
    """The document runs, and no part of the engine keeps the secret."""
    engine = small_engine(compiled=compiled)
    assert await ask(engine, source) == {"data": {"put": "abc red 1 0"}}
    assert not engine.engine.documents._kept
    gc.collect()
    assert not [node for node in gc.get_objects() if isinstance(node, StringValueNode) and node.value == SENTINEL]


# --- faults of a document --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (f"{{ things(first: {SENTINEL!r}", "Syntax error at line 1, column 17: Unexpected text."),
        ("{ things {", "Syntax error at line 1, column 11: Expected Name."),
        (f'{{ thing(id: "{SENTINEL}', f"Syntax error at line 1, column {14 + len(SENTINEL)}: Unterminated string."),
        (f'{{ thing(id: "t0" "{SENTINEL}") }}', "Syntax error at line 1, column 18: Expected Name."),
        (f'{{ thing(id "{SENTINEL}") }}', "Syntax error at line 1, column 12: Expected ':'."),
        (f"query {SENTINEL.replace('-', '_')} oops {{ a }}", "Syntax error at line 1, column 25: Expected '{'."),
        (f"{{ a }} {SENTINEL}", "Syntax error at line 1, column 7: Unexpected text."),
        (f'{{ a(b: "{SENTINEL}\\u00") }}', "Syntax error at line 1, column 26: Invalid Unicode escape sequence."),
        ('{ a(b: "\\x") }', "Syntax error at line 1, column 9: Invalid character escape sequence."),
        ('{ a(b: "\\uD800") }', "Syntax error at line 1, column 9: Invalid Unicode escape sequence."),
        ("{ a(b: 1x) }", "Syntax error at line 1, column 9: Invalid number."),
        ("{ a(b: $) }", "Syntax error at line 1, column 9: Expected Name."),
        ("{ a \0 }", "Syntax error at line 1, column 5: Unexpected text."),
        ("", "Syntax error at line 1, column 1: Unexpected text."),
    ],
)
async def test_a_syntax_error_says_where_and_not_what(source: str, message: str) -> None:
    """The message may name what was expected. What was found may be half a secret."""
    body = await ask(small_engine(), source)
    assert [error["message"] for error in body["errors"]] == [message]
    assert codes_of(body) == {"INVALID_ARGUMENT"}
    assert body["errors"][0]["locations"]


LITERAL = "mutation { put(input: %s) }"


@pytest.mark.parametrize(
    ("literal", "fields"),
    [
        (f'{{name: "abc", secretValu: "{SENTINEL}", ttlSeconds: 60}}', {"secretValu", "value"}),
        (f'{{name: "abc", value: ["{SENTINEL}"], ttlSeconds: 60}}', {"value"}),
        (f'{{name: "abc", value: {{a: "{SENTINEL}"}}, ttlSeconds: 60}}', {"value"}),
        ('{name: "abc", value: sentinel_6f1d0c9a, ttlSeconds: 60}', {"value"}),
        (f'{{name: "abc", value: 5, ttlSeconds: "{SENTINEL}"}}', {"value", "ttlSeconds"}),
        (
            f'{{name: "{SENTINEL}", value: null, ttlSeconds: 1.5, colour: "{SENTINEL}"}}',
            {"name", "value", "ttlSeconds", "colour"},
        ),
        (
            f'{{name: "abc", value: "v", ttlSeconds: 60, tags: [{{key: 1, weight: "{SENTINEL}"}}]}}',
            {"tags.0.key", "tags.0.weight"},
        ),
        (f'"{SENTINEL}"', {"input"}),
        (f'["{SENTINEL}"]', {"input"}),
        ("sentinel_6f1d0c9a", {"input"}),
        (f'{{name: "{SENTINEL}", value: "v", ttlSeconds: 60}}', {"name"}),
    ],
)
@pytest.mark.parametrize("as_default", [False, True])
async def test_a_bad_literal_is_told_by_its_fields(literal: str, fields: set[str], as_default: bool) -> None:
    """G8, L4, L6: the answer names every bad field by its path and no value, also if the literal is a variable's
    default.
    """
    source = f"mutation ($input: PutInput! = {literal}) {{ put(input: $input) }}" if as_default else LITERAL % literal
    engine = small_engine()
    answer = await engine.run(source, None, None, Context())
    body = orjson.loads(answer.body)
    assert set(fields_of(body)) == fields
    assert codes_of(body) == {"INVALID_ARGUMENT"}
    assert b"sentinel" not in answer.body


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (
            {"name": "ABC", "value": SENTINEL, "ttlSeconds": 59, "maxUses": "1", "colour": "PINK"},
            {
                "name": "must match ^[a-z]{1,8}$",
                "ttlSeconds": "must be at least 60",
                "maxUses": "must be a whole number of at most 32 bits",
                "colour": "must be one of RED, GREEN, BLUE",
            },
        ),
        ({}, {"name": "is required", "value": "is required", "ttlSeconds": "is required"}),
        (
            {"name": None, "value": None, "ttlSeconds": None},
            {"name": "must not be null", "value": "must not be null", "ttlSeconds": "must not be null"},
        ),
        (GOOD | {"secretValu": SENTINEL, SENTINEL: 1}, {"secretValu": "unknown field", "*": "unknown field"}),
        (GOOD | {"value": [SENTINEL]}, {"value": "must be a string of 1 to 65536 bytes of UTF-8"}),
        (GOOD | {"value": {"a": SENTINEL}}, {"value": "must be a string of 1 to 65536 bytes of UTF-8"}),
        (GOOD | {"value": True}, {"value": "must be a string of 1 to 65536 bytes of UTF-8"}),
        (GOOD | {"value": ""}, {"value": "must be a string of 1 to 65536 bytes of UTF-8"}),
        (GOOD | {"ttlSeconds": 1.5}, {"ttlSeconds": "must be a whole number of at most 32 bits"}),
        (GOOD | {"ttlSeconds": True}, {"ttlSeconds": "must be a whole number of at most 32 bits"}),
        (GOOD | {"ttlSeconds": 2**40}, {"ttlSeconds": "must be a whole number of at most 32 bits"}),
        (GOOD | {"tags": [{"key": "ok"}, {"key": "x" * 9}]}, {"tags.1.key": "must be at most 8 characters long"}),
        (GOOD | {"tags": [{"key": 1}, SENTINEL]}, {"tags.0.key": "must be a string", "tags.1": "must be an object"}),
        (SENTINEL, {"input": "must be an object"}),
        ([SENTINEL], {"input": "must be an object"}),
        (None, {"input": "must not be null"}),
        (5, {"input": "must be an object"}),
    ],
)
@pytest.mark.parametrize("variable", ["input", "other"])
async def test_bad_variables_are_told_by_their_fields(value: Any, fields: dict[str, str], variable: str) -> None:
    """One answer names all bad fields, as the HTTP door names them and whatever the variable's name. It quotes no
    value.
    """
    source = PUT.replace("$input", f"${variable}")
    answer = await small_engine().run(source, {variable: value}, None, Context())
    body = orjson.loads(answer.body)
    assert fields_of(body) == fields
    assert codes_of(body) == {"INVALID_ARGUMENT"}
    assert "data" not in body or body["data"] is None
    assert SENTINEL.encode() not in answer.body


async def test_bad_fields_of_a_good_type_are_told_alike(compiled: bool) -> None:
    """Faults that only the model finds have the same paths, though they are found later."""
    body = await ask(small_engine(compiled=compiled), PUT, {"input": GOOD | {"name": "ABC", "ttlSeconds": 59}})
    assert fields_of(body) == {"name": "must match ^[a-z]{1,8}$", "ttlSeconds": "must be at least 60"}
    assert body["data"] is None


async def test_a_missing_variable_is_told() -> None:
    """The fault names the argument that uses the variable."""
    assert fields_of(await ask(small_engine(), PUT)) == {"input": "is required"}
    source = "query ($which: ID!) { thing(id: $which) { id } }"
    assert fields_of(await ask(small_engine(), source, {"which": None})) == {"id": "must not be null"}


async def test_null_where_only_absence_is_allowed(compiled: bool) -> None:
    """A nullable variable may stand where a default applies. A null in it is the caller's fault and not an internal
    error.
    """
    source = """mutation M($uses: Int, $weight: Int = 2) {
      put(input: {name: "abc", value: "v", ttlSeconds: 60, maxUses: $uses, tags: [{key: "k", weight: $weight}]}) }
      query Q($first: Int) { things(first: $first) { id } }"""
    engine = small_engine(compiled=compiled)
    assert await ask(engine, source, operation_name="M") == {"data": {"put": "abc red 1 1"}}
    body = await ask(engine, source, {"uses": None, "weight": None}, operation_name="M")
    assert fields_of(body) == {"maxUses": "must not be null", "tags.weight": "must not be null"}
    assert "data" not in body
    assert fields_of(await ask(engine, source, {"first": None}, operation_name="Q")) == {"first": "must not be null"}


async def test_many_faults_make_no_longer_answer() -> None:
    """The answer names the first hundred faults of a long list of bad items."""
    body = await ask(small_engine(), PUT, {"input": GOOD | {"tags": [{}] * 10_000}})
    assert len(fields_of(body)) == 100
    source = "{" + " ".join(f'thing(id: "t0") {{ nothing{n} }}' for n in range(30)) + "}"
    assert len((await ask(small_engine(), source))["errors"]) <= 21


NEAR_MISSES = [
    "{ thigs { id } }",
    "{ things { nam } }",
    "{ things(frist: 1) { id } }",
    "{ things(colour: REDD) { id } }",
    "{ things(colour: RED) @skipp(if: true) { id } }",
    "{ things(colour: RED) { ... on Thin { id } } }",
    "{ things { ...F } } fragment F on Thig { id }",
    "query ($c: Color) { things(colour: $c) { id } }",
    'mutation { put(input: {name: "abc", valu: "v", ttlSeconds: 60}) }',
    "mutation ($v: SecretValu!) { put(input: {name: $v}) }",
]


@pytest.mark.parametrize("source", NEAR_MISSES)
async def test_no_suggestions(source: str) -> None:
    """G9: no message about a near miss names the real field, argument, enum value, directive, type or input field."""
    text = str(await ask(small_engine(), source))
    assert "did you mean" not in text.lower()
    assert "INVALID_ARGUMENT" in text


async def test_no_suggestions_for_variables() -> None:
    """G9: messages about variables do not either."""
    for value in (GOOD | {"valu": "v"}, GOOD | {"colour": "REDD"}):
        assert "did you mean" not in str(await ask(small_engine(), PUT, {"input": value})).lower()


async def test_suggestions_where_they_are_on() -> None:
    """`bcd dev` suggests names of the schema."""
    body = await ask(small_engine(suggestions=True), NEAR_MISSES[0])
    assert "Did you mean 'things'" in body["errors"][0]["message"]


@pytest.mark.parametrize(
    "source",
    [
        "{ __schema { types { name } } }",
        '{ __type(name: "Thing") { name } }',
        "{ ...F } fragment F on Query { a: __schema { description } }",
    ],
)
async def test_introspection_by_setting(source: str) -> None:
    """Introspection is refused if it is off. ``__typename`` reveals nothing that the answer does not."""
    body = await ask(small_engine(), source)
    assert codes_of(body) == {"INVALID_ARGUMENT"}
    assert "BC_GRAPHQL_INTROSPECTION" in body["errors"][0]["message"]
    assert "data" in await ask(small_engine(introspection=True), source)
    assert await ask(small_engine(), "{ __typename }") == {"data": {"__typename": "Query"}}


async def test_introspection_cannot_multiply() -> None:
    """Lists of lists of fields are bounded even if introspection is on."""
    source = "{ __schema { types { fields { type { fields { type { fields { type { fields { name } } } } } } } } } }"
    assert codes_of(await ask(small_engine(introspection=True), source)) == {"INVALID_ARGUMENT"}


# --- faults of an operation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["broken", "absent"])
async def test_an_unforeseen_fault_is_masked(field: str, compiled: bool) -> None:
    """The answer is INTERNAL with the request id. The log has the type and the frames, and no text or value."""
    with engine_logs() as logs:
        body = await ask(small_engine(compiled=compiled), f"query Q {{ things(first: 1) {{ id {field} }} }}")
    assert body["errors"] == [
        {
            "message": "Internal error; the log has the request id.",
            "locations": [{"line": 1, "column": 33}],
            "path": ["things", 0, field],
            "extensions": {"code": "INTERNAL", "requestId": "req_test"},
        }
    ]
    (entry,) = logs
    assert entry["request_id"] == "req_test"
    assert entry["operation"] == "Q"
    assert entry["error"] == {"broken": "RuntimeError", "absent": "TypeError"}[field]
    assert any("small_schema.py" in frame for frame in entry["frames"]) == (field == "broken")
    assert SENTINEL not in str(logs) + str(body)


async def test_a_foreseen_error_is_told(compiled: bool) -> None:
    """The answer has the error's code and other members, and the data of the other fields."""
    engine = small_engine(compiled=compiled)
    with engine_logs() as logs:
        body = await ask(engine, '{ fails(code: "INVALID_ARGUMENT") ok: __typename }')
    assert logs == []
    assert body["data"] == {"fails": None, "ok": "Query"}
    assert body["errors"][0]["extensions"] == {
        "code": "INVALID_ARGUMENT",
        "fields": [{"path": "code", "message": "is bad"}],
    }
    assert body["errors"][0]["path"] == ["fails"]
    answer = await engine.run('{ fails(code: "RESOURCE_EXHAUSTED") }', None, None, Context())
    assert answer.executed
    assert answer.retry_after_seconds == 7
    assert answer.codes == ("RESOURCE_EXHAUSTED",)


async def test_what_is_out_of_reach_is_unavailable(compiled: bool) -> None:
    """An error that the composition root classifies is answered by its code, and not logged as a server error."""
    with engine_logs() as logs:
        body = await ask(small_engine(compiled=compiled), '{ fails(code: "connection") }')
    assert codes_of(body) == {"UNAVAILABLE"}
    assert logs == []
    assert SENTINEL not in str(body)


async def test_not_found_is_the_same_bytes(compiled: bool) -> None:
    """The answer holds only the code, whatever the id and the request."""
    engine = small_engine(compiled=compiled)
    source = "query ($id: ID!) { thing(id: $id) { id } }"
    answers = {(await engine.run(source, {"id": f"t{n}"}, None, Context(f"req_{n}"))).body for n in (1, 2)}
    assert len(answers) == 1
    assert codes_of(orjson.loads(answers.pop())) == {"NOT_FOUND"}


async def test_compiled_and_interpreted_answers_are_the_same_bytes() -> None:
    """The answers have data, errors and nulls side by side."""
    source = """query ($yes: Boolean!) {
      things(first: 2) { ...F at @skip(if: $yes) children { id absent } }
      thing(id: "t0") { __typename name @include(if: $yes) } missing: thing(id: "t9") { id }
    } fragment F on Thing { id ... { name } }"""
    answers = [await small_engine(compiled=on).run(source, {"yes": True}, None, Context()) for on in (True, False)]
    assert answers[0] == answers[1]
    assert answers[0].executed
