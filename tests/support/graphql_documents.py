"""Writes valid documents over any schema, and is the oracle: it compares the compiled executor with graphql-core.

``python -m tests.support.graphql_documents --count 1000000 --seed 1 --processes 2`` compares many documents.
"""

import argparse
import asyncio
import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from random import Random
from typing import Any, NamedTuple

import orjson
from graphql import (
    ExecutionResult,
    GraphQLEnumType,
    GraphQLError,
    GraphQLField,
    GraphQLInputObjectType,
    GraphQLInterfaceType,
    GraphQLList,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLSchema,
    GraphQLUnionType,
    execute,
    get_named_type,
    get_variable_values,
    is_composite_type,
    is_leaf_type,
    is_required_argument,
    is_required_input_field,
    parse,
)
from graphql.pyutils import Undefined, is_awaitable
from hypothesis import strategies as st

from engine.compiler import compile_operation

MAX_DEPTH = 4
DOCUMENTS = 10_000
"""The number of documents that the tests compare."""
CASES_PER_LOOP = 25
"""The number of cases between two garbage collections. asyncio walks over all tasks that are not collected yet."""

LITERALS: dict[str, Callable[[Random], Any]] = {
    "Int": lambda random: random.randrange(-2, 5),
    "Float": lambda random: random.choice((0.5, 2, -1.25)),
    "Boolean": lambda random: random.random() < 0.5,
    "String": lambda random: random.choice(("", "a", 'quoted "text"', "é\n")),
    "ID": lambda random: random.choice(("t1", "p1", "n1", "x1")),
    "DateTime": lambda random: random.choice(("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5+02:00")),
    "SecretValue": lambda random: random.choice(("s3cret", "p")),
    "JSON": lambda random: random.choice(({"a": [1, None]}, "text", 1)),
}
"""Input values of scalars, as JSON."""


class Case(NamedTuple):
    """A document, the name of the operation to run, and alternative values for its variables."""

    source: str
    operation_name: str | None
    variables: list[dict[str, Any]]


