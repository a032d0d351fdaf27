"""Planted bugs: the framework."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.commit.authority_table import HANDLERS
from holdfast.commit.lifecycle import bind
from holdfast.model.errors import InvariantBroken
from holdfast.model.requests import Bind
from holdfast.sim import calls, plan, randomness
from holdfast.sim.mutants import Mutant, confirm, load, rewrite, save, search, swap, table
from tests.unit.sim import small_world
from tests.unit.sim.small_world import HEALTHY, Ticker

_HERE = "tests.unit.sim.small_world:"

BACKWARDS = Mutant(
    "backwards",
    "counts down",
    HEALTHY.name,
    (rewrite(_HERE + "Ticker.write", "b'%d' % self.count", "b'%d' % (99 - self.count)"),),
)
SLOW = Mutant("slow", "ticks half as often", HEALTHY.name, (swap(_HERE + "PERIOD_MS", 2_000),))


def _rewritten(old: str, new: str) -> Mutant:
    return Mutant("m", "", HEALTHY.name, (rewrite(_HERE + "Ticker.write", old, new),))


def test_a_planted_bug_is_there_only_inside_the_block() -> None:
    """The product never contains a mutant. [N6]"""
    original = Ticker.write
    mutant = _rewritten("self.count += 1", "self.count += 2")
    with mutant.planted():
        assert Ticker.write is not original
    assert Ticker.write is original


def test_a_planted_bug_is_removed_when_its_run_fails() -> None:
    """After any error inside, the next run uses the product's code. [N6]"""
    original = small_world.PERIOD_MS
    with pytest.raises(ZeroDivisionError), SLOW.planted():
        raise ZeroDivisionError
    assert original == small_world.PERIOD_MS


def test_a_world_that_is_imported_by_the_run_keeps_nothing_of_the_planted_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next run in the same process would find it again. [N6]"""
    source = "from tests.unit.sim.small_world import HEALTHY as SCENARIO, PERIOD_MS\n"
    (tmp_path / "late_world.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    msgspec.structs.replace(SLOW, scenario="late_world:SCENARIO").run(0)
    late_world = importlib.import_module("late_world")
    monkeypatch.delitem(sys.modules, "late_world")
    assert late_world.PERIOD_MS == small_world.PERIOD_MS


def test_a_mutant_is_found_with_the_invariant_that_found_it_and_a_control_is_not() -> None:
    """A control that alarms would make every finding worthless. [N6]"""
    mutant = _rewritten('b"%d" % self.count', 'b"%d" % (99 - self.count)')
    control = Mutant("slow", "", HEALTHY.name, SLOW.plants, benign=True)
    found, spared = search(mutant, seeds_max=5), search(control, seeds_max=5)
    assert (found.invariant, found.seed, found.seeds) == ("BACK", 0, 1)
    assert found.is_expected()
    assert (spared.seed, spared.seeds) == (None, 5)
    assert spared.is_expected()
    printed = table([found, spared])
    assert printed.splitlines()[1].split() == ["m", "BACK", "1", "0"]
    assert printed.splitlines()[2].split() == ["slow", "–", "5", "–", "benign"]


def test_a_control_that_alarms_and_a_bug_that_is_missed_are_called_out() -> None:
    """The table does not hide what went wrong. [N6]"""
    missed = search(SLOW, seeds_max=2)
    assert not missed.is_expected()
    assert "UNEXPECTED" in table([missed])


def test_a_recorded_seed_is_tried_first_and_a_stale_one_is_searched_again(tmp_path: Path) -> None:
    """Recorded seeds save time, and nothing depends on them. [N6]"""
    mutant = _rewritten('b"%d" % self.count', 'b"%d" % (99 - self.count)')
    found = search(mutant, seeds_max=5)
    path = tmp_path / "found.json"
    save([found, msgspec.structs.replace(found, mutant="other")], path)
    assert confirm(mutant, load(path), seeds_max=0) == found
    assert confirm(mutant, [], seeds_max=5) == found
    assert confirm(mutant, [msgspec.structs.replace(found, mutant="x")], seeds_max=0).seed is None


def test_a_rewrite_that_no_longer_finds_its_text_fails() -> None:
    """A stale mutant is noticed. [N6]"""
    with pytest.raises(InvariantBroken, match="occurs 0 times"), BACKWARDS.planted():
        pass
    with pytest.raises(InvariantBroken, match="occurs 4 times"), _rewritten("count", "x").planted():
        pass


def test_a_swapped_function_is_replaced_wherever_it_was_imported_by_name() -> None:
    """`from x import f` must not keep the original alive. [N6]"""
    mutant = Mutant("m", "", HEALTHY.name, (swap("holdfast.sim.randomness:pick", print),))
    with mutant.planted():
        assert calls.pick is print
        assert plan.pick is print
    assert calls.pick is randomness.pick


def test_a_swapped_function_is_replaced_in_the_tables_of_modules() -> None:
    """The authority finds its handlers in one. [N6]"""
    original = HANDLERS[Bind]
    with Mutant("m", "", "", (swap("holdfast.commit.lifecycle.bind:bind", max),)).planted():
        assert HANDLERS[Bind] is max
    assert HANDLERS[Bind] is original is bind.bind


def test_a_swapped_number_is_replaced_only_where_it_has_that_name() -> None:
    """Small numbers are one object, so a swap of one 2 must not change every other 2. [N6]"""
    number = plan.__dict__.setdefault("_A_NUMBER_OF_THE_TEST", small_world.PERIOD_MS)
    try:
        with SLOW.planted():
            assert small_world.PERIOD_MS == 2_000
            assert plan.__dict__["_A_NUMBER_OF_THE_TEST"] is number
    finally:
        del plan.__dict__["_A_NUMBER_OF_THE_TEST"]
