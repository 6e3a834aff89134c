"""Tests the types that are stored and read differently from asyncpg's own codecs."""

from datetime import UTC, datetime, timedelta, timezone

import asyncpg
import pytest

from database.pool import Database

pytestmark = pytest.mark.anyio

TIMES = [
    datetime(2026, 12, 2, 15, 4, 5, 123456, tzinfo=UTC),
    datetime(2026, 12, 2, 15, 4, 5, tzinfo=UTC),
    datetime(2000, 1, 1, tzinfo=UTC),
    datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30))),
]


async def test_times_keep_their_microseconds(database_url: str) -> None:
    """Times of any year and zone, alone and in arrays, come back in UTC. PostgreSQL reads what it writes."""
    database = await Database.open(database_url, role=None, size=1, timeout_seconds=5)
    for time in TIMES * 2:
        [row] = await database.fetch(
            "SELECT $1::timestamptz, $1::timestamptz = $2::text::timestamptz, $3::timestamptz[]",
            time,
            time.isoformat(),
            TIMES,
        )
        assert (row[0], row[1], row[2]) == (time, True, TIMES)
        assert row[0].tzinfo is UTC
    with pytest.raises((asyncpg.DataError, TypeError)):
        await database.fetch("SELECT $1::timestamptz", datetime(2026, 1, 1))  # noqa: DTZ001 - the case to test
    await database.close()
