"""Calls an operation through the GraphQL or the HTTP door, and returns the response in one form for both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
import pytest

from tests.support.world import World

REQUEST_ID = "one-request-id-for-all"
"""The id of every request, so that two responses can be compared byte by byte."""

_SITE = (
    "id tenantId kind name region labels { key value } dedicatedTo revision createdAt updatedAt deletedAt "
    "bootLeaseTtlSeconds"
)
_TOKEN = "id tenantId siteId role state maxUses uses allowedCidrs createdAt createdBy expiresAt revokedAt lastUsedAt"
_SECRET = "reference tenantId scope name version createdAt updatedAt"
_GRANT = "tenantId reference scope name siteId createdAt createdBy"
_AGENT = "id tenantId siteId tokenId name version address enrolledAt lastSeenAt revokedAt"
_AUDIT = "id tenantId time actor operation action resource decision outcome requestId data"
_PAGE = "pageInfo { hasNextPage endCursor }"
_LIST = "$tenantId: ID, $first: Int! = 50, $after: String"
_LISTED = "tenantId: $tenantId, first: $first, after: $after"

QUERIES = {
    "sites.list": f"query ({_LIST}, $filter: SiteFilter, $orderBy: SiteOrder) "
    f"{{ sites({_LISTED}, filter: $filter, orderBy: $orderBy) {{ nodes {{ {_SITE} }} {_PAGE} }} }}",
    "siteTokens.list": f"query ({_LIST}, $siteId: ID, $filter: SiteTokenFilter) "
    f"{{ siteTokens({_LISTED}, siteId: $siteId, filter: $filter) {{ nodes {{ {_TOKEN} }} {_PAGE} }} }}",
    "secrets.list": f"query ({_LIST}, $scope: SecretScope! = TENANT) "
    f"{{ secrets({_LISTED}, scope: $scope) {{ nodes {{ {_SECRET} }} {_PAGE} }} }}",
    "auditEvents.list": f"query ({_LIST}, $filter: AuditFilter) "
    f"{{ auditEvents({_LISTED}, filter: $filter) {{ nodes {{ {_AUDIT} }} {_PAGE} }} }}",
    "siteAgents.list": f"query ({_LIST}, $siteId: ID, $filter: SiteAgentFilter) "
    f"{{ siteAgents({_LISTED}, siteId: $siteId, filter: $filter) {{ nodes {{ {_AGENT} }} {_PAGE} }} }}",
    "siteAgents.get": f"query ($tenantId: ID, $agentId: ID!) "
    f"{{ siteAgent(tenantId: $tenantId, id: $agentId) {{ {_AGENT} }} }}",
    "secrets.listGrants": f"query ({_LIST}, $reference: String, $siteId: ID) "
    f"{{ secretGrants({_LISTED}, reference: $reference, siteId: $siteId) {{ nodes {{ {_GRANT} }} {_PAGE} }} }}",
    "sites.get": f"query ($tenantId: ID, $siteId: ID!) {{ site(tenantId: $tenantId, id: $siteId) {{ {_SITE} }} }}",
}
"""The documents of the operations that are queries. The others are mutations with one ``input``."""

MUTATIONS = {
    "sites.create": f"createSite {{ site {{ {_SITE} }} }}",
    "sites.update": f"updateSite {{ site {{ {_SITE} }} }}",
    "sites.delete": f"deleteSite {{ site {{ {_SITE} }} }}",
    "siteTokens.create": f"createSiteToken {{ siteToken {{ {_TOKEN} }} token }}",
    "siteTokens.revoke": f"revokeSiteToken {{ siteToken {{ {_TOKEN} }} }}",
    "siteAgents.revoke": f"revokeSiteAgent {{ siteAgent {{ {_AGENT} }} }}",
    "secrets.grant": f"grantSecret {{ secretGrant {{ {_GRANT} }} }}",
    "secrets.revokeGrant": f"revokeSecretGrant {{ secretGrant {{ {_GRANT} }} }}",
    "secrets.put": "putSecret { reference version name scope }",
}
_ENUMS = {"kind", "kinds", "scope", "states", "state", "role", "decision", "field", "direction"}
"""Members whose values are enums. GraphQL spells them in capitals, HTTP in lower case."""


@dataclass(frozen=True)
class Outcome:
    """The result of a call.

    ``code`` is ``OK`` or the code of the error. ``value`` is the record, or the page in HTTP's form. ``fields`` has the
    paths of the bad fields. ``body`` is the body of the response.
    """

    code: str
    value: dict[str, Any]
    fields: tuple[str, ...]
    body: bytes

    @property
    def ok(self) -> dict[str, Any]:
        """The value of an operation that must have succeeded."""
        assert self.code == "OK", (self.code, self.fields)
        return self.value


@dataclass(frozen=True)
class Door:
    """The GraphQL or the HTTP door of the server."""

    name: Literal["graphql", "http"]

    async def call(self, world: World, caller: str | None, operation: str, **members: Any) -> Outcome:
        """Calls ``operation`` (``siteTokens.create``) as ``caller``. ``members`` are in camelCase, enums in
        lower case.
        """
        headers = world.headers(caller, **{"x-request-id": REQUEST_ID})
        if self.name == "http":
            path = f"/api/compute/{operation.replace('.', '/')}"
            answer = await world.client.post(path, json=members, headers=headers)
            return _from_http(answer.content, operation)
        document = {"query": document_of(operation), "variables": variables_of(operation, members)}
        answer = await world.client.post("/graphql", json=document, headers=headers)
        return _from_graphql(answer.content)

    async def pages(
        self, world: World, caller: str, operation: str, first: int, **members: Any
    ) -> list[list[dict[str, Any]]]:
        """Returns all pages of a list. Raises AssertionError if a cursor comes twice."""
        pages: list[list[dict[str, Any]]] = []
        after: dict[str, str] = {}
        given_out: set[str] = set()
        while True:
            page = (await self.call(world, caller, operation, first=first, **members, **after)).ok
            pages.append(page["items"])
            if page["nextCursor"] is None:
                return pages
            assert page["nextCursor"] not in given_out, "the list goes round in circles"
            given_out.add(page["nextCursor"])
            after = {"after": page["nextCursor"]}


GRAPHQL = Door("graphql")
HTTP = Door("http")
both_doors = pytest.mark.parametrize("door", [GRAPHQL, HTTP], ids=lambda door: door.name)
"""Runs a test once for each door."""


def document_of(operation: str) -> str:
    """Returns the GraphQL document of an operation."""
    if operation in QUERIES:
        return QUERIES[operation]
    field, selection = MUTATIONS[operation].split(" ", 1)
    type_name = f"{field[0].upper()}{field[1:]}Input"
    return f"mutation ($input: {type_name}!) {{ {field}(input: $input) {selection} }}"


def variables_of(operation: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables of the document of an operation."""
    variables = {name: _enums(name, value, str.upper) for name, value in members.items()}
    return variables if operation in QUERIES else {"input": variables}


