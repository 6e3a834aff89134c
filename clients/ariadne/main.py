"""Does the main tasks of the API with the client that ariadne-codegen generates.

Reads the caller and all sites, mints a token, repeats the mint, revokes the token, puts a secret, and handles the
CONFLICT of a second put. Reads BC_URL and BC_API_KEY from the environment and the secret's value from standard input.
Writes all results as JSON to standard output.
"""

import json
import os
import sys

from pydantic import SecretStr

from generated import (
    Compute,
    CreateSiteTokenInput,
    ErrorCode,
    GraphQLClientGraphQLMultiError,
    PutPutSecret,
    PutSecretInput,
    RevokeSiteTokenInput,
    SiteKind,
    SitesSitesNodes,
)


def connect(url: str, key: str) -> Compute:
    """Returns a client of the server at ``url`` that sends the API key ``key``."""
    return Compute(f"{url}/graphql", {"Authorization": f"Bearer {key}"})


def all_sites(api: Compute) -> list[SitesSitesNodes]:
    """Returns all sites that the caller sees, read page by page."""
    page = api.sites().sites
    nodes = page.nodes
    while page.page_info.has_next_page:
        page = api.sites(after=page.page_info.end_cursor).sites
        nodes += page.nodes
    return nodes


def code_of(refused: GraphQLClientGraphQLMultiError) -> ErrorCode:
    """Returns the error code of a refused request."""
    return ErrorCode((refused.errors[0].extensions or {})["code"])


def put_new(api: Compute, tenant_id: str, name: str, value: SecretStr) -> PutPutSecret | None:
    """Puts the first version of a secret. Returns None if the secret exists already."""
    secret = PutSecretInput(tenant_id=tenant_id, name=name, value=value, expected_version=0)
    try:
        return api.put(secret).put_secret
    except GraphQLClientGraphQLMultiError as refused:
        if code_of(refused) is ErrorCode.CONFLICT:
            return None
        raise


def main() -> None:
    """Runs all tasks once and writes their results."""
    with connect(os.environ["BC_URL"], os.environ["BC_API_KEY"]) as api:
        viewer = api.viewer().viewer
        sites = all_sites(api)
        own = next(site for site in sites if site.kind is SiteKind.CUSTOM)
        token = CreateSiteTokenInput(
            tenant_id=viewer.tenant_id, site_id=own.id, ttl_seconds=3600, idempotency_key="rack-1"
        )
        minted = api.mint(token).create_site_token
        replayed = api.mint(token).create_site_token
        revoke = RevokeSiteTokenInput(tenant_id=viewer.tenant_id, site_id=own.id, token_id=minted.site_token.id)
        revoked = api.revoke(revoke).revoke_site_token.site_token
        value = SecretStr(sys.stdin.read())
        put = put_new(api, viewer.tenant_id, "bmc/rack-1", value)
        again = put_new(api, viewer.tenant_id, "bmc/rack-1", value)
    results = {
        "viewer": viewer,
        "sites": sites,
        "minted": minted,
        "replayed": replayed,
        "revoked": revoked,
        "put": put,
        "again": again,
    }
    sys.stdout.write(json.dumps(results, default=lambda answer: answer.model_dump(mode="json", by_alias=True)))


if __name__ == "__main__":
    main()
