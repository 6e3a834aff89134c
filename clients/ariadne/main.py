"""The main job: who am I, which sites are there, mint a token and revoke it, put a secret, heed an error's code.

Reads BC_URL and BC_API_KEY, and the secret's value from standard input; writes what came of it as JSON.
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
    """A client of the server at ``url`` that calls as the one whose API key ``key`` is."""
    return Compute(f"{url}/graphql", {"Authorization": f"Bearer {key}"})


def all_sites(api: Compute) -> list[SitesSitesNodes]:
    """All sites that the caller sees, page by page."""
    page = api.sites().sites
    found = page.nodes
    while page.page_info.has_next_page:
        page = api.sites(after=page.page_info.end_cursor).sites
        found += page.nodes
    return found


def code_of(refused: GraphQLClientGraphQLMultiError) -> ErrorCode:
    """The code of what the API refused."""
    return ErrorCode((refused.errors[0].extensions or {})["code"])


def put_new(api: Compute, tenant_id: str, name: str, value: SecretStr) -> PutPutSecret | None:
    """Put the first version of a secret; None if there is one already."""
    secret = PutSecretInput(tenant_id=tenant_id, name=name, value=value, expected_version=0)
    try:
        return api.put(secret).put_secret
    except GraphQLClientGraphQLMultiError as refused:
        if code_of(refused) is ErrorCode.CONFLICT:
            return None
        raise


def main() -> None:
    """Do the job once."""
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
    told = {
        "viewer": viewer,
        "sites": sites,
        "minted": minted,
        "replayed": replayed,
        "revoked": revoked,
        "put": put,
        "again": again,
    }
    sys.stdout.write(json.dumps(told, default=lambda answer: answer.model_dump(mode="json", by_alias=True)))


if __name__ == "__main__":
    main()
