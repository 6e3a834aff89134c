"""Tests the plans of frequent statements on large tables: the indexes that each one uses, and the rows that it reads.

Each statement comes from the models and runs with real values. PostgreSQL may switch a frequent statement to a generic
plan. If it does, that plan is checked too. A change that drops or breaks an index fails a case of the table.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import asyncpg
import orjson
import pytest

from benchmarks.population import FEW, MOST, agent_id, populate, site_id, token_id
from database.codecs import set_codecs
from database.embedded import EmbeddedPostgres
from database.statement import Statement
from models.access import identities, projection, tenants
from models.fleet import agent_jwts, agent_keys, agents, leases, redemption, renewals, site_tokens, sites
from models.fleet.sites import SiteQuery, SiteSort
from models.journal import audit, outbox
from models.lists import KeysetList
from models.pages import ALL
from models.secrets import ciphertexts, grants, secrets
from tests.conftest import _execute

pytestmark = pytest.mark.anyio

SITES, TENANTS, TOKENS = 20_000, 2_000, 20_000
PAGE = 51
"""The rows that a page of 50 reads. The last one tells whether there is a next page."""

SOME = PAGE + 9
"""The rows of a page, and a few that may be skipped before it."""

EXECUTIONS = 7
"""How many times a statement runs until PostgreSQL has chosen between custom plans and the generic plan."""


Values = dict[str, Any]


class Case(NamedTuple):
    """A statement, its values, the indexes that it uses, and the most rows that any step of it reads."""

    name: str
    statement: Statement[Any]
    values: Values
    indexes: set[str]
    rows: int


def case(name: str, statement: Statement[Any], indexes: str, /, *, rows: int = SOME, **values: Any) -> Case:
    return Case(name, statement, values, set(indexes.split()), rows)


def listing(**values: Any) -> Values:
    """Returns the values of a list of the sites of ``most``, or of another ``viewer``, with or without a filter."""
    usual = {
        "viewer": MOST,
        "viewers": [values.get("viewer", MOST), "*"],
        "site_ids": None,
        "region": "region-1",
        "kinds": ["custom"],
        "label": [{"key": "rack", "value": "r10"}],
        "name_pattern": "%ab%",
        "limit": PAGE,
    }
    return usual | values


def listed(name: str, indexes: str, query: SiteQuery | None = None, /, *, rows: int = SOME, **values: Any) -> Case:
    """Returns the case of a page of sites."""
    statement = sites._page_statement(sites._shape(query or SiteQuery()), continued="after_id" in values)
    return Case(name, statement, listing(**values), set(indexes.split()), rows)


def counted(name: str, indexes: str, query: SiteQuery | None = None, /, *, rows: int = SOME, **values: Any) -> Case:
    """Returns the case of the total of sites."""
    return Case(name, sites._count_statement(query or SiteQuery()), listing(**values), set(indexes.split()), rows)


NOW = datetime.now(UTC)
BY_NAME_LATER: Values = {"after_id": "", "after_name": "Site 8"}
LAST: Values = {"after_id": site_id(10 * SITES - 200)}
LATER: Values = {
    "after_id": token_id(1),
    **dict.fromkeys(("after_created_at", "after_enrolled_at", "after_time"), NOW - timedelta(hours=1)),
}
NUMBERS = range(1, PAGE)
SITE: Values = {"tenant": MOST, "site": site_id(60)}
OF_SITES: Values = {"tenants": [MOST] * len(NUMBERS), "sites": [site_id(10 * number) for number in NUMBERS]}
OF_TOKENS: Values = {"tenants": [MOST] * len(NUMBERS), "tokens": [token_id(number) for number in NUMBERS]}
VIEW: Values = {"viewers": [MOST, "*"], "site_ids": None}
HELD = [site_id(10 * number) for number in (1, 2, 3)]
OWN: Values = {"tenant_id": MOST, "site_id": site_id(60), "token_id": token_id(5), "site_ids": HELD, "limit": PAGE}
TOKEN: Values = {"tenant": MOST, "token": token_id(5)}
AGENT: Values = SITE | {"agent": agent_id(5), "epoch": 1, "agent_tenant": MOST, "thumbprint": f"thumb-{token_id(5)}"}
JWTS: Values = {
    "agent_id": [agent_id(number) for number in NUMBERS],
    "jti": ["new"] * len(NUMBERS),
    "tenant_id": [MOST] * len(NUMBERS),
    "thumbprint": [f"thumb-{token_id(number)}" for number in NUMBERS],
    "issued_at": [NOW] * len(NUMBERS),
    "expires_at": [NOW + timedelta(minutes=1)] * len(NUMBERS),
    "site_id": OF_SITES["sites"],
    "epoch": [1] * len(NUMBERS),
}
SECRET: Values = {"tenant_id": MOST, "scope": "tenant", "name": "name-1", "limit": PAGE}
GRANT: Values = {"of_tenant": MOST, "of_scope": "tenant", "of_name": "name-1", "of_site": site_id(60), "limit": PAGE}
AFTER_GRANT: Values = {"after_scope": "tenant", "after_name": "name-3", "after_site_id": ""}
AUDIT: Values = {"tenant_id": MOST, "limit": PAGE, "resource": f"compute-site/{site_id(60)}"}
AUDIT_HELD: Values = {"resources": [f"compute-site/{held}" for held in HELD]}
CALLER: Values = {"tenant_id": MOST, "created_by": "idn_most", "identity_id": "idn_most"}

VISIBLE = "ix_site_visibility_listed uq_sites_id"
PAGED = f"{VISIBLE} ix_site_visibility_site_id"
BY_SITE = "ix_site_visibility_site_id uq_sites_id"
BY_NAME = SiteQuery(sort=SiteSort.NAME)


def page_of(keyset_list: KeysetList[Any], conditions: str, *, continued: bool) -> Statement[Any]:
    """Returns the statement of a page under these conditions."""
    return keyset_list.page_statement(frozenset(conditions.split()), continued)


def tokens(conditions: str = "", *, continued: bool = False) -> Statement[Any]:
    return page_of(site_tokens._LIST, f"tenant_id {conditions}", continued=continued)


def enrolled(conditions: str = "", *, continued: bool = False) -> Statement[Any]:
    return page_of(agents._LIST, f"tenant_id {conditions}", continued=continued)


def granted(conditions: str = "", *, continued: bool = False) -> Statement[Any]:
    return page_of(grants._LIST, f"of_tenant {conditions}", continued=continued)


def put(*, continued: bool = False) -> Statement[Any]:
    return page_of(secrets._LIST, "tenant_id scope", continued=continued)


def audited(conditions: str = "", *, continued: bool = False) -> Statement[Any]:
    return page_of(audit._LIST, f"tenant_id {conditions}", continued=continued)


CASES = [
    listed("sites, first page", PAGED),
    listed("sites, last page", PAGED, **LAST),
    listed("sites, newest first", PAGED, SiteQuery(descending=True)),
    listed("sites, first page of few", VISIBLE, viewer=FEW),
    listed("sites, held to some", PAGED, site_ids=HELD),
    listed("sites by name", "ix_site_visibility_site_id ix_sites_name_id", BY_NAME),
    listed("sites by name, next page", "ix_site_visibility_site_id ix_sites_name_id", BY_NAME, **BY_NAME_LATER),
    listed("sites by name, of few", VISIBLE, BY_NAME, viewer=FEW),
    listed("sites of a region", BY_SITE, SiteQuery(region=""), rows=400),
    listed("sites of a region, of few", VISIBLE, SiteQuery(region=""), viewer=FEW),
    listed("sites of a kind", BY_SITE, SiteQuery(kinds=())),
    listed("sites with a label", BY_SITE, SiteQuery(label_key=""), rows=600),
    listed("sites with a word in the name", BY_SITE, SiteQuery(name_contains=""), rows=700),
    counted("sites of few, counted", "ix_site_visibility_listed ix_site_visibility_site_id", viewer=FEW),
    counted("sites of few in a region, counted", VISIBLE, SiteQuery(region=""), viewer=FEW),
    case("site by id", sites._FIND_MANY, BY_SITE, ids=[site_id(60)], **VIEW),
    case("site by id, as any tenant", sites._FIND_MANY, BY_SITE, ids=[site_id(60)], viewers=None, site_ids=None),
    case("sites by id", sites._FIND_MANY, BY_SITE, ids=OF_SITES["sites"], **VIEW),
    case(
        "site by idempotency key",
        sites._BY_KEY,
        "uq_sites_tenant_id_created_by_idempotency_key",
        idempotency_key="key-50",
        **CALLER,
    ),
    case("site, locked", sites._LOCK, "uq_sites_id", id=site_id(60), **CALLER),
    case("site, locked with others", sites._LOCK_SHARED, "uq_sites_id", id=site_id(60), **CALLER),
    case("site, deleted", sites._DELETE, "uq_sites_id", owner=MOST, site=site_id(60)),
    case("projection, cleared", projection._CLEAR, "ix_site_visibility_site_id", site=site_id(60)),
    case("tokens, first page", tokens(), "ix_join_tokens_tenant_id_created_at_id", **OWN),
    case("tokens, next page", tokens(continued=True), "ix_join_tokens_tenant_id_created_at_id", **OWN, **LATER),
    case("tokens of a site", tokens("site_id"), "ix_join_tokens_tenant_id_site_id_id", **OWN),
    case(
        "tokens of a site, next page",
        tokens("site_id", continued=True),
        "ix_join_tokens_tenant_id_site_id_id",
        **OWN,
        **LATER,
    ),
    case("tokens, held to some sites", tokens("site_ids"), "ix_join_tokens_tenant_id_site_id_id", **OWN),
    case(
        "tokens of a page of sites",
        site_tokens._LIST.first_pages_statement("site_id", ALL),
        "ix_join_tokens_tenant_id_site_id_id",
        limit=11,
        tenants=OF_SITES["tenants"],
        parents=OF_SITES["sites"],
    ),
    case(
        "tokens of a site, counted",
        site_tokens._LIST.count_statement(frozenset({"tenant_id", "site_id"})),
        "ix_join_tokens_tenant_id_site_id_id",
        **OWN,
    ),
    case("token, replayed", site_tokens._FIND, "uq_join_tokens_id", id=token_id(5), **CALLER),
    case("tokens by id", site_tokens._FIND_MANY, "uq_join_tokens_id", ids=OF_TOKENS["tokens"]),
    case("token, revoked", site_tokens._REVOKE, "uq_join_tokens_id", **TOKEN),
    case("tokens, revoked with their site", site_tokens._REVOKE_OF_SITE, "ix_join_tokens_tenant_id_site_id_id", **SITE),
    case(
        "token, presented",
        redemption._PRESENTED,
        "uq_join_tokens_id uq_site_agents_tenant_id_token_id_key_thumbprint",
        id=token_id(5),
        thumbprint="t",
    ),
    case("token, locked", redemption._LOCK, "uq_join_tokens_id", **TOKEN),
    case("token, used", redemption._COUNT_USE, "uq_join_tokens_id", rehash=None, **TOKEN),
    case("API key", identities._BY_KEY, "pk_role_bindings uq_api_keys_id uq_identities_id", key_id="bck_most"),
    case(
        "OIDC subject",
        identities._BY_SUBJECT,
        "pk_role_bindings uq_identities_subject",
        subject="https://login.example|most",
    ),
    case("API keys, last used", identities._TOUCH, "uq_api_keys_id", key_ids=[f"bck_t{number}" for number in NUMBERS]),
    case("bindings", identities._BINDINGS, "pk_role_bindings", **CALLER),
    case("tenant", tenants._EXISTS, "pk_tenants", tenant_id=MOST),
    case("agent's keys", agent_keys._OF_ANY_TENANT, "pk_agent_keys uq_site_agents_id", **AGENT),
    case("JWTs, taken", agent_jwts._TAKE, "pk_agent_keys pk_used_jtis uq_site_agents_id", **JWTS),
    case(
        "agents, last seen",
        agent_keys._TOUCH,
        "uq_site_agents_id",
        agents=[agent_id(number) for number in NUMBERS],
        addresses=["::1"] * len(NUMBERS),
    ),
    case("agents, first page", enrolled(), "ix_site_agents_tenant_id_enrolled_at_id", **OWN),
    case("agents, next page", enrolled(continued=True), "ix_site_agents_tenant_id_enrolled_at_id", **OWN, **LATER),
    case("agents of a site", enrolled("site_id"), "ix_site_agents_tenant_id_site_id_enrolled_at_id", **OWN),
    case(
        "agents of a token",
        enrolled("token_id"),
        "ix_site_agents_tenant_id_token_id_enrolled_at_id",
        **OWN,
    ),
    case(
        "agents of a page of tokens",
        agents._LIST.first_pages_statement("token_id", ALL),
        "ix_site_agents_tenant_id_token_id_enrolled_at_id",
        limit=11,
        tenants=OF_TOKENS["tenants"],
        parents=OF_TOKENS["tokens"],
    ),
    case(
        "agent by token and key",
        agents._ENROLLED,
        "ix_site_agents_tenant_id_token_id_enrolled_at_id",
        thumbprint="t",
        token_id=token_id(5),
        tenant_id=MOST,
    ),
    case("agent, of itself", agents._SELF, "uq_site_agents_id uq_sites_id", tenant_id=MOST, id=agent_id(5)),
    case(
        "leases, renewed",
        renewals._SHARED,
        "ix_boot_leases_holder pk_agent_keys pk_boot_leases pk_used_jtis uq_site_agents_id uq_sites_id",
        **JWTS,
    ),
    case("lease, renewed alone", renewals._ALONE, "ix_boot_leases_holder pk_boot_leases uq_sites_id", **AGENT),
    case("lease, taken", leases._TAKE, "pk_boot_leases uq_sites_id", **AGENT),
    case("lease, locked", leases._LOCK, "pk_boot_leases", **AGENT),
    case("lease, looked at", leases._LOOK, "pk_boot_leases uq_sites_id", **AGENT),
    case("lease, by its holder", leases._LOCK_OF_HOLDER, "ix_boot_leases_holder", **AGENT),
    case("leases of a page of sites", leases._MANY, "pk_boot_leases", **OF_SITES),
    case("terms of a page of sites", leases._HISTORIES, "pk_boot_lease_history", limit=11, **OF_SITES),
    case("boot, recorded", leases._RECORD, "ix_boot_leases_holder", id="boot_1", machine="m", note=None, **AGENT),
    case("secrets, first page", put(), "pk_secrets", **SECRET),
    case("secrets, next page", put(continued=True), "pk_secrets", after_name="name-3", **SECRET),
    case(
        "secret, retried",
        secrets._BY_KEY,
        "uq_secret_versions_tenant_id_created_by_idempotency_key",
        idempotency_key="key-name-7",
        **CALLER,
    ),
    case(
        "secret, put",
        secrets._NEXT_VERSION,
        "pk_secrets",
        p_tenant_id=MOST,
        p_scope="tenant",
        p_name="name-7",
        expected=None,
    ),
    case("grants, first page", granted(), "pk_secret_grants", **GRANT),
    case("grants, next page", granted(continued=True), "pk_secret_grants", **GRANT, **AFTER_GRANT),
    case("grants of a secret", granted("of_scope of_name"), "pk_secret_grants", **GRANT),
    case("grants to a site", granted("of_site"), "ix_secret_grants_tenant_id_site_id_scope_name", **GRANT),
    case(
        "secret, handed over",
        ciphertexts._FETCH,
        "ix_boot_leases_holder ix_secret_grants_tenant_id_site_id_scope_name pk_boot_leases pk_secret_ciphertexts "
        "uq_site_agents_id uq_sites_id",
        reference="secret://tenant/most/name-1",
        version=None,
        **SECRET,
        **AGENT,
    ),
    case("audit, first page", audited(), "ix_audit_events_tenant_id_time_id", **AUDIT),
    case("audit, next page", audited(continued=True), "ix_audit_events_tenant_id_time_id", **AUDIT, **LATER),
    case("audit of a resource", audited("resource"), "ix_audit_events_tenant_id_resource_time_id", **AUDIT),
    case(
        "audit, held to some sites",
        audited("resources"),
        "ix_audit_events_tenant_id_resource_time_id",
        **AUDIT,
        **AUDIT_HELD,
    ),
    case("events, undelivered", outbox._PENDING, "ix_outbox_undelivered", limit=500),
    case("events, last position", outbox._HEAD, "ix_outbox_position"),
    case("events, delivered", outbox._MARK, "pk_outbox", seqs=[1, 2, 3], positions=[1, 2, 3]),
    case(
        "events, followed",
        outbox._BETWEEN,
        "ix_outbox_position ix_site_visibility_site_id",
        after=TOKENS - 5,
        end=TOKENS,
        tenant_id=MOST,
        **VIEW,
    ),
]

GENERIC_PLAN = """
CREATE FUNCTION pg_temp.generic_plan(statement text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (GENERIC_PLAN, FORMAT JSON) ' || statement INTO plan;
    RETURN plan;
END $$
"""
"""Explains a statement that has parameters, without values for them. The protocol itself would require values."""


@pytest.fixture(scope="module")
def crowded_url(cluster: EmbeddedPostgres, template: str) -> Iterator[str]:
    """Creates a database with many rows, for the statements of this file."""
    asyncio.run(_execute(cluster, f"CREATE DATABASE crowded TEMPLATE {template} STRATEGY file_copy"))
    asyncio.run(populate(cluster.dsn("crowded"), sites=SITES, tenants=TENANTS, tokens=TOKENS))
    yield cluster.dsn("crowded")
    asyncio.run(_execute(cluster, "DROP DATABASE crowded WITH (FORCE)"))


@pytest.fixture
async def connection(crowded_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Connects as servers do."""
    opened = await asyncpg.connect(crowded_url, server_settings={"jit": "off", "timezone": "UTC"})
    try:
        await set_codecs(opened)
        await opened.execute(GENERIC_PLAN)
        yield opened
    finally:
        await opened.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_statement_uses_its_indexes(connection: asyncpg.Connection, case: Case) -> None:
    """No table is read as a whole, and no rows are sorted that are not on the page."""
    arguments = case.statement.arguments(case.values)
    async with undone(connection):
        explained = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {case.statement.sql}", *arguments)
    steps = list(steps_of(explained))
    indexes = indexes_of(steps)
    if await prefers_generic(connection, case.statement.sql, arguments):
        generic = await connection.fetchval("SELECT pg_temp.generic_plan($1)", case.statement.sql)
        indexes |= indexes_of(steps_of(generic))
    assert indexes
    assert indexes <= case.indexes  # which of them are used depends on the sample of ANALYZE too
    assert max(map(rows_of, steps)) <= case.rows, steps


FILTERED = [SiteQuery(region=""), SiteQuery(label_key=""), SiteQuery(name_contains=""), BY_NAME._replace(region="")]
COSTLY = listing(region="nowhere", label=[{"key": "rack", "value": "r1"}], name_pattern="%nowhere%")
"""Filters that match no site that ``most`` sees, so that all of its sites have to be read."""


@pytest.mark.parametrize("query", FILTERED)
async def test_one_callers_costly_filter_does_not_choose_the_plan_for_all(
    connection: asyncpg.Connection, query: SiteQuery
) -> None:
    """Filtered lists are planned for each caller's own values, whatever ran on the connection before."""
    for statement in (sites._page_statement(query, continued=False), sites._count_statement(query)):
        assert not await prefers_generic(connection, statement.sql, statement.arguments(COSTLY))


@asynccontextmanager
async def undone(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """Rolls back the changes of the block."""
    changes = connection.transaction()
    await changes.start()
    yield
    await changes.rollback()


async def prefers_generic(connection: asyncpg.Connection, sql: str, arguments: list[Any]) -> bool:
    """Returns whether PostgreSQL chooses the generic plan."""
    statement = await connection.prepare(sql)
    for _ in range(EXECUTIONS):
        async with undone(connection):
            await statement.fetch(*arguments)
    used = "SELECT generic_plans FROM pg_prepared_statements WHERE name = $1"
    return bool(await connection.fetchval(used, statement.get_name()))


def steps_of(explained: str) -> Iterator[dict[str, Any]]:
    """Returns the steps of an EXPLAIN result."""
    plans = [described["Plan"] for described in orjson.loads(explained)]
    while plans:
        plan = plans.pop()
        plans += plan.get("Plans", ())
        yield plan


def indexes_of(steps: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> set[str]:
    """Returns the indexes that a plan uses. A table read without an index gives, for example, ``all of sites``."""
    names = set()
    for step in steps:
        names |= {step["Index Name"]} if "Index Name" in step else set()
        names |= set(step.get("Conflict Arbiter Indexes", ()))
        names |= {f"all of {step['Relation Name']}"} if step["Node Type"] == "Seq Scan" else set()
    return names


def rows_of(step: dict[str, Any]) -> float:
    """Returns how many rows a step read, including those that it skipped."""
    skipped = sum(count for name, count in step.items() if name.startswith("Rows Removed by"))
    return float((step["Actual Rows"] + skipped) * step["Actual Loops"])
