"""Tests the enrolment of agents: who is accepted and how often, what refusals reveal and cost, and what is recorded."""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.keys import AgentKeys, public_jwk
from doors.http import client_address, fields_of
from models import ids
from services.hashing import HASHES
from services.redemption import REDEMPTIONS
from services.refusals import Refusals
from settings import Settings
from tests.models.test_redemption import own_clock
from tests.support.agent_world import UNAUTHENTICATED, application, enroll, events, join, mint, second_server
from tests.support.world import World, make_world

pytestmark = pytest.mark.anyio


def code(answer: httpx.Response) -> tuple[str, int]:
    """Returns the code and the status of a response."""
    return ("OK", 200) if answer.status_code == 200 else (answer.json()["code"], answer.status_code)


def verifications() -> float:
    """Returns how many argon2id verifications this process has done."""
    return float(HASHES.labels("verify")._value.get())


def wrong(bearer: str) -> str:
    """Returns a bearer with the same token id and another secret, whose checksum is right."""
    token_id, _ = ids.parse_bearer(bearer) or ("", "")
    secret = ids.new_secret()
    return f"bc{token_id}.{secret}{ids.checksum(token_id, secret)}"


def unknown() -> str:
    """Returns a well-formed bearer of a token that does not exist."""
    token_id, secret = f"jt_{ids.new_secret()}", ids.new_secret()
    return f"bc{token_id}.{secret}{ids.checksum(token_id, secret)}"


async def reasons(world: World) -> list[tuple[str, str, str | None]]:
    """Returns actor, outcome and reason of the enrolments in the audit trail, oldest first."""
    await world.services[Refusals].flush()
    rows = await world.rows(
        "SELECT actor, outcome, data->>'reason' FROM audit_events WHERE operation = $1 ORDER BY time, id",
        "siteAgents.enroll",
    )
    return [tuple(row) for row in rows]


async def test_an_agent_enrols(world: World) -> None:
    """The response names the agent and its site. The enrolment makes one row, one use, one event and one audit row."""
    token_id, bearer = await mint(world)
    agent = await join(world, token=bearer)
    berlin = await world.site_id("Acme Berlin")
    assert {**agent.answer, "enrolledAt": None, "serverTime": None} == {
        "agentId": agent.id,
        "tenantId": "acme",
        "siteId": berlin,
        "name": "rack",
        "enrolledAt": None,
        "serverTime": None,
        "bootLeaseTtlSeconds": 15,
    }
    assert agent.answer["enrolledAt"] <= agent.answer["serverTime"]
    [row] = await world.rows(
        "SELECT token_id, version, address, revoked_at, last_seen_at = enrolled_at FROM site_agents"
    )
    assert tuple(row) == (token_id, "1.0", "127.0.0.1", None, True)
    assert (await world.rows("SELECT uses FROM join_tokens"))[0][0] == 1
    data = {"agentId": agent.id, "siteId": berlin, "tokenId": token_id}
    assert await events(world, "security.site-agent.%") == [("security.site-agent.enrolled", data)]
    assert await reasons(world) == [(f"site-token:{token_id}", "ok", None)]


async def test_r6_a_lost_answer_is_answered_again(world: World) -> None:
    """R6 (SPIRE 2454): requests with the same token and key, many at once and again later, at two servers, make one
    agent, one use and one event, although the token is exhausted. Another key is refused.
    """
    token_id, bearer = await mint(world)
    keys = AgentKeys.generate()
    async with second_server(world) as there:
        body = application(keys, bearer)
        answers = await asyncio.gather(
            *(enroll(world, bearer, keys) for _ in range(8)),
            *(there.post("/api/compute/siteAgents/enroll", json=body) for _ in range(8)),
        )
    assert [answer.status_code for answer in answers] == [200] * 16
    [agent_id] = {answer.json()["agentId"] for answer in answers}
    again = await enroll(world, bearer, keys)
    assert again.json()["agentId"] == agent_id
    assert again.json()["enrolledAt"] == answers[0].json()["enrolledAt"]
    assert code(await enroll(world, bearer)) == UNAUTHENTICATED
    assert tuple((await world.rows("SELECT uses, max_uses FROM join_tokens"))[0]) == (1, 1)
    assert (await world.count("site_agents"), await world.count("agent_keys")) == (1, 1)
    assert len(await events(world, "security.site-agent.enrolled")) == 1
    assert (await reasons(world))[-1] == (f"site-token:{token_id}", "UNAUTHENTICATED", "exhausted")


