"""``bcd iam``: commands that make tenants, API keys and logins, directly in the database."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cli.database import as_owner, owner_url
from cli.failure import fail
from settings import Settings

if TYPE_CHECKING:
    from database.pool import Database, Transaction
    from models.access.iam import Resource, Role

T = TypeVar("T")

app = typer.Typer(help="Make tenants, API keys and logins, directly in the database.", no_args_is_help=True)

TenantArgument = Annotated[str, typer.Argument(help="The tenant of the identity.")]
NameArgument = Annotated[
    str, typer.Argument(help="The identity's name; it is made if the tenant has none of that name.")
]
SubjectArgument = Annotated[str, typer.Argument(help="The subject (`sub`) of its logins at BC_OIDC_ISSUER.")]
RoleOption = Annotated[str, typer.Option(help="viewer, operator or admin.")]
ResourceOption = Annotated[
    str | None, typer.Option(help="compute-fleet/global, compute-tenant/ID or compute-site/ID; else the tenant.")
]


@app.command("tenant-add")
def tenant_add(
    tenant_id: Annotated[str, typer.Argument(help="The id: letters, digits and ._:-, at most 128.")],
    name: Annotated[str, typer.Argument(help="The name, for people.")],
) -> None:
    """Make a tenant."""
    import re

    from models.access.tenants import add_tenant
    from models.ids import TENANT_ID_PATTERN

    if not re.fullmatch(TENANT_ID_PATTERN.strip("^$"), tenant_id):
        fail(f"a tenant id must match {TENANT_ID_PATTERN}")
    if not _transact(Settings.read(), lambda tx: add_tenant(tx, tenant_id, name)):
        fail(f"there is a tenant {tenant_id} already")
    print(f"Made tenant {tenant_id}.")


@app.command("key-add")
def key_add(
    tenant_id: TenantArgument,
    name: NameArgument,
    role: RoleOption = "viewer",
    resource: ResourceOption = None,
) -> None:
    """Make an API key, bound to a role on a resource, and print it, once."""
    from services import bootstrap

    bound_resource, bound_role = _binding(tenant_id, role, resource)
    try:
        key = _transact(
            Settings.read(), lambda tx: bootstrap.add_caller(tx, tenant_id, name, bound_resource, bound_role)
        )
    except bootstrap.NoSuchTenantError:
        fail(f"there is no tenant {tenant_id}")
    print(key.reveal())


@app.command("login-add")
def login_add(
    tenant_id: TenantArgument,
    name: NameArgument,
    sub: SubjectArgument,
    role: RoleOption = "viewer",
    resource: ResourceOption = None,
) -> None:
    """Let a person or service sign in by OIDC as an identity, bound to a role on a resource."""
    from services import bootstrap

    settings = Settings.read()
    bound_resource, bound_role = _binding(tenant_id, role, resource)
    subject = _subject(settings, sub)
    try:
        _transact(settings, lambda tx: bootstrap.add_login(tx, tenant_id, name, subject, bound_resource, bound_role))
    except bootstrap.NoSuchTenantError:
        fail(f"there is no tenant {tenant_id}")
    except bootstrap.SubjectTakenError:
        fail("the identity has another subject already, or the subject another identity")
    print(f"{subject} signs in as {name}.")


@app.command("login-remove")
def login_remove(sub: SubjectArgument) -> None:
    """Let a subject sign in no more; every server refuses its tokens at once. Its identity and API keys stay."""
    from models.access import identities

    settings = Settings.read()
    subject = _subject(settings, sub)
    if not _transact(settings, lambda tx: identities.take_subject(tx, subject)):
        fail("no identity has that subject")
    print("Removed.")


@app.command("key-revoke")
def key_revoke(
    key_id: Annotated[str, typer.Argument(help="The part of the key before the dot: bck_...")],
) -> None:
    """Revoke an API key; every server refuses it at once."""
    from models.access import identities

    if not _transact(Settings.read(), lambda tx: identities.revoke_key(tx, key_id)):
        fail("there is no such key, or it was revoked already")
    print("Revoked.")


def _transact(settings: Settings, work: "Callable[[Transaction], Awaitable[T]]") -> T:
    """Returns the result of ``work`` in a transaction of the database, opened as its owner."""

    async def run(database: "Database") -> T:
        async with database.transaction() as tx:
            return await work(tx)

    return asyncio.run(as_owner(owner_url(settings), run))


def _binding(tenant_id: str, role: str, resource: str | None) -> "tuple[Resource, Role]":
    """Returns the resource, which is the tenant if None is given, and the role. Ends the command if one is invalid."""
    from models.access.iam import Role, parse_resource

    try:
        return parse_resource(resource or f"compute-tenant/{tenant_id}", tenant_id), Role(role)
    except ValueError:
        fail("the role or the resource is not one: see --help")


def _subject(settings: Settings, sub: str) -> str:
    """Returns the subject as the identities store it: with its issuer. Ends the command if no issuer is set."""
    from services.identity.oidc import subject_of

    if settings.oidc_issuer is None:
        fail("BC_OIDC_ISSUER is required: a subject is one of an issuer")
    return subject_of(settings.oidc_issuer, sub)
