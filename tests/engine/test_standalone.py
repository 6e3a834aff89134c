"""The engine by itself: it runs any schema, refuses requests by errors of its own, and imports no other room."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from graphql import (
    ExecutionResult,
    GraphQLArgument,
    GraphQLField,
    GraphQLInputField,
    GraphQLInputObjectType,
    GraphQLInt,
    GraphQLObjectType,
    GraphQLScalarType,
    GraphQLSchema,
    GraphQLString,
)

from engine.engine import Engine
from engine.errors import (
    BadDocumentError,
    BadInputError,
    Fault,
    IntrospectionDisabledError,
    LimitExceededError,
    NeedsPostError,
    Refused,
)
from engine.inputs import InputRules
from engine.limits import Limits
from tests.engine.book_schemas import BOOKS, SCHEMAS, engine_over

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent.parent
ROOMS = "agent app benchmarks cli database doors models resolvers schema services settings tests"
SENTINEL = "sentinel_5f0c9d"
"""Stands where a value is wrong, and may stand in no message."""


# --- the README and the imports --------------------------------------------------------------------------------------


def python(code: str) -> str:
    """Returns what a new interpreter prints for ``code``, with warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_the_readme_example_prints_what_the_readme_says() -> None:
    """The code block runs as it stands."""
    readme = (ROOT / "engine" / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (output,) = re.findall(r"```text\n(.*?)```", readme, re.DOTALL)
    assert python(example) == output


@pytest.mark.parametrize("modules", ["engine.engine", "every module"])
def test_the_engine_imports_no_other_room(modules: str) -> None:
    """Neither the engine nor what it imports loads a module of the API."""
    names = [f"engine.{path.stem}" for path in (ROOT / "engine").glob("*.py") if path.stem != "__init__"]
    imports = names if modules == "every module" else [modules]
    loaded = python(f"import sys, {', '.join(imports)}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))")
    assert "engine" in loaded.split()
    assert not {*loaded.split()} & {*ROOMS.split()}


@pytest.fixture(params=SCHEMAS)
def schema(request: pytest.FixtureRequest) -> GraphQLSchema:
    """Returns each schema in turn."""
    return SCHEMAS[request.param]()


async def run(engine: Engine, source: str, variables: Any = None, operation_name: str | None = None) -> ExecutionResult:
    """Returns the result of a query or mutation over the books."""
    return await engine.execute(engine.prepare(source, variables, operation_name), BOOKS)


# --- what runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "interpreted"])
async def test_operations_run(schema: GraphQLSchema, compiled: bool) -> None:
    """Queries and mutations with arguments, variables, fragments and conditions."""
    engine = engine_over(schema, compiled=compiled)
    source = """query Q($n: Int!, $id: ID!, $no: Boolean!) {
      books(first: $n) { ...F genre @include(if: $no) } book(id: $id) { title __typename } }
    fragment F on Book { id pages }
    mutation M { add(input: {title: "Emma", genre: NOVEL, tags: ["a"]}) }"""
    for _ in range(2):
        result = await run(engine, source, {"n": 2, "id": "b3", "no": False}, "Q")
        assert result == ExecutionResult(
            {
                "books": [{"id": "b1", "pages": 474}, {"id": "b2", "pages": None}],
                "book": {"title": "Howl", "__typename": "Book"},
            },
            None,
        )
        assert await run(engine, source, None, "M") == ExecutionResult({"add": "Emma 1"}, None)


async def test_operations_are_compiled(schema: GraphQLSchema) -> None:
    """A document is prepared once. graphql-core runs only what is not compiled."""
    engine = engine_over(schema, introspection=True)
    ready = engine.prepare("{ books { title } }", None, None)
    assert ready.prepared.compiled is not None
    assert engine.prepare("{ books { title } }", None, None).prepared is ready.prepared
    assert ready.label == "books"
    introspection = engine.prepare("{ __schema { queryType { name } } }", None, None)
    assert introspection.prepared.compiled is None
    assert await engine.execute(introspection, None) == ExecutionResult({"__schema": {"queryType": {"name": "Query"}}})
    assert engine_over(schema, compiled=False).prepare("{ books { title } }", None, None).prepared.compiled is None


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "interpreted"])
async def test_an_error_of_a_resolver_is_in_the_result(schema: GraphQLSchema, compiled: bool) -> None:
    """It is located and has the exception. To mask it is the caller's task."""
    result = await run(engine_over(schema, compiled=compiled), "{ broken books(first: 1) { id } }")
    assert result.data == {"broken": None, "books": [{"id": "b1"}]}
    located = [(error.path, type(error.original_error)) for error in result.errors or ()]
    assert located == [(["broken"], LookupError)]