class _Writer:
    """Writes one document. All its choices come from ``random``."""

    def __init__(self, schema: GraphQLSchema, random: Random) -> None:
        self.schema = schema
        self.random = random
        self.keys: dict[str, tuple[str, str, str]] = {}
        """The meaning of each response key: a field, its arguments and its type. With one meaning for each key,
        selections merge."""
        self.fragments: dict[str, tuple[Any, str]] = {}
        self.uses: dict[str, set[str]] = {}
        """The variables of each fragment and of the fragments that it spreads."""
        self.variables: dict[str, tuple[Any, Any]] = {}
        """The type and default of each variable (Undefined for no default)."""
        self.used: set[str] = set()
        self.budget = random.choice((5, 10, 20, 40))

    def document(self) -> Case:
        roots = [
            ("query", self.schema.query_type),
            ("query", self.schema.query_type),
            ("mutation", self.schema.mutation_type),
        ]
        operations: dict[str | None, set[str]] = {}
        texts = []
        count = self.random.choice((1, 1, 1, 2, 3))
        for number in range(count):
            kind, root = self.random.choice([entry for entry in roots if entry[1] is not None])
            name = None if count == 1 and self._maybe(0.5) else f"Op{number}"
            self.used = set()
            selection = self._selection(root, 0)
            declared = ", ".join(self._declaration(variable) for variable in sorted(self.used))
            operations[name] = self.used
            short = kind == "query" and name is None and not declared
            head = "" if short else f"{kind} {name or ''}{f'({declared})' if declared else ''} "
            texts.append(head + selection)
        texts += [f"fragment {name} on {type_} {selection}" for name, (type_, selection) in self.fragments.items()]
        self.random.shuffle(texts)
        name = self.random.choice(list(operations))
        values = [self._values(operations[name]) for _ in range(2)]
        return Case("\n".join(texts), name if count > 1 or self._maybe(0.5) else None, values)

    def _values(self, names: set[str]) -> dict[str, Any]:
        values = {}
        for name in sorted(names):
            type_, default = self.variables[name]
            optional = not isinstance(type_, GraphQLNonNull) or default is not Undefined
            if not optional or self._maybe(0.7):
                values[name] = self._value(type_, 0)
        return values

    def _maybe(self, probability: float) -> bool:
        return self.random.random() < probability

    def _declaration(self, name: str) -> str:
        type_, default = self.variables[name]
        return f"${name}: {type_}" + ("" if default is Undefined else f" = {self._literal(type_, default)}")

    # --- selections

    def _selection(self, type_: Any, depth: int) -> str:
        fields = [] if isinstance(type_, GraphQLUnionType) else list(type_.fields.items())
        parts = []
        for _ in range(self.random.choice((1, 1, 2, 3, 3, 4, 6))):
            self.budget -= 1
            chance = self.random.random()
            if chance < 0.1 or not fields:
                parts.append(self._typename())
            if chance < 0.75 and fields:
                parts.append(self._field(type_, self.random.choice(fields), depth))
            elif depth < MAX_DEPTH and self.budget > 0:
                parts.append(self._fragment(type_, depth))
        parts = [part for part in parts if part]
        return "{ " + " ".join(parts or [self._typename()]) + " }"

    def _typename(self) -> str:
        return self.random.choice(("__typename", "kindOf: __typename")) + self._conditions()

    def _field(self, parent: Any, choice: tuple[str, GraphQLField], depth: int) -> str:
        name, field = choice
        named = get_named_type(field.type)
        if is_composite_type(named) and (depth >= MAX_DEPTH or self.budget <= 0):
            leaves = [(n, f) for n, f in parent.fields.items() if is_leaf_type(get_named_type(f.type))]
            if not leaves:
                return ""
            name, field = self.random.choice(leaves)
        arguments = self._arguments(field)
        meaning = (name, arguments, str(field.type))
        key = name
        if self._maybe(0.15) or self.keys.get(key, meaning) != meaning:
            key = self.random.choice(("a", "b", "c"))
            while self.keys.get(key, meaning) != meaning:
                key = f"k{self.random.randrange(10**6)}"
        self.keys[key] = meaning
        text = (name if key == name else f"{key}: {name}") + arguments + self._conditions()
        named = get_named_type(field.type)
        return f"{text} {self._selection(named, depth + 1)}" if is_composite_type(named) else text

    def _fragment(self, type_: Any, depth: int) -> str:
        if self._maybe(0.5):
            spreadable = [name for name, (on, _) in self.fragments.items() if self._overlap(type_, on)]
            if spreadable and self._maybe(0.5):
                name = self.random.choice(spreadable)
            else:
                name = self._new_fragment(self._narrowed(type_), depth)
            self.used |= self.uses[name]
            return f"...{name}{self._conditions()}"
        if self._maybe(0.3):
            return f"...{self._conditions()} {self._selection(type_, depth + 1)}"
        on = self._narrowed(type_)
        return f"... on {on}{self._conditions()} {self._selection(on, depth + 1)}"

    def _new_fragment(self, on: Any, depth: int) -> str:
        outer, self.used = self.used, set()
        selection = self._selection(on, depth + 1)
        name = f"F{len(self.fragments)}"
        self.fragments[name] = (on, selection)
        self.uses[name], self.used = self.used, outer
        return name

    def _narrowed(self, type_: Any) -> Any:
        """Returns a type that a fragment within ``type_`` may be on."""
        possible = self._possible(type_)
        abstract = [
            other
            for other in self.schema.type_map.values()
            if isinstance(other, (GraphQLInterfaceType, GraphQLUnionType))
        ]
        return self.random.choice([type_, *possible, *(other for other in abstract if self._overlap(type_, other))])

    def _possible(self, type_: Any) -> list[Any]:
        return [type_] if isinstance(type_, GraphQLObjectType) else list(self.schema.get_possible_types(type_))

    def _overlap(self, one: Any, other: Any) -> bool:
        return any(type_ in self._possible(other) for type_ in self._possible(one))

    def _conditions(self) -> str:
        text = ""
        for directive in ("skip", "include"):
            if self._maybe(0.07):
                if self._maybe(0.5):
                    condition = self.random.choice(("true", "false"))
                else:
                    condition = self._variable(GraphQLNonNull(self.schema.type_map["Boolean"]), False)
                text += f" @{directive}(if: {condition})"
        return text

    # --- values

    def _arguments(self, field: GraphQLField) -> str:
        texts = [
            f"{name}: {self._argument(argument.type, argument.default_value is not Undefined)}"
            for name, argument in field.args.items()
            if is_required_argument(argument) or self._maybe(0.4)
        ]
        return f"({', '.join(texts)})" if texts else ""

    def _argument(self, type_: Any, has_default: bool) -> str:
        if self._maybe(0.4):
            return self._variable(type_, has_default)
        return self._literal(type_, self._value(type_, 0, top=False))

    def _variable(self, type_: Any, has_default: bool) -> str:
        """Returns a variable that may stand where a value of ``type_`` is expected. It is new, or one that exists."""
        shape = type_
        if isinstance(type_, GraphQLNonNull) and self._maybe(0.3):
            shape = type_.of_type  # allowed if the variable or the argument has a default; the value may be null
        elif not isinstance(type_, GraphQLNonNull) and self._maybe(0.3):
            shape = GraphQLNonNull(type_)
        needs_default = shape is not type_ and isinstance(type_, GraphQLNonNull) and not has_default
        for name, (known, default) in self.variables.items():
            if str(known) == str(shape) and not (needs_default and default is Undefined) and self._maybe(0.6):
                self.used.add(name)
                return f"${name}"
        name = f"v{len(self.variables)}"
        default = Undefined
        if needs_default or self._maybe(0.2):
            plain = shape if isinstance(shape, GraphQLNonNull) else GraphQLNonNull(shape)
            default = self._value(plain, 0)
        self.variables[name] = (shape, default)
        self.used.add(name)
        return f"${name}"

    def _value(self, type_: Any, depth: int, *, top: bool = True) -> Any:
        """Returns a value as JSON."""
        if isinstance(type_, GraphQLNonNull):
            type_ = type_.of_type
        elif self._maybe(0.15 if top else 0.05):
            return None
        if isinstance(type_, GraphQLList):
            return [self._value(type_.of_type, depth + 1) for _ in range(self.random.randrange(3))]
        if isinstance(type_, GraphQLEnumType):
            return self.random.choice(list(type_.values))
        if isinstance(type_, GraphQLInputObjectType):
            fields = type_.fields.items()
            if type_.is_one_of:
                name, field = self.random.choice(list(fields))
                return {name: self._value(GraphQLNonNull(field.type), depth + 1)}
            chance = 0.5 if depth < 2 else 0.1
            return {
                name: self._value(field.type, depth + 1)
                for name, field in fields
                if is_required_input_field(field) or self._maybe(chance)
            }
        return LITERALS.get(type_.name, LITERALS["String"])(self.random)

    def _literal(self, type_: Any, value: Any) -> str:
        """Returns a value as GraphQL writes it."""
        if isinstance(type_, GraphQLNonNull):
            type_ = type_.of_type
        if isinstance(value, list):
            item = type_.of_type if isinstance(type_, GraphQLList) else None
            return "[" + ", ".join(self._literal(item, each) for each in value) + "]"
        if isinstance(value, dict):
            fields = type_.fields if isinstance(type_, GraphQLInputObjectType) else {}
            members = (
                f"{name}: {self._literal(fields[name].type if name in fields else None, each)}"
                for name, each in value.items()
            )
            return "{" + ", ".join(members) + "}"
        if isinstance(type_, GraphQLEnumType) and value is not None:
            return str(value)
        return orjson.dumps(value).decode()


