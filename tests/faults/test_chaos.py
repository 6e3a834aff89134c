"""A short chaos test of boot leases: agents contend for them while servers and the database are killed."""

from pathlib import Path

import pytest

from tests.support.chaos import check, storm

pytestmark = [pytest.mark.anyio, pytest.mark.alone]


async def test_killed_servers_and_databases_never_make_two_holders(tmp_path: Path) -> None:
    """12 agents on 4 sites, with server and database killed at random for 10 s.

    `tests.support.chaos` runs the same at full size.
    """
    check(await storm(agents=12, sites=4, seconds=10, seed=7, folder=tmp_path))
