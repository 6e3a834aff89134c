"""The base class of all inputs, which serves both doors, and the constrained types of their fields.

A constraint is declared once, in ``Field``. It validates the input of both doors, is part of the OpenAPI document, and
is appended in words to the GraphQL description of the field.
"""

from itertools import islice
from types import UnionType
from typing import Annotated, Any, Self, TypeVar, Union, get_args, get_origin

import strawberry
from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from engine.errors import MAX_FAULTS, printable_name
from models.errors import ApiError, ErrorCode, FieldFault
from models.ids import IDEMPOTENCY_KEY_PATTERN, SITE_ID_PATTERN, TENANT_ID_PATTERN, TOKEN_ID_PATTERN

T = TypeVar("T")

MAX_FIRST = 200
DEFAULT_FIRST = 50


class Input(BaseModel):
    """Base of every input: strict types, no unknown member, camelCase outside, and no value in any error."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        hide_input_in_errors=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Appends each field's constraints to its description, where readers of GraphQL and OpenAPI see them."""
        for field in cls.model_fields.values():
            words = _constraints(field)
            if words and field.description and not field.description.endswith(words):
                field.description = f"{field.description} {words}"

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Does the same as pydantic's method, but raises ApiError INVALID_ARGUMENT.

        Strawberry calls it too, so both doors word faults alike.
        """
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise _refusal(error) from None

    @classmethod
    def of_arguments(cls, **arguments: Any) -> Self:
        """Returns the input made of GraphQL arguments. Arguments that are null or absent are left out.

        Raises ApiError INVALID_ARGUMENT that names every bad argument.
        """
        values = {
            name: value for name, value in arguments.items() if value is not None and value is not strawberry.UNSET
        }
        try:
            # Most GraphQL queries run this, so it calls the validator itself, as pydantic's model_validate does too.
            valid: Self = cls.__pydantic_validator__.validate_python(values)
        except ValidationError as error:
            raise _refusal(error) from None
        return valid

    @classmethod
    def of_json(cls, body: bytes) -> Self:
        """Returns the input in an HTTP body. Raises ApiError INVALID_ARGUMENT that names every bad member."""
        try:
            return cls.model_validate_json(body, by_alias=True, by_name=False)
        except ValidationError as error:
            raise _refusal(error) from None


def _refusal(error: ValidationError) -> ApiError:
    """Returns the INVALID_ARGUMENT that names each bad field of ``error``.

    Raise it ``from None``, because pydantic's error holds the input's values. Each caller has an ``except`` clause of
    its own: a shared function or context manager around the validators makes ``of_arguments`` 7 to 15 % slower.
    """
    return ApiError(ErrorCode.INVALID_ARGUMENT, fields=_faults(error))


def _constraints(field: FieldInfo) -> str:
    metadata = [*field.metadata, *_metadata(field.annotation)]
    low = next((m.ge for m in metadata if isinstance(m, Ge)), None)
    high = next((m.le for m in metadata if isinstance(m, Le)), None)
    words = []
    if low is not None and high is not None:
        words.append(f"{low} to {high}")
    shortest = next((m.min_length for m in metadata if isinstance(m, MinLen)), None)
    longest = next((m.max_length for m in metadata if isinstance(m, MaxLen)), None)
    if longest is not None:
        words.append(f"{shortest} to {longest} long" if shortest else f"at most {longest} long")
    pattern = next((m.pattern for m in metadata if getattr(m, "pattern", None)), None)
    if pattern is not None:
        words.append(f"matches `{pattern}`")
    return f"({'; '.join(words)})" if words else ""


def _metadata(annotation: Any) -> list[Any]:
    """Returns the constraints inside of ``Maybe[...]`` and ``... | None``: of the value, and not of a list's items."""
    if get_origin(annotation) is Annotated:
        inner, *annotations = get_args(annotation)
        metadata = [m for each in annotations for m in (each.metadata if isinstance(each, FieldInfo) else [each])]
        return [*metadata, *_metadata(inner)]
    if get_origin(annotation) in {strawberry.Maybe, Union, UnionType}:
        return [m for inner in get_args(annotation) for m in _metadata(inner)]
    return []


TenantId = Annotated[strawberry.ID, Field(max_length=128, pattern=TENANT_ID_PATTERN)]
SiteId = Annotated[strawberry.ID, Field(max_length=64, pattern=SITE_ID_PATTERN)]
TokenId = Annotated[strawberry.ID, Field(max_length=64, pattern=TOKEN_ID_PATTERN)]
IdempotencyKey = Annotated[str, Field(max_length=128, pattern=IDEMPOTENCY_KEY_PATTERN)]
First = Annotated[int, Field(ge=1, le=MAX_FIRST)]
Cursor = Annotated[str, Field(min_length=1, max_length=1024)]

_NO_CONTROLS = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=_NO_CONTROLS)]
Region = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
LabelKey = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$")]
LabelValue = Annotated[str, Field(max_length=256, pattern=_NO_CONTROLS)]

_MESSAGES = {
    "missing": "is required",
    "extra_forbidden": "unknown field",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "enum": "must be one of {expected}",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must be at most {max_length} characters long",
    "string_too_short": "must be at least {min_length} characters long",
    "too_long": "must have at most {max_length} items",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "json_invalid": "must be valid JSON",
}


def _faults(error: ValidationError) -> list[FieldFault]:
    """Returns each bad field of ``error``, with its path in camelCase and how to mend it, and without any value."""
    faults = []
    for fault in islice(error.errors(include_input=False, include_url=False), MAX_FAULTS):
        *parents, last = fault["loc"] or ("",)
        unknown = fault["type"] == "extra_forbidden"
        parts = [to_camel(part) if isinstance(part, str) else str(part) for part in parents]
        parts.append(printable_name(str(last)) if unknown else to_camel(str(last)))
        path = ".".join(parts)
        words = _MESSAGES.get(fault["type"])
        if words is None:
            # Messages of this project's validators (value_error, secret_*) are constants. Others may quote the input.
            constant = fault["type"] == "value_error" or fault["type"].startswith("secret_")
            message = fault["msg"].removeprefix("Value error, ") if constant else "is not valid"
        else:
            message = words.format_map(fault.get("ctx", {}))
        faults.append(FieldFault(path, message))
    return faults


def value_of(field: strawberry.Some[T | None] | None) -> T | None:
    """Returns the value of an optional field for which absent and null mean the same."""
    return None if field is None else field.value


class PageBounds(Input):
    """The arguments of a nested list, held to the bounds that root lists have."""

    first: First
    after: Cursor | None


def check_page(first: int | None, after: str | None) -> PageBounds:
    """Returns the checked arguments of a nested list. Absent and null mean the default. Raises INVALID_ARGUMENT."""
    arguments = {"first": DEFAULT_FIRST if first is None else first, "after": after or None}
    return PageBounds.model_validate(arguments, by_name=True)
