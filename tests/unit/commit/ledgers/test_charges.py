"""Charges and refunds: one transaction for every ledger, and exact refunds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.commit.context import Context
from holdfast.commit.draft import CommitGroup, Draft, SeenRecords
from holdfast.commit.ledgers.charges import (
    allowance_refusal,
    charge_tenant,
    cohort_of,
    refund_tenant,
)
from holdfast.commit.record_encoding import encode
from holdfast.model import keys
from holdfast.model.kinds.template import DeviceRequest, Port
from holdfast.model.kinds.tenant import CapacityClass
from holdfast.model.lifecycle import State
from holdfast.model.quota.ledger import GrantLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, BindTogether
from holdfast.model.transaction import ABSENT, Compare, Put, Transaction
from tests.furnished import Furnished, counted, ledgers
from tests.plane import SCHEDULER, Plane, refused, template

HARD = CapacityClass.HARD


def grant(
    it: Furnished, tenant: str = "acme", used: dict[str, int] | None = None, **more: Any
) -> None:
    """Give the region a grant for a tenant, as the global plane will."""
    key = keys.grant_ledger(tenant)
    spec = {"budgets": {"guaranteed": {"cpu": 2000}}, "expires": it.plane.at(600), **more}
    if used:
        spec["used"] = {"guaranteed": used}
    record = it.plane.store.get(key)
    at = record.modified if record is not None else ABSENT
    value = encode(GrantLedger(serial=1, **spec))
    it.plane.store.txn(Transaction((Compare(key, at),), (Put(key, value),)))


def granted(it: Furnished) -> dict[str, int]:
    found: dict[str, int] = it.plane.read(keys.grant_ledger("acme")).used.get("guaranteed", {})
    return found


def test_what_is_taken_is_in_every_ledger_and_what_is_given_back_in_none() -> None:
    """[C6.5, D1, INV3, INV4]"""
    it = Furnished()
    grant(it)
    gpu = (DeviceRequest(device_class="gpu", memory="16Gi"),)
    ports = (Port(name="http", port=80),)
    train = it.plane.workload("train", template=template(devices=gpu, ports=ports))
    before = ledgers(it.plane)
    running = it.running(train)
    charge = {"cpu": 1000, "memory": 2**30, "replicas": 1, "gpu": 1000}
    assert counted(it.plane) == {"node node-a": charge, "hard acme": charge}
    assert granted(it) == charge
    ledger = it.plane.ledger("node-a")
    assert ledger.ports == {"TCP/80": running.metadata.uid}
    it.moved(it.moved(running, State.FAILED), State.RELEASED)
    assert ledgers(it.plane) == before == {}
    assert granted(it) == {}
    assert it.plane.ledger("node-a").ports == {}


def test_a_failed_or_ended_replica_is_charged_until_its_work_has_surely_stopped() -> None:
    """[C6.4, C6.5]"""
    it = Furnished(cpus=1)
    for end in (State.FAILED, State.SUCCEEDED):
        ended = it.moved(it.running(), end)
        refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.NODE_FULL)
        it.moved(ended, State.RELEASED)


def test_classes_are_never_added_to_each_other() -> None:
    """[D3]"""
    it = Furnished()
    it.plane.quota(hard={"cpu": "1"}, reclaimable={"cpu": "1"})
    spot = it.of_class("spot")
    it.running()
    it.running(spot)
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.QUOTA_EXCEEDED)
    refused(it.ask(SCHEDULER, it.bind(it.pending(spot))), Reason.QUOTA_EXCEEDED)


def test_a_class_that_changes_meanwhile_gives_back_what_was_charged() -> None:
    """The binding says which class it was. [C6.5]"""
    it = Furnished()
    spot = it.of_class("spot")
    running = it.running(spot)
    it.updated(it.plane.read("objects/priorityclasses/spot"), capacity_class=HARD)
    it.moved(it.moved(running, State.FAILED), State.RELEASED)
    assert ledgers(it.plane) == {}


def test_a_grant_bounds_what_a_region_spends() -> None:
    """[INV8]"""
    it = Furnished()
    grant(it)
    it.running()
    it.running()
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.GRANT_EXCEEDED)
    it.plane.elapsed_ms += 600_000 - it.plane.settings.skew_ms
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.GRANT_EXPIRED)


def test_work_from_before_a_grant_does_not_make_the_grant_larger() -> None:
    """[INV8]"""
    it = Furnished()
    old = it.running()
    grant(it)
    it.moved(it.moved(old, State.FAILED), State.RELEASED)
    assert granted(it) == {}
    it.running()
    it.running()
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.GRANT_EXCEEDED)


def test_a_tenant_without_a_quota_stands_alone_under_a_name_that_no_cohort_can_have() -> None:
    it = Furnished()
    group = CommitGroup(SeenRecords())
    for record in it.plane.store.range("", keys.END).records:
        group.view.learn(record.key, record)
    group.view.learn("objects/quotas/acme/default", None)
    assert cohort_of(Draft(group), "acme") == "tenant:acme"
    it.plane.quota(cohort="both")
    fresh = CommitGroup(SeenRecords())
    for record in it.plane.store.range("", keys.END).records:
        fresh.view.learn(record.key, record)
    assert cohort_of(Draft(fresh), "acme") == "both"


def drafted(plane: Plane) -> tuple[Draft, Context]:
    """A draft over an empty store."""
    group = CommitGroup(SeenRecords())
    for key in (
        "objects/quotas/acme/default",
        keys.quota_ledger("tenant:acme"),
        keys.grant_ledger("acme"),
    ):
        group.view.learn(key, None)
    return Draft(group), Context(SCHEDULER, plane.now, random.Random(1), plane.settings)


def test_a_charge_and_its_refund_cancel_out() -> None:
    """[C6.5]"""
    draft, context = drafted(Plane())
    amounts = {"cpu": 500, "replicas": 1}
    assert charge_tenant(draft, context, "acme", HARD, amounts, "default") == "tenant:acme"
    assert charge_tenant(draft, context, "acme", HARD, amounts, "default") == "tenant:acme"
    refund_tenant(draft, "acme", HARD, amounts, "default")
    ledger = draft.read(keys.quota_ledger("tenant:acme"))
    assert ledger.used["acme"].hard == amounts
    refund_tenant(draft, "acme", HARD, amounts, "default")
    assert draft.read(keys.quota_ledger("tenant:acme")).used == {}


def test_what_leavers_give_back_counts_for_their_own_cohort_only() -> None:
    """[G4]"""
    it = Furnished()
    it.plane.quota(hard={"cpu": "1"})
    mine = it.running()
    theirs = it.running(it.plane.workload("w", "globex"))
    group = CommitGroup(SeenRecords())
    for record in it.plane.store.range("", keys.END).records:
        group.view.learn(record.key, record)
    for key in ("objects/quotas/globex/default", keys.grant_ledger("acme")):
        group.view.learn(key, None)
    draft = Draft(group)
    context = Context(SCHEDULER, it.plane.now, random.Random(1), it.plane.settings)

    def allowed(*leavers: Any) -> bool:
        charge = {"cpu": 1000}
        answer = allowance_refusal(draft, context, "acme", HARD, charge, "default", leavers)
        assert answer is None or isinstance(answer, Refusal)
        return answer is None

    assert not allowed()
    assert not allowed(theirs)
    assert allowed(mine)
    assert allowed(mine, theirs)
    # It only asked what would be; nothing was written.
    assert draft.writes == {}


@pytest.mark.parametrize("seed", range(3))
def test_random_lives_leave_nothing_behind(seed: int) -> None:
    """Whatever happens to replicas, in whatever order: the books agree after every step, and in
    the end they are empty. [C6.5, C6.6, INV3, INV4]
    """
    rng = random.Random(seed)
    it = Furnished(cpus=6)
    it.plane.quota(hard={"cpu": "5"}, reclaimable={"cpu": "3"})
    workloads = [it.web, it.of_class("low"), it.of_class("spot"), it.of_class("high")]
    living: list[Any] = []
    for _ in range(60):
        if not living or rng.random() < 0.4:
            replica = it.pending(rng.choice(workloads))
            ask = it.reserve(replica) if rng.random() < 0.4 else it.bind(replica)
            if isinstance(it.ask(SCHEDULER, ask), Accepted):
                living.append(replica)
            continue
        replica = rng.choice(living)
        now = it.get(replica)
        match now.status.state:
            case State.RESERVED:
                it.yes(SCHEDULER, it.bind(now))
            case State.BOUND:
                it.moved(now, rng.choice((State.RUNNING, State.FAILED)))
            case State.RUNNING if rng.random() < 0.5:
                it.stopping(now)
            case State.RUNNING:
                it.moved(now, State.SUCCEEDED)
            case _:
                it.moved(now, State.RELEASED)
                living.remove(replica)
    for replica in living:
        now = it.get(replica)
        if now.status.state is State.RESERVED:
            now = it.yes(SCHEDULER, it.bind(now))
        if now.status.state in (State.BOUND, State.RUNNING):
            now = it.moved(now, State.FAILED)
        it.moved(now, State.RELEASED)
    assert ledgers(it.plane) == {}


def test_all_or_none_takes_all_or_nothing() -> None:
    """[G5, C6.5]"""
    it = Furnished()
    it.plane.quota(hard={"cpu": "2"})
    binds = tuple(it.bind(it.pending()) for _ in range(3))
    refused(it.ask(SCHEDULER, BindTogether(binds)), Reason.QUOTA_EXCEEDED)
    assert ledgers(it.plane) == {}
