"""Tests enrolment by ``bcd site join``, run as processes against a server that keeps the agents' contract."""

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import CommandError
from agent.join import read_token
from agent.keys import AgentKeys
from agent.state import StateDir
from tests.support.agent_support import SITE, Bench, open_bench, wait_for


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield from open_bench(tmp_path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_join_keeps_keys_private_and_never_the_token(bench: Bench) -> None:
    token = bench.contract.mint()
    done = bench.join("a", token, "--name", "rack 7")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["siteId"] == SITE
    assert record["name"] == "rack 7"
    state = bench.state("a")
    assert mode(state) == 0o700
    assert {mode(path) for path in state.iterdir()} == {0o600}
    for path in state.iterdir():
        assert token not in path.read_text()
    assert token not in done.stdout + done.stderr
    [(_, body)] = bench.contract.requests
    assert body["publicKey"].keys() == {"kty", "crv", "x"}
    assert (body["publicKey"]["crv"], body["encryptionKey"]["crv"]) == ("Ed25519", "X25519")
    assert body["encryptionKey"].keys() == {"kty", "crv", "x"}


@pytest.mark.parametrize("lost", [1, 2])
def test_lost_answer_is_retried_with_the_same_key(bench: Bench, lost: int) -> None:
    """SPIRE 2454: the token was consumed, the reply was lost, and the node was stuck."""
    token = bench.contract.mint(uses=1)
    bench.contract.lose_answers = lost
    done = bench.join("a", token)
    assert done.returncode == 0, done.stderr
    assert len({json.dumps(body) for _, body in bench.contract.requests}) == 1
    assert len(bench.contract.requests) == lost + 1
    assert bench.contract.tokens[token] == 0
    assert [json.loads(done.stdout)["agentId"]] == list(bench.contract.agents)


def test_join_that_gave_up_is_resumed_with_the_same_key(bench: Bench) -> None:
    """SPIRE 2454, over a restart of the command: the key is stored on disk before the token is sent."""
    token = bench.contract.mint(uses=1)
    bench.contract.lose_answers = 5
    first = bench.join("a", token, "--name", "one")
    assert first.returncode == 9
    second = bench.join("a", token)
    assert second.returncode == 0, second.stderr
    assert len({json.dumps(body) for _, body in bench.contract.requests}) == 1
    assert len(bench.contract.agents) == 1
    assert json.loads(second.stdout)["name"] == "one"


def test_joining_again_says_who_it_is_and_sends_nothing(bench: Bench) -> None:
    first = bench.join("a")
    again = bench.join("a", "bcjt_any")
    assert again.returncode == 0
    assert again.stdout == first.stdout
    assert "already" in again.stderr
    assert len(bench.contract.requests) == 1


def test_state_dir_of_another_server_is_refused(bench: Bench) -> None:
    bench.join("a")
    token_file = bench.folder / "a.token"
    done = bench.site(
        *("join", "--server", "http://127.0.0.1:1", "--token-file", str(token_file)),
        *("--state-dir", str(bench.state("a"))),
    )
    assert done.returncode == 7


def test_two_agents_of_one_name_are_two(bench: Bench) -> None:
    """Netbird 1376: imaged machines shared one identity because they shared a host name."""
    token = bench.contract.mint(uses=2)
    ids = {json.loads(bench.join(name, token, "--name", "image").stdout)["agentId"] for name in ("a", "b")}
    assert len(ids) == 2
    assert {agent["name"] for agent in bench.contract.agents.values()} == {"image"}


@pytest.mark.parametrize("around", ["{}\n", "{}\r\n", "\ufeff{}\r\n", "  \t{}\n\n", "\u00a0{}\u2003"])
def test_whitespace_around_a_token_is_trimmed(tmp_path: Path, around: str) -> None:
    """Kubernetes 52919: a file's final newline became part of the token."""
    (tmp_path / "token").write_text(around.format("bcjt_x.y"))
    assert read_token(str(tmp_path / "token")) == "bcjt_x.y"


NO_TOKENS = ["a b", "a\nb", "a\u00a0b", "a\u200bb", "\u200bab", "a\x00b", "", " \n", "x" * 5000]


@pytest.mark.parametrize("inside", NO_TOKENS)
def test_what_cannot_be_a_token_is_refused(tmp_path: Path, inside: str) -> None:
    """Kubernetes 52919: a token with inner whitespace or an invisible character is refused and not sent."""
    (tmp_path / "token").write_text(inside)
    with pytest.raises(CommandError) as caught:
        read_token(str(tmp_path / "token"))
    assert caught.value.exit_code == 6
    assert inside.strip() == "" or inside not in str(caught.value)


def test_bad_token_is_refused_before_any_request(bench: Bench) -> None:
    done = bench.join("a", bench.contract.mint().replace(".", ". "))
    assert done.returncode == 6
    assert "whitespace inside" in done.stderr
    assert bench.contract.requests == []
    assert not bench.state("a").exists()


def test_token_from_standard_input(bench: Bench) -> None:
    done = bench.site(
        *("join", "--server", bench.server.url, "--token-file", "-", "--state-dir", str(bench.state("a"))),
        stdin=bench.contract.mint() + "\n",
    )
    assert done.returncode == 0, done.stderr


def test_no_argument_of_any_process_holds_the_token(bench: Bench) -> None:
    """Tailscale 21084: the key was in argv, where every user of the machine could read it."""
    token = bench.contract.mint()
    bench.contract.unavailable = True
    token_file = bench.folder / "t"
    token_file.write_text(token)
    process = subprocess.Popen(
        bench.command(
            *("join", "--server", bench.server.url, "--token-file", str(token_file)),
            *("--state-dir", str(bench.state("a"))),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=Path(__file__).parent.parent.parent,
    )
    with process:
        wait_for(lambda: bench.contract.requests)
        seen = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        bench.contract.unavailable = False
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert any(b"join" in line for line in seen)
    assert all(token.encode() not in text for text in (*seen, environment, output))


def test_join_has_no_option_for_the_token_itself(bench: Bench) -> None:
    assert bench.site("join", "--token", "x", "--server", bench.server.url).returncode == 2


@pytest.mark.parametrize("looser", [0o755, 0o750, 0o701])
def test_open_state_dir_is_refused(bench: Bench, looser: int) -> None:
    bench.state("a").mkdir()
    bench.state("a").chmod(looser)
    done = bench.join("a")
    assert done.returncode == 2
    assert "chmod 700" in done.stderr
    assert list(bench.state("a").iterdir()) == []
    assert mode(bench.state("a")) == looser
    assert bench.contract.requests == []


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [("UNAUTHENTICATED", 401, 3), ("RESOURCE_EXHAUSTED", 429, 8), ("INVALID_ARGUMENT", 400, 6), ("INTERNAL", 500, 1)],
)
def test_refusals_have_the_documented_exit_codes(bench: Bench, code: str, status: int, exit_code: int) -> None:
    bench.contract.fail_with = (code, status)
    done = bench.join("a")
    assert done.returncode == exit_code
    assert code in done.stderr
    assert "name: is too odd" in done.stderr
    assert "request id: r1" in done.stderr
    assert StateDir.open(bench.state("a")).keys() is not None


def test_clock_that_is_off_is_reported_and_does_not_matter(bench: Bench) -> None:
    bench.contract.clock_ahead = 7200.0
    done = bench.join("a")
    assert done.returncode == 0
    assert "7200 s behind" in done.stderr
    assert bench.status("a")["clockOff"] is True
    assert bench.status("a")["clockSkewSeconds"] == pytest.approx(-7200, abs=5)


def test_damaged_keys_are_not_shown(tmp_path: Path) -> None:
    state = StateDir.create(tmp_path / "s")
    state.save_keys(AgentKeys.generate())
    stored = json.loads((tmp_path / "s" / "keys.json").read_text())
    stored["signingKey"]["d"] = "marker"
    (tmp_path / "s" / "keys.json").write_text(json.dumps(stored))
    with pytest.raises(CommandError) as caught:
        state.keys()
    assert "marker" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_keys_show_nothing() -> None:
    keys = AgentKeys.generate()
    private = json.loads(keys.dump())["signingKey"]["d"]
    assert private not in repr(keys)
    assert private not in str(vars(keys))


def test_missing_token_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        read_token(str(tmp_path / "none"))
    assert caught.value.exit_code == 2