@pytest.mark.parametrize("end", ["revoke", "expire", "delete the site"])
async def test_t4_a_dead_token_answers_no_retry_either(world: World, end: str) -> None:
    """T4 (ziti 2559): every path that takes a token refuses an expired one alike, also the path for lost responses. The
    same holds for a revoked token and for one of a deleted site. The end of the token does not affect the agent.
    """
    token_id, bearer = await mint(world, max_uses=2)
    keys = AgentKeys.generate()
    agent = (await enroll(world, bearer, keys)).json()
    body = {"tenantId": "acme", "siteId": agent["siteId"]}
    if end == "revoke":
        await world.post("acme-admin", "siteTokens/revoke", body | {"tokenId": token_id})
    elif end == "expire":
        await world.rows("UPDATE join_tokens SET created_at = now() - '2 h'::interval, expires_at = now()")
    else:
        await world.post("acme-admin", "sites/delete", body)
    refused = [await enroll(world, bearer, keys), await enroll(world, bearer), await enroll(world, unknown())]
    assert {answer.content for answer in refused} == {refused[0].content}
    assert code(refused[0]) == UNAUTHENTICATED
    assert (await world.rows("SELECT uses FROM join_tokens"))[0][0] == 1
    assert await world.count("site_agents") == 1


async def test_t4_a_retry_is_decided_under_the_lock(database_url: str, tmp_path: Path) -> None:
    """T4 if the token expires between its look-up and its lock: a retry at ``expiresAt`` itself is too late."""
    async with own_clock(database_url) as clock, make_world(database_url, tmp_path) as world:
        _, bearer = await mint(world)
        keys = AgentKeys.generate()
        assert code(await enroll(world, bearer, keys)) == ("OK", 200)
        await clock.execute("UPDATE own.clock SET at = (SELECT expires_at - '1 us'::interval FROM join_tokens)")
        assert code(await enroll(world, bearer, keys)) == ("OK", 200)
        await clock.execute("UPDATE own.clock SET at = (SELECT expires_at FROM join_tokens)")
        assert code(await enroll(world, bearer, keys)) == UNAUTHENTICATED


async def test_a_revoked_agent_is_not_enrolled_again(world: World) -> None:
    """It is refused with the same key and token, and its revocation does not give the use back (R4, headscale 158)."""
    _, bearer = await mint(world)
    keys = AgentKeys.generate()
    agent = (await enroll(world, bearer, keys)).json()
    await world.post("acme-admin", "siteAgents/revoke", {"tenantId": "acme", "agentId": agent["agentId"]})
    assert code(await enroll(world, bearer, keys)) == UNAUTHENTICATED
    assert code(await enroll(world, bearer)) == UNAUTHENTICATED
    assert [reason for *_, reason in await reasons(world)][-2:] == ["agent_revoked", "exhausted"]
    assert (await world.rows("SELECT uses FROM join_tokens"))[0][0] == 1


async def test_r9_two_agents_of_one_name_are_two(world: World) -> None:
    """R9 (netbird 1376), B2 (client-go 448): two imaged machines with one hostname and one token are two agents."""
    _, bearer = await mint(world, max_uses=2)
    one, two = await join(world, token=bearer, name="rack-7"), await join(world, token=bearer, name="rack-7")
    assert one.id != two.id
    assert (await world.rows("SELECT uses FROM join_tokens"))[0][0] == 2
    assert (await one.acquire(world))["held"]
    assert not (await two.acquire(world))["held"]


async def test_r2_two_servers_count_as_one(world: World) -> None:
    """R2 (SPIRE 1.14.6): of 32 agents at two servers with a token of 5 uses, five enrol."""
    _, bearer = await mint(world, max_uses=5)
    async with second_server(world) as there:
        bodies = [application(AgentKeys.generate(), bearer) for _ in range(32)]
        answers = await asyncio.gather(
            *(
                (there if number % 2 else world.client).post("/api/compute/siteAgents/enroll", json=body)
                for number, body in enumerate(bodies)
            )
        )
    assert sorted({answer.status_code for answer in answers}) == [200, 401]
    assert [answer.status_code for answer in answers].count(200) == 5
    assert await world.count("site_agents") == 5
    assert (await world.rows("SELECT uses FROM join_tokens"))[0][0] == 5