def _enums(name: str, value: Any, spell: Any) -> Any:
    if isinstance(value, dict) and name != "data":
        return {key: _enums(key, member, spell) for key, member in value.items()}
    if isinstance(value, list):
        return [_enums(name, item, spell) for item in value]
    return spell(value) if name in _ENUMS and isinstance(value, str) else value


def _from_http(body: bytes, operation: str) -> Outcome:
    answer = orjson.loads(body)
    if "code" in answer and "detail" in answer:
        fields = tuple(fault["path"] for fault in answer.get("fields", ()))
        return Outcome(answer["code"], {}, fields, body)
    if operation == "siteTokens.create":
        answer.setdefault("token", None)
    return Outcome("OK", answer, (), body)


def _from_graphql(body: bytes) -> Outcome:
    answer = orjson.loads(body)
    if answer.get("errors"):
        (error,) = answer["errors"]
        fields = tuple(fault["path"] for fault in error["extensions"].get("fields", ()))
        return Outcome(error["extensions"]["code"], {}, fields, body)
    (value,) = answer["data"].values()
    if "nodes" in value:
        page = value["pageInfo"]
        value = {"items": value["nodes"], "nextCursor": page["endCursor"] if page["hasNextPage"] else None}
    elif "siteToken" in value:
        value = value["siteToken"] | ({"token": value["token"]} if "token" in value else {})
    elif len(value) == 1 and set(value) <= {"site", "siteAgent", "secretGrant"}:
        (value,) = value.values()
    lowered: dict[str, Any] = _enums("", value, str.lower)
    return Outcome("OK", lowered, (), body)
