"""Tests that GraphQL responses and logs never hold the value of a secret, however wrongly a client sends it.

Names in a document are not covered: a client must not use a value as a name.
"""

import json
from typing import Any

import httpx
import pytest

from tests.support.small_door import (
    AUTHORIZATION,
    GOOD,
    PLAIN_JSON,
    PUT,
    RESPONSE_JSON,
    listening,
    post,
    raw,
    server_log,
)
from tests.support.small_schema import SENTINEL, Door

pytestmark = pytest.mark.anyio


def literal(text: str) -> dict[str, Any]:
    """Returns a put whose input is a literal."""
    return {"query": f"mutation {{ put(input: {text}) }}"}


def variable(**members: Any) -> dict[str, Any]:
    """Returns a put whose input is a variable."""
    return {"query": PUT, "variables": {"input": GOOD | {"value": SENTINEL} | members}}


BARE = SENTINEL.replace("-", "_")

WITH_SECRETS = [
    variable(),
    variable(name="NOT GOOD"),
    variable(unknown=1),
    variable(secretValu=SENTINEL),
    variable(value=[SENTINEL]),
    variable(value={"a": SENTINEL}),
    variable(value={SENTINEL: 1}),
    variable(value=SENTINEL * 10_000),
    variable(value=SENTINEL + "\u0000\u2028\U0010ffff"),
    variable(ttlSeconds=SENTINEL),
    variable(colour=SENTINEL),
    variable(tags=[{"key": SENTINEL}, SENTINEL]),
    variable(**{SENTINEL: SENTINEL}),
    {"query": PUT, "variables": {"input": SENTINEL}},
    {"query": PUT, "variables": {"input": [SENTINEL]}},
    {"query": PUT, "variables": {SENTINEL: SENTINEL}},
    {"query": PUT, "variables": SENTINEL},
    {"query": PUT, "variables": [SENTINEL]},
    {"query": PUT, "operationName": SENTINEL},
    {"query": PUT, "operationName": [SENTINEL]},
    {"query": PUT, "extensions": SENTINEL},
    literal(f'{{name: "abc", value: "{SENTINEL}", ttlSeconds: 60}}'),
    literal(f'{{name: "abc", value: """{SENTINEL}""", ttlSeconds: 60}}'),
    literal(f'{{name: "abc", secretValu: "{SENTINEL}", ttlSeconds: 60}}'),
    literal(f'{{name: "abc", value: ["{SENTINEL}"], ttlSeconds: 60}}'),
    literal(f'{{name: "abc", value: {{a: "{SENTINEL}"}}, ttlSeconds: 60}}'),
    literal(f'{{name: "abc", value: {BARE}, ttlSeconds: 60}}'),
    literal(f'{{name: "abc", value: {SENTINEL}, ttlSeconds: 60}}'),
    literal(f'{{name: "abc", value: "{SENTINEL}", ttlSeconds: 59}}'),
    literal(f'{{name: "abc", value: "{SENTINEL}}}'),
    literal(f'{{name: "abc", value: "{SENTINEL}\\q", ttlSeconds: 60}}'),
    literal(f'{{name: "abc" value "{SENTINEL}"}}'),
    literal(f'"{SENTINEL}"'),
    literal(f"{BARE}"),
    literal(f'{{name: "abc", ttlSeconds: "{SENTINEL}", colour: "{SENTINEL}", maxUses: "{SENTINEL}"}}'),
    {"query": f'mutation ($v: SecretValue = ["{SENTINEL}"]) {{ put(input: {{value: $v, ttlSeconds: 60}}) }}'},
    {"query": f'{{ thing(id: "{SENTINEL}") {{ id }} }}'},
    {"query": f'{{ thing(id: ["{SENTINEL}"]) {{ id }} }}'},
    {"query": f'{{ thing(id: "t0", id: "{SENTINEL}") {{ id }} }}'},
    {"query": f'{{ a: things {{ id }} a: thing(id: "{SENTINEL}") {{ id }} }}'},
    {"query": f'{{ things(first: "{SENTINEL}") {{ id @skip(if: "{SENTINEL}") }} }}'},
    {"query": f'{{ things(nope: "{SENTINEL}") {{ id @nope(if: "{SENTINEL}") }} }}'},
    {"query": f'"{SENTINEL}" {{ __typename }}'},
    {"query": f"{{ __typename }} # {SENTINEL}"},
    {"query": "{ things(first: 1) { broken } }"},
    {"query": '{ fails(code: "connection") }'},
    {"query": [SENTINEL]},
    SENTINEL,
    [SENTINEL],
    [variable()],
]

RAW = [
    f'{{"query": "{SENTINEL}'.encode(),
    f'{{"query": "{{ __typename }}", "variables": {{"a": "{SENTINEL}\\ud800"}}}}'.encode(),
    SENTINEL.encode() + b"\xff",
    SENTINEL.encode("utf-16"),
    f"query={SENTINEL}&input={SENTINEL}".encode(),
    SENTINEL.encode() * 10_000,
]


async def test_no_value_is_told_or_logged() -> None:
    """G8, L4, L6: a value sent in any way, by GET or POST, is in no response and in no line of the log."""
    with server_log() as logged:
        answers = await all_answers()
    bodies, log = b"".join(answers), logged.getvalue()
    assert b"INVALID_ARGUMENT" in bodies
    assert b"INTERNAL" in bodies
    for encoded in (SENTINEL, BARE, SENTINEL[:12]):
        assert encoded.encode() not in bodies
        assert encoded not in log
    assert log.count('"event": "request"') >= len(answers) - 1, "the log was on"


async def all_answers() -> list[bytes]:
    """Sends all requests in each way that they can be sent, and returns the bodies of the responses."""
    answers: list[bytes] = []
    async with listening(Door()) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:

        async def send(headers: dict[str, str], **request: Any) -> None:
            answers.append((await client.post("/graphql", headers=headers, **request)).content)

        for body in WITH_SECRETS:
            for accept in (RESPONSE_JSON, PLAIN_JSON, "text/event-stream"):
                await send(AUTHORIZATION | {"accept": accept}, json=body)
            if isinstance(body, dict):
                params = {k: v if isinstance(v, str) else json.dumps(v) for k, v in body.items()}
                if len(str(params)) < 10_000:
                    answers.append((await client.get("/graphql", params=params, headers=AUTHORIZATION)).content)
        for content in RAW:
            for content_type in (PLAIN_JSON, "application/x-www-form-urlencoded", "text/plain"):
                await send(AUTHORIZATION | {"content-type": content_type}, content=content)
        for headers in ({"authorization": f"Bearer {SENTINEL}"}, {"cookie": SENTINEL}, {"accept": SENTINEL}):
            await send(AUTHORIZATION | headers, json=variable())
        no_http = post(b"").replace(b"content-length: 0", b"content-length: -1\r\nx: " + SENTINEL.encode())
        answers.append((await raw(port, no_http))[2])
    return answers