async def test_none_that_begins_after_revocation_answered_gets_in(world: World) -> None:
    """A token is revoked while 64 enrolments run. Each accepted one was counted before ``revokedAt``, and each request
    that begins after the revocation was answered is refused.
    """
    token_id, bearer = await mint(world, max_uses=16)
    berlin = await world.site_id("Acme Berlin")
    running = [asyncio.create_task(enroll(world, bearer)) for _ in range(64)]
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    revoked = await world.post(
        "acme-admin", "siteTokens/revoke", {"tenantId": "acme", "siteId": berlin, "tokenId": token_id}
    )
    late = [await enroll(world, bearer) for _ in range(4)]
    assert revoked.status_code == 200
    assert {code(answer) for answer in late} == {UNAUTHENTICATED}
    succeeded = [answer for answer in await asyncio.gather(*running) if answer.status_code == 200]
    assert len(succeeded) == await world.count("site_agents")
    assert await world.count("site_agents", "enrolled_at > (SELECT revoked_at FROM join_tokens)") == 0


# --- what refusals reveal and cost -------------------------------------------------------------------------------


async def test_p4_a1_refusals_are_one(world: World) -> None:
    """P4 (OpenBao GHSA-34fc-gh42-pj53), A1 (supabase/auth 2674): tokens that are unknown, malformed, revoked, expired,
    exhausted, with a wrong secret or from a wrong address get the same status, body and headers, and cost no argon2id.
    For each known token, the reason is in its owner's audit trail and in a counter, and no use is counted.
    """
    tokens = {name: await mint(world, "Acme Dublin") for name in ("wrong", "revoked", "expired", "used", "address")}
    for name, (token_id, _) in tokens.items():
        change = {
            "wrong": "role = role",
            "revoked": "revoked_at = now()",
            "expired": "created_at = now() - '2 h'::interval, expires_at = now()",
            "used": "uses = max_uses",
            "address": "allowed_cidrs = '{10.1.0.0/16}'",
        }[name]
        await world.rows(f"UPDATE join_tokens SET {change} WHERE id = $1", token_id)  # noqa: S608
    bearers = [wrong(tokens["wrong"][1]), *(tokens[n][1] for n in ("revoked", "expired", "used", "address"))]
    before = verifications()
    answers = [await enroll(world, bearer) for bearer in (*bearers, unknown(), "nonsense", bearers[1] + "\n")]
    assert verifications() == before
    assert {(a.status_code, a.content, tuple(sorted(set(a.headers) - {"date"}))) for a in answers} == {
        (401, answers[0].content, tuple(sorted(set(answers[0].headers) - {"date"})))
    }
    expected = ["wrong_secret", "revoked", "expired", "exhausted", "wrong_address"]
    recorded = await reasons(world)
    assert [reason for *_, reason in recorded] == expected
    assert [actor for actor, *_ in recorded] == [f"site-token:{tokens[n][0]}" for n in tokens]
    rows = await world.rows(
        "SELECT DISTINCT tenant_id, data->>'address' FROM audit_events WHERE outcome = 'UNAUTHENTICATED'"
    )
    assert [tuple(row) for row in rows] == [("acme", "127.0.0.1")]
    assert await world.count("join_tokens", "uses > 0 AND uses <> max_uses") == 0
    assert await world.count("site_agents") == 0
    assert float(REDEMPTIONS.labels("unknown")._value.get()) >= 1


