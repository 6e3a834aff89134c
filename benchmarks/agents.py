"""Site agents for the benchmark: enrols them on its sites, and lets each one hold the boot lease of its site."""

import json
import time
from typing import NamedTuple

import httpx

from agent.keys import AgentKeys

AGENTS = 48
"""The number of leases that are renewed in turn. There are more of them than connections, so that no request waits for
the row of another.
"""


class Holder(NamedTuple):
    """An agent that holds the boot lease of its site."""

    keys: AgentKeys
    agent_id: str
    site_id: str
    epoch: int


def token_of(client: httpx.Client, site_id: str, *, uses: int) -> str:
    """Mints a site token of acme and returns its bearer."""
    body = {"tenantId": "acme", "siteId": site_id, "ttlSeconds": 3600, "maxUses": uses}
    response = client.post("/api/compute/siteTokens/create", json=body | {"idempotencyKey": f"b-{time.time_ns()}"})
    return str(response.raise_for_status().json()["token"])


def enroll(client: httpx.Client, token: str, keys: AgentKeys) -> str:
    """Enrols an agent with ``token`` and returns its id."""
    public = keys.signing.as_dict(private=False)
    body = {"token": token, "name": "bench", "publicKey": {name: public[name] for name in ("kty", "crv", "x")}}
    return str(client.post("/api/compute/siteAgents/enroll", json=body).raise_for_status().json()["agentId"])


def holders(url: str, key: str, site_ids: list[str]) -> list[Holder]:
    """Enrols an agent on each site and lets it acquire the boot lease."""
    agents = []
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}) as client:
        for site_id in site_ids:
            keys = AgentKeys.generate()
            agent_id = enroll(client, token_of(client, site_id, uses=1), keys)
            signed = {"authorization": f"Bearer {keys.request_token(agent_id, time.time())}"}
            lease = client.post("/api/compute/bootLeases/acquire", json={}, headers=signed).raise_for_status().json()
            agents.append(Holder(keys, agent_id, site_id, lease["epoch"]))
    return agents


def renewals(agents: list[Holder], count: int) -> list[tuple[str, str]]:
    """Returns authorization and body of ``count`` renewals by the agents in turn.

    Each one can be used once, and all of them expire after a minute.
    """
    now = time.time()
    return [
        (f"Bearer {holder.keys.request_token(holder.agent_id, now)}", json.dumps({"epoch": holder.epoch}))
        for holder in (agents[number % len(agents)] for number in range(count))
    ]


def plain_updates(agents: list[Holder], count: int) -> list[tuple[str, str]]:
    """Returns the same for the peer that updates the row without authentication: an empty authorization and a body."""
    return [("", json.dumps({"siteId": agents[number % len(agents)].site_id})) for number in range(count)]
