"""Planted bugs in overcommit and in the firmness of capacity."""

from __future__ import annotations

from holdfast.sim.mutants import Mutant, Plant, rewrite
from tests.sim.authority.planting import COMMIT, MODEL

OVERCOMMIT = "holdfast.sim.worlds.authority.scenario:OVERCOMMIT"


def _bug(name: str, mistake: str, *plants: Plant) -> Mutant:
    return Mutant(name, mistake, OVERCOMMIT, plants)


FIRMNESS = (
    _bug(
        "overcommit-applied-twice",
        "the factor multiplies what was multiplied before",
        rewrite(
            MODEL + "quota.ledger:with_overcommit",
            "return there * percent // 100",
            "return there * percent // 100 * percent // 100",
        ),
    ),
    _bug(
        "memory-without-headroom",
        "the factor applies to all of the memory",
        rewrite(
            MODEL + "quota.ledger:with_overcommit",
            "(there - headroom) * percent",
            "there * percent",
        ),
    ),
    _bug(
        "overcommit-only-raised",
        "a lowered setting does not reach the ledger",
        rewrite(
            MODEL + "quota.ledger:mirror_node",
            "allocatable=allocatable_of(node),",
            "allocatable={r: max(u, before.allocatable.get(r, 0)) "
            "for r, u in allocatable_of(node).items()},",
        ),
    ),
    _bug(
        "recovery-counts-overcommitted-room",
        "capacity is held for recovery as long as it is allocatable",
        rewrite(MODEL + "placement.fit:recovery_shortage", "if not ledger.firm:", "if True:"),
    ),
    _bug(
        "recovery-diluted",
        "other work overcommits what is held for recovery",
        rewrite(
            MODEL + "quota.ledger:NodeLedger._undiluted", "if not there or not held:", "if True:"
        ),
    ),
    _bug(
        "overcommit-proposed-not-committed",
        "the commit fits work into what is there, proposals into what is allocatable",
        rewrite(
            COMMIT + "lifecycle.bind:fit_on",
            "held = claim(ledger,",
            "held = claim(msgspec.structs.replace(ledger, "
            "allocatable={**ledger.allocatable, **ledger.firm}),",
        ),
    ),
    _bug(
        "reclaimable-added-to-hard",
        "reclaimable work is charged as committed capacity",
        rewrite(
            MODEL + "quota.charging:capacity_class_of",
            "found.spec.capacity_class if found is not None else",
            "",
        ),
    ),
)