@pytest.mark.alone
async def test_p4_refusals_take_the_same_time(database_url: str, tmp_path: Path) -> None:
    """P4, A1: with argon2id at its real cost (20 ms and more), the median times of unknown, wrong, expired and
    malformed tokens, sent in turn, differ by less than a fraction of one hash.
    """
    limits = {"enroll_failures_per_address": 10_000, "enroll_failures_per_token": 10_000}
    real = {"argon2_time_cost": 2, "argon2_memory_kib": 19_456}
    async with make_world(database_url, tmp_path, **limits, **real) as world:
        known, expired = (await mint(world))[1], (await mint(world))[1]
        token_id, _ = ids.parse_bearer(expired) or ("", "")
        await world.rows(
            "UPDATE join_tokens SET created_at = now() - '2 h'::interval, expires_at = now() WHERE id = $1", token_id
        )
        kinds = {"unknown": unknown(), "wrong": wrong(known), "expired": expired, "malformed": known[:-1]}
        bodies = {kind: application(AgentKeys.generate(), bearer) for kind, bearer in kinds.items()}
        durations: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(60):
            for kind, body in bodies.items():
                began = time.perf_counter()
                answer = await world.client.post("/api/compute/siteAgents/enroll", json=body)
                durations[kind].append(time.perf_counter() - began)
                assert answer.status_code == 401
        medians = [statistics.median(times) for times in durations.values()]
        assert max(medians) - min(medians) < min(medians) / 6, medians


ODD = {
    "no dot": "bcjt_" + "0" * 85,
    "two dots": f"bcjt_{'0' * 26}.{'0' * 30}.{'0' * 29}",
    "empty parts": ".",
    "empty": "",
    "1 MB": "a" * 1_000_000,
    "inner space": f"bcjt_{'0' * 26}. {'0' * 59}",
    "no-break space": f"bcjt_{'0' * 26}.\u00a0{'0' * 59}",
    "zero width": f"bcjt_{'0' * 26}.\u200b{'0' * 59}",
    "line feed": f"bcjt_{'0' * 26}.{'0' * 59}\n",
    "NUL": f"bcjt_{'0' * 26}.{'0' * 59}\0",
}


async def test_p2_odd_tokens_are_one_authentication_error(world: World) -> None:
    """P2 (k3s 12982, 2310), P1 (kubernetes 52919): any pasted text is refused like a wrong token, never with a 500, and
    is stored nowhere.
    """
    answers = {name: await enroll(world, token) for name, token in ODD.items()}
    assert {name: code(answer) for name, answer in answers.items()} == dict.fromkeys(ODD, UNAUTHENTICATED)
    assert len({answer.content for answer in answers.values()}) == 1
    assert await world.count("site_agents") == 0
    assert await reasons(world) == []


async def test_bad_input_is_named_and_never_echoed(world: World) -> None:
    """Bad members are named and no value is repeated. A key with its private half, of another type, in another
    encoding, or of low order is refused.
    """
    _, bearer = await mint(world)
    good = public_jwk(AgentKeys.generate().signing)
    private = dict(AgentKeys.generate().signing.as_dict(private=True))
    low_order = {"kty": "OKP", "crv": "X25519", "x": "A" * 43}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"token": 5}, "token"),
        ({"token": None}, "token"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"publicKey": private}, "publicKey.d"),
        ({"publicKey": good | {"crv": "X25519"}}, "publicKey.crv"),
        ({"publicKey": good | {"kty": "EC"}}, "publicKey.kty"),
        ({"publicKey": good | {"x": good["x"] + "="}}, "publicKey.x"),
        ({"publicKey": good | {"x": good["x"][:-1]}}, "publicKey.x"),
        ({"publicKey": good | {"x": "\u00e9" * 43}}, "publicKey.x"),
        ({"encryptionKey": low_order}, "encryptionKey.x"),
        ({"encryptionKey": good}, "encryptionKey.crv"),
        ({"more": 1}, "more"),
    ]
    for change, path in cases:
        body = application(AgentKeys.generate(), bearer) | change
        answer = await world.client.post("/api/compute/siteAgents/enroll", json=body)
        assert code(answer) == ("INVALID_ARGUMENT", 400), change
        assert [fault["path"] for fault in answer.json()["fields"]] == [path]
        assert bearer not in answer.text
        assert str(private["d"]) not in answer.text
    assert (await world.rows("SELECT uses FROM join_tokens"))[0][0] == 0


