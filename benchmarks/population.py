"""Fills a database with generated rows, to test and measure what depends on their number.

PostgreSQL generates the rows itself, within seconds. The tenant ``most`` owns the given number of sites. The tenant
``few`` sees exactly twenty: 17 of its own, one that is dedicated to it, and two shared ones. All other tenants together
own a tenth of the number that ``most`` owns. The ids of the owners are interleaved, as they are when tenants create
sites at the same time.
"""

import asyncpg

FEW, MOST = "few", "most"
FEW_VISIBLE = 20


def site_id(number: int) -> str:
    """Returns the id of the site with that number. The sites of ``most`` have the numbers 10, 20, 30, ..."""
    return f"site_{number:026}"


def token_id(number: int) -> str:
    """Returns the id of the token with that number. Numbers begin at 1."""
    return f"jt_{number:052}"


def agent_id(number: int) -> str:
    """Returns the id of the agent that enrolled with the token with that number."""
    return f"agt_{number:026}"


_IDENTITIES = """
INSERT INTO tenants (id, name)
    SELECT id, id FROM unnest(ARRAY['root', 'few', 'most']) id
    UNION ALL SELECT 't' || n, 'Tenant ' || n FROM generate_series(1, {tenants} - 3) n;
INSERT INTO identities (tenant_id, id, name, subject)
    SELECT id, 'idn_' || id, id || '-admin', 'https://login.example|' || id FROM tenants;
INSERT INTO api_keys (tenant_id, id, identity_id, secret_sha256)
    SELECT id, 'bck_' || id, 'idn_' || id, sha256(id::bytea) FROM tenants;
INSERT INTO role_bindings (tenant_id, identity_id, resource, role)
    SELECT id, 'idn_' || id, CASE id WHEN 'root' THEN 'compute-fleet/global' ELSE 'compute-tenant/' || id END, 'admin'
    FROM tenants;
"""

_SITES = """
INSERT INTO sites (tenant_id, id, kind, name, region, labels, dedicated_to, revision, created_at, updated_at,
                   created_by, idempotency_key, request_sha256)
    SELECT tenant_id, 'site_' || lpad(number::text, 26, '0'), kind, 'Site ' || md5(number::text),
           'region-' || number % 7, jsonb_build_array(jsonb_build_object('key', 'rack', 'value', 'r' || number % 100)),
           CASE kind WHEN 'dedicated' THEN 'few' END, 1, at, at, 'idn_' || tenant_id, 'key-' || number, ''
    FROM (
        SELECT 'most' AS tenant_id, 'custom' AS kind, n * 10::bigint AS number FROM generate_series(1, {sites}) n
        UNION ALL
        SELECT 't' || 1 + n % ({tenants} - 3), 'custom', n * 100::bigint + 1 FROM generate_series(1, {sites} / 10) n
        UNION ALL
        SELECT 'few', 'custom', {sites} / 17 * n * 10::bigint + 2 FROM generate_series(1, 17) n
        UNION ALL
        SELECT 'root', CASE n WHEN 1 THEN 'dedicated' ELSE 'shared' END, {sites} / 8 * n * 10::bigint + 3
        FROM generate_series(1, 3) n
        ORDER BY number
    ) made,
    LATERAL (SELECT timestamptz '2026-01-01' + make_interval(secs => number / 10.0) AS at) clock;
INSERT INTO site_visibility (viewer_tenant_id, site_id, owner_tenant_id, listed)
    SELECT tenant_id, id, tenant_id, true FROM sites
    UNION ALL SELECT '*', id, tenant_id, true FROM sites WHERE kind = 'shared'
    UNION ALL SELECT dedicated_to, id, tenant_id, true FROM sites WHERE kind = 'dedicated';
"""

