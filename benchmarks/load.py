"""Load for the benchmarks: describes an HTTP request, sends it over and over with wrk, and reads wrk's figures."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.faults import BenchmarkError

CONNECTIONS = 32
"""The default number of connections, enough to keep either server busy. With few connections, a server whose look-ups
share a statement makes all of them wait for that statement.
"""

MAX_PER_SECOND = 8000
"""More single-use requests than a server can answer in a second."""

LUA_TURNS = """
local turns, turn = {}, 0
for line in io.lines("%s") do
  local authorization, body = line:match("^(.-)\t(.*)$")
  turns[#turns + 1] = { authorization, body }
end
request = function()
  turn = turn %% #turns + 1
  wrk.headers["authorization"] = turns[turn][1]
  return wrk.format(nil, nil, nil, turns[turn][2])
end
"""
"""The part of wrk's script that reads pairs of authorization and body from a file and sends them in turn."""


class Load(NamedTuple):
    """A request that wrk repeats, or a function that makes many requests if each one can be used only once."""

    url: str
    body: Any
    headers: dict[str, str]
    turns: Callable[[int], list[tuple[str, str]]] | None = None
    """Returns at least one pair of authorization and body. Its argument is the number of pairs that wrk may use up."""


def wrk(load: Load, connections: int, seconds: int, folder: Path) -> float:
    """Returns the requests per second that ``load`` reaches over that many connections.

    ``folder`` takes wrk's script. Raises BenchmarkError if an answer is not a success.
    """
    script = folder / "load.lua"
    lines = _lines(load)
    if load.turns is not None:
        turns = folder / "turns.txt"
        turns.write_text("".join(f"{auth}\t{body}\n" for auth, body in load.turns(MAX_PER_SECOND * seconds)))
        lines.append(LUA_TURNS % turns)
    script.write_text("\n".join(lines))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), load.url]
    return float(_search(r"Requests/sec:\s+([0-9.]+)", command)[1])


def p99_milliseconds(load: Load, seconds: int, folder: Path) -> float:
    """Returns the 99th percentile of the time that one connection waits for an answer, in milliseconds.

    ``folder`` takes wrk's script. Raises BenchmarkError if an answer is not a success.
    """
    script = folder / "load.lua"
    script.write_text("\n".join(_lines(load)))
    command = ["wrk", "-t1", "-c1", f"-d{seconds}s", "--latency", "-s", str(script), load.url]
    match = _search(r"99%\s+([0-9.]+)(us|ms|s)", command)
    return float(match[1]) * {"us": 0.001, "ms": 1, "s": 1000}[match[2]]


def _search(pattern: str, command: list[str]) -> re.Match[str]:
    """Runs wrk and finds the pattern in its output. Raises BenchmarkError if wrk, or a request that it sent, failed."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0 or "Non-2xx" in result.stdout or "Socket errors" in result.stdout:
        raise BenchmarkError(f"{command[-1]} failed under load\n{result.stdout}{result.stderr}".rstrip())
    match = re.search(pattern, result.stdout)
    if match is None:
        raise BenchmarkError(f"wrk said nothing of use\n{result.stdout}")
    return match


def _lines(load: Load) -> list[str]:
    lines = ['wrk.method = "POST"', f"wrk.body = {_lua(json.dumps(load.body))}"]
    return lines + [f"wrk.headers[ {_lua(name)} ] = {_lua(value)}" for name, value in load.headers.items()]


def _lua(text: str) -> str:
    return "[==[" + text + "]==]"


def answer(load: Load) -> Any:
    """Sends the request once and returns the JSON of its answer. Raises httpx.HTTPError if it is not a success."""
    headers, content = load.headers, json.dumps(load.body)
    if load.turns is not None:
        authorization, content = load.turns(1)[0]
        headers = headers | {"authorization": authorization}
    return httpx.post(load.url, content=content, headers=headers).raise_for_status().json()
