"""Runs the agent's commands as real processes against a small server that keeps the agents' contract.

``Contract`` implements only the contract, in memory, behind a real HTTP server on loopback. It can lose a response
after it acted, refuse every request, be stopped, and have a clock that is wrong. The tests reach it through ``bench``
only.
"""

import asyncio
import base64
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from joserfc.jws import JWSRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent.cli import describe
from agent.clock import SystemClock
from agent.join import join
from agent.state import StateDir

ROOT = Path(__file__).parent.parent.parent
SITE = "site_" + "0" * 25 + "a"
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class _Registry(JWSRegistry):
    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]


class ProblemError(Exception):
    def __init__(self, code: str, status: int, *, fields: list[dict[str, str]] | None = None) -> None:
        self.code, self.status, self.fields = code, status, fields
        super().__init__(code)


UNAUTHENTICATED = ("UNAUTHENTICATED", 401)
CONFLICT = ("CONFLICT", 409)
NOT_FOUND = ("NOT_FOUND", 404)


class Contract:
    """Enrolment, agent identity, the lease of one site and the broker, as the contract defines them."""

    def __init__(self) -> None:
        self.ttl = 5.0
        self.clock_ahead = 0.0
        self.lose_answers = 0
        self.unavailable = False
        self.hang = threading.Event()
        self.hang.set()
        self.hung = 0
        self.fail_with: tuple[str, int] | None = None
        self.tokens: dict[str, int] = {}
        self.agents: dict[str, dict[str, Any]] = {}
        self.granted: dict[tuple[str, int], bytes] = {}
        self.holder: str | None = None
        self.epoch = 0
        self.expires_at = 0.0
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.authorizations: list[str] = []
        self.boots: list[dict[str, Any]] = []
        self.history: list[tuple[int, str]] = []
        self.revoked: set[str] = set()
        self._seen: set[str] = set()

    def now(self) -> float:
        return time.time() + self.clock_ahead

    def stamp(self, moment: float | None = None) -> str:
        return datetime.fromtimestamp(self.now() if moment is None else moment, UTC).isoformat()

    def fail_if_told(self) -> None:
        if self.unavailable:
            raise ProblemError("UNAVAILABLE", 503)
        if self.fail_with is not None:
            raise ProblemError(*self.fail_with, fields=[{"path": "name", "message": "is too odd"}])

    def mint(self, uses: int = 1) -> str:
        token = f"bcjt_{'0' * 26}.{secrets.token_hex(16)}"
        self.tokens[token] = uses
        return token

    def enroll(self, body: dict[str, Any]) -> dict[str, Any]:
        known = next(
            (a for a in self.agents.values() if a["key"] == body["publicKey"] and a["token"] == body["token"]),
            None,
        )
        if known is None:
            if self.tokens.get(body["token"], 0) < 1:
                raise ProblemError(*UNAUTHENTICATED)
            self.tokens[body["token"]] -= 1
            known = {
                "id": "agt_" + secrets.token_hex(13),
                "name": body["name"],
                "key": body["publicKey"],
                "next": None,
                "seal": body["encryptionKey"],
                "token": body["token"],
                "at": self.stamp(),
            }
            self.agents[known["id"]] = known
        return self.describe(known)

    def describe(self, agent: dict[str, Any]) -> dict[str, Any]:
        return {
            "agentId": agent["id"],
            "tenantId": "acme",
            "siteId": SITE,
            "name": agent["name"],
            "enrolledAt": agent["at"],
            "serverTime": self.stamp(),
            "bootLeaseTtlSeconds": self.ttl,
        }

    def authenticate(self, authorization: str) -> dict[str, Any]:
        try:
            scheme, _, token = authorization.partition(" ")
            header = json.loads(base64.urlsafe_b64decode(token.split(".")[0] + "=="))
            agent = self.agents[header["kid"]]
            claims = self._claims(agent, token)
        except (JoseError, KeyError, ValueError, IndexError) as error:
            raise ProblemError(*UNAUTHENTICATED) from error
        now = self.now()
        good = (
            scheme == "Bearer"
            and header["typ"] == "bc-agent+jwt"
            and claims["iss"] == claims["sub"] == agent["id"]
            and claims["aud"] == "better-compute"
            and claims["iat"] - 2 <= now < claims["exp"] <= claims["iat"] + 60
            and claims["jti"] not in self._seen
            and agent["id"] not in self.revoked
        )
        if not good:
            raise ProblemError(*UNAUTHENTICATED)
        self._seen.add(claims["jti"])
        return agent

    def _claims(self, agent: dict[str, Any], token: str) -> dict[str, Any]:
        try:
            return _verify(token, agent["key"])
        except JoseError:
            if agent["next"] is None:
                raise
            claims = _verify(token, agent["next"])
            agent["key"], agent["next"] = agent["next"], None
            return claims

    def rotate(self, agent: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        proof = _verify(body["proof"], body["newPublicKey"])
        assert proof["agentId"] == agent["id"]
        assert proof["aud"] == "better-compute/rotate"
        assert self.now() < proof["exp"]
        agent["next"] = body["newPublicKey"]
        return self.describe(agent)

    def lease(self) -> dict[str, Any]:
        held = self.holder is not None
        return {
            "epoch": self.epoch if held else None,
            "holderAgentId": self.holder,
            "expiresAt": self.stamp(self.expires_at) if held else None,
            "ttlSeconds": self.ttl,
            "serverTime": self.stamp(),
        }

    def _expire(self) -> None:
        if self.holder is not None and self.now() >= self.expires_at:
            self.holder = None

    def acquire(self, agent: dict[str, Any], _body: dict[str, Any]) -> dict[str, Any]:
        self._expire()
        if self.holder not in (None, agent["id"]):
            return {"held": False, **self.lease(), "epoch": None}
        self.holder = agent["id"]
        self.epoch += 1
        self.expires_at = self.now() + self.ttl
        self.history.append((self.epoch, agent["id"]))
        return {"held": True, **self.lease()}

    def _must_hold(self, agent: dict[str, Any], epoch: int) -> None:
        self._expire()
        if self.holder != agent["id"] or self.epoch != epoch:
            raise ProblemError(*CONFLICT)

    def renew(self, agent: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        self._must_hold(agent, body["epoch"])
        self.expires_at = max(self.expires_at, self.now() + self.ttl)
        return {"held": True, **self.lease()}

    def release(self, agent: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        self._must_hold(agent, body["epoch"])
        self.holder = None
        return {"held": False, **self.lease()}

    def record_boot(self, agent: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        self._must_hold(agent, body["epoch"])
        self.boots.append(body)
        return {"id": f"boot_{len(self.boots)}", "epoch": body["epoch"], "recordedAt": self.stamp()}

    def read_secret(self, agent: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        versions = [version for reference, version in self.granted if reference == body["reference"]]
        version = body.get("version", max(versions, default=0))
        self._expire()
        if (
            self.holder != agent["id"]
            or self.epoch != body["epoch"]
            or (body["reference"], version) not in self.granted
        ):
            raise ProblemError(*NOT_FOUND)
        key = X25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(agent["seal"]["x"] + "="))
        bound = json.dumps(
            {"agentId": agent["id"], "reference": body["reference"], "version": version},
            sort_keys=True,
            separators=(",", ":"),
        )
        sealed = SUITE.encrypt(
            self.granted[body["reference"], version], key, info=b"better-compute/secret/v1\n" + bound.encode()
        )
        return {
            "reference": body["reference"],
            "version": version,
            "sealed": base64.urlsafe_b64encode(sealed).rstrip(b"=").decode(),
        }


def _verify(token: str, jwk: dict[str, Any]) -> dict[str, Any]:
    return jwt.decode(token, OKPKey.import_key(jwk), registry=_Registry(algorithms=["EdDSA"])).claims


class ContractServer:
    """Serves ``Contract`` on a port of loopback that stays the same when it is stopped and started again."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        c = self.contract
        agent_methods: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
            "/api/compute/siteAgents/self": lambda agent, _: c.describe(agent),
            "/api/compute/siteAgents/rotateKey": c.rotate,
            "/api/compute/bootLeases/acquire": c.acquire,
            "/api/compute/bootLeases/renew": c.renew,
            "/api/compute/bootLeases/release": c.release,
            "/api/compute/bootLeases/recordBoot": c.record_boot,
            "/api/broker/secrets/read": c.read_secret,
        }

        async def answer(request: Request) -> Response:
            try:
                body = await request.json()
                c.requests.append((request.url.path, body))
                if not c.hang.is_set():
                    c.hung += 1
                    await asyncio.to_thread(c.hang.wait)
                c.fail_if_told()
                if request.url.path.endswith("/enroll"):
                    assert "authorization" not in request.headers
                    good = c.enroll(body)
                else:
                    c.authorizations.append(request.headers["authorization"])
                    agent = c.authenticate(request.headers["authorization"])
                    good = agent_methods[request.url.path](agent, body)
            except ProblemError as problem:
                document: dict[str, Any] = {"code": problem.code, "detail": problem.code.lower(), "requestId": "r1"}
                if problem.fields:
                    document["fields"] = problem.fields
                return self._dated(JSONResponse(document, problem.status, media_type="application/problem+json"))
            if c.lose_answers > 0:
                c.lose_answers -= 1
                return Lost()
            return self._dated(JSONResponse(good))

        app = Starlette(
            routes=[
                Route(path, answer, methods=["POST"]) for path in ("/api/compute/siteAgents/enroll", *agent_methods)
            ]
        )
        config = uvicorn.Config(
            app, host="127.0.0.1", port=self.port, log_level="error", date_header=False, timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_for(lambda: self._server is not None and self._server.started)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    def _dated(self, response: Response) -> Response:
        moment = datetime.fromtimestamp(self.contract.now(), UTC)
        response.headers["date"] = moment.strftime("%a, %d %b %Y %H:%M:%S GMT")
        return response

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(10)


class Lost(Response):
    """A response that breaks the connection before its first byte, after the server acted."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002
        raise ConnectionAbortedError


def wait_for(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Polls ``condition`` until it is true, and returns its value. Raises AssertionError after ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


class Bench:
    """A server, a folder, and the agent's commands."""

    def __init__(self, server: ContractServer, folder: Path) -> None:
        self.server = server
        self.contract = server.contract
        self.folder = folder
        self._processes: list[subprocess.Popen[str]] = []

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-c", "from agent.cli import app; app(prog_name='bcd site')", *words]

    def site(self, *words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            input=stdin,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=30,
            check=False,
            env={**os.environ, **environment},
        )

    def state(self, name: str) -> Path:
        return self.folder / name

    def join(self, name: str, token: str | None = None, *options: str) -> subprocess.CompletedProcess[str]:
        token_file = self.folder / f"{name}.token"
        token_file.write_text(self.contract.mint() if token is None else token)
        return self.site(
            *("join", "--server", self.server.url, "--token-file", str(token_file)),
            *("--state-dir", str(self.state(name)), "--json", *options),
        )

    def enrol(self, name: str) -> None:
        """Enrols an agent in this process, which is faster than the command."""
        state = StateDir.create(self.state(name))
        joining = join(
            state,
            server=self.server.url,
            token=self.contract.mint(),
            name="rack",
            default_name="",
            clock=SystemClock(),
        )
        asyncio.run(joining)

    def run(self, name: str, *options: str) -> subprocess.Popen[str]:
        with (self.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                self.command("run", "--state-dir", str(self.state(name)), "--json-logs", *options),
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def log(self, name: str) -> list[dict[str, Any]]:
        lines = (self.folder / f"{name}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def status(self, name: str) -> dict[str, Any]:
        """Returns the document that ``bcd site status --json`` prints, without starting a process."""
        return describe(StateDir.open(self.state(name)))

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


def open_bench(folder: Path) -> Iterator[Bench]:
    server = ContractServer(Contract())
    server.start()
    bench = Bench(server, folder)
    try:
        yield bench
    finally:
        bench.close()
        server.stop()
