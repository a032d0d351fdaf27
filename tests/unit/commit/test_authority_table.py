"""The authority table is kept: each request compares what its row says, and refuses what is old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.commit.authority import LOAD_PASSES_MAX
from holdfast.commit.authority_table import HANDLERS, STEPS
from holdfast.commit.context import PlaneSettings
from holdfast.commit.request_steps import ActionGuard, ComparedRecord, PlacementStep
from holdfast.model import keys
from holdfast.model import requests as ask
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.replica import Pending
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.observation_age import AGE_MAX_LEAST_MS, AGE_MAX_MOST_MS
from holdfast.model.plane_format import FORMAT
from holdfast.model.quarantine import Quarantined
from holdfast.model.refusal import Reason
from holdfast.model.requests import REQUESTS, Accepted, NodeAction, PatchType
from holdfast.model.transaction import Put, Transaction
from tests.furnished import AGENT, ANN, GARBAGE, Furnished
from tests.plane import ADMIN, NODES, SCHEDULER, WORKLOADS, refused, target, template
from tools.authority_page import PAGE, page

# How the key of each sort of record begins.
PREFIXES = {
    ComparedRecord.REPLICA: "objects/replicas/",
    ComparedRecord.NODE_LEDGER: "ledgers/node/",
    ComparedRecord.QUOTA_LEDGER: "ledgers/quota/",
    ComparedRecord.DISRUPTION_LEDGER: "ledgers/disruption/",
    ComparedRecord.OBJECTS_LEDGER: "ledgers/objects/",
    ComparedRecord.PLACES_LEDGER: "ledgers/places/",
    ComparedRecord.TENANT: "objects/tenants/",
    ComparedRecord.QUOTA: "objects/quotas/",
    ComparedRecord.EPOCH: "epochs/",
    ComparedRecord.RESERVATION: "objects/reservations/",
    ComparedRecord.WORKLOAD: "objects/workloads/",
    ComparedRecord.NODE: "objects/nodes/",
    ComparedRecord.LEASE: "objects/leases/",
    ComparedRecord.OVERRIDE: "objects/overrides/",
    ComparedRecord.OBJECT: "objects/",
    ComparedRecord.OPERATION: "operations/",
    ComparedRecord.QUARANTINE: "quarantine/",
    ComparedRecord.FORMAT: keys.FORMATS,
}

Example = Callable[[Furnished], tuple[Identity, Any]]


def labelled(it: Furnished) -> Workload:
    web: Workload = it.get(it.web)
    metadata = msgspec.structs.replace(web.metadata, labels={"tier": "front"})
    return msgspec.structs.replace(web, metadata=metadata)


def preemption(it: Furnished) -> Any:
    victim = it.running(it.of_class("low"))
    return it.preempt(it.pending(it.of_class("high", cpu="8")), victim)


def gang(it: Furnished) -> Any:
    owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
    request = ask.HoldCapacity(
        "acme", owner, Intent.GANG, (), it.plane.at(60), it.term(SCHEDULER), 1
    )
    held = it.yes(SCHEDULER, request)
    it.yes(SCHEDULER, it.reserve(it.pending(), gang=held.name, intent=Intent.GANG))
    return held


def held_capacity(it: Furnished) -> ask.HoldCapacity:
    owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
    claims = (Claim(node="node-a", charge={"cpu": 500}), Claim(charge={"memory": 1}))
    return ask.HoldCapacity(
        "acme", owner, Intent.RECOVERY, claims, it.plane.at(60), it.term(SCHEDULER)
    )


def forgotten(it: Furnished) -> ask.ForgetOperations:
    # A delete that is done at once is remembered apart from its object.
    secret = it.plane.create(Secret(ObjectMeta(name="brief", namespace="acme")))
    it.yes(ANN, ask.Remove("secrets", "acme", secret.name, operation="gone"))
    it.plane.elapsed_ms += it.plane.settings.operations_kept_ms + it.plane.settings.skew_ms
    return ask.ForgetOperations(("ann/gone",), it.term(GARBAGE))


def workload() -> Workload:
    return Workload(
        ObjectMeta(name="new", namespace="acme"), spec=WorkloadSpec(template=template())
    )


def registration() -> Node:
    return Node(ObjectMeta(name="node-n"), spec=NodeSpec(capacity={"cpu": "1"}))


def retired(it: Furnished) -> ask.RetireLease:
    term = it.term(SCHEDULER)
    it.plane.elapsed_ms += 25 * 3_600_000
    return ask.RetireLease(term.scope, term.epoch, 0)


def dropped(it: Furnished) -> ask.DropReservation:
    held = it.yes(SCHEDULER, held_capacity(it))
    return ask.DropReservation(
        "acme", held.name, held.metadata.uid, "not needed", it.term(SCHEDULER)
    )


def committed(it: Furnished) -> ask.CommitGang:
    held = gang(it)
    return ask.CommitGang("acme", held.name, held.metadata.uid, it.term(SCHEDULER))


def quarantined(it: Furnished) -> ask.QuarantineRecord:
    key = keys.node_ledger(it.node.name)
    found = it.plane.store.get(key)
    assert found is not None
    wrong = Quarantined(key, found.modified, "RecordsDisagree", "wrong", "a test", it.plane.at())
    return ask.QuarantineRecord(wrong)


def repaired(it: Furnished) -> ask.RepairRecord:
    request = quarantined(it)
    it.plane.ask(who.server("s1"), request)
    found = it.plane.store.get(request.record.key)
    assert found is not None
    action = ask.RepairAction.RELEASE
    return ask.RepairRecord(request.record.key, action, found.modified, "it is right")


def older_format(it: Furnished) -> ask.RaiseFormat:
    """The plane has an older format, and is to have this one."""
    key = keys.plane_format()
    it.plane.store.txn(Transaction((), (Put(key, b'{"format":%d}' % (FORMAT - 1)),)))
    it.plane.authority = it.plane.new_authority()
    return ask.RaiseFormat(FORMAT, "all run this version")


EXAMPLES: dict[type[Any], Example] = {
    ask.Create: lambda it: (WORKLOADS, it.birth(it.web)),
    ask.Update: lambda it: (ADMIN, ask.Update(labelled(it))),
    ask.Patch: lambda it: (
        ANN,
        ask.Patch("workloads", "acme", "web", PatchType.MERGE, {"spec": {"replicas": 3}}),
    ),
    ask.Remove: lambda it: (ANN, ask.Remove("workloads", "acme", "web")),
    ask.Reserve: lambda it: (SCHEDULER, it.reserve(it.pending())),
    ask.Unreserve: lambda it: (
        SCHEDULER,
        ask.Unreserve(target(it.reserved()), "Conflict", it.term(SCHEDULER)),
    ),
    ask.HoldCapacity: lambda it: (SCHEDULER, held_capacity(it)),
    ask.CommitGang: lambda it: (SCHEDULER, committed(it)),
    ask.DropReservation: lambda it: (SCHEDULER, dropped(it)),
    ask.Bind: lambda it: (SCHEDULER, it.bind(it.pending())),
    ask.BindTogether: lambda it: (
        SCHEDULER,
        ask.BindTogether((it.bind(it.pending()), it.bind(it.pending()))),
    ),
    ask.StopAndReserve: lambda it: (SCHEDULER, preemption(it)),
    ask.Move: lambda it: (AGENT, ask.Move(target(it.bound()), State.RUNNING, incarnation=1)),
    ask.ReportStage: lambda it: (
        AGENT,
        ask.ReportStage(target(it.running()), Stage.READY, incarnation=1),
    ),
    ask.ReportPending: lambda it: (
        SCHEDULER,
        ask.ReportPending(target(it.pending()), Pending(message="no room")),
    ),
    ask.Evict: lambda it: (WORKLOADS, it.evict(it.running())),
    ask.RegisterNode: lambda it: (who.agent("node-n"), ask.RegisterNode(registration())),
    ask.JudgeNode: lambda it: (NODES, it.judge(NodeAction.SUSPECT, approval=it.approval())),
    ask.ForgetOperations: lambda it: (GARBAGE, forgotten(it)),
    ask.AcquireLease: lambda it: (SCHEDULER, ask.AcquireLease("scheduler:other", 10_000)),
    ask.RenewLease: lambda it: (SCHEDULER, ask.RenewLease(it.term(SCHEDULER))),
    ask.ReleaseLease: lambda it: (SCHEDULER, ask.ReleaseLease(it.term(SCHEDULER))),
    ask.RetireLease: lambda it: (who.server("s1"), retired(it)),
    ask.QuarantineRecord: lambda it: (who.server("s1"), quarantined(it)),
    ask.RepairRecord: lambda it: (ADMIN, repaired(it)),
    ask.RaiseFormat: lambda it: (ADMIN, older_format(it)),
}


REQUESTED = [step for step in STEPS if step.request is not None]


def arranged(
    step: PlacementStep[Any], settings: PlaneSettings | None = None
) -> tuple[Furnished, Identity, Any]:
    """A plane on which the row's request is about to be made."""
    it = Furnished(settings=settings)
    it.plane.quota(hard={"cpu": "64"})
    example = EXAMPLES.get(step.request) if step.request is not None else None
    assert example is not None, f"{step.name} has no example here"
    identity, request = example(it)
    assert type(request) is step.request
    return it, identity, request


