"""Lists mistakes that the types must catch; type-checked and never run.

If mypy accepts one of the mistakes, it reports the unused ``ignore``.
"""

from generated import Compute, CreateSiteTokenInput, ErrorCode, Mint, RevokeSiteTokenInput, Viewer


def refused(api: Compute, viewer: Viewer, mint: Mint, code: ErrorCode) -> tuple[str, object, bool]:
    """Makes each mistake once.

    In this order: the token of a replay as a string, a field that is not selected, a misspelt argument, a missing
    argument, an argument of the wrong type, and an error code that does not exist.
    """
    token: str = mint.create_site_token.token  # type: ignore[assignment]
    identity: object = viewer.viewer.identity  # type: ignore[attr-defined]
    CreateSiteTokenInput(tenant_id="acme", site_id="site_", ttl=60, ttl_seconds=60, idempotency_key="k")  # type: ignore[call-arg]
    RevokeSiteTokenInput(tenant_id="acme", site_id="site_")  # type: ignore[call-arg]
    api.sites(after=1)  # type: ignore[arg-type]
    return token, identity, code is ErrorCode.GONE  # type: ignore[attr-defined]
