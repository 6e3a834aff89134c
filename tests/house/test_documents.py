"""Tests the README's table of settings, and that lock files hold only versions and hashes."""

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
    """The table of the README is the output of `bcd settings`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        documents.settings()
    assert printed.getvalue().strip() in (ROOT / "README.md").read_text()


REQUIREMENT = re.compile(
    r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[A-Za-z0-9.+!]+( ; [^\\]+)? \\"  # a version, and the systems that need it
    r"|    --hash=sha256:[0-9a-f]{64}( \\)?"
    r"|    # via( (-r )?\S+( \(\S+\))?)?|    #   (-r )?\S+( \(\S+\))?"  # the package that needs it
)


def test_python_lock_files_hold_versions_and_hashes() -> None:
    """Each line is a version, a hash, or a comment that names the packages that need it."""
    locks = [path for path in TRACKED if path.endswith(".lock")]
    assert locks
    for path in locks:
        for line in (ROOT / path).read_text().splitlines():
            assert REQUIREMENT.fullmatch(line), f"{path}: {line}"


def test_npm_lock_files_hold_versions_and_hashes() -> None:
    """Each package has a version and a hash, and no download address."""
    locks = [path for path in TRACKED if path.endswith("package-lock.json")]
    assert locks
    for path in locks:
        packages = json.loads((ROOT / path).read_text())["packages"]
        for name, package in packages.items():
            assert "resolved" not in package, f"{path}: {name}"
            assert name == "" or {"version", "integrity"} <= package.keys() or package.get("link"), f"{path}: {name}"


def test_npm_settings_name_no_registry() -> None:
    """`.npmrc` files hold only switches."""
    for path in (path for path in TRACKED if path.endswith(".npmrc")):
        for line in (ROOT / path).read_text().splitlines():
            assert re.fullmatch(r"(omit-lockfile-registry-resolved|fund|audit)=(true|false)", line), f"{path}: {line}"


def test_nothing_names_this_checkout() -> None:
    """No committed file contains the path of the checkout, so that it works in any folder."""
    for path in TRACKED:
        assert f"{ROOT}/".encode() not in (ROOT / path).read_bytes(), path
