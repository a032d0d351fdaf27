"""Audit writers under faults: one complete chain, and planted bugs that are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.model import keys
from holdfast.model.audit.audit_records import encode
from holdfast.model.audit.journal_protocol import Resume
from holdfast.model.machine import Txn
from holdfast.model.transaction import Put, Transaction
from holdfast.observe.audit_writer.audit_writer import AuditWriter
from holdfast.observe.history_start import HistorySearch
from holdfast.sim.check import Violation
from holdfast.sim.run import play
from holdfast.sim.world import World
from holdfast.sim.worlds.audit.scenario import SCENARIO, OneChain
from tests.scale import scaled
from tests.sim.findings import everything_happened

SEEDS = scaled(60, 240)
# A gap: the store dropped history that was not in the chain yet.
GAP = "gap"
DEMANDED = (GAP, "disk_full", "set_aside", "cut_off", "crash", "pause", "store_late")


def broken_in(seed: int) -> Violation | None:
    """The promise that a seed breaks, if it breaks one."""
    try:
        play(SCENARIO, World(seed))
    except Violation as found:
        return found
    return None


def test_audit_writers_make_one_chain_under_faults() -> None:
    """The chain is whole, whichever writer pauses or crashes, and whatever history the store drops.
    [K2, N5]"""
    counts = {GAP: 0}
    for seed in range(SEEDS):
        world = World(seed)
        try:
            play(SCENARIO, world)
        except Violation as found:
            command = f"python -m holdfast.sim replay {SCENARIO.name} --seed {seed}"
            raise AssertionError(f"seed {seed}: {found}; to repeat it: {command}") from found
        counts[GAP] += world.checker(OneChain).gaps
        for kind, count in world.injected.items():
            counts[kind] = counts.get(kind, 0) + count
    everything_happened(DEMANDED, counts)
    assert counts[GAP] > 10, "one gap is not enough: the store must drop history early repeatedly"


def _without_compare(self: AuditWriter, head: Any) -> list[Any]:
    self._flight = (self._flight[0] if self._flight is not None else 0, head)
    put = Put(keys.audit_head(), encode(head))
    return [Txn(self._call(self._moved), Transaction((), (put,)))]


def _head_first(self: AuditWriter) -> list[Any]:
    chain = self._chain
    if self._awaits is not None or not self.is_writing or not chain.waiting:
        return []
    self._flight = (len(chain.waiting), chain.end)
    return self._move(chain.end)


def _without_cut(self: AuditWriter) -> list[Any]:
    return [Resume(self._call(self._resumed), self.head)]


def _silent_about_gaps(self: AuditWriter, survey: HistorySearch, now: Any) -> list[Any]:
    return self._move(msgspec.structs.replace(self.head, revision=survey.there))


def _plant(name: str, bug: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(AuditWriter, name, bug)


# Each bug has the first seed from 0 on that finds it, and the promise that it breaks.
BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], int, str]] = {
    "the head moves without comparing": (_plant("_move", _without_compare), 0, "INV9"),
    "the head moves before the records are on disk": (_plant("_flush", _head_first), 0, "INV11"),
    "records after a lost head stay": (_plant("_cut_off", lambda self: []), 16, "INV9"),
    "a resumed journal is not cut": (_plant("_resume", _without_cut), 249, "INV9"),
    "a gap is not recorded": (_plant("_narrow", _silent_about_gaps), 7, "INV9"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_planted_in_the_audit_writer_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promise that it breaks finds it. [N6]"""
    plant, seed, invariant = BUGS[name]
    assert broken_in(seed) is None
    plant(monkeypatch)
    found = broken_in(seed)
    assert found is not None
    assert found.invariant == invariant
