"""Never run: mistakes that the types must catch. Where one is not an error, mypy reports the unused ``ignore``."""

from generated import Compute, CreateSiteTokenInput, ErrorCode, Mint, RevokeSiteTokenInput, Viewer


def refused(api: Compute, viewer: Viewer, mint: Mint, code: ErrorCode) -> tuple[str, object, bool]:
    """A replay has no token; a field that was not selected; misspelt, missing and mistyped arguments; no such code."""
    token: str = mint.create_site_token.token  # type: ignore[assignment]
    identity: object = viewer.viewer.identity  # type: ignore[attr-defined]
    CreateSiteTokenInput(tenant_id="acme", site_id="site_", ttl=60, ttl_seconds=60, idempotency_key="k")  # type: ignore[call-arg]
    RevokeSiteTokenInput(tenant_id="acme", site_id="site_")  # type: ignore[call-arg]
    api.sites(after=1)  # type: ignore[arg-type]
    return token, identity, code is ErrorCode.GONE  # type: ignore[attr-defined]
