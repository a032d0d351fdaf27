"""Refusals for exhausted budgets, by tenant: counted where they are made, with a bound."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.flow import rates
from holdfast.commit.flow.rates import BUDGETS, ExhaustedBudgets, request_tenant
from holdfast.model.kinds.reservation import Claim
from holdfast.model.kinds.tenant import ObjectCaps
from holdfast.model.kinds.workload import Disruption
from holdfast.model.lifecycle import Cause
from holdfast.model.meta import ObjectMeta
from holdfast.model.pulse import OTHERS
from holdfast.model.refusal import Reason
from holdfast.model.requests import BindTogether, Create, Patch, PatchType
from tests.furnished import ANN, DRAINS, Furnished
from tests.plane import SCHEDULER, refused
from tests.unit.commit.capacity_requests import hold


def counts(it: Furnished) -> Any:
    return it.plane.authority.exhausted.counts


def test_each_refusal_counts_for_the_tenant_and_the_budget_that_was_used_up() -> None:
    """Accepted requests, and refusals for other reasons, do not count. [M6]"""
    it = Furnished(cpus=4)
    it.plane.quota(
        hard={"cpu": "3"},
        priority_classes={"high": {"replicas": 1}},
        objects=ObjectCaps(workloads=2),
    )
    high = it.of_class("high")
    it.running(high)
    assert counts(it) == {}
    it.ask(SCHEDULER, it.bind(it.pending(high)))
    it.ask(SCHEDULER, hold(it, Claim(charge={"cpu": 2_500})))
    it.ask(SCHEDULER, BindTogether(tuple(it.bind(it.pending()) for _ in range(3))))
    it.ask(ANN, Create(_named(it.web, "third")))
    assert counts(it) == {"acme": {"priority": 1, "quota": 2, "objects": 1}}
    it.ask(SCHEDULER, it.bind(it.pending(), operation="x", policy="none"))
    assert counts(it) == {"acme": {"priority": 1, "quota": 2, "objects": 1}}


def _named(workload: Any, name: str) -> Any:
    meta = ObjectMeta(name=name, namespace=workload.namespace)
    return msgspec.structs.replace(workload, metadata=meta)


def test_an_eviction_that_the_disruption_budget_forbids_is_counted() -> None:
    """[M6]"""
    it = Furnished()
    it.updated(it.web, ANN, replicas=1, disruption=Disruption(max_unavailable=0))
    ready = it.ready()
    it.draining()
    refused(it.ask(DRAINS, it.evict(ready, Cause.DRAIN)), Reason.DISRUPTION_BUDGET)
    assert counts(it) == {"acme": {"disruption": 1}}


def test_tenants_beyond_a_number_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """[M6]"""
    monkeypatch.setattr(rates, "TENANTS_COUNTED_MAX", 2)
    book = ExhaustedBudgets()
    for tenant in ("a", "b", "c", "d", "a"):
        book.add(tenant, rates.RATE)
    assert book.counts == {"a": {"rate": 2}, "b": {"rate": 1}, OTHERS: {"rate": 2}}


def test_every_request_that_can_be_refused_so_names_its_tenant() -> None:
    """[M6]"""
    patch = Patch("workloads", "acme", "web", PatchType.MERGE, {})
    assert request_tenant(patch) == "acme"
    assert request_tenant(BindTogether(())) == ""


def test_all_reasons_of_quotas_and_grants_are_budgets() -> None:
    """[M6]"""
    named = [it for it in Reason if it.value.startswith(("Quota", "Cohort", "Grant", "Priority"))]
    unknown = [Reason.QUOTA_UNKNOWN, Reason.QUOTA_QUARANTINED]
    assert [it for it in named if it not in BUDGETS] == unknown
