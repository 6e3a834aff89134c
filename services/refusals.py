"""Refused enrolments on their way to the audit trail of the token's owner.

They are written in batches a moment later, not by the request: a refusal of a known token that took a transaction
longer than one of an unknown token would tell which ids exist.
"""

from collections import deque
from typing import Any

from prometheus_client import Counter

from database.pool import Database
from models.journal import journal
from models.journal.journal import Audit

LOST = Counter("bc_refusals_lost_total", "Refused enrolments that were not put on the audit trail: too many waited.")

MAX_WAITING = 10_000


class Refusals:
    """The audit rows that wait. What waits is lost if the process is killed; what counts refusals is not."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[tuple[Audit, dict[str, Any]]] = deque()

    def add(self, entry: Audit, data: dict[str, Any]) -> None:
        """Put a row on its way. No statement runs."""
        if len(self._waiting) >= MAX_WAITING:
            LOST.inc()
            return
        self._waiting.append((entry, data))

    async def flush(self) -> None:
        """Write what waits, in one transaction; what could not be written waits on."""
        batch = list(self._waiting)
        if not batch:
            return
        async with self._database.transaction() as tx:
            for entry, data in batch:
                await journal.audit(tx, entry, data)
        for _ in batch:
            self._waiting.popleft()
