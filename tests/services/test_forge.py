"""The forge hashes one token secret ahead. It hands out none twice, shows none, and refuses no mint because of it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from models.errors import ApiError, ErrorCode
from models.sensitive import HashedToken
from services.forge import Forge
from services.hashing import HASHES, Hasher
from services.pepper import Pepper
from settings import Settings
from tests.support.world import FAST_HASH

pytestmark = pytest.mark.anyio

ID = "jt_" + "0" * 52


class Gate(Hasher):
    """A hasher whose hashes wait until it opens, or are refused."""

    def __init__(self) -> None:
        super().__init__(Settings(**FAST_HASH))  # type: ignore[arg-type]
        self.open = asyncio.Event()
        self.refuses = False

    async def hash(self, secret: str) -> HashedToken:
        """Refuses, or waits until the gate is open, and then computes the hash."""
        if self.refuses:
            raise ApiError(ErrorCode.RESOURCE_EXHAUSTED)
        await self.open.wait()
        return await super().hash(secret)


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    """Yields a gate that is shut."""
    gate = Gate()
    yield gate
    gate.close()


def hashes() -> float:
    """Returns how many secrets were hashed."""
    return float(HASHES.labels("hash")._value.get())


async def test_a_mint_waits_for_no_hash_that_was_made_ahead(gate: Gate) -> None:
    """A mint also computes only one hash, which is that of the next secret."""
    forge = Forge(gate, Pepper(bytes(32)))
    forge.prepare()
    gate.open.set()
    assert forge._next is not None
    await forge._next
    gate.open.clear()
    before = hashes()
    first = await asyncio.wait_for(forge.forge(ID), 1)
    second = asyncio.create_task(forge.forge(ID))
    done, _ = await asyncio.wait([second], timeout=0.05)
    assert not done, "its hash is not there yet"
    gate.open.set()
    await second
    assert hashes() - before == 2, "the second's, and the one after it"
    bearer = first.bearer.reveal()
    secret = bearer.rpartition(".")[2][:52]
    assert await gate.verify(first.secret_hash, secret)
    assert Pepper(bytes(32)).matches(first.precheck_tag, ID, secret)


async def test_many_at_once_get_one_each(gate: Gate) -> None:
    """No two tokens have the same secret."""
    forge = Forge(gate, Pepper(bytes(32)))
    gate.open.set()
    minted = await asyncio.gather(*(forge.forge(ID) for _ in range(20)))
    assert len({each.bearer.reveal() for each in minted}) == 20
    assert len({each.secret_hash.reveal() for each in minted}) == 20


async def test_a_hash_that_was_refused_ahead_refuses_no_mint(gate: Gate) -> None:
    """The queue was full when the last mint began to hash the next secret, and now it has room.

    A mint is refused only while the queue is full.
    """
    forge = Forge(gate, Pepper(bytes(32)))
    gate.refuses = True
    forge.prepare()
    await asyncio.sleep(0)
    with pytest.raises(ApiError):
        await forge.forge(ID)
    await asyncio.sleep(0)
    gate.refuses = False
    gate.open.set()
    assert (await forge.forge(ID)).bearer is not None


async def test_a_caller_that_goes_away_leaves_the_next_one_its_own(gate: Gate) -> None:
    """The secret of a cancelled caller is dropped. The next caller gets another one."""
    forge = Forge(gate, Pepper(bytes(32)))
    forge.prepare()
    leaves, stays = [asyncio.create_task(forge.forge(ID)) for _ in range(2)]
    await asyncio.sleep(0)
    leaves.cancel()
    gate.open.set()
    assert (await asyncio.wait_for(stays, 1)).bearer is not None
    assert leaves.cancelled()


async def test_what_is_ahead_is_not_shown(gate: Gate) -> None:
    """The ``repr`` of a task shows its result, so the result must not show the secret or its hash."""
    forge = Forge(gate, Pepper(bytes(32)))
    forge.prepare()
    gate.open.set()
    ahead = forge._next
    assert ahead is not None
    hashed = await ahead
    shown = repr(ahead) + repr(hashed) + repr(vars(forge))
    assert hashed.secret.reveal() not in shown
    assert hashed.secret_hash.reveal() not in shown
