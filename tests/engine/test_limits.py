"""The limits of a document: checking one takes time by the size of its text, and each limit has a name."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from graphql import DocumentNode, GraphQLSyntaxError, Lexer, OperationDefinitionNode, Source, TokenKind, parse

from engine import limits
from engine.errors import BadDocumentError, LimitExceededError
from engine.limits import Limits, check_cost, check_document, check_text
from tests.support.small_schema import SCHEMA, ask, codes_of, small_engine

pytestmark = pytest.mark.alone

CHAIN = "{ things { ...f30 } }" + "".join(f" fragment f{n} on Thing {{...f{n - 1} ...f{n - 1}}}" for n in range(1, 31))
CHAIN += " fragment f0 on Thing {id}"


Refusal = BadDocumentError | LimitExceededError


def nested(levels: int) -> str:
    """Returns nested inline fragments, each of which holds two of the next."""
    return "id" if levels == 0 else f"...on Thing{{{nested(levels - 1)}}}" * 2


def refused(source: str, bounds: Limits | None = None) -> Refusal:
    """Returns the error that refuses ``source``."""
    with pytest.raises((BadDocumentError, LimitExceededError)) as caught:
        admit(source, bounds)
    assert isinstance(caught.value, Refusal)
    return caught.value


def admit(source: str, bounds: Limits | None = None) -> bool:
    """Returns whether variables decide if the cost of ``source`` is within its limit. Raises if a limit is exceeded."""
    check_text(source, bounds or Limits())
    return check_document(SCHEMA, parse(source), bounds or Limits())


def rule(source: str) -> Callable[[], Refusal | None]:
    """Returns a function that applies all limits to ``source``, without the parser's work, and returns the refusal."""
    try:
        document = parse(source)
    except GraphQLSyntaxError:  # too deeply nested, or too long to be parsed at all
        document = DocumentNode()

    def decide() -> Refusal | None:
        try:
            check_text(source, Limits())
            check_document(SCHEMA, document, Limits())
        except (BadDocumentError, LimitExceededError) as error:
            return error
        return None

    return decide


def least_seconds(work: Callable[[], Any]) -> float:
    """Returns the time of the fastest of ten runs."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


async def least_seconds_refused(source: str) -> float:
    """Returns the time of the fastest of ten refusals of ``source``, and checks that it is not kept.

    It takes the fastest because the garbage collector may run in one of them.
    """
    engine = small_engine()
    times = []
    for _ in range(10):
        start = time.perf_counter()
        answer = await engine.run(source, None, None, None)  # type: ignore[arg-type]
        times.append(time.perf_counter() - start)
        assert not answer.executed
        assert codes_of(answer) <= {"RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"}
    assert not engine.engine.documents._kept
    return min(times)


@pytest.mark.parametrize(
    ("source", "bounds", "setting"),
    [
        ("{ a b c }", Limits(tokens=4), "TOKENS"),
        ("{ a #\n#\n#\n }", Limits(tokens=4), "TOKENS"),
        ("{ things { children { id } } }", Limits(depth=2), "DEPTH"),
        ("query A { things { id } } query B { things { children { id } } }", Limits(depth=2), "DEPTH"),
        ("{ things { ...A } } fragment A on Thing { children { id } }", Limits(depth=2), "DEPTH"),
        ("{ things { a: id b: id } }", Limits(aliases=1), "ALIASES"),
        ("{ things { ...A ...A } } fragment A on Thing { a: id }", Limits(aliases=1), "ALIASES"),
        ("{ things { id id id } }", Limits(repeats=2), "REPEATS"),
        ("{ things { ...A ...A id } } fragment A on Thing { ... { id } }", Limits(repeats=2), "REPEATS"),
        ("{ things { a: id a: name a: id } }", Limits(repeats=2), "REPEATS"),
        ("{ things { id @skip(if: true) name @skip(if: true) } }", Limits(directives=1), "DIRECTIVES"),
        ("query @a @b { things { id } }", Limits(directives=1), "DIRECTIVES"),
        ("{ things { ... @a { id } ...A @b } } fragment A on Thing { id }", Limits(directives=1), "DIRECTIVES"),
        ("{ things(first: 9) { id name } }", Limits(cost=18), "COST"),
        ("{ things { id name } }", Limits(cost=100), "COST"),
        ("{ things(first: null) { id name } }", Limits(cost=100), "COST"),
        ("{ things(first: 99999999999999999999) { id } }", Limits(cost=200), "COST"),
        ("{ things(first: 9) { children(first: 9) { id name } } }", Limits(cost=171), "COST"),
        ("query ($n: Int) { a: things(first: $n) { id } }" + "{ things { id } }" * 3, Limits(cost=50), "COST"),
    ],
)
@pytest.mark.anyio
async def test_each_bound_names_its_setting(source: str, bounds: Limits, setting: str) -> None:
    """The engine names the bound, and the door names its setting. With a higher bound the document is admitted."""
    error = refused(source, bounds)
    name = setting.lower()
    assert isinstance(error, LimitExceededError)
    assert (error.bound, error.limit) == (name, getattr(bounds, name))
    body = await ask(small_engine(bounds), source)
    assert codes_of(body) == {"RESOURCE_EXHAUSTED"}
    assert f"(BC_GRAPHQL_MAX_{setting})" in body["errors"][0]["message"]
    admit(source, bounds._replace(**{name: 1000}))


@pytest.mark.parametrize(
    ("source", "bounds"),
    [
        ("{ things { children { id } } }", Limits(depth=3)),
        ("{ things { ... { ...A } } } fragment A on Thing { id }", Limits(depth=2)),
        ("{ things { a: id b: id } }", Limits(aliases=2)),
        ("{ things { id id } }", Limits(repeats=2)),
        ("{ things(first: 9) { children(first: 9) { id name } } }", Limits(cost=172)),
        ("{ things { id name } }", Limits(cost=101)),
        ("{ __schema { types { fields { type { ofType { ofType { name } } } } } } }", Limits(depth=1)),
    ],
)
def test_what_just_keeps_a_bound_is_admitted(source: str, bounds: Limits) -> None:
    """Fragments add no depth of their own, and introspection is as deep as the schema's types are."""
    assert admit(source, bounds) is False


