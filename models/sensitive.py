"""Types that hold a secret: none shows it in ``repr``, ``str``, a format, a pickle, or a comparison.

``reveal`` is the one way out. Its callers are few and each says why: the hasher, the sealer of the store, and the
encoders of the one answer that shows a new token.
"""

from typing import Any, Generic, NoReturn, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

T = TypeVar("T", str, bytes)

MAX_SECRET_VALUE_BYTES = 65_536


class Sensitive(Generic[T]):
    """Holds ``T`` out of sight. Not comparable: comparing secrets with ``==`` leaks by timing."""

    __slots__ = ("_hidden",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, hidden: T) -> None:
        self._hidden: T = hidden

    def reveal(self) -> T:
        """The secret itself. The caller lets it reach neither a log, an error, nor another table."""
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
    """A site token's or API key's full text, as its owner holds it."""


class TokenSecret(Sensitive[str]):
    """The secret half of a site token, before the token is made."""


class HashedToken(Sensitive[str]):
    """What is stored of a site token's secret: the argon2id encoding. Not shown either: it invites guessing."""


class SecretValue(Sensitive[bytes]):
    """The value of ``putSecret``: its exact bytes, at most 64 KiB. As an input: a JSON string, its UTF-8 the bytes."""

    @classmethod
    def of(cls, value: object) -> "SecretValue":
        """``value`` wrapped. Raises PydanticCustomError, without the value, unless it is text of 1 byte to 64 KiB."""
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