_TOKENS = """
INSERT INTO join_tokens (tenant_id, id, site_id, role, secret_hash, precheck_tag, max_uses, created_at, created_by,
                         expires_at)
    SELECT 'most', 'jt_' || lpad(n::text, 52, '0'), 'site_' || lpad(((1 + n % {sites}) * 10)::text, 26, '0'), 'site',
           'none', sha256(n::text::bytea), 16, now() - make_interval(secs => n), 'idn_most', now() + interval '1 day'
    FROM generate_series(1, {tokens}) n;
INSERT INTO audit_events (tenant_id, id, time, actor, operation, action, resource, decision, outcome, request_id, data)
    SELECT tenant_id, 'aud_' || n, created_at, created_by, 'siteTokens.create', 'compute:sites:manage',
           'compute-site/' || site_id, 'allow', 'ok', 'req_' || n, '{{}}'
    FROM (SELECT *, row_number() OVER () AS n FROM join_tokens) made;
INSERT INTO outbox (id, type, subject, tenant_id, site_id, data, position, delivered_at)
    SELECT 'evt_' || n, 'security.site-token.created', 'compute-site/' || site_id, tenant_id, site_id, '{{}}', n, now()
    FROM (SELECT *, row_number() OVER () AS n FROM join_tokens) made;
"""

_AGENTS = """
INSERT INTO site_agents (tenant_id, id, site_id, token_id, name, key_thumbprint)
    SELECT tenant_id, 'agt_' || right(id, 26), site_id, id, 'rack', 'thumb-' || id FROM join_tokens;
INSERT INTO agent_keys (tenant_id, agent_id, thumbprint, public_key, first_used_at)
    SELECT tenant_id, id, key_thumbprint, '', now() FROM site_agents;
INSERT INTO used_jtis (agent_id, jti, expires_at) SELECT id, 'jti', now() + interval '1 minute' FROM site_agents;
INSERT INTO boot_leases (tenant_id, site_id, holder_agent_id, epoch, acquired_at, expires_at)
    SELECT DISTINCT ON (site_id) tenant_id, site_id, id, 1, now(), now() + interval '1 hour' FROM site_agents;
INSERT INTO boot_lease_history (tenant_id, site_id, epoch, agent_id, acquired_at, ended_at, reason)
    SELECT tenant_id, site_id, 0, holder_agent_id, now(), now(), 'released' FROM boot_leases;
INSERT INTO secrets (tenant_id, scope, name, version)
    SELECT 'most', 'tenant', 'name-' || n, 1 FROM generate_series(1, {tokens} / 4) n;
INSERT INTO secret_versions (tenant_id, scope, name, version, created_by, idempotency_key)
    SELECT tenant_id, scope, name, 1, 'idn_most', 'key-' || name FROM secrets;
INSERT INTO secret_ciphertexts (reference, version, broker_key_id, wrapped_key, nonce, ciphertext)
    SELECT 'secret://tenant/most/' || name, 1, 'none', '', '', '' FROM secrets;
INSERT INTO secret_grants (tenant_id, scope, name, site_id, site_tenant_id, created_by)
    SELECT s.tenant_id, s.scope, s.name, l.site_id, l.tenant_id, 'idn_most'
    FROM (SELECT *, row_number() OVER (ORDER BY name) AS n FROM secrets) s
    JOIN (SELECT *, row_number() OVER (ORDER BY site_id) AS n FROM boot_leases) l USING (n);
"""


async def populate(url: str, *, sites: int, tenants: int, tokens: int) -> None:
    """Fills the migrated, empty database at ``url`` and analyses it. The login in ``url`` must be a superuser.

    ``sites`` is the number of sites of ``most``, at least 20. ``tenants`` is the number of all tenants, at least 5.
    ``tokens`` is the number of tokens of ``most``. They go to its sites in turn. Each token has an agent, and on each
    site with agents one of them holds the lease. Triggers and foreign keys are not checked.
    """
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET session_replication_role = replica")
        for script in (_IDENTITIES, _SITES, _TOKENS, _AGENTS):
            await connection.execute(script.format(sites=sites, tenants=tenants, tokens=tokens))
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()
