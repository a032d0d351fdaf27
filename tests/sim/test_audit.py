"""Scribes under faults: one chain that tells all, and planted bugs that are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.model import keys
from holdfast.model.audit.audit_records import encode
from holdfast.model.machine import Txn
from holdfast.model.transaction import Put, Transaction
from holdfast.observe.audit_writer.audit_writer import AuditWriter
from holdfast.observe.audit_writer.journal_protocol import Resume
from holdfast.observe.history_start import HistorySearch
from holdfast.sim.check import Violation
from holdfast.sim.run import play
from holdfast.sim.world import World
from holdfast.sim.worlds.audit.scenario import SCENARIO, OneChain
from tests.scale import scaled

SEEDS = scaled(80, 240)


def broken_in(seed: int) -> Violation | None:
    """The promise that a seed breaks, if it breaks one."""
    try:
        play(SCENARIO, World(seed))
    except Violation as found:
        return found
    return None


def test_scribes_make_one_chain_under_faults() -> None:
    """Whoever writes, sleeps or dies, and whatever the store forgets. [K2, N5]"""
    gaps, injected = 0, dict[str, int]()
    for seed in range(SEEDS):
        world = World(seed)
        try:
            play(SCENARIO, world)
        except Violation as found:
            command = f"python -m holdfast.sim replay {SCENARIO.name} --seed {seed}"
            raise AssertionError(f"seed {seed}: {found}; to repeat it: {command}") from found
        gaps += world.checker(OneChain).gaps
        for kind, count in world.injected.items():
            injected[kind] = injected.get(kind, 0) + count
    assert gaps > 10, "the store must have forgotten too early now and then"
    for kind in ("disk_full", "set_aside", "cut_off", "crash", "pause", "store_late"):
        assert injected.get(kind), f"{kind} never happened"


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


# Each with a seed that finds it, as a search from 0 on found it first.
BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], int, str]] = {
    "the head moves without comparing": (_plant("_move", _without_compare), 0, "INV9"),
    "the head moves before the records are on disk": (_plant("_flush", _head_first), 0, "INV11"),
    "what was written in vain stays": (_plant("_cut_off", lambda self: []), 16, "INV9"),
    "nothing is cut before it is gone on": (_plant("_resume", _without_cut), 249, "INV9"),
    "a gap is passed over": (_plant("_narrow", _silent_about_gaps), 7, "INV9"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_planted_in_the_scribe_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the promise that it breaks. [N6]"""
    plant, seed, invariant = BUGS[name]
    assert broken_in(seed) is None
    plant(monkeypatch)
    found = broken_in(seed)
    assert found is not None
    assert found.invariant == invariant
