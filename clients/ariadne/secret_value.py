"""Serialises the scalar ``SecretValue`` for the client that ariadne-codegen generates."""

from pydantic import SecretStr


def reveal(value: SecretStr) -> str:
    """Returns the value itself, for the request that puts it."""
    return value.get_secret_value()
