"""Tests the identity of agents: one JWT for each request, which keys are valid, and immediate revocation."""

import asyncio
import time
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, OKPKey

from agent.keys import _REGISTRY, AgentKeys, public_jwk
from tests.support.agent_world import (
    NOT_FOUND,
    UNAUTHENTICATED,
    Joined,
    events,
    join,
    mint,
    other_process,
    second_server,
)
from tests.support.world import World

pytestmark = pytest.mark.anyio

SELF = "/api/compute/siteAgents/self"


def forged(agent: Joined, key: OKPKey | OctKey | None = None, header: Any = None, **claims: Any) -> str:
    """Returns a JWT of the agent with another header, other claims or another key. Claims that are None are
    left out.
    """
    now = int(time.time())
    usual = {
        "iss": agent.id,
        "sub": agent.id,
        "aud": "better-compute",
        "iat": now,
        "exp": now + 55,
        "jti": str(time.time_ns()),
    }
    members = {name: value for name, value in (usual | claims).items() if value is not None}
    protected = {"alg": "EdDSA", "kid": agent.id, "typ": "bc-agent+jwt"} | (header or {})
    registry = _REGISTRY if protected["alg"] == "EdDSA" else None
    return jwt.encode(protected, members, key or agent.keys.signing, registry=registry)


async def status(world: World, token: str) -> int:
    """Returns the status of a request with ``token``. Asserts that every refusal is the same one."""
    answer = await world.client.post(SELF, json={}, headers={"authorization": f"Bearer {token}"})
    if answer.status_code != 200:
        assert (answer.json()["code"], answer.status_code) == UNAUTHENTICATED
        assert answer.headers["www-authenticate"] == "Bearer"
    return answer.status_code


async def test_self_tells_the_agent_of_itself(world: World) -> None:
    """It returns the enrolled agent and the lease of its site."""
    agent = await join(world)
    record = await agent.ok(world, "compute/siteAgents/self")
    assert (record["agentId"], record["tenantId"], record["siteId"], record["name"]) == (
        agent.id,
        "acme",
        agent.site_id,
        "rack",
    )
    assert (record["bootLease"], record["revokedAt"], record["bootLeaseTtlSeconds"]) == (None, None, 15)
    acquired = await agent.acquire(world)
    held = (await agent.ok(world, "compute/siteAgents/self"))["bootLease"]
    assert held == {
        "holderAgentId": agent.id,
        "epoch": acquired["epoch"],
        "acquiredAt": acquired["serverTime"],
        "expiresAt": acquired["expiresAt"],
    }


async def test_a_jwt_is_good_for_one_request(world: World) -> None:
    """The second use is refused, also by another server process. Of many uses at once, exactly one is accepted."""
    agent = await join(world)
    async with other_process(world) as there:
        token = agent.jwt()
        headers = {"authorization": f"Bearer {token}"}
        assert await status(world, token) == 200
        assert await status(world, token) == 401
        assert (await there.post(SELF, json={}, headers=headers)).status_code == 401
        fresh = agent.jwt()
        headers = {"authorization": f"Bearer {fresh}"}
        assert (await there.post(SELF, json={}, headers=headers)).status_code == 200
        assert await status(world, fresh) == 401
        raced = agent.jwt()
        headers = {"authorization": f"Bearer {raced}"}
        answers = await asyncio.gather(
            *(client.post(SELF, json={}, headers=headers) for client in (world.client, there) for _ in range(8))
        )
        assert sorted(answer.status_code for answer in answers) == [200] + [401] * 15


