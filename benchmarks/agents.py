"""Agents for the benchmark: enrolled on the bench sites, each holding its site's boot lease."""

import json
import time
from typing import NamedTuple

import httpx

from agent.keys import AgentKeys

AGENTS = 48
"""So many leases are renewed in turn: more than there are connections, so that no request waits for another's row."""


class Holder(NamedTuple):
    """An agent that holds the boot lease of its site."""

    keys: AgentKeys
    agent_id: str
    site_id: str
    epoch: int


def token_of(client: httpx.Client, site_id: str, *, uses: int) -> str:
    """A fresh site token of acme."""
    given = {"tenantId": "acme", "siteId": site_id, "ttlSeconds": 3600, "maxUses": uses}
    made = client.post("/api/compute/siteTokens/create", json=given | {"idempotencyKey": f"b-{time.time_ns()}"})
    return str(made.raise_for_status().json()["token"])


def enroll(client: httpx.Client, token: str, keys: AgentKeys) -> str:
    """The id of an agent that enrols with ``token``."""
    public = keys.signing.as_dict(private=False)
    given = {"token": token, "name": "bench", "publicKey": {name: public[name] for name in ("kty", "crv", "x")}}
    return str(client.post("/api/compute/siteAgents/enroll", json=given).raise_for_status().json()["agentId"])


def holders(url: str, key: str, site_ids: list[str]) -> list[Holder]:
    """An agent on each of the sites, which it holds."""
    found = []
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}) as client:
        for site_id in site_ids:
            keys = AgentKeys.generate()
            agent_id = enroll(client, token_of(client, site_id, uses=1), keys)
            signed = {"authorization": f"Bearer {keys.request_token(agent_id, time.time())}"}
            taken = client.post("/api/compute/bootLeases/acquire", json={}, headers=signed).raise_for_status().json()
            found.append(Holder(keys, agent_id, site_id, taken["epoch"]))
    return found


def renewals(of: list[Holder], count: int) -> list[tuple[str, str]]:
    """Authorization and body of ``count`` renewals, the holders in turn; good for a minute, each for one use."""
    now = time.time()
    return [
        (f"Bearer {holder.keys.request_token(holder.agent_id, now)}", json.dumps({"epoch": holder.epoch}))
        for holder in (of[number % len(of)] for number in range(count))
    ]


def plain_updates(of: list[Holder], count: int) -> list[tuple[str, str]]:
    """The same for the peer that updates the row and asks for nothing."""
    return [("", json.dumps({"siteId": of[number % len(of)].site_id})) for number in range(count)]