async def test_a_subscription_streams(schema: GraphQLSchema) -> None:
    """The error that ends the stream is its last result."""
    engine = engine_over(schema)
    ready = engine.prepare("subscription { ticks }", None, None)
    assert ready.is_subscription
    results = await engine.subscribe(ready, None)
    assert not isinstance(results, ExecutionResult)
    *events, last = [result async for result in results]
    assert events == [ExecutionResult({"ticks": 1}, None), ExecutionResult({"ticks": 2}, None)]
    assert [type(error.original_error) for error in last.errors or ()] == [LookupError]


# --- what is refused -------------------------------------------------------------------------------------------------


def refusals(engine: Engine, source: str, variables: Any = None, name: str | None = None, **options: bool) -> Any:
    """Returns the errors that refuse a request. No message, path or location holds the sentinel."""
    with pytest.raises(Refused) as caught:
        engine.prepare(source, variables, name, **options)
    errors = caught.value.errors
    assert errors
    assert SENTINEL not in str([(error.formatted, getattr(error, "faults", ())) for error in errors])
    return errors


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        (f'{{ book(id: "{SENTINEL}', None, "Syntax error at line 1, column 28: Unterminated string."),
        (f"{{ books }} {SENTINEL}", None, "Syntax error at line 1, column 11: Unexpected text."),
        ("query A { broken } query B { broken }", SENTINEL, "The document has no such operation."),
        (
            "query A { broken } query B { broken }",
            None,
            "The document has several operations: name one in `operationName`.",
        ),
        ("{ books { ...F } } fragment F on Book { ...F }", None, "A fragment spreads itself."),
    ],
)
def test_a_bad_document(schema: GraphQLSchema, source: str, name: str | None, message: str) -> None:
    """A syntax error, an operation that is not there, and a circle of fragments."""
    (error,) = refusals(engine_over(schema), source, None, name)
    assert type(error) is BadDocumentError
    assert error.message == message


def test_a_rule_of_the_specification(schema: GraphQLSchema) -> None:
    """Validation errors are graphql-core's. They suggest names only if suggestions are on."""
    (error,) = refusals(engine_over(schema), f'{{ book(id: "{SENTINEL}") {{ titel }} }}')
    assert error.message == "Cannot query field 'titel' on type 'Book'."
    (error,) = refusals(engine_over(schema, suggestions=True), "{ books { titel } }")
    assert "Did you mean 'title'?" in error.message


@pytest.mark.parametrize(
    ("source", "limits"),
    [
        ("{ books { id title } }", Limits(tokens=6)),
        ("{ books { id } }", Limits(depth=1)),
        ("{ a: broken b: broken }", Limits(aliases=1)),
        ("{ broken broken }", Limits(repeats=1)),
        ("{ broken @skip(if: true) broken @skip(if: true) }", Limits(directives=1)),
        ("{ books { id title } }", Limits(cost=20)),
        ("query ($n: Int! = 50) { books(first: $n) { id } }", Limits(cost=50)),
    ],
)
def test_a_limit(schema: GraphQLSchema, source: str, limits: Limits) -> None:
    """The error names the bound and its limit. The request runs with a higher one."""
    (error,) = refusals(engine_over(schema, limits), source)
    assert type(error) is LimitExceededError
    assert error.limit == getattr(limits, error.bound) != getattr(Limits(), error.bound)
    assert engine_over(schema).prepare(source, None, None)


def test_a_limit_that_is_fixed(schema: GraphQLSchema) -> None:
    """The length of a document has a bound that is no member of Limits."""
    (error,) = refusals(engine_over(schema), f'{{ book(id: "{SENTINEL * 10_000}") {{ id }} }}')
    assert (type(error), error.bound) == (LimitExceededError, "characters")


