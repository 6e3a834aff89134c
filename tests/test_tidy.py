"""The rules of the house, kept by machine: who imports whom, where SQL and the environment are read, what is said."""

import ast
import contextlib
import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from graphql import (
    GraphQLEnumType,
    GraphQLInputObjectType,
    GraphQLInterfaceType,
    GraphQLObjectType,
    GraphQLSchema,
    build_schema,
    is_specified_directive,
    is_specified_scalar_type,
)

from cli import documents
from models.ids import IDEMPOTENCY_KEY_PATTERN, SITE_ID_PATTERN, TENANT_ID_PATTERN, TOKEN_ID_PATTERN
from resolvers.registry import OPERATIONS
from resolvers.root import schema as strawberry_schema

ROOT = Path(__file__).parent.parent
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
SOURCES = [path for path in TRACKED if path.endswith(".py") and (ROOT / path).exists()]
"""Every Python file of the repository."""

LAYERS = ("settings", "models", "schema", "resolvers", "app")
"""Each may import itself and those before it."""

HOUSE = {*LAYERS, "agent", "cli", "logs", "serving", "migrations", "tests", "benchmarks"}


def layer(path: str) -> str:
    """``models`` for ``models/sites.py``, ``app`` for ``app.py``."""
    return path.partition("/")[0].removesuffix(".py")


def tree(path: str) -> ast.Module:
    """The parsed file."""
    return ast.parse((ROOT / path).read_text(), path)