def test_cost_by_variables() -> None:
    """An unknown page size is admitted if some size keeps the bound. Then each request is checked."""
    bounds = Limits(cost=101)
    source = "query ($n: Int = 20) { things(first: $n) { id } }"
    assert admit(source, bounds) is True
    assert admit(source, Limits(cost=201)) is False, "even the largest page keeps this bound"
    document = parse(source)
    operation = document.definitions[0]
    assert isinstance(operation, OperationDefinitionNode)
    for size in (1, 100, None):
        check_cost(SCHEMA, document, operation, bounds, {"n": size})
    for size in (101, 10**9):
        with pytest.raises(LimitExceededError) as caught:
            check_cost(SCHEMA, document, operation, bounds, {"n": size})
        assert caught.value.bound == "cost"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(CHAIN, id="G1 a chain of 30 fragments that spread the next twice"),
        pytest.param(CHAIN.replace("fragment f30", "fragment f31"), id="a chain that breaks off"),
        pytest.param(f"{{ things {{ {nested(6)} }} }}", id="G2 nested repeated inline fragments"),
        pytest.param(f"{{ things {{ {nested(12)} }} }}", id="G2 and more of them than tokens"),
        pytest.param("{" * 100_000, id="only brackets"),
        pytest.param("{ things(colour: " + "[" * 900 + "]" * 900 + ") }", id="deep lists"),
        pytest.param("{ things(colour: " + "{a:" * 400 + "1" + "}" * 400 + ") }", id="deep objects"),
        pytest.param("{ things { " + "children {" * 300 + "id" + "}" * 300 + "} }", id="deep selections"),
    ],
)
@pytest.mark.anyio
async def test_hostile_documents_are_refused_at_once(source: str) -> None:
    """G1, G2: the limits take under 5 ms and the parser a few. There is no recursion error, and nothing is kept."""
    assert least_seconds(rule(source)) < 0.005
    assert await least_seconds_refused(source) < 0.025, "the parser takes some microseconds a token"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param('"' + '\\"' * 60_000, id="a string that never ends"),
        pytest.param('"""' + '\\"""' * 30_000, id="a block string that never ends"),
        pytest.param('{ a(b: "' + "\\" * 120_000, id="only escapes"),
        pytest.param("{ things { id } }" + "# " * 60_000 + "\n}", id="a long comment"),
        pytest.param(
            "{ things { ...f240 } }" + "".join(f" fragment f{n} on Thing {{...f{n - 1}}}" for n in range(240, 0, -1)),
            id="a long chain of fragments, first to last",
        ),
    ],
)
@pytest.mark.anyio
async def test_long_documents_take_time_by_their_length_alone(source: str) -> None:
    """A document that a parser in Python has to read to its end is refused in the time of reading it once."""
    assert await least_seconds_refused(source) < 0.25


