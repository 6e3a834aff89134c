"""Tests that the exported schema is up to date, describes every element, and has one operation for each field."""

import re
from pathlib import Path

import pytest
from graphql import (
    GraphQLEnumType,
    GraphQLInputObjectType,
    GraphQLInterfaceType,
    GraphQLObjectType,
    GraphQLSchema,
    build_schema,
    is_specified_directive,
    is_specified_scalar_type,
)

from models.ids import IDEMPOTENCY_KEY_PATTERN, SITE_ID_PATTERN, TENANT_ID_PATTERN, TOKEN_ID_PATTERN
from resolvers.registry import OPERATIONS
from resolvers.root import schema as strawberry_schema

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def sdl() -> GraphQLSchema:
    """The exported schema, parsed as clients parse it."""
    return build_schema((ROOT / "schema" / "schema.graphql").read_text())


def test_the_exported_schema_is_up_to_date() -> None:
    """The exported schema is the output of `bcd schema` for the current types."""
    assert (ROOT / "schema" / "schema.graphql").read_text() == strawberry_schema.as_str().rstrip() + "\n"


def test_every_element_of_the_schema_is_described(sdl: GraphQLSchema) -> None:
    """Types, fields, arguments, input fields, enum values and directives have a description."""
    bare: list[str] = []
    for name, type_ in sdl.type_map.items():
        if name.startswith("__") or is_specified_scalar_type(type_):
            continue
        if not type_.description:
            bare.append(name)
        if isinstance(type_, GraphQLEnumType):
            bare += [f"{name}.{key}" for key, value in type_.values.items() if not value.description]
        if isinstance(type_, GraphQLInputObjectType):
            bare += [f"{name}.{key}" for key, field in type_.fields.items() if not field.description]
        if isinstance(type_, GraphQLObjectType | GraphQLInterfaceType):
            for key, member in type_.fields.items():
                bare += [] if member.description else [f"{name}.{key}"]
                bare += [f"{name}.{key}({a})" for a, argument in member.args.items() if not argument.description]
    for directive in sdl.directives:
        if not is_specified_directive(directive):
            bare += [] if directive.description else [f"@{directive.name}"]
            bare += [f"@{directive.name}({a})" for a, arg in directive.args.items() if not arg.description]
    assert bare == []


NO_OPERATION = {"viewer", "node"}
"""Root fields without an HTTP method: they read the caller of the request, or any object."""

NO_FIELD: set[str] = set()
"""Operations without a root field."""


def test_every_field_has_its_operation_and_every_operation_its_field(sdl: GraphQLSchema) -> None:
    """A root field has the description of its operation, which is the docstring of the one function behind
    both doors.
    """
    assert sdl.query_type is not None
    assert sdl.mutation_type is not None
    fields = sdl.query_type.fields | sdl.mutation_type.fields
    operations = {operation.description: operation.name for operation in OPERATIONS}
    assert len(operations) == len(OPERATIONS)
    operation_of = {name: operations.get(field.description or "") for name, field in fields.items()}
    assert {name for name, operation in operation_of.items() if operation is None} == NO_OPERATION
    behind = [operation for operation in operation_of.values() if operation is not None]
    assert sorted(behind) == sorted(set(operations.values()) - NO_FIELD)


def test_constraints_stand_in_the_schema(sdl: GraphQLSchema) -> None:
    """The descriptions of input fields state their bounds and patterns, because clients look there."""
    token = sdl.type_map["CreateSiteTokenInput"]
    assert isinstance(token, GraphQLInputObjectType)
    for field, words in {
        "tenantId": TENANT_ID_PATTERN,
        "siteId": SITE_ID_PATTERN,
        "idempotencyKey": IDEMPOTENCY_KEY_PATTERN,
        "ttlSeconds": "60 to 86400",
        "maxUses": "1 to 16",
    }.items():
        assert words in (token.fields[field].description or ""), field
    revoke = sdl.type_map["RevokeSiteTokenInput"]
    assert isinstance(revoke, GraphQLInputObjectType)
    assert TOKEN_ID_PATTERN in (revoke.fields["tokenId"].description or "")
    value = sdl.type_map["SecretValue"]
    assert "65536 bytes" in (value.description or "")
    put = sdl.type_map["PutSecretInput"]
    assert isinstance(put, GraphQLInputObjectType)
    for field in ("expectedVersion", "idempotencyKey"):
        assert re.search(r"\((at most|\d+ to \d+)", put.fields[field].description or ""), field
