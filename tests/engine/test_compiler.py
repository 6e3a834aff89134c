"""The compiled executor returns what graphql-core returns, and does so by generated code."""

import asyncio
import gc
import sys
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, cast

import pytest
import strawberry
from graphql import ExecutionResult, build_schema, execute, get_variable_values, parse, validate
from hypothesis import HealthCheck, given, settings
from strawberry.schema.config import StrawberryConfig

from engine.compiler import MAX_PLANS, CompiledOperation, compile_operation
from engine.plain import member
from tests.support.graphql_documents import (
    DOCUMENTS,
    SCHEMAS,
    Case,
    Difference,
    cases,
    quiet,
    run_one,
    run_parallel,
    write_case,
)
from tests.support.oracle_schema import World
from tests.support.oracle_schema import schema as strawberry_schema

schema = strawberry_schema._schema

SERVED_SHARE = 0.4
"""The share of the documents that use the served schema. The other schema has more to get wrong."""


def compiled(source: str, name: str | None = None, graphql_schema: Any = schema) -> CompiledOperation:
    document = parse(source)
    assert validate(graphql_schema, document) == []
    operation = compile_operation(graphql_schema, document, name)
    assert operation is not None
    return operation


async def run(operation: CompiledOperation, context: Any, variables: dict[str, Any] | None = None) -> ExecutionResult:
    definitions = operation.operation.variable_definitions or ()
    values = get_variable_values(operation.schema, definitions, variables or {})
    assert not isinstance(values, list)
    return await operation.execute(None, context, values)


def plain_world() -> World:
    """Returns a world without faulty values."""
    return next(world for world in map(World, range(1, 100)) if world.fault_rate == 0 and world.seed % 3)


# --- the oracle ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEMAS)
def test_generated_documents_are_valid(name: str) -> None:
    graphql_schema = schema
    if name == "served":
        from resolvers.root import schema as served

        graphql_schema = served._schema
    for number in range(300):
        case = write_case(graphql_schema, Random(number))  # noqa: S311 - data of a test
        assert validate(graphql_schema, parse(case.source)) == [], case.source


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(case=cases(schema))
def test_answers_as_graphql_core_does(case: Case) -> None:
    run_one(schema, case, World, [1, 2, 3])


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_many_documents_as_graphql_core_does(name: str) -> None:
    count = int(DOCUMENTS * (SERVED_SHARE if name == "served" else 1 - SERVED_SHARE))
    failed = run_parallel(SCHEMAS[name], count, seed=1)
    assert count / 20 < failed < count * 1.9, "the data should fail now and then"


def test_the_oracle_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    async def different_result(*_: Any) -> ExecutionResult:
        return ExecutionResult({"now": None, "more": 1}, None)

    monkeypatch.setattr(CompiledOperation, "execute", different_result)
    with pytest.raises(Difference, match="more"):
        run_one(schema, Case("{ now }", None, [{}]), World, [1])


# --- what the oracle cannot see --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "{ __schema { queryType { name } } }",
        '{ __type(name: "Thing") { name } now }',
        "{ ...F } fragment F on Query { __schema { queryType { name } } }",
        "{ now @unknown }",
        "query @unknown { now }",
        "{ things { ...F @unknown } } fragment F on Thing { id }",
        "{ ... @defer { now } }",
        "query A { now } query B { now }",
        "fragment F on Thing { id }",
        "subscription { now }",
    ],
)
def test_leaves_the_rest_to_graphql_core(source: str) -> None:
    assert compile_operation(schema, parse(source), None) is None


def test_leaves_fragment_variables_to_graphql_core() -> None:
    document = parse(
        "{ things { ...F(a: 1) } } fragment F($a: Int) on Thing { id }", experimental_fragment_arguments=True
    )
    assert compile_operation(schema, document, None) is None


def test_leaves_an_operation_without_a_root_to_graphql_core() -> None:
    assert compile_operation(build_schema("type Query { a: Int }"), parse("mutation { a }"), None) is None


@pytest.mark.anyio
async def test_batches_over_a_list_and_its_siblings() -> None:
    world = plain_world()
    result = await run(compiled("{ a: things { loaded { id } } b: things { loaded { name } } }"), world)
    assert result.errors is None
    assert world.loads == [1], "the loader loads each key once, in one batch"


@pytest.mark.anyio
async def test_a_field_is_looked_up_for_all_rows_at_once() -> None:
    world = plain_world()
    operation = compiled(
        "{ page(first: 4) { edges { cursor node { joined(first: 3) { edges { node { id rank } } } } } } }"
    )
    for _ in range(2):
        result = await run(operation, world)
        assert result.errors is None
    assert world.joins == [4, 4]
    pages = [edge["node"]["joined"]["edges"] for edge in result.data["page"]["edges"]]  # type: ignore[index]
    assert pages == [[{"node": {"id": row.id, "rank": row.rank}} for row in world.things[:3]]] * 4