@pytest.mark.alone
async def test_failures_are_limited_by_address_before_any_look(database_url: str, tmp_path: Path) -> None:
    """Wrong secrets from one address cost no argon2id, and no statement once the limit is reached. The response then
    says when to try again, also for the right secret. ``/healthz`` stays quick (P5, node 62861).
    """
    async with make_world(database_url, tmp_path, enroll_failures_per_address=50) as world:
        _, bearer = await mint(world)
        body = application(AgentKeys.generate(), wrong(bearer))
        before = verifications()
        health: list[float] = []

        async def guess(count: int) -> list[int]:
            return [
                (await world.client.post("/api/compute/siteAgents/enroll", json=body)).status_code for _ in range(count)
            ]

        async def probe(guessing: "asyncio.Future[Any]") -> None:
            while not guessing.done():
                began = time.perf_counter()
                assert (await world.client.get("/healthz")).status_code == 200
                health.append(time.perf_counter() - began)

        guessing = asyncio.gather(*(guess(250) for _ in range(2)))
        await probe(guessing)
        statuses = [status for statuses in await guessing for status in statuses]
        assert verifications() == before
        assert set(statuses) == {401, 429}
        assert statuses.count(401) == 50
        assert statistics.median(health) < 0.05
        limited = await enroll(world, bearer)
        assert code(limited) == ("RESOURCE_EXHAUSTED", 429)
        assert 1 <= int(limited.headers["retry-after"]) <= 60
        assert (await world.rows("SELECT uses FROM join_tokens"))[0][0] == 0


async def test_guesses_at_a_token_shut_its_owner_not_out(database_url: str, tmp_path: Path) -> None:
    """The limit of a token refuses only wrong secrets, with RESOURCE_EXHAUSTED. The right secret is accepted."""
    async with make_world(database_url, tmp_path, enroll_failures_per_token=5) as world:
        _, bearer = await mint(world)
        answers = [code(await enroll(world, wrong(bearer))) for _ in range(7)]
        assert answers == [UNAUTHENTICATED] * 5 + [("RESOURCE_EXHAUSTED", 429)] * 2
        assert code(await enroll(world, unknown())) == UNAUTHENTICATED
        assert code(await enroll(world, bearer)) == ("OK", 200)


@pytest.mark.alone
async def test_p5_many_redemptions_at_once_do_not_block(database_url: str, tmp_path: Path) -> None:
    """P5 (node 62861): ``/healthz`` answers during 80 enrolments that each cost a real argon2id. Enrolments beyond the
    bound of the queue get RESOURCE_EXHAUSTED, which costs no use.
    """
    real = {"argon2_time_cost": 2, "argon2_memory_kib": 19_456, "argon2_queue": 20, "database_timeout_seconds": 20}
    async with make_world(database_url, tmp_path, **real) as world:
        _, bearer = await mint(world, max_uses=16)
        bodies = [application(AgentKeys.generate(), bearer) for _ in range(80)]
        post = world.client.post
        running = asyncio.gather(*(post("/api/compute/siteAgents/enroll", json=body) for body in bodies))
        health = []
        while not running.done():
            began = time.perf_counter()
            assert (await world.client.get("/healthz")).status_code == 200
            health.append(time.perf_counter() - began)
            await asyncio.sleep(0.005)
        answers = await running
        codes = [code(answer) for answer in answers]
        assert set(codes) <= {("OK", 200), UNAUTHENTICATED, ("RESOURCE_EXHAUSTED", 429)}
        assert codes.count(("OK", 200)) == 16
        assert codes.count(("RESOURCE_EXHAUSTED", 429)) > 0
        assert statistics.median(health) < 0.05


# --- client addresses --------------------------------------------------------------------------------------------


async def test_allowed_cidrs_bind_a_token_to_its_networks(world: World) -> None:
    """A token with ``allowedCidrs`` is accepted only from those networks. A refusal spends no use."""
    _, there = await mint(world, allowedCidrs=["127.0.0.0/8"])
    _, elsewhere = await mint(world, allowedCidrs=["10.0.0.0/8", "2001:db8::/32"])
    assert code(await enroll(world, elsewhere)) == UNAUTHENTICATED
    assert code(await enroll(world, there)) == ("OK", 200)
    assert sorted(row[0] for row in await world.rows("SELECT uses FROM join_tokens")) == [0, 1]


