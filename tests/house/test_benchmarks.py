"""Tests how the benchmarks report a missing program, a missing peer, and a peer with different answers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.__main__ import Outcome, failed, outcome, results, rows
from benchmarks.faults import BenchmarkError, NotInstalledError, require_package, told_in_one_line
from benchmarks.figures import Pair, at, ratio
from benchmarks.load import Load
from benchmarks.stage import Stage, free_port, mercurius, process

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[Load]:
    """Serves the same body for every request, and yields the load that sends requests there."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Load(f"http://127.0.0.1:{server.server_port}", {}, {})
        finally:
            server.shutdown()
            thread.join()


def measured(ours: Load, peer: Load | BenchmarkError) -> Outcome:
    """Returns the outcome of a pair whose answers must be the same."""
    return outcome(partial(ratio, Pair("site/mercurius", ours, peer, same=True), 1, 1, 1, Path("unused")))


@pytest.fixture
def without_packages(tmp_path: Path) -> Path:
    """A copy of the folder of Mercurius in which `npm ci` was not run."""
    (tmp_path / "package.json").write_bytes((ROOT / "benchmarks" / "mercurius" / "package.json").read_bytes())
    return tmp_path


@pytest.fixture
def missing(without_packages: Path) -> NotInstalledError:
    """The error that says why Mercurius does not run from that folder."""
    with pytest.raises(NotInstalledError) as caught:
        mercurius(without_packages)
    return caught.value


@pytest.mark.parametrize("module", ["benchmarks", "benchmarks.workers"])
def test_without_wrk_there_is_one_line_and_status_1(module: str, tmp_path: Path) -> None:
    """Nothing is started before it, and nothing else is printed."""
    environment = os.environ | {"PATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", module]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (1, "")
    assert finished.stderr == "wrk is not installed: apt install wrk\n"
    assert list(tmp_path.iterdir()) == []


def test_make_looks_for_wrk_before_it_installs_anything() -> None:
    """`make bench` on a fresh machine does not install packages only to say afterwards that wrk is missing."""
    plan = subprocess.run(["make", "-n", "-B", "bench"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert plan.index("wrk is not installed: apt install wrk") < plan.index("pip")


def test_a_python_without_packages_is_told_in_one_line() -> None:
    """`-S` hides the packages of the environment."""
    command = [sys.executable, "-S", "-m", "benchmarks.subscribers"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert finished.stderr.count("\n") == 1
    assert "make dev-setup" in finished.stderr


def test_a_missing_package_is_told_in_one_line() -> None:
    """A package that only an option needs is checked before minutes of measuring."""
    require_package("json", "--plot")
    with pytest.raises(SystemExit) as caught, told_in_one_line():
        require_package("no_such_package", "--plot")
    assert caught.value.code == "no_such_package is not installed, which --plot needs: make dev-setup"


def test_a_missing_peer_is_a_row_that_was_not_run(missing: NotInstalledError) -> None:
    """Its rows in the table and the file give the reason. The other figures are there, and it is no fault."""
    stage = Stage("http://server", "key", "http://stock", "http://raw", missing, "site_1", ["site_1"])
    assert stage.errors == [missing]
    peer = at(stage.mercurius, "/graphql", {}, {})
    ours = Load("http://server.invalid/graphql", {}, {})
    outcomes: dict[str, Outcome] = {"site/mercurius": measured(ours, peer), "sites_page/limit": [1.5, 1.0, 2.0]}
    assert rows(outcomes) == [
        ("site/mercurius", "not run: Mercurius is not installed (make bench-mercurius)"),
        ("sites_page/limit", "1.50", "1.00", "2.00"),
    ]
    assert json.loads(json.dumps(results(outcomes))) == {
        "ratios": {"sites_page/limit": 1.5},
        "not_run": {"site/mercurius": "Mercurius is not installed (make bench-mercurius)"},
    }
    assert not failed(outcomes)


def test_mercurius_needs_each_of_its_packages(without_packages: Path, missing: NotInstalledError) -> None:
    """The incomplete folder of packages of an interrupted `npm ci` does not count as an installation."""
    names = list(json.loads((without_packages / "package.json").read_text())["dependencies"])
    for name in names:
        with pytest.raises(NotInstalledError, match=str(missing).partition(" (")[0]):
            mercurius(without_packages)
        package = without_packages / "node_modules" / name / "package.json"
        package.parent.mkdir(parents=True)
        package.write_text("{}")
    assert names


def test_a_peer_with_another_answer_is_a_fault() -> None:
    """Its row gives the reason in one line, the text of the error has the details, and the exit status is 1."""
    with answering(b'{"data": 1}') as ours, answering(b'{"data": 2}') as peer:
        values = measured(ours, peer)
    assert isinstance(values, BenchmarkError)
    assert rows({"site/mercurius": values}) == [("site/mercurius", "not run: the answers differ")]
    assert "{'data': 1}" in str(values)
    assert "{'data': 2}" in str(values)
    assert results({"site/mercurius": values}) == {"ratios": {}, "not_run": {"site/mercurius": "the answers differ"}}
    assert failed({"site/mercurius": values})


def test_a_peer_that_answers_with_an_error_is_a_fault() -> None:
    """The figure is reported as not run. Other figures are not affected."""
    with answering(b'{"data": 1}') as ours, answering(b"{}", status=500) as peer:
        values = measured(ours, peer)
        assert isinstance(values, BenchmarkError)
        assert values.reason.startswith("a request failed: Server error '500 ")
        assert peer.url in values.reason
    assert failed({"site/mercurius": values})


def test_a_peer_that_does_not_start_is_a_fault() -> None:
    """The reason names the peer and its exit status."""
    with (
        pytest.raises(BenchmarkError) as caught,
        process("Mercurius", [sys.executable, "-c", "exit(3)"], free_port(), {}),
    ):
        pass
    assert caught.value.reason == "Mercurius does not start: it ended with status 3"
    assert failed({"site/mercurius": caught.value})
