"""Budgets of priority classes: how much of a tenant's work may be urgent at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.ledgers.recount import excesses, recount
from holdfast.commit.objects.admission import HINTS_ANNOTATION
from holdfast.commit.record_encoding import encode
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.kinds.reservation import Claim
from holdfast.model.kinds.template import DeviceRequest
from holdfast.model.kinds.tenant import CapacityClass, Quota, QuotaSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, BindTogether, Create
from holdfast.model.transaction import Compare, Put, Transaction
from holdfast.store.contract import KEY_END
from tests.furnished import ANN, Furnished
from tests.plane import ADMIN, SCHEDULER, refused, template
from tests.unit.commit.capacity_requests import ONE, drop, hold

RESERVES = who.controller("reserves")
EXCEEDED = Reason.PRIORITY_BUDGET_EXCEEDED


def budgeted(*, cpus: int = 8, **classes: dict[str, Any]) -> Furnished:
    """A plane whose tenant has these budgets."""
    it = Furnished(cpus=cpus)
    it.plane.quota(priority_classes=classes)
    return it


def spent(it: Furnished) -> Any:
    """What the tenant's ledger says is charged, by priority class."""
    ledger = it.plane.read(keys.quota_ledger("tenant:acme"))
    return ledger.used["acme"].classes if "acme" in ledger.used else {}


def tamper(it: Furnished, key: str, value: Any) -> None:
    """Write past the authority."""
    record = it.plane.store.get(key)
    assert record is not None
    change = Transaction((Compare(key, record.modified),), (Put(key, encode(value)),))
    it.plane.store.txn(change)
    it.plane.authority = it.plane.new_authority()


def released(it: Furnished, replica: Any) -> None:
    it.moved(it.moved(replica, State.FAILED), State.RELEASED)


def test_work_beyond_the_budget_of_its_class_is_refused_and_takes_nothing() -> None:
    """Other classes of the tenant, and the class in other tenants, go on. [B6, C6.6, D1]"""
    it = budgeted(high={"cpu": "2"})
    high = it.of_class("high")
    first, _ = it.running(high), it.running(high)
    third = it.pending(high)
    refusal = refused(it.ask(SCHEDULER, it.bind(third)), EXCEEDED)
    assert refusal.message == (
        "tenant acme, in its budget for priority class high, uses 2 of 2 cpu, 1 more is requested"
    )
    assert refusal.details["priorityClass"] == "high"
    it.running(it.of_class("low"))
    it.running(it.of_class("high", "globex"))
    assert spent(it)["high"]["cpu"] == 2000
    released(it, first)
    it.yes(SCHEDULER, it.bind(third))
    assert spent(it) == {"high": {"cpu": 2000, "memory": 2**31, "replicas": 2}, "low": ONE}


def test_a_budget_counts_replicas_and_devices_like_any_resource() -> None:
    """[B6]"""
    it = budgeted(high={"replicas": 1}, low={"gpu": 1})
    high = it.of_class("high")
    it.running(high)
    refused(it.ask(SCHEDULER, it.bind(it.pending(high))), EXCEEDED)
    gpu = (DeviceRequest(device_class="gpu", memory="16Gi"),)
    train = it.plane.workload("train", template=template(devices=gpu, priority_class="low"))
    it.running(train)
    refusal = refused(it.ask(SCHEDULER, it.bind(it.pending(train))), EXCEEDED)
    assert refusal.details["resource"] == "gpu"


def test_work_that_names_no_class_is_held_to_the_budget_of_the_default_class() -> None:
    """[B6]"""
    it = budgeted(default={"cpu": "1"})
    it.running()
    named = it.pending(it.plane.workload("named", template=template(cpu="500m")))
    refused(it.ask(SCHEDULER, it.bind(named)), EXCEEDED)


