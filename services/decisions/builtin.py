"""The built-in decision point, which decides by the role bindings in PostgreSQL."""

from database.pool import Database
from models.access import identities
from models.access.iam import Action, Actor, Resource, allowed_actions


class BindingDecisionPoint:
    """Decides by the role bindings that PostgreSQL holds now, and not by those in the keyring's cache."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def decide(self, actor: Actor, action: Action, resource: Resource) -> bool:
        """Returns whether a binding of the actor on ``resource`` or on a resource above it allows ``action``."""
        bindings = await identities.bindings_of(self._database, actor.tenant_id, actor.identity_id)
        return action in allowed_actions(bindings, resource)
