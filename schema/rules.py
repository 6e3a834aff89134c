"""The rules of inputs beyond their GraphQL types. The engine words the faults of inputs by them."""

from collections.abc import Iterable
from typing import Any

from graphql import GraphQLInputObjectType
from pydantic import BaseModel

from engine.inputs import InputRules
from models.errors import ApiError
from schema.scalars import DATETIME_EXPECTATION, SECRET_EXPECTATION


def _check(type_: GraphQLInputObjectType, values: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Lets the pydantic model of the input check bounds and patterns. Returns the path and message of each fault."""
    model = getattr(type_.extensions.get("strawberry-definition"), "origin", None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return ()
    try:
        model.model_validate(values, by_alias=True, by_name=False)
    except ApiError as error:
        return error.fields
    return ()


INPUT_RULES = InputRules(
    expectations={"DateTime": DATETIME_EXPECTATION, "SecretValue": SECRET_EXPECTATION},
    secret_scalars=frozenset({"SecretValue"}),
    check=_check,
)
