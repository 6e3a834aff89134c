"""What all inputs share: one pydantic base for both doors, and the constrained types that fields are made of.

A constraint is declared once, in ``Field``. It validates both doors, stands in the OpenAPI document, and is spelt out
in the GraphQL description of the field.
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
        """Append each field's constraints to its description, where GraphQL and OpenAPI readers see them."""
        for field in cls.model_fields.values():
            words = _constraints(field)
            if words and field.description and not field.description.endswith(words):
                field.description = f"{field.description} {words}"

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Pydantic's, but it raises ApiError INVALID_ARGUMENT. Strawberry calls it too, so both doors word alike."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise ApiError(ErrorCode.INVALID_ARGUMENT, fields=_faults(error)) from None

    @classmethod
    def of_arguments(cls, **arguments: Any) -> Self:
        """The input of GraphQL arguments; one that is null or absent is not given. Raises ApiError INVALID_ARGUMENT
        with every bad one.
        """
        given = {
            name: value for name, value in arguments.items() if value is not None and value is not strawberry.UNSET
        }
        try:
            valid: Self = cls.__pydantic_validator__.validate_python(given)  # what model_validate comes to
        except ValidationError as error:
            raise ApiError(ErrorCode.INVALID_ARGUMENT, fields=_faults(error)) from None
        return valid

    @classmethod
    def of_json(cls, body: bytes) -> Self:
        """The input of an HTTP body. Raises ApiError INVALID_ARGUMENT with every bad member."""
        try:
            return cls.model_validate_json(body, by_alias=True, by_name=False)
        except ValidationError as error:
            raise ApiError(ErrorCode.INVALID_ARGUMENT, fields=_faults(error)) from None


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
    """The constraints inside of ``Maybe[...]`` and ``... | None``: of the value, not of a list's items."""
    if get_origin(annotation) is Annotated:
        inner, *given = get_args(annotation)
        found = [m for each in given for m in (each.metadata if isinstance(each, FieldInfo) else [each])]
        return [*found, *_metadata(inner)]
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
    """Every bad field of ``error``: its camelCase path, and how to mend it. Built without the input's values."""
    found = []
    for fault in islice(error.errors(include_input=False, include_url=False), MAX_FAULTS):
        *inside, last = fault["loc"] or ("",)
        unknown = fault["type"] == "extra_forbidden"
        parts = [to_camel(part) if isinstance(part, str) else str(part) for part in inside]
        parts.append(printable_name(str(last)) if unknown else to_camel(str(last)))
        path = ".".join(parts)
        words = _MESSAGES.get(fault["type"])
        if words is None:
            # Messages of our own validators (value_error, secret_*) are constants; others may quote the input.
            ours = fault["type"] == "value_error" or fault["type"].startswith("secret_")
            message = fault["msg"].removeprefix("Value error, ") if ours else "is not valid"
        else:
            message = words.format_map(fault.get("ctx", {}))
        found.append(FieldFault(path, message))
    return found


def value_of(given: strawberry.Some[T | None] | None) -> T | None:
    """What an optional field holds, where absent and null mean the same."""
    return None if given is None else given.value


class PageBounds(Input):
    """The arguments of a nested list, held to the bounds that root lists have."""

    first: First
    after: Cursor | None


def check_page(first: int | None, after: str | None) -> PageBounds:
    """The page that a nested list is asked for; absent and null mean the default. Raises INVALID_ARGUMENT."""
    given = {"first": DEFAULT_FIRST if first is None else first, "after": after or None}
    return PageBounds.model_validate(given, by_name=True)
