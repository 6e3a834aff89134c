"""Documents and lock files: the README's table of settings, and what lock files may hold."""

import contextlib
import io
import json
import re
import subprocess
from pathlib import Path

from cli import documents

ROOT = Path(__file__).parent.parent.parent
TRACKED = [
    path
    for path in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    if (ROOT / path).exists()
]


def test_the_readme_has_the_settings_as_they_are() -> None:
    """Its table is what `bcd settings` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        documents.settings()
    assert printed.getvalue().strip() in (ROOT / "README.md").read_text()


REQUIREMENT = re.compile(
    r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[A-Za-z0-9.+!]+( ; [^\\]+)? \\"  # a version, and where it is needed
    r"|    --hash=sha256:[0-9a-f]{64}( \\)?"
    r"|    # via( (-r )?\S+( \(\S+\))?)?|    #   (-r )?\S+( \(\S+\))?"  # which package needs it
)


def test_python_lock_files_hold_versions_and_hashes() -> None:
    """A line is a version, a hash, or a comment that names the packages that need it."""
    locks = [path for path in TRACKED if path.endswith(".lock")]
    assert locks
    for path in locks:
        for line in (ROOT / path).read_text().splitlines():
            assert REQUIREMENT.fullmatch(line), f"{path}: {line}"


def test_npm_lock_files_hold_versions_and_hashes() -> None:
    """A package has a version and a hash, and no address that it was downloaded from."""
    locks = [path for path in TRACKED if path.endswith("package-lock.json")]
    assert locks
    for path in locks:
        packages = json.loads((ROOT / path).read_text())["packages"]
        for name, package in packages.items():
            assert "resolved" not in package, f"{path}: {name}"
            assert name == "" or {"version", "integrity"} <= package.keys() or package.get("link"), f"{path}: {name}"


def test_npm_settings_name_no_registry() -> None:
    """`.npmrc` holds only switches."""
    for path in (path for path in TRACKED if path.endswith(".npmrc")):
        for line in (ROOT / path).read_text().splitlines():
            assert re.fullmatch(r"(omit-lockfile-registry-resolved|fund|audit)=(true|false)", line), f"{path}: {line}"


def test_nothing_names_this_checkout() -> None:
    """No committed file holds the folder that it stands in: a checkout works wherever it is."""
    for path in TRACKED:
        assert f"{ROOT}/".encode() not in (ROOT / path).read_bytes(), path