def test_the_last_of_a_budget_goes_to_one_of_two_servers() -> None:
    """Each believes that there is room; the one that commits later finds that there is none. Two
    in one group do not both get it either. [B6, C4, C6.6, K2, INV3]
    """
    it = budgeted(high={"cpu": "1"})
    high = it.of_class("high")
    early, late = it.pending(high), it.pending(high)
    binds = [it.bind(early), it.bind(late)]
    mine = it.plane.authority
    # It has read all that a bind rests on, and will be behind.
    refused(it.ask(SCHEDULER, it.bind(late, node=_elsewhere(it))), Reason.NODE_MISSING)
    it.plane.authority = it.plane.new_authority()
    winner = it.moved(it.yes(SCHEDULER, binds[0]), State.RUNNING)
    it.plane.authority = mine
    refused(it.ask(SCHEDULER, binds[1]), EXCEEDED)
    released(it, winner)
    pair = [(SCHEDULER, it.bind(it.pending(high))), (SCHEDULER, binds[1])]
    answers = it.plane.ask_all(*pair)
    it.check()
    assert [type(answer) for answer in answers] == [Accepted, Refusal]


def _elsewhere(it: Furnished) -> Any:
    metadata = msgspec.structs.replace(it.node.metadata, name="node-x")
    return msgspec.structs.replace(it.node, metadata=metadata)


def test_a_gang_is_held_to_the_budget_as_a_whole() -> None:
    """[B6, G5]"""
    it = budgeted(high={"cpu": "2"})
    high = it.of_class("high")
    binds = tuple(it.bind(it.pending(high)) for _ in range(3))
    refused(it.ask(SCHEDULER, BindTogether(binds)), EXCEEDED)
    assert spent(it) == {}
    it.yes(SCHEDULER, BindTogether(binds[:2]))
    assert spent(it)["high"]["cpu"] == 2000


@pytest.mark.parametrize("ends", ["bound", "dropped"])
def test_a_reservation_is_charged_to_the_budget_and_its_bind_only_once(ends: str) -> None:
    """[B6, C6.5, D1]"""
    it = budgeted(high={"cpu": "1"})
    high = it.of_class("high")
    lane = it.yes(SCHEDULER, hold(it, Claim(node="node-a", charge=ONE), of=high))
    assert spent(it) == {"high": ONE}
    refused(it.ask(SCHEDULER, it.bind(it.pending(high))), EXCEEDED)
    if ends == "bound":
        it.yes(SCHEDULER, it.bind(it.pending(high), reservation=lane.name))
        assert spent(it) == {"high": ONE}
    else:
        it.yes(SCHEDULER, drop(it, lane))
        assert spent(it) == {}


def test_a_lane_whose_workload_takes_another_class_is_charged_again() -> None:
    """[B6, C6.5, D5]"""
    it = budgeted(low={"cpu": "1"})
    high = it.of_class("high")
    claim = Claim(node="node-a", charge=ONE)
    it.yes(RESERVES, hold(it, claim, of=high, identity=RESERVES))
    changed = it.updated(high, ANN, template=template(priority_class="low"))
    it.yes(RESERVES, hold(it, claim, of=changed, identity=RESERVES))
    assert spent(it) == {"low": ONE}


def test_no_victim_is_stopped_for_work_that_its_budget_refuses() -> None:
    """But what victims of the same budget release counts. [B6, G4]"""
    it = budgeted(cpus=2, high={"cpu": "1"})
    high, low = it.of_class("high"), it.of_class("low")
    it.running(high)
    refused(it.ask(SCHEDULER, it.preempt(it.pending(high), it.running(low))), EXCEEDED)
    other = budgeted(cpus=1, low={"cpu": "1"})
    victim = other.running(other.of_class("low"))
    other.yes(SCHEDULER, other.preempt(other.pending(other.of_class("high")), victim))


def test_a_budget_that_is_set_or_lowered_later_finds_what_is_charged_and_takes_nothing() -> None:
    """[B6, C6.6]"""
    it = Furnished()
    high = it.of_class("high")
    first, _ = it.running(high), it.running(high)
    quota = it.plane.quota(priority_classes={"high": {"cpu": "2"}})
    refused(it.ask(SCHEDULER, it.bind(it.pending(high))), EXCEEDED)
    it.updated(quota, priority_classes={"high": {"cpu": "1"}})
    records = it.plane.store.range("", KEY_END).records
    assert excesses(records) == ["tenant acme may have 1000 of high cpu and has 2000"]
    released(it, first)
    refused(it.ask(SCHEDULER, it.bind(it.pending(high))), EXCEEDED)
    it.updated(quota, priority_classes={})
    it.yes(SCHEDULER, it.bind(it.pending(high)))


