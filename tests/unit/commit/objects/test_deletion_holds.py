"""Deletion of replicas and reservations: they release their place, and not before proof."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner, ReservationPhase
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import FOREGROUND_FINALIZER
from holdfast.model.refusal import Reason
from holdfast.model.requests import HoldCapacity, Propagation, Remove, Update
from tests.furnished import ANN, GARBAGE, Furnished, counted
from tests.plane import ADMIN, REPAIR, SCHEDULER, WORKLOADS, accepted, refused, template
from tests.unit.commit.finalizers import remove_finalizers, with_finalizers


@pytest.mark.parametrize("identity", [ANN, ADMIN, WORKLOADS])
def test_deleting_a_replica_says_what_is_wanted_and_a_person_stops_it_too(identity: Any) -> None:
    """[A8]"""
    it = Furnished()
    running = it.running()
    seen = it.plane.store.get(f"objects/replicas/acme/{running.name}")
    assert seen is not None
    it.yes(identity, Remove("replicas", "acme", running.name, operation="stop-it"))
    after = it.get(running)
    assert after.metadata.deletion_timestamp is not None
    if identity == WORKLOADS:
        assert after.status.state is State.RUNNING
    else:
        assert (after.status.state, after.status.cause) == (State.STOPPING, Cause.USER_DELETE)
        last = after.status.transitions[-1]
        assert (last.by, last.revision) == (identity.name, seen.modified)
    assert it.ask(identity, Remove("replicas", "acme", running.name, operation="stop-it")).replayed


def test_an_unreachable_replica_waits_for_proof_or_fence_or_an_operators_statement() -> None:
    """[C6.4, I3]"""
    it = Furnished()
    unknown = it.unknown()
    remove = Remove("replicas", "acme", unknown.name)
    it.yes(ANN, remove)
    it.yes(ANN, msgspec.structs.replace(remove, force=True))
    assert it.get(unknown).status.state is State.UNKNOWN
    it.yes(ADMIN, msgspec.structs.replace(remove, force=True))
    after = it.get(unknown)
    last = after.status.transitions[-1]
    assert (after.status.state, last.by, last.reason) == (
        State.FAILED,
        ADMIN.name,
        "OperatorsWord",
    )
    # It is still charged: an operator's statement is no proof of stop.
    assert it.plane.ledger("node-a").used["replicas"] == 1
    it.cleared()
    it.moved(after, State.RELEASED)
    assert it.get(unknown) is None


@pytest.mark.parametrize("before", ["Unknown", "Failed"])
def test_work_that_runs_on_is_released_by_an_operators_statement_after_the_fence(
    before: str,
) -> None:
    """Its machine is scrap: no agent will ever prove that it has stopped. Not before the fence,
    not by its tenant, not for asking politely. [A8, I3, I5]
    """
    it = Furnished()
    keep = it.plane.workload("keeper", template=template(on_disconnect=OnDisconnect.KEEP))
    unknown = it.unknown(it.running(keep))
    force = Remove("replicas", "acme", unknown.name, force=True)
    if before == "Failed":
        it.yes(ADMIN, force)
        assert it.get(unknown).status.state is State.FAILED
        it.yes(ADMIN, force)
        assert it.get(unknown).status.state is State.FAILED
    it.fenced()
    it.yes(ANN, force)
    it.yes(ADMIN, msgspec.structs.replace(force, force=False))
    assert it.get(unknown).status.state is State(before)
    assert it.plane.ledger("node-a").used["replicas"] == 1
    last = it.yes(ADMIN, force)
    steps = [(it.to, it.by, it.reason) for it in last.status.transitions[-2:]]
    word = (ADMIN.name, "OperatorsWord")
    assert steps == [(State.FAILED, *word), (State.RELEASED, *word)]
    assert it.get(unknown) is None
    assert not it.plane.ledger("node-a").used


def test_an_operators_statement_leaves_work_that_stops_by_itself_to_the_fence() -> None:
    """Repair releases it with proof; a person need not guess. [I3, C6.4]"""
    it = Furnished()
    unknown = it.unknown()
    it.fenced()
    it.yes(ADMIN, Remove("replicas", "acme", unknown.name, force=True))
    assert it.get(unknown).status.state is State.FAILED
    it.yes(REPAIR, it.repaired(it.get(unknown), State.RELEASED))
    assert it.get(unknown) is None


def test_a_released_replica_is_deleted_at_once_unless_a_finalizer_holds_it() -> None:
    """[I5]"""
    it = Furnished()
    released = it.released()
    foreground = Remove("replicas", "acme", released.name, propagation=Propagation.FOREGROUND)
    it.yes(WORKLOADS, foreground)
    assert it.get(released).metadata.finalizers == (FOREGROUND_FINALIZER,)
    accepted(remove_finalizers(it, released, GARBAGE, FOREGROUND_FINALIZER))
    assert it.get(released) is None
    other = it.released()
    it.yes(WORKLOADS, Remove("replicas", "acme", other.name))
    assert it.get(other) is None


def test_a_replica_never_loses_its_hold_by_an_update() -> None:
    """[I5]"""
    it = Furnished()
    running = it.running()
    it.yes(WORKLOADS, Remove("replicas", "acme", running.name))
    for identity in (WORKLOADS, GARBAGE, ADMIN):
        it.ask(identity, Update(with_finalizers(it.get(running))))
    assert it.get(running).metadata.finalizers == ("holdfast.dev/release",)
    assert it.plane.ledger("node-a").used["replicas"] == 1


# Reservations ------------------------------------------------------------------------------------


def held(it: Furnished) -> Any:
    owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
    claims = (Claim(node="node-a", charge={"cpu": 500}),)
    return it.yes(
        SCHEDULER,
        HoldCapacity("acme", owner, Intent.RECOVERY, claims, it.plane.at(60), it.term(SCHEDULER)),
    )


def test_a_deleted_reservation_gives_back_what_it_holds() -> None:
    """Otherwise it could never be released. [C6.5, INV12]"""
    it = Furnished()
    lane = held(it)
    for identity in (ADMIN, ANN, SCHEDULER):
        answer = it.ask(identity, Remove("reservations", "acme", lane.name))
        assert answer.reason in (Reason.NOT_OWNER, Reason.NOT_ALLOWED)
    for identity in (REPAIR, GARBAGE):
        refused(it.ask(identity, Remove("reservations", "acme", lane.name)), Reason.NOT_ALLOWED)
    it.plane.elapsed_ms += 60_000 + it.plane.settings.skew_ms
    it.yes(REPAIR, Remove("reservations", "acme", lane.name))
    assert it.get(lane) is None
    assert counted(it.plane) == {}


def test_a_deleted_reservation_sends_its_replica_back_to_the_queue() -> None:
    it = Furnished()
    reserved = it.reserved(after_s=60)
    it.plane.elapsed_ms += 60_000 + it.plane.settings.skew_ms
    it.yes(REPAIR, Remove("reservations", "acme", reserved.status.reservation))
    assert it.get(reserved).status.state is State.PENDING
    assert counted(it.plane) == {}


def test_a_reservation_that_must_wait_for_a_finalizer_holds_nothing_meanwhile() -> None:
    """[C6.5]"""
    it = Furnished()
    lane = held(it)
    it.plane.elapsed_ms += 60_000 + it.plane.settings.skew_ms
    foreground = Remove("reservations", "acme", lane.name, propagation=Propagation.FOREGROUND)
    it.yes(REPAIR, foreground)
    waiting = it.get(lane)
    assert (waiting.status.phase, waiting.status.claims) == (ReservationPhase.RELEASED, ())
    assert counted(it.plane) == {}
    accepted(remove_finalizers(it, lane, GARBAGE, FOREGROUND_FINALIZER))
    assert it.get(lane) is None


def test_a_reservation_that_has_ended_holds_nothing_and_may_go() -> None:
    it = Furnished()
    reserved = it.reserved()
    it.yes(SCHEDULER, it.bind(reserved))
    it.yes(REPAIR, Remove("reservations", "acme", reserved.status.reservation))
    assert counted(it.plane)["node node-a"]["replicas"] == 1
