"""Decision points: they decide whether a caller may make a change.

A new kind of decision point is one file in this package and one line in ``DECISION_POINTS``.
"""

from collections.abc import Callable
from typing import Protocol

from database.pool import Database
from models.access.iam import Action, Actor, Resource
from services.decisions.builtin import BindingDecisionPoint


class DecisionPoint(Protocol):
    """Decides about mutations. It may be a remote service, so it is never awaited inside a transaction."""

    async def decide(self, actor: Actor, action: Action, resource: Resource) -> bool:
        """Returns whether ``actor`` may do ``action`` on ``resource``. Raises UNAVAILABLE if it cannot decide."""


DECISION_POINTS: dict[str, Callable[[Database], DecisionPoint]] = {"builtin": BindingDecisionPoint}
"""Every kind of decision point, by name."""