@pytest.mark.anyio
async def test_rows_are_resolved_one_by_one_where_all_at_once_fails() -> None:
    world = next(world for world in map(World, range(1, 1000)) if world.fault_rate == 0.1)
    document = "{ things(pick: {first: 4}) { joined { firstName } } }"
    result = await run(compiled(document), world)
    expected = await cast("Any", execute(schema, parse(document), context_value=world))
    assert result.errors, "the choice of the world"
    assert (result.data, len(result.errors)) == (expected.data, len(expected.errors))


@pytest.mark.anyio
@pytest.mark.parametrize("document", ["{ page { edges { node { id joined { total } } } } }", "{ strict now }"])
async def test_leaves_nothing_to_the_garbage_collector(document: str) -> None:
    """A reference cycle in each result would keep its rows until the collector runs."""
    operation, world = compiled(document), plain_world()
    await run(operation, world)
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            await run(operation, world)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_synchronous_operation_never_waits() -> None:
    operation = compiled("{ things { id name shout tags labels { key } owner { name } grid { age } } now }")
    execution = run(operation, plain_world())
    with pytest.raises(StopIteration) as ended:
        execution.send(None)
    assert ended.value.value.errors is None
    assert [thing["id"] for thing in ended.value.value.data["things"]]


class Row(NamedTuple):
    """A row of a list."""

    id: str
    label: str | None
    labels: list[dict[str, Any]]


@strawberry.type
class Tag:
    """An object that is resolved from a dict in a row."""

    key: str


@strawberry.type
class Item:
    """An object that is resolved from a row."""

    id: strawberry.ID
    label: str | None
    labels: list[Tag]


@strawberry.type
class Rows:
    """A root over the rows in the context."""

    @strawberry.field(graphql_type=list[Item])
    async def items(self, info: strawberry.Info[Any, None]) -> Any:
        """Returns the rows in the context."""
        return info.context


rows_schema = strawberry.Schema(Rows, config=StrawberryConfig(default_resolver=member))._schema


