"""Converts between PostgreSQL's binary formats and Python: JSON as objects, times as UTC datetimes.

Labels and times are read far more often than they change, and decoding them is a large part of the cost of a page.
Frequent values are therefore kept decoded.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import asyncpg
import orjson


async def set_codecs(connection: asyncpg.Connection) -> None:
    """Sets the codecs of ``jsonb`` and ``timestamptz`` on a connection. orjson encodes and decodes the JSON."""
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=_encode_json, decoder=_decode_json, format="binary"
    )
    await connection.set_type_codec(
        "timestamptz", schema="pg_catalog", encoder=_encode_time, decoder=_decode_time, format="binary"
    )


def _encode_json(value: Any) -> bytes:
    return b"\x01" + orjson.dumps(value)


@lru_cache(maxsize=1024)
def _decode_json(data: bytes) -> Any:
    """Returns a JSON value. It is cached and shared, so nobody changes it."""
    return orjson.loads(data[1:])


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

_MICROSECOND = timedelta(microseconds=1)


def _encode_time(value: datetime) -> bytes:
    """Returns PostgreSQL's binary form: microseconds since 2000. Raises TypeError for a time without a zone."""
    return ((value - _EPOCH) // _MICROSECOND).to_bytes(8, "big", signed=True)


@lru_cache(maxsize=4096)
def _decode_time(data: bytes) -> datetime:
    """Returns a time in UTC. Raises OverflowError for a time outside Python's years, such as infinity."""
    return _EPOCH + timedelta(0, 0, int.from_bytes(data, "big", signed=True))
