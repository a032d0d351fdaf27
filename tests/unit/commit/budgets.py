"""A workload with a tight disruption budget, and its ledger, for the tests of evictions."""

from __future__ import annotations

from typing import Any

from holdfast.model import keys
from holdfast.model.kinds.workload import Disruption
from holdfast.model.requests import SettleDisruption
from tests.furnished import DISRUPTIONS, Furnished


def ledger(it: Furnished, workload: str = "web") -> Any:
    return it.plane.read(keys.disruption_ledger("acme", workload))


def tight(it: Furnished, replicas: int, allowed: int = 1) -> Any:
    budget = Disruption(max_unavailable=allowed)
    return it.plane.workload("tight", replicas=replicas, disruption=budget)


def settled(it: Furnished, *replicas: Any) -> None:
    """The ledger after the authority looked at these."""
    names = tuple(it.name for it in replicas)
    it.yes(DISRUPTIONS, SettleDisruption("acme", "tight", names, it.term(DISRUPTIONS)))
