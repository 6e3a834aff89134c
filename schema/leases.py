"""Boot leases: the inputs of agents. The types are in :mod:`schema.nodes`."""

from typing import Annotated

from pydantic import Field

from schema.agents import Epoch
from schema.inputs import Input, Name


class AcquireInput(Input):
    """Nothing: the credential says who asks, and for which site."""


class RenewInput(Input):
    """Renew the lease."""

    epoch: Epoch = Field(description="The epoch it is held under.")


class ReleaseInput(Input):
    """Give the lease back."""

    epoch: Epoch = Field(description="The epoch it is held under.")


class RecordBootInput(Input):
    """Write an entry of the site's boot log."""

    epoch: Epoch = Field(description="The epoch that the lease is held under.")
    machine: Name = Field(description="The machine that is booted.")
    note: Annotated[str, Field(max_length=1024, pattern=r"^[^\x00]*$")] | None = Field(
        None, description="Whatever else is worth keeping; nothing secret."
    )