async def test_what_is_not_exactly_right_is_refused(world: World) -> None:
    """One wrong part is enough: algorithm, type, key, audience, subject or time. The refusal does not say which."""
    agent, other = await join(world), await join(world)
    now = int(time.time())
    public = agent.keys.signing.as_dict(private=False)
    bad = {
        "another key": forged(agent, AgentKeys.generate().signing),
        "another agent's key": forged(agent, other.keys.signing),
        "kid of another": forged(agent, header={"kid": other.id}),
        "no such kid": forged(agent, header={"kid": "agt_" + "0" * 26}),
        "kid of no form": forged(agent, header={"kid": "agt_\0"}),
        "kid no text": forged(agent, header={"kid": other.id[:-1]}),
        "typ": forged(agent, header={"typ": "JWT"}),
        "HMAC by the public key": forged(agent, OctKey.import_key(str(public["x"])), header={"alg": "HS256"}),
        "iss": forged(agent, iss=other.id),
        "sub": forged(agent, sub=other.id),
        "no sub": forged(agent, sub=None),
        "aud": forged(agent, aud="better-compute/rotate"),
        "no aud": forged(agent, aud=None),
        "too long": forged(agent, exp=now + 61),
        "no exp": forged(agent, exp=None),
        "expired": forged(agent, iat=now - 62, exp=now - 7),
        "from tomorrow": forged(agent, iat=now + 20, exp=now + 70),
        "exp before iat": forged(agent, iat=now, exp=now),
        "exp a text": forged(agent, exp=str(now + 50)),
        "exp huge": forged(agent, iat=10**18, exp=10**18 + 60),
        "exp true": forged(agent, exp=True),
        "not before": forged(agent, nbf=now + 30),
        "no jti": forged(agent, jti=None),
        "empty jti": forged(agent, jti=""),
        "long jti": forged(agent, jti="j" * 129),
        "jti with NUL": forged(agent, jti="a\0b"),
        "jti no text": forged(agent, jti=7),
        "unsigned": forged(agent).rsplit(".", 1)[0] + ".",
        "nonsense": "a.b.c",
        "an API key": world.keys["acme-admin"],
        "empty parts": "..",
    }
    assert {name: await status(world, token) for name, token in bad.items()} == dict.fromkeys(bad, 401)
    assert (await world.client.post(SELF, json={})).status_code == 401
    within_leeway = (forged(agent, iat=now - 60, exp=now - 2), forged(agent, iat=now + 3, exp=now + 63))
    assert [await status(world, token) for token in (*within_leeway, forged(agent, exp=now + 55.5))] == [200, 200, 200]
    none = {"alg": "none", "kid": agent.id, "typ": "bc-agent+jwt"}
    assert await status(world, f"{_part(none)}.{forged(agent).split('.')[1]}.") == 401


def _part(value: object) -> str:
    import base64
    import json

    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


async def test_an_agents_jwt_opens_no_other_door(world: World) -> None:
    """The methods of operators and GraphQL refuse the JWT of an agent. Their refusal does not use the JWT up."""
    agent = await join(world)
    token = agent.jwt()
    assert (await world.post(token, "sites/list", {})).status_code == 401
    assert (await world.graphql(token, "{ viewer { name } }"))["errors"][0]["extensions"]["code"] == "UNAUTHENTICATED"
    assert await status(world, token) == 200


async def test_a_revoked_agent_is_refused_at_once_everywhere(world: World) -> None:
    """Servers that cached its keys refuse it too. Its lease ends, once and with its event, and its record stays."""
    agent, heir = await join(world), await join(world)
    async with second_server(world) as there:
        await agent.ok(world, "compute/siteAgents/self")
        await agent.ok(world, "compute/siteAgents/self", client=there)
        epoch = (await agent.acquire(world))["epoch"]
        body = {"tenantId": "acme", "agentId": agent.id}
        revoked = await world.post("acme-admin", "siteAgents/revoke", body)
        assert revoked.json()["revokedAt"] is not None
        for client in (world.client, there):
            assert await agent.refusal(world, "compute/siteAgents/self", client=client) == UNAUTHENTICATED
            assert await agent.refusal(world, "compute/bootLeases/renew", epoch=epoch, client=client) == UNAUTHENTICATED
        assert (await heir.acquire(world, client=there))["held"]
    assert (await world.post("acme-admin", "siteAgents/revoke", body)).json() == revoked.json()
    revocations = await events(world, "security.site-agent.revoked")
    assert [data["agentId"] for _, data in revocations] == [agent.id]
    [(reason, ended)] = await world.rows("SELECT reason, ended_at <= clock_timestamp() FROM boot_lease_history")
    assert (reason, ended) == ("revoked", True)


