"""Puts refused enrolments on the audit trail of the token's owner, in batches.

The request does not write the row itself. The refusal of a known token would then take one transaction longer than the
refusal of an unknown one, and the time would tell which ids exist.
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
    """Keeps audit rows until ``flush`` writes them. If the process is killed, these rows are lost.

    Metrics count a refusal at once, and do not depend on these rows.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[tuple[Audit, dict[str, Any]]] = deque()

    def add(self, entry: Audit, data: dict[str, Any]) -> None:
        """Adds a row for the next ``flush``. Runs no statement."""
        if len(self._waiting) >= MAX_WAITING:
            LOST.inc()
            return
        self._waiting.append((entry, data))

    async def flush(self) -> None:
        """Writes the waiting rows in one transaction. If that fails, they stay for the next call."""
        batch = list(self._waiting)
        if not batch:
            return
        async with self._database.transaction() as tx:
            for entry, data in batch:
                await journal.audit(tx, entry, data)
        for _ in batch:
            self._waiting.popleft()
