"""Makes the OpenAPI 3.1 document of the HTTP door from the registry: inputs, records, and the one error document."""

from functools import lru_cache
from typing import Any, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from models.errors import HTTP_STATUS, ErrorCode
from resolvers.agent_operations import AGENT_OPERATIONS
from resolvers.op import Op
from resolvers.registry import OPERATIONS, Operation
from services.requests import AnonymousRequest

_REF = "#/components/schemas/{model}"
_CONFIG = ConfigDict(alias_generator=to_camel)


class FieldFault(BaseModel):
    """A bad input field."""

    path: str
    message: str


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    code: ErrorCode
    detail: str
    model_config = _CONFIG
    request_id: str
    fields: list[FieldFault] = Field(default=[], description="The bad fields of INVALID_ARGUMENT.")


def _record_model(operation: Operation[Any, Any]) -> type[BaseModel]:
    """Returns the model of an operation's answer: the row type's fields, and the bearer if the operation mints one."""
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in get_type_hints(operation.record).items()}
    name = operation.record.__name__.removesuffix("Row")
    if operation.name == "siteTokens.create":
        fields["token"] = (str | None, None)
        name = "MintedSiteToken"
    record: Any = create_model(name, __config__=_CONFIG, **fields)
    if operation.paged:
        items: Any = list[record]
        record = create_model(f"{name}Page", __config__=_CONFIG, items=(items, ...), next_cursor=(str | None, ...))
    return cast("type[BaseModel]", record)


def _security(operation: Operation[Any, Any]) -> dict[str, Any]:
    """Returns the ``security`` member of an operation whose credential is not an API key."""
    if operation.caller is Op:
        return {}
    return {"security": [] if operation.caller is AnonymousRequest else [{"agent": []}]}


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """Returns the document. It is the same for every caller, and changes only with the code."""
    operations: list[Operation[Any, Any]] = [*OPERATIONS, *AGENT_OPERATIONS]
    answers = {operation.name: _record_model(operation) for operation in operations}
    models: list[tuple[type[BaseModel], Any]] = [(Problem, "serialization")]
    for operation in operations:
        models += [(operation.input, "validation"), (answers[operation.name], "serialization")]
    references, schemas = models_json_schema(list(dict.fromkeys(models)), ref_template=_REF)
    problem = {"application/problem+json": {"schema": references[Problem, "serialization"]}}
    failures = {
        str(status): {
            "description": ", ".join(code.value for code in ErrorCode if HTTP_STATUS[code] == status),
            "content": problem,
        }
        for status in sorted({*HTTP_STATUS.values()})
    } | {
        "413": {"description": "RESOURCE_EXHAUSTED: the body is too large", "content": problem},
        "415": {"description": "INVALID_ARGUMENT: not application/json", "content": problem},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Better Compute control API",
            "version": "0.2",
            "description": "The HTTP methods beside the GraphQL API at /graphql. Each does what its field does.",
        },
        "security": [{"bearer": []}],
        "paths": {
            operation.path: {
                "post": {
                    "operationId": operation.name,
                    "tags": [operation.resource],
                    "summary": operation.description.split("\n\n")[0].replace("\n", " "),
                    "description": operation.description,
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": references[operation.input, "validation"]}},
                    },
                    "responses": {
                        "200": {
                            "description": "Done.",
                            "content": {
                                "application/json": {"schema": references[answers[operation.name], "serialization"]}
                            },
                        },
                        **failures,
                    },
                    **_security(operation),
                }
            }
            for operation in operations
        },
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key `bck_<id>.<secret>`.",
                },
                "agent": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "A JWT by the agent's key, good for one request: EdDSA, header `kid` the agent's id "
                    "and `typ` `bc-agent+jwt`; claims `iss` and `sub` the agent's id, `aud` `better-compute`, `iat`, "
                    "`exp` at most 60 s later, and a new `jti`.",
                },
            },
        },
    }


async def serve(_request: Request) -> Response:
    """Serves the document at ``/api/openapi.json``."""
    return JSONResponse(document())