def compared(it: Furnished) -> set[str]:
    """The keys of the transaction that took effect last."""
    return {compare.key for compare in it.plane.transactions[-1].compares}


@pytest.mark.parametrize("step", REQUESTED, ids=lambda step: step.name)
def test_a_request_compares_every_sort_of_record_that_its_row_names(
    step: PlacementStep[Any],
) -> None:
    """[C4, C5]"""
    it, identity, request = arranged(step)
    answer = it.plane.ask(identity, request)
    assert isinstance(answer, Accepted), answer
    keys_compared = compared(it)
    assert step.compares
    for sort in step.compares:
        assert any(key.startswith(PREFIXES[sort]) for key in keys_compared), (sort, keys_compared)
    it.check()


@pytest.mark.parametrize("step", REQUESTED, ids=lambda step: step.name)
def test_a_server_that_knows_nothing_needs_few_readings_for_a_decision(
    step: PlacementStep[Any],
) -> None:
    """The bound on readings is there for loops, and no request comes near it."""
    it, identity, request = arranged(step)
    it.plane.authority = it.plane.new_authority()
    before = len(it.plane.transactions)
    assert isinstance(it.plane.ask(identity, request), Accepted)
    assert len(it.plane.transactions) - before <= LOAD_PASSES_MAX // 2 + 1


