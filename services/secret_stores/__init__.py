"""Secret stores: they keep the values of secrets.

A new kind of store is one file in this package and one line in ``SECRET_STORES``.
"""

from collections.abc import Callable
from typing import Protocol

from database.pool import Transaction
from models.sensitive import SecretValue
from services.secret_stores.local import LocalStore
from settings import Settings


class SecretStore(Protocol):
    """Writes values that the API process itself cannot read."""

    async def put(self, tx: Transaction, reference: str, version: int, value: SecretValue) -> None:
        """Stores ``value`` as ``version`` of ``reference``, in the transaction that assigns the version."""


SECRET_STORES: dict[str, Callable[[Settings], SecretStore]] = {"local": LocalStore.open}
"""Every kind of store, by name. Each function opens the store. It raises KeyFilesError if key files are missing."""