async def calls_of(operation: CompiledOperation, rows: list[Any]) -> int:
    """Returns how many calls of Python functions an execution makes."""
    count = 0

    def count_call(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(count_call)
    try:
        result = await run(operation, rows)
    finally:
        sys.setprofile(None)
    assert result.errors is None
    return count


@pytest.mark.anyio
async def test_plain_rows_cost_no_calls() -> None:
    operation = compiled("{ items { id label } }", graphql_schema=rows_schema)
    rows = [Row(f"i{number}", None, []) for number in range(50)]
    await calls_of(operation, rows)
    assert await calls_of(operation, rows[:1]) == await calls_of(operation, rows)


@pytest.mark.anyio
async def test_lists_in_rows_are_learnt_when_they_are_first_full() -> None:
    operation = compiled("{ items { id labels { key } } }", graphql_schema=rows_schema)
    empty, full = Row("i", None, []), Row("j", None, [{"key": "k"}])
    await calls_of(operation, [empty])
    assert (await run(operation, [empty, full])).data == {
        "items": [{"id": "i", "labels": []}, {"id": "j", "labels": [{"key": "k"}]}]
    }
    two, fifty = await calls_of(operation, [empty, full]), await calls_of(operation, [empty, full] * 25)
    assert fifty - two <= 48, "at most one comprehension over the labels of each row"


@pytest.mark.anyio
async def test_an_odd_row_among_plain_ones_is_told_in_its_place() -> None:
    operation = compiled("{ items { id label } }", graphql_schema=rows_schema)
    rows: list[Any] = [Row("a", "x", []), Row(7, 8, []), {"id": "c", "label": None}, Row("d", object, [])]  # type: ignore[arg-type]
    result = await run(operation, rows)
    assert result.data == {
        "items": [
            {"id": "a", "label": "x"},
            {"id": "7", "label": "8"},
            {"id": "c", "label": None},
            {"id": "d", "label": None},
        ]
    }
    assert [error.path for error in result.errors or ()] == [["items", 3, "label"]]


@pytest.mark.anyio
async def test_what_runs_when_it_is_read_is_read_once() -> None:
    reads: list[str] = []

    class Computed(NamedTuple):
        id: str
        labels: list[Any]

        @property
        def label(self) -> str:
            reads.append(self.id)
            return self.id

    operation = compiled("{ items { id label } }", graphql_schema=rows_schema)
    rows: list[Any] = [Computed("a", []), Computed("b", []), Computed(3, [])]  # type: ignore[arg-type]
    assert (await run(operation, rows)).errors is None
    assert reads == ["a", "b", 3]


@pytest.mark.anyio
async def test_mutations_run_one_after_the_other() -> None:
    events: list[str] = []

    @strawberry.type
    class Change:
        @strawberry.mutation
        async def step(self, name: str) -> str:
            events.append(f"begin {name}")
            await asyncio.sleep(0)
            events.append(f"end {name}")
            return name

    graphql_schema = strawberry.Schema(Rows, Change, config=StrawberryConfig(default_resolver=member))._schema
    operation = compiled('mutation { a: step(name: "a") b: step(name: "b") }', graphql_schema=graphql_schema)
    assert (await run(operation, None)).data == {"a": "a", "b": "b"}
    assert events == ["begin a", "end a", "begin b", "end b"]


def test_siblings_of_a_null_that_propagates_are_not_abandoned() -> None:
    ended: list[int] = []

    @strawberry.type
    class Work:
        number: int

        @strawberry.field
        async def done(self) -> int:
            await asyncio.sleep(0)
            ended.append(self.number)
            return self.number

        @strawberry.field
        def strict(self) -> int:
            if self.number == 3:
                raise LookupError
            return self.number

    @strawberry.type
    class Works:
        @strawberry.field
        def works(self) -> list[Work]:
            return [Work(number=number) for number in (1, 2, 3, 4)]

    graphql_schema = strawberry.Schema(Works, config=StrawberryConfig(default_resolver=member))._schema

    async def run_all() -> ExecutionResult:
        result = await run(compiled("{ works { done strict } }", graphql_schema=graphql_schema), None)
        await quiet()
        return result

    result = asyncio.run(run_all())
    assert result.data is None
    assert [error.path for error in result.errors or ()] == [["works", 2, "strict"]]
    assert ended == [3, 1, 2], "the siblings in the failed row were abandoned first"


@pytest.mark.anyio
async def test_code_is_kept_for_a_bounded_number_of_conditions_and_holds_no_other_values() -> None:
    names = [f"c{number}" for number in range(6)]
    declared = ", ".join(f"${name}: Boolean!" for name in names)
    fields = " ".join(f"{name}: now @include(if: ${name})" for name in names)
    operation = compiled(f"query ($at: DateTime, {declared}) {{ {fields} x: now(at: $at) }}")
    for combination in range(64):
        conditions = {name: bool(combination >> place & 1) for place, name in enumerate(names)}
        result = await run(operation, None, {**conditions, "at": "2026-01-01T00:00:00Z"})
        assert list(result.data or ()) == [*(name for name in names if conditions[name]), "x"]
    assert len(operation._plans) == MAX_PLANS
    for plan in operation._plans.values():
        assert set(plan._conditions.coerced) == set(plan._conditions.sources) == set(names)


@pytest.mark.anyio
@pytest.mark.parametrize("key", ["class", "None", "import", "x", "s", "__class__", "\N{LATIN SMALL LETTER A}"])
async def test_names_of_a_document_are_no_code(key: str) -> None:
    operation = compiled(f"{{ {key}: items {{ {key}: id {key}_: label }} }}", graphql_schema=rows_schema)
    assert (await run(operation, [Row("a", None, [])])).data == {key: [{key: "a", f"{key}_": None}]}


@pytest.mark.anyio
async def test_arguments_that_a_resolver_may_change_are_made_for_each_call() -> None:
    @strawberry.type
    class Taker:
        @strawberry.field
        def take(self, words: list[str]) -> int:
            words.append("more")
            return len(words)

    graphql_schema = strawberry.Schema(Taker, config=StrawberryConfig(default_resolver=member))._schema
    operation = compiled(
        'query ($w: [String!]!) { a: take(words: ["x"]) b: take(words: $w) c: take(words: $w) }',
        graphql_schema=graphql_schema,
    )
    for _ in range(2):
        assert (await run(operation, None, {"w": ["y"]})).data == {"a": 2, "b": 2, "c": 2}


@pytest.mark.anyio
@pytest.mark.parametrize("make", [lambda: member, lambda: getattr, lambda: lambda source, name: source.get(name)])
async def test_any_default_resolver_does(make: Callable[[], Any]) -> None:
    graphql_schema = strawberry.Schema(Rows, config=StrawberryConfig(default_resolver=make()))._schema
    resolver = make()
    rows: list[Any] = [Row("a", "b", [])] if resolver is getattr else [{"id": "a", "label": "b"}]
    operation = compiled("{ items { id label } }", graphql_schema=graphql_schema)
    for _ in range(2):
        assert (await run(operation, rows)).data == {"items": [{"id": "a", "label": "b"}]}
