"""How the generated client sends the scalar ``SecretValue``."""

from pydantic import SecretStr


def reveal(value: SecretStr) -> str:
    """The value itself, for the request that puts it."""
    return value.get_secret_value()
