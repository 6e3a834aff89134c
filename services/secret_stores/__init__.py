"""Secret stores: where the values of secrets are kept. A new kind is one file here and one line in ``SECRET_STORES``."""

from collections.abc import Callable
from typing import Protocol

from database.pool import Transaction
from models.sensitive import SecretValue
from services.secret_stores.local import LocalStore
from settings import Settings


class SecretStore(Protocol):
    """Writes values that the API process itself cannot read."""

    async def put(self, tx: Transaction, reference: str, version: int, value: SecretValue) -> None:
        """Stores ``value`` as ``version`` of ``reference``, in the transaction that gives out the version."""


SECRET_STORES: dict[str, Callable[[Settings], SecretStore]] = {"local": LocalStore.open}
"""Every kind of store, by name. Each is opened by the settings, and raises KeyFilesError if its key files are missing."""
