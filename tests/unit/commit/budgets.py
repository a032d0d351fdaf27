"""A workload with a tight disruption budget, and its ledger, for the tests of evictions."""

from __future__ import annotations

from typing import Any

from holdfast.model import keys
from holdfast.model.kinds.workload import Disruption
from tests.furnished import Furnished


def ledger(it: Furnished, workload: str = "web") -> Any:
    return it.plane.read(keys.disruption_ledger("acme", workload))


def tight(it: Furnished, replicas: int, allowed: int = 1) -> Any:
    budget = Disruption(max_unavailable=allowed)
    return it.plane.workload("tight", replicas=replicas, disruption=budget)
