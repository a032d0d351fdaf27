"""What is written for a workload that grows: no more for its last replica than for its first."""

from __future__ import annotations

import pytest

from holdfast.model.kinds.workload import Disruption
from holdfast.model.transaction import Put
from tests.furnished import Furnished

# Twice as many replicas write twice the bytes, and a little more for longer names and numbers.
RATIO_MAX = 2.2


def written(it: Furnished, prefix: str = "") -> int:
    """How many bytes were written so far, and forget them."""
    puts = [w for t in it.plane.transactions for w in t.writes if isinstance(w, Put)]
    it.plane.transactions.clear()
    return sum(len(put.value) for put in puts if put.key.startswith(prefix))


def budgeted(replicas: int) -> tuple[Furnished, list[object]]:
    it = Furnished(cpus=10_000)
    budget = Disruption(max_unavailable=1)
    web = it.plane.workload("big", replicas=replicas, disruption=budget)
    written(it)
    return it, [it.plane.replica(web, ordinal) for ordinal in range(replicas)]


def cost_of_births(replicas: int, prefix: str) -> int:
    it, _ = budgeted(replicas)
    return written(it, prefix)


@pytest.mark.parametrize("prefix", ["", "ledgers/disruption/"])
def test_twice_the_births_write_twice_the_bytes(prefix: str) -> None:
    """A list of names in the ledger made it nearly four times."""
    few, many = cost_of_births(100, prefix), cost_of_births(200, prefix)
    assert few > 0
    assert many <= RATIO_MAX * few
