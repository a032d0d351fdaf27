"""What a server finds out for a repair: what is restored takes nothing back that only grows."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.commit.record_encoding import EpochFloor, encode
from holdfast.host.api.plane.quarantine_routes import find_repair
from holdfast.model import keys
from holdfast.model.lifecycle import State
from holdfast.model.quarantine import Repair
from holdfast.model.requests import Move, Remove, RepairAction
from holdfast.model.transaction import Delete, Put, Transaction
from holdfast.store.memory import MemoryStore
from tests.furnished import Furnished
from tests.plane import WORKLOADS, target


def restored(it: Furnished, key: str) -> Any:
    wish = Repair(key, RepairAction.RESTORE.value)
    store = MemoryStore(it.plane.store)
    return asyncio.run(find_repair(store, wish, RepairAction.RESTORE)).after


def ended(it: Furnished, place: int, incarnation: int) -> None:
    """The life of a replica at a place, from its birth until its object is gone."""
    made = it.yes(WORKLOADS, it.birth(it.web, place, incarnation))
    it.yes(WORKLOADS, Move(target(made), State.RELEASED, term=it.term(WORKLOADS)))
    it.yes(WORKLOADS, Remove("replicas", "acme", made.name))


def test_a_page_of_places_is_restored_with_all_that_went_since() -> None:
    """Otherwise a name would be born a second time. [INV3]"""
    it = Furnished()
    key = keys.places_ledger("acme", "web", 0)
    ended(it, 0, 0)
    ended(it, 1, 0)
    ended(it, 0, 1)
    it.plane.damage(key, b"{")
    # The form before the damage, and what went with the damaged one: here nothing.
    assert restored(it, key) == {"reached": {"0": 1, "1": 0}}


def test_a_form_that_was_damaged_as_it_was_written_is_made_up_for() -> None:
    """The transaction that wrote it deleted the replicas that it named. [INV3]"""
    it = Furnished()
    key = keys.places_ledger("acme", "web", 0)
    ended(it, 0, 0)
    made = it.yes(WORKLOADS, it.birth(it.web, 0, 1))
    other = it.yes(WORKLOADS, it.birth(it.web, 3, 0))
    it.yes(WORKLOADS, Move(target(made), State.RELEASED, term=it.term(WORKLOADS)))
    for gone, page in ((made, b"{"), (other, b"[")):
        writes = (Delete(keys.key_of(gone)), Put(key, page))
        it.plane.store.txn(Transaction((), writes))
    assert restored(it, key) == {"reached": {"0": 1, "3": 0}}


def test_a_floor_of_epochs_is_restored_above_all_that_was_forgotten() -> None:
    """[INV7]"""
    it = Furnished()
    key = keys.epoch_floor()
    for value in (encode(EpochFloor(7)), b"{"):
        it.plane.store.txn(Transaction((), (Put(key, value),)))
    assert restored(it, key)["epoch"] > 1_000
