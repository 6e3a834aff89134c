"""Identity: finds out who calls, by API keys, logins of trusted issuers, and agents' JWTs.

A new kind of issuer is one file in this package and one line in ``ISSUERS``.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from models.sensitive import BearerToken
from services.identity import oidc
from services.identity.agent_keyring import AgentKeyring
from services.identity.keyring import Keyring
from services.identity.oidc import Login
from settings import Settings


class Issuer(Protocol):
    """An issuer whose logins the server trusts."""

    @property
    def refresh_seconds(self) -> float:
        """How often the server calls ``refresh``."""

    async def verify(self, credential: BearerToken) -> Login | None:
        """Returns the login that ``credential`` proves, or None for any other credential.

        Raises ApiError UNAVAILABLE if the login cannot be checked because the issuer is out of reach.
        """

    async def refresh(self) -> None:
        """Reads the issuer's keys again."""

    async def close(self) -> None:
        """Ends the requests to the issuer that still run."""


ISSUERS: dict[str, Callable[[Settings], Issuer | None]] = {"oidc": oidc.Issuer.open}
"""Every kind of issuer, by name. Each function opens the issuer that the settings name, or returns None without one."""


class Callers(NamedTuple):
    """The parts that find out who calls."""

    keyring: Keyring
    agents: AgentKeyring
    issuers: tuple[Issuer, ...]
