"""Renews boot leases. Renewals that arrive in the same event loop iteration share one statement."""

from database.batch_loader import BatchLoader
from database.pool import Database
from models.fleet.agent_jwts import AgentJwt
from models.fleet.leases import LeaseAnswer
from models.fleet.renewals import Renewal, renew_alone, renew_shared


class Renewals:
    """Renews boot leases in batches."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._batches: BatchLoader[None, Renewal, LeaseAnswer | None] = BatchLoader(
            lambda _group, renewals: renew_shared(database, renewals)
        )

    async def renew(self, jwt: AgentJwt, epoch: int) -> tuple[bool, LeaseAnswer | None]:
        """Takes the JWT, and lets the lease last its TTL from now on. Writes no event.

        Returns whether the JWT was taken, and the renewed lease. The lease is None unless the agent holds it under
        ``epoch`` and it is not over.
        """
        renewal = Renewal(jwt, epoch)
        answers = await self._batches.batch(None, renewal).result()
        if renewal not in answers:
            return False, None
        # Not renewed: the row may have been locked, so this renewal waits for the lock by itself.
        return True, answers[renewal] or await renew_alone(self._database, jwt.agent, epoch)
