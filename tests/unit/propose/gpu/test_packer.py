from __future__ import annotations

import numpy as np

from holdfast.propose.gpu import Columns, Demand, GpuNode, LearnedMix, Packer, typical_mix

NODE = GpuNode(64_000, 64, 4, "T4")
ONE = Demand(4_000, 1_000, 1)


def test_equal_rows_are_taken_in_the_given_order() -> None:
    """Chance and history have no part in it. [F3]"""
    columns = Columns([NODE] * 3)
    packer = Packer(columns, mix=typical_mix({ONE: 1}), order=np.array([2, 0, 1]))
    choice = packer.pick(ONE)
    assert choice is not None
    assert (choice.row, choice.devices) == (1, (0,))


def test_a_placement_is_counted_and_what_fits_nowhere_has_no_choice() -> None:
    """Four single GPUs fill a node of four; the fifth has no place. [F3]"""
    columns = Columns([NODE])
    packer = Packer(columns, mix=typical_mix({ONE: 1}))
    taken = [packer.place(ONE) for _ in range(4)]
    assert [choice.devices for choice in taken if choice is not None] == [(0,), (1,), (2,), (3,)]
    assert packer.pick(ONE) is None
    assert packer.pick(Demand(64_000 - 4 * 4_000 + 1)) is None
    columns.give_back(0, ONE, [2])
    assert packer.place(ONE) == taken[2]


def test_an_empty_fleet_has_no_choice() -> None:
    """Nothing is raised where there are no nodes. [F3]"""
    assert Packer(Columns([])).pick(ONE) is None


def test_a_packer_that_is_given_no_mix_learns_it() -> None:
    """After work that insists on a model was seen, that model is spared. [F3]"""
    columns = Columns([NODE, GpuNode(64_000, 64, 4, "G2")])
    packer = Packer(columns)
    packer.see(ONE)
    before = packer.pick(ONE)
    for _ in range(20):
        packer.see(Demand(4_000, 1_000, 1, ("T4",)))
    after = packer.pick(ONE)
    assert before is not None
    assert after is not None
    assert (before.row, after.row) == (0, 1)


def test_what_was_learnt_outlives_the_columns() -> None:
    """New columns, made when a node came or went, begin with the old knowledge. [F3]"""
    learned = LearnedMix()
    for _ in range(20):
        learned.see(Demand(4_000, 1_000, 1, ("T4",)))
    choice = Packer(Columns([NODE, GpuNode(64_000, 64, 4, "G2")]), learned=learned).pick(ONE)
    assert choice is not None
    assert choice.row == 1
