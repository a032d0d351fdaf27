"""Reservations as records: what a claim may become, and that it is released once."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from holdfast.commit.ages import Ages
from holdfast.commit.context import Context, ReplayableRng
from holdfast.commit.draft import CommitGroup, Draft, SeenRecords
from holdfast.commit.lifecycle.reservations import (
    claim_for,
    consume_claim,
    distant_refusal,
    drop_claims,
    held_for,
    is_over,
    is_past_deadline,
    is_promise,
    overdue_refusal,
)
from holdfast.model import keys
from holdfast.model.access.identity import controller
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
    reservation_name,
)
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.quota.charging import is_active
from holdfast.model.refusal import Reason
from holdfast.model.requests import DropReservation, HoldCapacity, Unreserve
from holdfast.model.time import Instant
from tests.furnished import Furnished, counted
from tests.plane import REPAIR, SCHEDULER, Plane, accepted, refused, target
from tests.unit.commit.capacity_requests import hold

RESERVES = controller("reserves")


def context(plane: Plane) -> Context:
    return Context(SCHEDULER, plane.now, ReplayableRng(random.Random(1)), plane.settings)


def reservation(plane: Plane, *claims: Claim, intent: Intent = Intent.RECOVERY) -> Reservation:
    owner = ReservationOwner("Workload", "web", "owner-uid")
    return Reservation(
        ObjectMeta(name="r", namespace="acme", uid="r-uid"),
        spec=ReservationSpec(owner=owner, intent=intent, deadline=plane.at(60)),
        status=ReservationStatus(claims=claims),
    )


def test_one_name_for_one_owner_and_intent() -> None:
    """[C6.9, F7]"""
    names = {reservation_name("web-0-0", intent) for intent in Intent}
    assert len(names) == len(Intent)
    assert reservation_name("web-0-0", Intent.BIND) == "web-0-0-bind"


@pytest.mark.parametrize("intent", Intent)
def test_only_a_preemption_promises(intent: Intent) -> None:
    assert is_promise(reservation(Plane(), intent=intent)) == (intent is Intent.PREEMPTION)


def test_a_claim_is_for_its_replica_or_for_any_of_the_owner_and_is_used_once() -> None:
    """[C6.5]"""
    it = Furnished()
    mine, other = it.pending(), it.pending()
    held = reservation(
        it.plane,
        Claim(node="node-b"),
        Claim(node="node-a", replica=other.name),
        Claim(node="node-a", consumed=True),
        Claim(node="node-a", replica=mine.name),
        Claim(node="node-a"),
    )
    assert claim_for(held, mine, "node-a") == 3
    assert claim_for(held, other, "node-a") == 1
    assert claim_for(held, mine, "node-c") is None
    after = consume_claim(held, 3, mine.name)
    assert claim_for(after, mine, "node-a") == 4
    assert after.status.phase is ReservationPhase.HELD
    for index in (0, 1, 4):
        after = consume_claim(after, index, mine.name)
    assert after.status.phase is ReservationPhase.CONSUMED
    assert not is_active(after)


def test_a_reservation_is_for_one_uid_and_not_for_a_name() -> None:
    it = Furnished()
    replica = it.pending()
    held = reservation(it.plane)
    assert not held_for(held, replica)
    for uid in (replica.metadata.uid, it.web.metadata.uid):
        owner = msgspec.structs.replace(held.spec.owner, uid=uid)
        spec = msgspec.structs.replace(held.spec, owner=owner)
        assert held_for(msgspec.structs.replace(held, spec=spec), replica)


def test_holder_and_reclaimer_never_act_at_the_same_moment() -> None:
    """Whatever their clocks say, within the skew. [INV12]"""
    plane = Plane()
    held = reservation(plane)
    skew_ms = plane.settings.skew_ms
    for offset_ms in range(-3 * skew_ms, 3 * skew_ms + 1, skew_ms // 4):
        plane.elapsed_ms = 60_000 + offset_ms
        here = context(plane)
        assert (overdue_refusal(here, held) is None) == (offset_ms < -skew_ms)
        assert is_past_deadline(here, held.spec.deadline) == (offset_ms >= skew_ms)


def test_what_is_dropped_is_dropped_once() -> None:
    """[C6.5]"""
    it = Furnished()
    owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
    claims = tuple(Claim(node="node-a", charge={"cpu": 500}) for _ in range(2))
    held = it.yes(
        SCHEDULER,
        HoldCapacity("acme", owner, Intent.RECOVERY, claims, it.plane.at(60), it.term(SCHEDULER)),
    )
    group = CommitGroup(SeenRecords())
    for record in it.plane.store.range("", keys.END).records:
        group.view.learn(record.key, record)
    for key in (keys.grant_ledger("acme"), "objects/quotas/acme/default"):
        group.view.learn(key, None)
    draft = Draft(group)
    # One of a workload that only has the same name gets nothing out of it.
    stranger = msgspec.structs.replace(it.pending(), spec=strange(it.pending().spec))
    assert drop_claims(draft, context(it.plane), "acme", held.name, stranger, "no") is None
    assert draft.writes == {}
    first = drop_claims(draft, context(it.plane), "acme", held.name, None, "over")
    assert first is not None
    assert (first.status.phase, first.status.claims) == (ReservationPhase.RELEASED, ())
    assert drop_claims(draft, context(it.plane), "acme", held.name, None, "over") is None
    assert draft.read(keys.node_ledger("node-a")).used == {}


def strange(spec: Any) -> Any:
    return msgspec.structs.replace(spec, workload_uid="another")


def test_every_way_out_of_a_reservation_gives_everything_back() -> None:
    """By a conflict, by its maker, past its deadline, and by a bind and a release. [C6.5, INV12]"""
    it = Furnished()
    ways: list[Any] = [it.reserved(after_s=30) for _ in range(4)]
    drop, conflict, late, used = ways
    held = it.reservation(drop.status.reservation)
    it.yes(
        SCHEDULER,
        DropReservation("acme", held.name, held.metadata.uid, "done", it.term(SCHEDULER)),
    )
    it.yes(SCHEDULER, Unreserve(target(conflict), "Conflict", it.term(SCHEDULER)))
    bound = it.yes(SCHEDULER, it.bind(used))
    it.plane.elapsed_ms += 30_000 + it.plane.settings.skew_ms
    it.yes(REPAIR, Unreserve(target(late), "Expired", it.term(REPAIR)))
    it.moved(it.moved(bound, State.FAILED), State.RELEASED)
    assert counted(it.plane) == {}


def test_a_deadline_by_a_calendar_that_is_ahead_is_refused() -> None:
    """What is held would be held until that day. [C6.5, INV12]"""
    it = Furnished()
    plane = it.plane
    assert distant_refusal(context(plane), plane.at(86_400)) is None
    refusal = distant_refusal(context(plane), plane.at(86_401))
    assert refusal is not None
    assert "spec.deadline" in refusal.message
    refused(it.ask(SCHEDULER, hold(it, after_s=40 * 86_400)), Reason.INVALID)
    held = accepted(it.ask(RESERVES, hold(it, identity=RESERVES)))
    again = hold(it, after_s=40 * 86_400, identity=RESERVES)
    refused(it.ask(RESERVES, again), Reason.INVALID)
    assert plane.get(held).spec.deadline == plane.at(60)


def test_a_reservation_is_over_when_its_time_is_wherever_the_calendar_was_set() -> None:
    """Made for a minute by a calendar that was a day ahead, it does not last for a day. [INV12]"""
    plane = Plane()
    ages = Ages()
    ages.begin(plane.now)
    plane.elapsed_ms += 86_400_000
    made = msgspec.structs.replace(
        reservation(plane),
        metadata=ObjectMeta(name="r", namespace="acme", uid="r", creation_timestamp=plane.at()),
    )
    ahead = Instant(0, plane.now.wall_ms)
    ages.observe(ahead)
    for passed_ms, expected in ((61_999, False), (62_000, True)):
        back = Instant(passed_ms, ahead.wall_ms - 86_400_000 + passed_ms)
        asked = Context(REPAIR, back, ReplayableRng(random.Random(1)), plane.settings, ages)
        assert not is_past_deadline(asked, made.spec.deadline)
        assert is_over(asked, made) is expected