def test_budgets_go_with_their_tenant_to_another_cohort_and_are_not_lent_there() -> None:
    """[B6, C6.5]"""
    it = budgeted(high={"cpu": "1"})
    running = it.running(it.of_class("high"))
    quota = it.plane.read("objects/quotas/acme/default")
    it.updated(quota, cohort="both", hard={"cpu": "1"}, borrowing={"cpu": "4"})
    it.plane.quota("globex", cohort="both", hard={"cpu": "8"})
    another = it.plane.workload("more", template=template(priority_class="high"))
    refused(it.ask(SCHEDULER, it.bind(it.pending(another))), EXCEEDED)
    it.running()
    released(it, running)
    it.yes(SCHEDULER, it.bind(it.pending(another)))


def test_work_that_was_bound_before_there_were_budgets_gives_back_what_it_was_charged() -> None:
    """Its binding names no class, so that no budget was charged. [B6, C6.5]"""
    it = budgeted(high={"cpu": "1"})
    bound = it.running(it.of_class("high"))
    key = keys.quota_ledger("tenant:acme")
    ledger = it.plane.read(key)
    use = msgspec.structs.replace(ledger.used["acme"], classes={})
    tamper(it, key, msgspec.structs.replace(ledger, used={"acme": use}))
    old = msgspec.structs.replace(bound.status.binding, priority_class="")
    status = msgspec.structs.replace(bound.status, binding=old)
    tamper(it, keys.key_of(bound), msgspec.structs.replace(bound, status=status))
    it.check()
    released(it, it.get(bound))
    assert spent(it) == {}


# Admission ----------------------------------------------------------------------------------------


def test_one_replica_beyond_the_whole_budget_of_its_class_is_refused_at_once() -> None:
    """[B6]"""
    it = budgeted(high={"cpu": "2"})
    it.of_class("low", cpu="3")
    made = template(cpu="3", priority_class="high")
    web = msgspec.structs.replace(it.web, metadata=ObjectMeta(name="big", namespace="acme"))
    web = msgspec.structs.replace(web, spec=msgspec.structs.replace(web.spec, template=made))
    refusal = refused(it.ask(ANN, Create(web)), EXCEEDED)
    assert refusal.details["field"] == "spec.template.resources"
    assert refusal.details["limit"] == "2"


def test_a_budget_for_an_unknown_class_is_accepted_with_a_hint() -> None:
    """It would limit nothing: perhaps the name is mistyped. [B5, B6]"""
    it = Furnished()
    spec = QuotaSpec(
        priority_classes={"hihg": {"cpu": 1}, "high": {"cpu": 1}, "default": {"cpu": 1}}
    )
    answer = it.ask(ADMIN, Create(Quota(ObjectMeta(name="default", namespace="acme"), spec=spec)))
    assert isinstance(answer, Accepted)
    said = answer.objects[0].metadata.annotations[HINTS_ANNOTATION]
    assert said == "spec.priorityClasses[hihg]: there is no such priority class yet"


def test_the_recount_sees_a_budget_that_is_charged_wrongly() -> None:
    """[B6, INV3]"""
    it = budgeted(high={"cpu": "2"})
    it.running(it.of_class("high"))
    key = keys.quota_ledger("tenant:acme")
    ledger = it.plane.read(key)
    use = msgspec.structs.replace(ledger.used["acme"], classes={"low": ONE})
    tamper(it, key, msgspec.structs.replace(ledger, used={"acme": use}))
    (found,) = recount(it.plane.store.range("", KEY_END).records)
    assert "by priority class" in found
    assert CapacityClass.HARD.value not in found.split("says")[0]