AGED = [step for step in REQUESTED if step.is_aged]
PATIENT, HASTY = [
    PlaneSettings(observation_age_max_ms=age_ms) for age_ms in (60_000, AGE_MAX_LEAST_MS)
]


@pytest.mark.parametrize("settings", [PlaneSettings(), PATIENT, HASTY], ids=["30s", "60s", "5s"])
@pytest.mark.parametrize("step", AGED, ids=lambda step: step.name)
def test_an_observation_is_refused_beyond_its_maximum_age_and_accepted_at_it(
    step: PlacementStep[Any], settings: PlaneSettings
) -> None:
    """The plane's setting, unless the step has a smaller one. [C5, C9]"""
    it, identity, request = arranged(step, settings)
    most = min(step.age_max_ms or AGE_MAX_MOST_MS, settings.observation_age_max_ms)
    refused(it.ask(identity, aged(request, most + 1)), Reason.TOO_OLD)
    assert isinstance(it.ask(identity, aged(request, most)), Accepted)


def aged(request: Any, age_ms: int) -> Any:
    if isinstance(request, ask.BindTogether):
        binds = tuple(aged(part, age_ms) for part in request.binds)
        return msgspec.structs.replace(request, binds=binds)
    return msgspec.structs.replace(request, snapshot_age_ms=age_ms)


def test_every_request_that_carries_an_age_has_a_maximum() -> None:
    """[C5]"""
    carrying = {kind for kind in REQUESTS if "snapshot_age_ms" in kind.__struct_fields__}
    assert carrying <= {step.request for step in AGED}


def test_every_request_has_a_row_and_every_row_its_request() -> None:
    """[C5, A10]"""
    assert {step.request for step in REQUESTED} == set(REQUESTS)
    assert len({step.request for step in REQUESTED}) == len(REQUESTED)
    assert set(EXAMPLES) == set(REQUESTS) == set(HANDLERS)


def test_only_what_costs_its_actor_alone_is_done_without_a_transaction() -> None:
    """[C5, A10]"""
    for step in STEPS:
        assert (step.request is not None) == (step.guard is ActionGuard.SERIALISED), step.name
        assert all((step.actor, step.observes, step.between, step.decides)), step.name
        if step.guard is ActionGuard.FRESH_READ:
            assert step.age_max_ms is not None


def test_the_page_is_what_the_table_says() -> None:
    """`make authority-page` rewrites it. [C5]"""
    assert PAGE.read_text(encoding="utf-8") == page()
    assert PREFIXES[ComparedRecord.EPOCH] == keys.EPOCHS
    assert PREFIXES[ComparedRecord.OPERATION] == keys.OPERATIONS


@pytest.mark.parametrize("step", REQUESTED, ids=lambda step: step.name)
def test_no_damage_to_what_a_request_reads_stops_the_server(step: PlacementStep[Any]) -> None:
    """Each record in turn loses everything that it may lose, or cannot be read."""
    it, identity, request = arranged(step)
    it.plane.ask(identity, request)
    # With an unreadable format no server knows whether it may write at all.
    read = sorted(compared(it) - {keys.plane_format()})
    for key in read:
        for damage in (b"{", _emptied):
            it, identity, request = arranged(step)
            if it.plane.store.get(key) is None:
                continue
            it.plane.damage(key, damage)
            it.plane.authority = it.plane.new_authority()
            other = ask.AcquireLease("scheduler:bystander", 10_000)
            _, good = it.plane.ask_all((identity, request), (SCHEDULER, other))
            if not key.startswith("epochs/") and "leases" not in key:
                assert isinstance(good, Accepted), (key, good)


def _emptied(tree: dict[str, Any]) -> None:
    """The record without all that it can be decoded without."""
    for section in ("status", "used", "devices", "counts"):
        if section in tree:
            tree[section] = {}
    tree.get("metadata", {}).pop("uid", None)