async def test_operators_see_their_own_agents_only(world: World) -> None:
    """List, get, node and nested fields show own agents. An agent of another tenant is NOT_FOUND like an unknown id."""
    agent, foreign = await join(world), await join(world, "Globex Osaka")
    query = """query { siteAgents { totalCount nodes { id name tokenId version address enrolledAt lastSeenAt revokedAt
        site { name } siteToken { id uses } } } }"""
    page = (await world.graphql("acme-viewer", query))["data"]["siteAgents"]
    assert page["totalCount"] == 1
    [node] = page["nodes"]
    assert (node["id"], node["name"], node["version"], node["address"]) == (agent.id, "rack", "1.0", "127.0.0.1")
    assert node["site"]["name"] == "Acme Berlin lab"
    assert node["siteToken"] == {"id": node["tokenId"], "uses": 1}
    for ask in ("{ siteAgent(id: $id) { id } }", "{ node(id: $id) { id } }"):
        answers = []
        for agent_id in (foreign.id, "agt_" + "0" * 26):
            answers.append(await world.graphql("acme-admin", f"query ($id: ID!) {ask}", id=agent_id))  # noqa: PERF401
        assert answers[0] == answers[1]
        assert answers[0]["errors"][0]["extensions"]["code"] == "NOT_FOUND"
        assert "errors" not in await world.graphql("acme-admin", f"query ($id: ID!) {ask}", id=agent.id)
    for method in ("get", "revoke"):
        for agent_id in (foreign.id, "agt_" + "0" * 26):
            answer = await world.post("acme-admin", f"siteAgents/{method}", {"tenantId": "acme", "agentId": agent_id})
            assert (answer.json()["code"], answer.status_code) == NOT_FOUND
    denied = await world.post("acme-viewer", "siteAgents/revoke", {"tenantId": "acme", "agentId": agent.id})
    assert denied.json()["code"] == "PERMISSION_DENIED"
    assert await world.count("site_agents", "revoked_at IS NOT NULL") == 0


async def test_lists_of_agents_page_and_filter(world: World) -> None:
    """Lists are newest first, filter by site, token and state, and page without a gap or a repeat."""
    token_id, bearer = await mint(world, max_uses=5)
    joined = [await join(world, token=bearer) for _ in range(5)]
    elsewhere = await join(world, "Acme Dublin")
    await world.post("acme-admin", "siteAgents/revoke", {"tenantId": "acme", "agentId": joined[0].id})

    async def ids(**members: Any) -> list[str]:
        answer = await world.post("acme-viewer", "siteAgents/list", {"tenantId": "acme"} | members)
        return [item["id"] for item in answer.json()["items"]]

    newest_first = [agent.id for agent in reversed(joined)]
    assert await ids() == [elsewhere.id, *newest_first]
    assert await ids(siteId=elsewhere.site_id) == [elsewhere.id]
    assert await ids(filter={"tokenId": token_id}) == newest_first
    assert await ids(filter={"revoked": True}) == [joined[0].id]
    assert await ids(siteId=joined[0].site_id, filter={"revoked": False, "tokenId": token_id}) == newest_first[:-1]
    listed, after = [], None
    while True:
        body = {"tenantId": "acme", "first": 2} | ({"after": after} if after else {})
        page = (await world.post("acme-viewer", "siteAgents/list", body)).json()
        listed += [item["id"] for item in page["items"]]
        after = page["nextCursor"]
        if after is None:
            break
    assert listed == [elsewhere.id, *newest_first]


async def test_last_seen_follows_in_a_moment(world: World) -> None:
    """The time and the address of the last request are stored, outside the path of the request."""
    agent = await join(world)
    await world.rows("UPDATE site_agents SET last_seen_at = NULL, address = NULL")
    await agent.ok(world, "compute/siteAgents/self")
    await world.services.callers.agents.flush_last_seen()
    [row] = await world.rows("SELECT last_seen_at > enrolled_at, address FROM site_agents")
    assert tuple(row) == (True, "127.0.0.1")


async def test_used_jwts_are_forgotten_when_they_are_too_old(world: World) -> None:
    """A used JWT is kept while it could be accepted, and deleted once its age alone would refuse it."""
    from models.fleet.agent_jwts import forget_used

    agent = await join(world)
    token = agent.jwt()
    assert await status(world, token) == 200
    await forget_used(world.services.access.database)
    assert await status(world, token) == 401
    assert await world.count("used_jtis", "expires_at > clock_timestamp() + '50 s'") == 1
    await world.rows("UPDATE used_jtis SET expires_at = clock_timestamp()")
    await forget_used(world.services.access.database)
    assert await world.count("used_jtis") == 0