def imports(path: str) -> Iterator[str]:
    """The top-level names that a file imports, anywhere in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield (node.module or "").partition(".")[0]


def of(*layers: str) -> list[str]:
    """The files of layers; none is missing by a misspelling."""
    found = [path for path in SOURCES if layer(path) in layers]
    assert {layer(path) for path in found} == set(layers)
    return found


def test_imports_go_one_way() -> None:
    """The app -> resolvers -> schema -> models -> settings, and none of them imports the app or the command line."""
    for number, name in enumerate(LAYERS):
        allowed = {*LAYERS[: number + 1]} | ({"logs"} if name == "app" else set())
        for path in of(name):
            assert set(imports(path)) & HOUSE <= allowed, path
    assert set(imports("logs.py")) & HOUSE <= {"settings", "models", "schema"}
    for path in of("migrations"):
        assert set(imports(path)) & HOUSE <= {"models"}, path
    assert {layer(path) for path in SOURCES if "cli" in imports(path)} == {"cli", "tests"}


def test_models_know_neither_graphql_nor_http() -> None:
    """models/ runs without Strawberry, graphql-core, Starlette and uvicorn."""
    for path in of("models", "settings"):
        assert not set(imports(path)) & {"strawberry", "graphql", "starlette", "uvicorn"}, path


def test_the_agent_talks_http_only() -> None:
    """agent/ and cli/operator/ import nothing of the server, nor any library that only the server needs."""
    servers = {
        "strawberry",
        "graphql",
        "starlette",
        "uvicorn",
        "sqlalchemy",
        "sqlmodel",
        "alembic",
        "asyncpg",
        "argon2",
    }
    for path in of("agent"):
        assert set(imports(path)) & HOUSE <= {"agent"}, path
        assert not set(imports(path)) & servers, path
    operators = [path for path in of("cli") if path.startswith("cli/operator/")]
    assert operators
    for path in operators:
        assert set(imports(path)) & HOUSE <= {"agent", "cli", "settings"}, path
        assert not set(imports(path)) & servers, path


SQL = re.compile(
    r"\b(SELECT\b.+\bFROM|SELECT\s+\d|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|(CREATE|ALTER|DROP)\s+TABLE|GRANT\s+\w+\s+ON|"
    r"LISTEN\s+\w+|pg_\w+\()",
    re.DOTALL,
)


def texts(path: str) -> Iterator[str]:
    """The strings of a file but its docstrings; formatted ones as their fixed parts."""
    module = tree(path)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(module)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            yield " x ".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_sql_stands_in_models_only() -> None:
    """No statement as text, and no library to build or run one with, outside models/ (and migrations and tests)."""
    outside = [path for path in SOURCES if layer(path) not in {"models", "migrations", "tests", "benchmarks"}]
    for path in outside:
        assert not set(imports(path)) & {"sqlalchemy", "sqlmodel", "asyncpg", "alembic"}, path
        assert not [text for text in texts(path) if SQL.search(text)], path
    assert SQL.search("SELECT id\nFROM sites"), "the pattern finds what it is for"
    assert any(SQL.search(text) for text in texts("migrations/versions/0001_the_tables_of_the_main_job.py"))


def test_the_environment_is_read_in_one_place() -> None:
    """``os.environ`` and ``os.getenv`` only in settings.py, agent/, and programs beside the server."""
    for path in SOURCES:
        if layer(path) in {"settings", "agent", "tests", "benchmarks", "clients"}:
            continue
        for node in ast.walk(tree(path)):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            assert name not in {"environ", "environb", "getenv"}, f"{path}:{getattr(node, 'lineno', 0)}"


def test_no_file_is_over_500_lines() -> None:
    """Python, TypeScript and style files of ours."""
    long = {
        path: lines
        for path in TRACKED
        if path.endswith((".py", ".ts", ".tsx", ".js", ".mjs", ".css")) and (ROOT / path).exists()
        if (lines := len((ROOT / path).read_text().splitlines())) > 500
    }
    assert long == {}


FORWARDERS_ALLOWED: set[str] = set()


def test_no_function_only_forwards() -> None:
    """A function whose body is one call with its own arguments, in their order, is not there: call the other one."""
    found = {
        f"{path}:{node.name}"
        for path in SOURCES
        if layer(path) not in {"tests", "migrations", "benchmarks"}
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list and forwards(node)
    }
    assert found == FORWARDERS_ALLOWED


def forwards(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether all that ``node`` does is to call a plain function with what it was given."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return False
    call = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return False
    given = [argument.id for argument in call.args if isinstance(argument, ast.Name)]
    given += [keyword.arg or "" for keyword in call.keywords if isinstance(keyword.value, ast.Name)]
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return bool(names) and given == names and len(given) == len(call.args) + len(call.keywords)


# --- the schema --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sdl() -> GraphQLSchema:
    """The exported schema, as clients read it."""
    return build_schema((ROOT / "schema" / "schema.graphql").read_text())


def test_the_exported_schema_is_up_to_date() -> None:
    """`bcd schema` was run after the last change of a type."""
    assert (ROOT / "schema" / "schema.graphql").read_text() == strawberry_schema.as_str().rstrip() + "\n"


def test_every_element_of_the_schema_is_described(sdl: GraphQLSchema) -> None:
    """Types, fields, arguments, input fields and enum values."""
    bare: list[str] = []
    for name, type_ in sdl.type_map.items():
        if name.startswith("__") or is_specified_scalar_type(type_):
            continue
        if not type_.description:
            bare.append(name)
        if isinstance(type_, GraphQLEnumType):
            bare += [f"{name}.{key}" for key, value in type_.values.items() if not value.description]
        if isinstance(type_, GraphQLInputObjectType):
            bare += [f"{name}.{key}" for key, field in type_.fields.items() if not field.description]
        if isinstance(type_, GraphQLObjectType | GraphQLInterfaceType):
            for key, member in type_.fields.items():
                bare += [] if member.description else [f"{name}.{key}"]
                bare += [f"{name}.{key}({a})" for a, argument in member.args.items() if not argument.description]
    for directive in sdl.directives:
        if not is_specified_directive(directive):
            bare += [] if directive.description else [f"@{directive.name}"]
            bare += [f"@{directive.name}({a})" for a, arg in directive.args.items() if not arg.description]
    assert bare == []


NO_OPERATION = {"viewer", "node"}
"""Fields that read what the request brings, or any object; there is no HTTP method of theirs."""

NO_FIELD: set[str] = set()
"""Operations without a root field."""


def test_every_field_has_its_operation_and_every_operation_its_field(sdl: GraphQLSchema) -> None:
    """A root field says what its operation says: the docstring of the one function behind both doors."""
    assert sdl.query_type is not None
    assert sdl.mutation_type is not None
    fields = sdl.query_type.fields | sdl.mutation_type.fields
    operations = {operation.description: operation.name for operation in OPERATIONS}
    assert len(operations) == len(OPERATIONS)
    found = {name: operations.get(field.description or "") for name, field in fields.items()}
    assert {name for name, operation in found.items() if operation is None} == NO_OPERATION
    behind = [operation for operation in found.values() if operation is not None]
    assert sorted(behind) == sorted(set(operations.values()) - NO_FIELD)


def test_constraints_stand_in_the_schema(sdl: GraphQLSchema) -> None:
    """Bounds and patterns of inputs are spelt out where clients look: in the descriptions of input fields."""
    token = sdl.type_map["CreateSiteTokenInput"]
    assert isinstance(token, GraphQLInputObjectType)
    for field, words in {
        "tenantId": TENANT_ID_PATTERN,
        "siteId": SITE_ID_PATTERN,
        "idempotencyKey": IDEMPOTENCY_KEY_PATTERN,
        "ttlSeconds": "60 to 86400",
        "maxUses": "1 to 16",
    }.items():
        assert words in (token.fields[field].description or ""), field
    revoke = sdl.type_map["RevokeSiteTokenInput"]
    assert isinstance(revoke, GraphQLInputObjectType)
    assert TOKEN_ID_PATTERN in (revoke.fields["tokenId"].description or "")
    value = sdl.type_map["SecretValue"]
    assert "65536 bytes" in (value.description or "")
    put = sdl.type_map["PutSecretInput"]
    assert isinstance(put, GraphQLInputObjectType)
    for field in ("expectedVersion", "idempotencyKey"):
        assert re.search(r"\((at most|\d+ to \d+)", put.fields[field].description or ""), field


# --- documents ---------------------------------------------------------------------------------------------------


def test_the_readme_has_the_settings_as_they_are() -> None:
    """Its table is what `bcd settings` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        documents.settings()
    assert printed.getvalue().strip() in (ROOT / "README.md").read_text()


def test_committed_files_name_no_registry_and_no_workplace() -> None:
    """Lock files hold hashes and no index address; nothing is tied to one machine."""
    hosts = re.compile(r"pypi\.org|pythonhosted\.org|registry\.npmjs\.org|registry\.yarnpkg\.com|/work/")
    for path in TRACKED:
        content = (ROOT / path).read_bytes() if (ROOT / path).exists() else b""
        if path != "tests/test_tidy.py":
            assert not hosts.search(content.decode("utf-8", "replace")), path
