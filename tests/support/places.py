"""Finds every text input of the API in the published documents of both doors."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from graphql import (
    GraphQLField,
    GraphQLInputObjectType,
    GraphQLList,
    GraphQLNonNull,
    GraphQLSchema,
    build_schema,
    get_named_type,
    is_leaf_type,
    is_required_input_field,
)

from doors import openapi
from resolvers.root import schema as strawberry_schema

SDL: GraphQLSchema = build_schema(strawberry_schema.as_str())
OPENAPI: dict[str, Any] = openapi.document()

GOOD: dict[str, Any] = {
    "tenantId": "acme",
    "siteId": "site_" + "0" * 26,
    "tokenId": "jt_" + "0" * 52,
    "agentId": "agt_" + "0" * 26,
    "id": "site_" + "0" * 26,
    "kind": "custom",
    "scope": "tenant",
    "reference": "secret://tenant/acme/n",
    "kty": "OKP",
    "crv": "Ed25519",
    "x": "CQ" + "A" * 41,
    "field": "name",
    "direction": "asc",
    "ttlSeconds": 600,
    "first": 1,
    "epoch": 1,
    "expectedVersion": 0,
    "expectedRevision": 1,
    "revokeAgents": False,
    "revoked": False,
}
"""A valid value for each member by its name. For other texts, any letter is valid."""


@dataclass(frozen=True)
class Place:
    """A member of an operation's input: the path or field of the operation, and the names and indexes of the member."""

    operation: str
    member: tuple[str | int, ...]
    body: Any
    """A request with a valid value for the member: an HTTP body, or the variables of ``document``."""
    document: str = ""

    @property
    def name(self) -> str:
        """The name of the member."""
        return str([part for part in self.member if isinstance(part, str)][-1])

    def holding(self, value: Any) -> Any:
        """Returns the request with ``value`` for the member."""
        body = copy.deepcopy(self.body)
        inside = body
        for part in self.member[:-1]:
            inside = inside[part]
        inside[self.member[-1]] = value
        return body


# --- HTTP --------------------------------------------------------------------------------------------------------


def http_places() -> Iterator[Place]:
    """Yields the text members of each HTTP method. ``operation`` is the path of the method."""
    for path, item in OPENAPI["paths"].items():
        for member, body in _texts(item["post"]["requestBody"]["content"]["application/json"]["schema"]):
            yield Place(path, member, body)


def http_body(path: str) -> Any:
    """Returns a valid body of a method."""
    return _example(OPENAPI["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"], "")


def _resolved(unresolved: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema behind references. Of alternatives it takes the one that is not null."""
    schema = unresolved
    while "$ref" in schema or "anyOf" in schema or "allOf" in schema:
        if "$ref" in schema:
            schema = OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        else:
            options = schema.get("anyOf") or schema["allOf"]
            schema = next(option for option in options if option.get("type") != "null")
    return schema


def _example(unresolved: dict[str, Any], name: str) -> Any:
    schema = _resolved(unresolved)
    match schema.get("type"):
        case "object":
            required = schema.get("required", [])
            return {key: _example(schema["properties"][key], key) for key in required}
        case "array":
            return [_example(schema["items"], name)]
        case "integer":
            return GOOD.get(name, 1)
        case "boolean":
            return GOOD.get(name, True)
    if "const" in schema or "enum" in schema:
        return schema.get("const") or (GOOD[name] if GOOD.get(name) in schema["enum"] else schema["enum"][0])
    return GOOD.get(name, "a")


def _texts(unresolved: dict[str, Any], name: str = "") -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yields the path of each text in a schema, and an example of the schema with a value for it."""
    schema = _resolved(unresolved)
    if schema.get("type") == "object":
        for key, member in schema["properties"].items():
            for path, example in _texts(member, key):
                yield (key, *path), _example(schema, name) | {key: example}
    elif schema.get("type") == "array":
        for path, example in _texts(schema["items"], name):
            yield (0, *path), [example]
    elif schema.get("type") not in {"integer", "boolean", "null"}:
        yield (), _example(schema, name)


# --- GraphQL -----------------------------------------------------------------------------------------------------


def graphql_places() -> Iterator[Place]:
    """Yields the text arguments of each root field. ``operation`` is its name, and the values are variables."""
    for root, keyword in ((SDL.query_type, "query"), (SDL.mutation_type, "mutation")):
        assert root is not None
        for name, field in root.fields.items():
            document = _document(keyword, name, field)
            required = {
                argument: _graphql_example(definition.type, argument)
                for argument, definition in field.args.items()
                if isinstance(definition.type, GraphQLNonNull)
            }
            for argument, definition in field.args.items():
                for path, example in _graphql_texts(definition.type, argument):
                    yield Place(name, (argument, *path), required | {argument: example}, document)


def _document(keyword: str, name: str, field: GraphQLField) -> str:
    variables = ", ".join(f"${argument}: {definition.type}" for argument, definition in field.args.items())
    arguments = ", ".join(f"{argument}: ${argument}" for argument in field.args)
    selection = "" if is_leaf_type(get_named_type(field.type)) else " { __typename }"
    return f"{keyword} ({variables}) {{ {name}({arguments}){selection} }}" if variables else f"{{ {name}{selection} }}"


def _graphql_example(type_: Any, name: str) -> Any:
    if isinstance(type_, GraphQLNonNull):
        return _graphql_example(type_.of_type, name)
    if isinstance(type_, GraphQLList):
        return [_graphql_example(type_.of_type, name)]
    if isinstance(type_, GraphQLInputObjectType):
        return {
            key: _graphql_example(field.type, key)
            for key, field in type_.fields.items()
            if is_required_input_field(field)
        }
    if hasattr(type_, "values"):
        good = str(GOOD.get(name)).upper()
        return good if good in type_.values else next(iter(type_.values))
    return GOOD.get(name, {"Int": 1, "Boolean": True, "DateTime": "2026-01-31T12:00:00Z"}.get(type_.name, "a"))


def _graphql_texts(type_: Any, name: str) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(type_, GraphQLNonNull):
        yield from _graphql_texts(type_.of_type, name)
    elif isinstance(type_, GraphQLList):
        for path, example in _graphql_texts(type_.of_type, name):
            yield (0, *path), [example]
    elif isinstance(type_, GraphQLInputObjectType):
        for key, field in type_.fields.items():
            for path, example in _graphql_texts(field.type, key):
                yield (key, *path), _graphql_example(type_, name) | {key: example}
    elif type_.name not in {"Int", "Boolean", "Float"}:
        yield (), _graphql_example(type_, name)
