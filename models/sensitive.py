"""Types that hold a secret and do not show it in ``repr``, ``str``, a format, a pickle or a comparison.

Only ``reveal`` returns the secret. It has few callers, and each one says why it needs the secret: the hasher, the
sealer of the store, and the encoders of the single response that shows a new token.
"""

from typing import Any, Generic, NoReturn, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

T = TypeVar("T", str, bytes)

MAX_SECRET_VALUE_BYTES = 65_536


class Sensitive(Generic[T]):
    """Hides a secret ``T``. It cannot be compared, because a comparison with ``==`` leaks secrets by its timing."""

    __slots__ = ("_hidden",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, hidden: T) -> None:
        self._hidden: T = hidden

    def reveal(self) -> T:
        """Returns the secret. The caller must not write it to a log, an error or another table."""
        return self._hidden

    def __repr__(self) -> str:
        return f"{type(self).__name__}(***)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be compared")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled")


class BearerToken(Sensitive[str]):
    """The full text of a site token or an API key, as its owner holds it."""


class TokenSecret(Sensitive[str]):
    """The secret half of a site token, before the token is created."""


class HashedToken(Sensitive[str]):
    """The stored form of a site token's secret: the argon2id encoding. Hidden too, because it invites guessing."""


class SecretValue(Sensitive[bytes]):
    """The value of ``putSecret``: 1 byte to 64 KiB. The input is a JSON string, and its UTF-8 encoding is the value."""

    @classmethod
    def of(cls, value: object) -> "SecretValue":
        """Wraps ``value``. Raises PydanticCustomError, without the value, unless it is text of 1 byte to 64 KiB."""
        if isinstance(value, SecretValue):
            return value
        if not isinstance(value, str):
            raise PydanticCustomError("secret_type", "must be a string")
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            raise PydanticCustomError("secret_unicode", "must be valid Unicode text") from None
        if not 1 <= len(encoded) <= MAX_SECRET_VALUE_BYTES:
            raise PydanticCustomError("secret_length", "must be 1 to 65536 bytes of UTF-8")
        return cls(encoded)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.of)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_SECRET_VALUE_BYTES,
            "writeOnly": True,
            "format": "password",
        }