def write_case(schema: GraphQLSchema, random: Random) -> Case:
    """Returns a valid document over ``schema`` with one or more operations.

    It has aliases, merged fields, conditions, arguments, variables with defaults, and fragments on objects, interfaces
    and unions.
    """
    return _Writer(schema, random).document()


def cases(schema: GraphQLSchema) -> st.SearchStrategy[Case]:
    """Returns the strategy by which Hypothesis draws cases, and finds the smallest document that shows a difference."""
    return st.builds(write_case, st.just(schema), st.randoms(use_true_random=False))


# --- the oracle ------------------------------------------------------------------------------------------------------


class Difference(Exception):  # noqa: N818 - a finding and not an error
    """The two executors do not agree."""


def serialised(result: ExecutionResult) -> bytes:
    """Returns everything that can be known of a result, in the order of its members."""
    errors = [
        [error.formatted, type(error.original_error).__name__, repr(error.original_error)]
        for error in result.errors or ()
    ]
    return orjson.dumps({"data": result.data, "errors": errors}, option=orjson.OPT_UTC_Z, default=repr)


async def compare(schema: GraphQLSchema, case: Case, make_context: Callable[[int], Any], seeds: list[int]) -> int:
    """Runs a case by both executors, over a world for each seed. Returns how many results had errors.

    Raises Difference. The operation is compiled once for all seeds, as it is in the server.
    """
    document = parse(case.source)
    compiled = compile_operation(schema, document, case.operation_name)
    if compiled is None:
        raise Difference(f"not compiled\n{case}")
    failed = 0
    for index, seed in enumerate(seeds):
        values = case.variables[index % len(case.variables)]
        variables = get_variable_values(schema, compiled.operation.variable_definitions or (), values)
        if isinstance(variables, list):
            raise Difference(f"bad case: {variables}\n{case}")
        expected = await _outcome(
            lambda values=values, seed=seed: execute(  # type: ignore[misc]
                schema,
                document,
                context_value=make_context(seed),
                variable_values=values,
                operation_name=case.operation_name,
            )
        )
        actual = await _outcome(
            lambda variables=variables, seed=seed: compiled.execute(None, make_context(seed), variables)  # type: ignore[misc]
        )
        if not _agree(case, actual, expected):
            raise Difference(_report(case, seed, serialised(expected), serialised(actual)))
        failed += expected.errors is not None
    return failed


