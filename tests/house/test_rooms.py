"""Tests the layout of the repository: which folders import which, where SQL may stand, and the size of files."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
SOURCES = [path for path in TRACKED if path.endswith(".py") and (ROOT / path).exists()]
"""Every Python file of the repository."""

ROOMS = {
    "settings": "",
    "engine": "",
    "agent": "",
    "database": "settings",
    "models": "database",
    "services": "models database settings",
    "schema": "services models engine",
    "resolvers": "schema services models database engine",
    "doors": "resolvers schema services models database engine settings",
    "app": "doors resolvers schema services models database engine settings",
    "cli": "app doors resolvers schema services models database settings agent",
}
"""Each room, and the other rooms that it may import."""

MAX_FILES = 20
MAX_LINES = 400


def room(path: str) -> str:
    """Returns ``models`` for ``models/fleet/sites.py``, and ``app`` for ``app.py``."""
    return path.partition("/")[0].removesuffix(".py")


@cache
def tree(path: str) -> ast.Module:
    """Returns the parsed file. No test may change it."""
    return ast.parse((ROOT / path).read_text(), path)


def imported(path: str) -> Iterator[str]:
    """Yields the full names that a file imports, anywhere in it: modules, and what may be a module or a member."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def libraries(path: str) -> set[str]:
    """Returns the top-level names that a file imports."""
    return {name.partition(".")[0] for name in imported(path)}


def of(*rooms: str) -> list[str]:
    """Returns the files of rooms. Raises AssertionError if a room has no file, so that no name is misspelt."""
    paths = [path for path in SOURCES if room(path) in rooms]
    assert {room(path) for path in paths} == set(rooms)
    return paths


@pytest.mark.parametrize("name", ROOMS)
def test_imports_go_one_way(name: str) -> None:
    """A room imports only itself and the rooms that its line names, and no program beside the server."""
    allowed = {name, *ROOMS[name].split()}
    for path in of(name):
        assert libraries(path) & {*ROOMS, "tests", "benchmarks"} <= allowed, path


def test_no_file_is_in_a_circle() -> None:
    """No files import one another in a circle, not even for types alone."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in SOURCES}

    def target(name: str) -> str | None:
        return name if name in modules else name.rpartition(".")[0] if name.rpartition(".")[0] in modules else None

    arrows = {
        module: {to for name in imported(path) if (to := target(name)) is not None and to != module}
        for module, path in modules.items()
    }
    while leaves := [module for module, to in arrows.items() if not to & arrows.keys()]:
        for module in leaves:
            del arrows[module]
    assert {module: to & arrows.keys() for module, to in arrows.items()} == {}


def test_models_know_neither_graphql_nor_http() -> None:
    """The rooms below schema/ run without Strawberry, graphql-core, Starlette and uvicorn."""
    for path in of("services", "models", "database", "settings"):
        assert not libraries(path) & {"strawberry", "graphql", "starlette", "uvicorn"}, path


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
    operators = [path for path in of("cli") if path.startswith("cli/operator/")]
    assert operators
    for path in (*of("agent"), *operators):
        assert not libraries(path) & servers, path
    for path in operators:
        assert libraries(path) & {*ROOMS} <= {"agent", "cli", "settings"}, path
    assert {room(path) for path in SOURCES if "cli" in libraries(path)} == {"cli", "tests"}


SQL = re.compile(
    r"\b(SELECT\b.+\bFROM|SELECT\s+\d|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|(CREATE|ALTER|DROP)\s+TABLE|GRANT\s+\w+\s+ON|"
    r"LISTEN\s+\w+|pg_\w+\()",
    re.DOTALL,
)


def texts(path: str) -> Iterator[str]:
    """Yields the strings of a file except its docstrings. Of a formatted string it yields the constant parts."""
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


def test_sql_stands_in_models_and_database_only() -> None:
    """Other rooms hold no statement as text, and import no library that builds or runs statements."""
    outside = [path for path in SOURCES if room(path) not in {"models", "database", "tests", "benchmarks"}]
    for path in outside:
        assert not libraries(path) & {"sqlalchemy", "sqlmodel", "asyncpg", "alembic"}, path
        assert not [text for text in texts(path) if SQL.search(text)], path
    assert SQL.search("SELECT id\nFROM sites"), "the pattern finds what it is for"
    first = "database/migrations/versions/0001_the_tables_of_the_main_job.py"
    assert any(SQL.search(text) for text in texts(first))


def test_the_environment_is_read_in_one_place() -> None:
    """Only settings.py, agent/, and programs beside the server use ``os.environ`` and ``os.getenv``."""
    for path in SOURCES:
        if room(path) in {"settings", "agent", "tests", "benchmarks", "clients"}:
            continue
        for node in ast.walk(tree(path)):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            assert name not in {"environ", "environb", "getenv"}, f"{path}:{getattr(node, 'lineno', 0)}"


def test_no_file_is_too_long() -> None:
    """Python, TypeScript, JavaScript and style files have at most 400 lines, files of tests at most 500."""
    long = {
        path: lines
        for path in TRACKED
        if path.endswith((".py", ".ts", ".tsx", ".js", ".mjs", ".css")) and (ROOT / path).exists()
        if (lines := len((ROOT / path).read_text().splitlines())) > (500 if room(path) == "tests" else MAX_LINES)
    }
    assert long == {}


def test_no_room_is_too_full() -> None:
    """A folder holds at most 20 files of code."""
    counts: dict[Path, int] = {}
    for path in TRACKED:
        if path.endswith((".py", ".ts", ".tsx")) and (ROOT / path).exists():
            counts[Path(path).parent] = counts.get(Path(path).parent, 0) + 1
    assert {str(folder): count for folder, count in counts.items() if count > MAX_FILES} == {}


def test_every_file_says_what_it_is_for() -> None:
    """Each Python file begins with a docstring whose first line is a whole sentence."""
    for path in SOURCES:
        first = (ast.get_docstring(tree(path)) or "").partition("\n")[0]
        assert first.endswith((".", ":")) or path.startswith("database/migrations/"), path


FORWARDERS_ALLOWED: set[str] = set()


def test_no_function_only_forwards() -> None:
    """No function only calls another with its own arguments in their order. Callers call the other one instead."""
    forwarders = {
        f"{path}:{node.name}"
        for path in SOURCES
        if room(path) not in {"tests", "benchmarks"} and not path.startswith("database/migrations/")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list and forwards(node)
    }
    assert forwarders == FORWARDERS_ALLOWED


def forwards(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Returns whether the function only calls another plain function with its own arguments."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return False
    call = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return False
    passed = [argument.id for argument in call.args if isinstance(argument, ast.Name)]
    passed += [keyword.arg or "" for keyword in call.keywords if isinstance(keyword.value, ast.Name)]
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return bool(names) and passed == names and len(passed) == len(call.args) + len(call.keywords)