FAULTS = [
    ({"title": [SENTINEL]}, {"input.title": "must be a string"}),
    ({}, {"input.title": "is required"}),
    ({"title": None}, {"input.title": "must not be null"}),
    ({"title": "x", "pages": SENTINEL}, {"input.pages": "must be a whole number of at most 32 bits"}),
    ({"title": "x", "genre": SENTINEL}, {"input.genre": "must be one of NOVEL, POEM"}),
    ({"title": "x", "tags": ["a", {"b": SENTINEL}]}, {"input.tags.1": "must be a string"}),
    ({"title": "x", f"{SENTINEL} no name": 1}, {"input.*": "unknown field"}),
    (SENTINEL, {"input": "must be an object"}),
]


@pytest.mark.parametrize(("value", "faults"), FAULTS)
def test_bad_variables(schema: GraphQLSchema, value: Any, faults: dict[str, str]) -> None:
    """Every fault has the path to the value, whatever the name of the variable, and never the value."""
    source = "mutation ($any: BookInput!) { add(input: $any) }"
    (error,) = refusals(engine_over(schema), source, {"any": value})
    assert type(error) is BadInputError
    assert {fault.path: fault.message for fault in error.faults} == faults


@pytest.mark.parametrize(
    ("literal", "faults"),
    [
        (f'{{title: ["{SENTINEL}"]}}', [Fault("input.title", "must be a string")]),
        (f"{{title: {SENTINEL}}}", [Fault("input.title", "must be a string")]),
        (f'{{title: "x", genre: "{SENTINEL}"}}', [Fault("input.genre", "must be one of NOVEL, POEM")]),
        (f'"{SENTINEL}"', [Fault("input", "must be an object")]),
    ],
)
def test_bad_literals(schema: GraphQLSchema, literal: str, faults: list[Fault]) -> None:
    """Literals have the faults that variables have."""
    (error,) = refusals(engine_over(schema), f"mutation {{ add(input: {literal}) }}")
    assert type(error) is BadInputError
    assert error.faults == faults


def test_introspection_and_get(schema: GraphQLSchema) -> None:
    """Introspection if it is off, and a mutation by GET."""
    (error,) = refusals(engine_over(schema), "{ __schema { description } }")
    assert type(error) is IntrospectionDisabledError
    mutation = f'mutation {{ add(input: {{title: "{SENTINEL}"}}) }}'
    (error,) = refusals(engine_over(schema), mutation, by_get=True)
    assert type(error) is NeedsPostError
    assert engine_over(schema).prepare("{ broken }", None, None, by_get=True)


def test_the_rules_of_a_schema_for_its_inputs() -> None:
    """The schema words faults of its scalars, checks well-typed values, and names scalars whose literals are secret."""

    def check(_type: GraphQLInputObjectType, values: dict[str, Any]) -> Iterable[tuple[str, str]]:
        return [("name", "is too long")] if len(values.get("name", "")) > 3 else []

    def parse_pin(value: Any) -> str:
        if not str(value).isdigit():
            raise ValueError(value)
        return str(value)

    pin = GraphQLScalarType("Pin", parse_value=parse_pin)
    fields = {"name": GraphQLInputField(GraphQLString), "pin": GraphQLInputField(pin)}
    argument = GraphQLArgument(GraphQLInputObjectType("Login", fields))
    query = GraphQLObjectType("Query", {"login": GraphQLField(GraphQLInt, {"input": argument})})
    rules = InputRules({"Pin": "must be digits"}, frozenset({"Pin"}), check)
    engine = engine_over(GraphQLSchema(query), inputs=rules)
    source = "query ($i: Login) { login(input: $i) }"
    (error,) = refusals(engine, source, {"i": {"name": "long", "pin": SENTINEL}})
    assert error.faults == [Fault("input.pin", "must be digits"), Fault("input.name", "is too long")]
    secret = '{ login(input: {pin: "123"}) }'
    assert engine.prepare(secret, None, None).prepared is not engine.prepare(secret, None, None).prepared
    assert engine.prepare(source, None, None).prepared is engine.prepare(source, None, None).prepared