@pytest.mark.parametrize(
    "fragments",
    [
        "fragment a on Thing {...a}",
        "fragment a on Thing {children {...b}} fragment b on Thing {...c ...c} fragment c on Thing {... {...a}}",
    ],
)
def test_circular_fragments(fragments: str) -> None:
    """G3: a fragment that spreads itself is a bad document, whether the fragment is used or not."""
    for source in ("{ things { ...a } } " + fragments, "{ things { id } } " + fragments):
        assert isinstance(refused(source), BadDocumentError)
        assert least_seconds(rule(source)) < 0.005


def test_a_chain_of_fragments_bounds_the_stack() -> None:
    """Fragments add no depth to the answer, but a chain of them is as deep as it is long."""
    source = "{ things { ...f40 } }" + "".join(f" fragment f{n} on Thing {{ ...f{n - 1} }}" for n in range(40, 0, -1))
    error = refused(source + " fragment f0 on Thing { id }")
    assert isinstance(error, LimitExceededError)
    assert error.bound == "depth"


@pytest.mark.anyio
async def test_fields_that_merge_on_every_level() -> None:
    """G2: validation stops, and the answer says so, before it compares all fields with all others."""
    inside = "children(first: 1) { children(first: 1) { id name } }" * 12
    body = await ask(small_engine(), "{" + f"things(first: 1) {{ {inside} }}" * 8 + "}")
    assert codes_of(body) == {"RESOURCE_EXHAUSTED"}
    assert "the same fields too often" in body["errors"][0]["message"]


@pytest.mark.anyio
async def test_components_may_select_the_same_fields() -> None:
    """A client's build may combine the fragments of its components."""
    fields = "id name at children { id name at } " * 2
    parts = "".join(f" fragment C{n} on Thing {{ {fields} }}" for n in range(10))
    source = "{ things(first: 1) { " + " ".join(f"...C{n}" for n in range(10)) + " } }" + parts
    assert "data" in await ask(small_engine(), source)


def test_counts_do_not_grow_with_what_fragments_expand_to() -> None:
    """Counts stop at a ceiling, and a fragment is measured once: 30 doublings take no longer than their text."""
    unbounded = Limits(tokens=10**6, depth=10**6, aliases=10**9, repeats=10**18, directives=10**9, cost=10**18)
    assert least_seconds(lambda: admit(CHAIN, unbounded)) < 0.005


@pytest.mark.anyio
async def test_a_long_document_is_refused_by_its_length() -> None:
    """A value of that size belongs in a variable."""
    source = '{ a(b: "' + "x" * limits.MAX_CHARACTERS + '") }'
    error = refused(source)
    assert isinstance(error, LimitExceededError)
    assert error.bound == "characters"
    assert "as variables" in (await ask(small_engine(), source))["errors"][0]["message"]


@pytest.mark.parametrize(
    "source",
    [
        '{ a(x: "q\\"#{}", y: """block "" \\""" # {""" , z: -1.5e+3) @d { ...F ... on X { b } } }',
        "query Q($a: [Int!]! = [1, 2], $b: T = {x: RED}) { a, b, c }\r\n",
        "\ufeff# only\n# comments\n{ a }",
        '"""described""" query { a }',
        '{ a(b: "", c: """""", d: "\\u00e9\\\\") }',
        "{ a(b: $c) & | ! }",
    ],
)
def test_tokens_are_counted_as_the_lexer_does(source: str) -> None:
    """The cheap count is the parser's own count, comments included."""
    lexer = Lexer(Source(source))
    token = lexer.token
    count = 0
    while token.kind is not TokenKind.EOF:
        token = lexer.lookahead() if token is lexer.token else token
        lexer.advance()
        token = lexer.token
        count += token.kind is not TokenKind.EOF
    first: Any = lexer.token
    while first.prev is not None:
        first = first.prev
        count += first.kind is TokenKind.COMMENT
    assert sum(1 for _ in limits._TOKEN.finditer(source)) == count
    check_text(source, Limits(tokens=count))
    with pytest.raises(LimitExceededError):
        check_text(source, Limits(tokens=count - 1))
