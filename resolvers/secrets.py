"""The operations on secrets: put a value, and list the metadata. None of them reads a value."""

from models.access.iam import FLEET, ROOT_TENANT_ID, Action, Resource, tenant_resource
from models.errors import invalid
from models.journal import journal
from models.journal.journal import Event
from models.pages import Page
from models.secrets import secrets
from models.secrets.references import SecretScope
from models.secrets.secrets import PutRow, SecretRow
from resolvers.op import Op
from resolvers.registry import operation
from schema.inputs import value_of
from schema.secrets import ListSecretsInput, PutSecretInput
from services.secret_stores import SecretStore


@operation("secrets.list", SecretRow, paged=True)
async def list_secrets(op: Op, params: ListSecretsInput) -> Page[SecretRow]:
    """Lists the secrets of a tenant, or of the fleet, by name: references, versions and times, never a value."""
    tenant_id = params.tenant_id or op.actor.tenant_id
    await op.view(tenant_id)
    op.require(Action.SECRETS_READ, _resource(tenant_id, params.scope), tenant_id)
    owner = ROOT_TENANT_ID if params.scope is SecretScope.FLEET else tenant_id
    return await secrets.page(op.database, owner, params.scope, first=params.first, after=params.after)


@operation("secrets.put", PutRow)
async def put_secret(op: Op, params: PutSecretInput, store: SecretStore) -> PutRow:
    """Hands a value to the secret store and returns its `secret://` reference and version. No method reads it back.

    Versions are 1, 2, 3, ... without gaps. With an idempotency key, a retry returns the first put's version and
    stores nothing; the same key for another secret is CONFLICT. Publishes security.secret.put.
    """
    tenant_id = params.tenant_id
    await op.view(tenant_id)
    await op.authorize(Action.SECRETS_MANAGE, _resource(tenant_id, params.scope), tenant_id)
    if params.scope is SecretScope.FLEET and tenant_id != ROOT_TENANT_ID:
        raise invalid(("scope", "only the root tenant has fleet secrets"))
    key, caller = value_of(params.idempotency_key), op.actor.identity_id
    async with op.database.transaction() as tx:
        if key is not None:
            await secrets.lock_retries(tx, tenant_id, caller, key)
            retried = await secrets.find_retry(tx, tenant_id, caller, key, scope=params.scope, name=params.name)
            if retried is not None:
                await journal.audit(tx, op.take_audit())
                return retried
        row = await secrets.next_version(
            tx,
            tenant_id,
            scope=params.scope,
            name=params.name,
            expected_version=value_of(params.expected_version),
            created_by=caller,
            idempotency_key=key,
        )
        await store.put(tx, row.reference, row.version, params.value)
        await journal.record(tx, op.take_audit(), _event(tenant_id, row))
    return row


def _resource(tenant_id: str, scope: SecretScope) -> Resource:
    return FLEET if scope is SecretScope.FLEET else tenant_resource(tenant_id)


def _event(tenant_id: str, row: PutRow) -> Event:
    data = {"reference": row.reference, "name": row.name, "version": row.version}
    return Event("security.secret.put", f"compute-tenant/{tenant_id}", tenant_id, None, data)