def address_of(peer: str | None, forwarded: list[str], trusted: list[str]) -> str | None:
    """Returns the address of the client that the server derives from its peer and the ``X-Forwarded-For`` fields."""
    networks = Settings.read(trusted_proxies=trusted).trusted_proxies
    fields = fields_of([(b"x-forwarded-for", value.encode()) for value in forwarded])
    return client_address({"client": peer and (peer, 1), "state": {"fields": fields}}, networks)


def test_only_trusted_proxies_are_believed() -> None:
    """``X-Forwarded-For`` is read from the right while the hops are trusted. A client's own entries never count."""
    proxies = ["10.0.0.0/8", "fd00::/8"]
    assert address_of("192.0.2.1", ["198.51.100.7"], proxies) == "192.0.2.1"
    assert address_of("10.0.0.1", ["198.51.100.7"], []) == "10.0.0.1"
    assert address_of("10.0.0.1", ["198.51.100.7"], proxies) == "198.51.100.7"
    assert address_of("10.0.0.1", ["127.0.0.1, 198.51.100.7"], proxies) == "198.51.100.7"
    assert address_of("10.0.0.1", ["127.0.0.1", "198.51.100.7, 10.0.0.2"], proxies) == "198.51.100.7"
    assert address_of("::ffff:10.0.0.1", ["2001:db8::5"], proxies) == "2001:db8::5"
    assert address_of("10.0.0.1", [], proxies) == "10.0.0.1"
    assert address_of("10.0.0.1", ["nonsense"], proxies) == "nonsense"
    assert address_of(None, ["198.51.100.7"], proxies) is None


# --- after enrolment ---------------------------------------------------------------------------------------------


async def test_t6_an_agent_outlives_its_token(world: World) -> None:
    """T6 (headscale 2830): if the token expires after enrolment, the agent keeps its credential and its lease."""
    agent = await join(world)
    epoch = (await agent.acquire(world))["epoch"]
    await world.rows("UPDATE join_tokens SET created_at = now() - '2 h'::interval, expires_at = now()")
    assert (await agent.renew(world, epoch))["held"]
    assert (await agent.ok(world, "compute/siteAgents/self"))["bootLease"]["holderAgentId"] == agent.id


async def test_v6_revoking_a_token_cuts_its_agents_if_asked(world: World) -> None:
    """V6 (kibana 87979): without ``revokeAgents`` the agents stay enrolled. With it, they lose access and lease at
    once, also if the token was revoked before. ``SiteToken.agents`` lists the affected agents beforehand.
    """
    token_id, bearer = await mint(world, max_uses=2)
    one, two = await join(world, token=bearer), await join(world, token=bearer)
    other = await join(world)
    epoch = (await one.acquire(world))["epoch"]
    query = (
        "query ($id: ID!) { node(id: $id) { ... on SiteToken { agents { totalCount nodes { id name revokedAt } } } } }"
    )
    shown = (await world.graphql("acme-admin", query, id=token_id))["data"]["node"]["agents"]
    assert shown["totalCount"] == 2
    assert {node["id"] for node in shown["nodes"]} == {one.id, two.id}
    body = {"tenantId": "acme", "siteId": one.site_id, "tokenId": token_id}
    assert (await world.post("acme-admin", "siteTokens/revoke", body)).status_code == 200
    assert (await one.renew(world, epoch))["held"]
    answer = await world.post("acme-admin", "siteTokens/revoke", body | {"revokeAgents": True})
    assert answer.status_code == 200
    assert await one.refusal(world, "compute/bootLeases/renew", epoch=epoch) == UNAUTHENTICATED
    assert await two.refusal(world, "compute/siteAgents/self") == UNAUTHENTICATED
    assert (await other.acquire(world))["epoch"] == epoch + 1
    kinds = [kind for kind, _ in await events(world, "%")]
    assert kinds.count("security.site-token.revoked") == 1
    assert kinds.count("security.site-agent.revoked") == 2
    assert ("compute.boot-lease.released", "revoked") in [
        (kind, data.get("reason")) for kind, data in await events(world, "compute.boot-lease.%")
    ]
    again = await world.post("acme-admin", "siteTokens/revoke", body | {"revokeAgents": True})
    assert again.status_code == 200
    assert len(await events(world, "security.site-agent.revoked")) == 2