def _agree(case: Case, actual: ExecutionResult, expected: ExecutionResult) -> bool:
    """Returns whether both results are the same, with their errors in the same order.

    A field that is resolved for many rows at once is resolved at another time than row by row. If the document selects
    such a field, the data must be the same, but any of several failing siblings may be the first to end the others.
    """
    same = serialised(actual) == serialised(expected)
    if same or "joined" not in case.source or "cancelled" in str((actual.errors, expected.errors)):
        return same or "joined" in case.source
    data, expected_data = (serialised(ExecutionResult(result.data, None)) for result in (actual, expected))
    return data == expected_data and bool(actual.errors) == bool(expected.errors)


async def _outcome(run: Callable[[], Any]) -> ExecutionResult:
    """Returns the result, once every abandoned sibling has ended.

    A cancelled sibling cancels what it awaits, even if others await it too. graphql-core then ends in a CancelledError.
    """
    try:
        pending = run()
        answer: ExecutionResult = await pending if is_awaitable(pending) else pending
    except asyncio.CancelledError:
        answer = ExecutionResult(None, [GraphQLError("cancelled")])
    await quiet()
    return answer


async def quiet() -> None:
    """Waits until abandoned siblings have ended."""
    while len(tasks := asyncio.all_tasks()) > 1:
        await asyncio.wait(tasks - {asyncio.current_task()})


def _report(case: Case, seed: int, expected: bytes, actual: bytes) -> str:
    return (
        f"\n{case.source}\noperation {case.operation_name}, variables {case.variables}, world {seed}"
        f"\ngraphql-core: {expected.decode()}\ncompiled:     {actual.decode()}"
    )


Schema = Callable[[], tuple[GraphQLSchema, Callable[[int], Any]]]
"""Makes a schema, and the function that makes a context from a world's seed."""


@contextmanager
def _cancelled_siblings() -> Iterator[None]:
    """Lets graphql-core cancel the siblings of a null that propagates, some before they have begun.

    Unstarted coroutines are collected only here: Python cannot warn of them from within a named tuple. Objects from
    before are kept out of the collection, which takes less time without them.
    """
    gc.disable()
    gc.freeze()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            try:
                yield
            finally:
                gc.collect()
    finally:
        gc.unfreeze()
        gc.enable()


def run_one(schema: GraphQLSchema, case: Case, make_context: Callable[[int], Any], seeds: list[int]) -> int:
    """Runs `compare` in an event loop of its own."""
    with _cancelled_siblings():
        return asyncio.run(compare(schema, case, make_context, seeds))


def run_many(make: Schema, first: int, last: int) -> int:
    """Compares the cases with these numbers, each over two worlds. Returns how many results had errors."""
    schema, make_context = make()

    async def run(start: int, end: int) -> int:
        failed = 0
        for number in range(start, end):
            case = write_case(schema, Random(number))  # noqa: S311 - data of a test
            try:
                failed += await compare(schema, case, make_context, [2 * number, 2 * number + 1])
            except Difference as difference:
                raise Difference(f"case {number}: {difference}") from None
        return failed

    failed = 0
    for start in range(first, last, CASES_PER_LOOP):
        with _cancelled_siblings():
            failed += asyncio.run(run(start, min(start + CASES_PER_LOOP, last)))
    return failed


def run_parallel(make: Schema, count: int, seed: int, processes: int = 2) -> int:
    """Compares ``count`` cases in several processes. Returns how many results had errors."""
    step = -(-count // processes)
    bounds = [(seed + start, seed + min(start + step, count)) for start in range(0, count, step)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return sum(pool.map(run_many, [make] * len(bounds), *zip(*bounds, strict=True)))


def own_schema() -> tuple[GraphQLSchema, Callable[[int], Any]]:
    """Returns the schema of the tests and its worlds."""
    from tests.support.oracle_schema import World, schema

    return schema._schema, World


def served_schema() -> tuple[GraphQLSchema, Callable[[int], Any]]:
    """Returns the served schema over fake data. It needs a process of its own: it replaces the schema's resolvers."""
    from models.fleet.site_tokens import SiteTokenRow
    from models.fleet.sites import SiteRow
    from resolvers.root import schema
    from tests.support.graphql_fakes import FakeContext, Fakes

    Fakes(schema._schema, {"Site": SiteRow, "SiteToken": SiteTokenRow}).install()
    return schema._schema, FakeContext


SCHEMAS: dict[str, Schema] = {"own": own_schema, "served": served_schema}


def main() -> None:
    """Runs the oracle from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=DOCUMENTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schema", choices=SCHEMAS, default="served")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    start = time.monotonic()
    failed = run_parallel(SCHEMAS[arguments.schema], arguments.count, arguments.seed, arguments.processes)
    seconds = time.monotonic() - start
    sys.stdout.write(
        f"{arguments.count} documents over the {arguments.schema} schema from seed {arguments.seed},"
        f" {2 * arguments.count} answers, {failed} of them with errors: no difference, in {seconds:.0f} s\n"
    )


if __name__ == "__main__":
    main()