# --- rotation ----------------------------------------------------------------------------------------------------


async def rotate(world: World, agent: Joined, to: AgentKeys, **more: Any) -> Any:
    """Requests the rotation to the pending key of ``to``, and returns the response."""
    proof = to.rotation_proof(agent.id, time.time())
    new = public_jwk(to.promoted().signing)
    return await agent.send(world, "compute/siteAgents/rotateKey", **{"newPublicKey": new, "proof": proof} | more)


async def test_a_new_key_is_proven_before_the_old_one_stops(world: World) -> None:
    """Both keys work on every server until the new one is used. Then the old one is refused, and cannot be restored."""
    agent = await join(world)
    pending = agent.keys.with_pending()
    async with second_server(world) as there:
        assert (await rotate(world, agent, pending)).status_code == 200
        assert (await rotate(world, agent, pending)).status_code == 200, "an answer that was lost"
        assert (await agent.ok(world, "compute/siteAgents/self", client=there))["agentId"] == agent.id
        renewed = Joined(pending.promoted(), agent.id, agent.tenant_id, agent.site_id, {})
        assert (await renewed.ok(world, "compute/siteAgents/self", client=there))["agentId"] == agent.id
        for client in (world.client, there):
            assert await agent.refusal(world, "compute/siteAgents/self", client=client) == UNAUTHENTICATED
        back = AgentKeys(renewed.keys.signing, agent.keys._sealing, agent.keys.signing)
        answer = await rotate(world, renewed, back)
        assert [fault["path"] for fault in answer.json()["fields"]] == ["newPublicKey"]
        assert (await renewed.acquire(world))["held"]
    assert [kind for kind, _ in await events(world, "security.site-agent.key-rotated")] == [
        "security.site-agent.key-rotated"
    ]


async def test_the_old_key_works_for_an_hour_at_most(world: World) -> None:
    """The old key expires even if the new one is never used. An agent that was offline for a day continues with the new
    key (B3, nomad 28555).
    """
    agent = await join(world)
    pending = agent.keys.with_pending()
    assert (await rotate(world, agent, pending)).status_code == 200
    [row] = await world.rows(
        "SELECT expires_at - clock_timestamp() BETWEEN '59 min' AND '60 min' FROM agent_keys "
        "WHERE first_used_at IS NOT NULL"
    )
    assert row[0]
    await world.rows("UPDATE agent_keys SET expires_at = clock_timestamp() WHERE expires_at IS NOT NULL")
    assert await agent.refusal(world, "compute/siteAgents/self") == UNAUTHENTICATED
    renewed = Joined(pending.promoted(), agent.id, agent.tenant_id, agent.site_id, {})
    assert (await renewed.ok(world, "compute/siteAgents/self"))["agentId"] == agent.id


async def test_a_rotation_without_proof_changes_nothing(world: World) -> None:
    """A proof is refused if it is by another key, for another agent or purpose, expired, used before, or no JWS."""
    agent, other = await join(world), await join(world)
    pending = agent.keys.with_pending()
    key = pending.promoted().signing
    now = int(time.time())
    usual = {"agentId": agent.id, "aud": "better-compute/rotate", "exp": now + 50, "jti": "a"}

    def proof(by: OKPKey = key, **claims: Any) -> str:
        return jwt.encode({"alg": "EdDSA"}, usual | claims, by, registry=_REGISTRY, default_type=None)

    bad = [
        proof(agent.keys.signing),
        proof(agentId=other.id),
        proof(aud="better-compute"),
        proof(exp=now - 10),
        proof(exp=now + 3600),
        proof(exp=None),
        proof(jti=None),
        "nonsense",
        "..",
    ]
    for text in bad:
        answer = await rotate(world, agent, pending, proof=text)
        assert (answer.status_code, [fault["path"] for fault in answer.json()["fields"]]) == (400, ["proof"]), text
    assert await world.count("agent_keys", "agent_id = $1", agent.id) == 1
    good = proof()
    assert (await rotate(world, agent, pending, proof=good)).status_code == 200
    assert (await rotate(world, agent, pending, proof=good)).status_code == 400
