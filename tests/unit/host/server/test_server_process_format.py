"""A server that is too old for its plane says so before it starts."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.host.server.store_opening import demand_format
from holdfast.model import keys
from holdfast.model.errors import Forbidden
from holdfast.model.plane_format import FORMAT
from holdfast.model.transaction import Put, Transaction
from holdfast.store.memory import MemoryStore


async def _demanded(value: bytes | None) -> None:
    store = MemoryStore()
    try:
        if value is not None:
            await store.txn(Transaction((), (Put(keys.plane_format(), value),)))
        await demand_format(store)
    finally:
        await store.close()


def test_a_new_plane_and_one_of_this_format_are_served() -> None:
    asyncio.run(_demanded(None))
    asyncio.run(_demanded(b'{"format":%d,"laterField":1}' % FORMAT))


def test_a_plane_of_a_newer_format_is_not_served() -> None:
    with pytest.raises(Forbidden, match="format"):
        asyncio.run(_demanded(b'{"format":%d}' % (FORMAT + 1)))


def test_a_plane_whose_format_cannot_be_read_is_served_to_be_mended() -> None:
    """It writes nothing before that."""
    asyncio.run(_demanded(b"{"))
