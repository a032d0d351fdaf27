"""Leases and epochs: who may act for a scope, and how all others are fenced off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.commit.leases import RENEWALS_MAX
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.lease import lease_name
from holdfast.model.kinds.replica import Pending
from holdfast.model.kinds.reservation import Intent, ReservationOwner
from holdfast.model.lifecycle import Actor, Cause, Stage, State
from holdfast.model.meta import INT_MAX
from holdfast.model.refusal import Reason
from holdfast.model.requests import (
    REQUESTS,
    Accepted,
    AcquireLease,
    BindTogether,
    CommitGang,
    DropReservation,
    Evict,
    ForgetOperations,
    HoldCapacity,
    JudgeNode,
    LeaseRequest,
    Move,
    NodeAction,
    Patch,
    PatchType,
    ReleaseLease,
    Remove,
    RenewLease,
    ReportPending,
    ReportStage,
    RetireLease,
    Term,
    Unreserve,
    Update,
)
from tests.furnished import ANN, GARBAGE, Furnished
from tests.plane import (
    ADMIN,
    NODES,
    REPAIR,
    SCHEDULER,
    WORKLOADS,
    Plane,
    accepted,
    bind,
    refused,
    target,
)

SCOPE = "scheduler:shard-1"
TWO = who.scheduler("two")


def lease(plane: Plane, scope: str = SCOPE) -> Any:
    return plane.read(f"objects/leases/{lease_name(scope)}").spec


def epoch(plane: Plane, scope: str = SCOPE) -> Any:
    return plane.read(keys.epoch(scope))


def acquired(plane: Plane, identity: Identity, **seen: int) -> Term:
    made = accepted(plane.ask(identity, AcquireLease(SCOPE, 10_000, **seen)))
    return Term(SCOPE, made.spec.epoch)


def test_a_free_lease_is_taken_at_once_under_the_first_epoch() -> None:
    """[K3]"""
    plane = Plane()
    acquired(plane, SCHEDULER)
    assert (lease(plane).holder, lease(plane).epoch, lease(plane).renewals) == (
        SCHEDULER.name,
        1,
        0,
    )
    assert (epoch(plane).holder, epoch(plane).epoch) == (SCHEDULER.name, 1)


def test_a_held_lease_is_taken_over_only_as_it_was_seen() -> None:
    """[K1, K3]"""
    plane = Plane()
    term = acquired(plane, SCHEDULER)
    refusal = refused(plane.ask(TWO, AcquireLease(SCOPE, 10_000)), Reason.LEASE_HELD)
    assert refusal.details == {"holder": SCHEDULER.name, "epoch": "1"}
    accepted(plane.ask(SCHEDULER, RenewLease(term)))
    stale = AcquireLease(SCOPE, 10_000, seen_epoch=1, seen_renewals=0)
    refused(plane.ask(TWO, stale), Reason.LEASE_HELD)
    taken = acquired(plane, TWO, seen_epoch=1, seen_renewals=1)
    assert taken.epoch == 2
    assert (epoch(plane).holder, epoch(plane).epoch) == (TWO.name, 2)
    assert lease(plane).renewals == 0


def test_of_two_candidates_one_takes_over() -> None:
    """[K2]"""
    plane = Plane()
    acquired(plane, SCHEDULER)
    three = who.scheduler("three")
    takeover = AcquireLease(SCOPE, 10_000, seen_epoch=1, seen_renewals=0)
    first, second = plane.ask_all((TWO, takeover), (three, takeover))
    accepted(first)
    refused(second, Reason.LEASE_HELD)


def test_a_renewal_moves_the_count_and_leaves_the_epoch_alone() -> None:
    """So it gets in the way of no transaction that compares the epoch. [K3]"""
    plane = Plane()
    term = acquired(plane, SCHEDULER)
    before = plane.store.get(keys.epoch(SCOPE))
    for _ in range(3):
        accepted(plane.ask(SCHEDULER, RenewLease(term)))
    assert lease(plane).renewals == 3
    assert plane.store.get(keys.epoch(SCOPE)) == before


def test_a_former_holder_cannot_renew_or_release() -> None:
    """[K1, K3, INV7]"""
    plane = Plane()
    old = acquired(plane, SCHEDULER)
    acquired(plane, TWO, seen_epoch=1, seen_renewals=0)
    for request in (RenewLease(old), ReleaseLease(old)):
        refusal = refused(plane.ask(SCHEDULER, request), Reason.STALE_EPOCH)
        assert (refusal.details["epoch"], refusal.details["current"]) == ("1", "2")
    assert lease(plane).holder == TWO.name


def test_no_caller_renews_the_lease_of_another() -> None:
    """[C6.7, K3]"""
    plane = Plane()
    term = acquired(plane, SCHEDULER)
    refused(plane.ask(TWO, RenewLease(term)), Reason.STALE_EPOCH)
    refused(plane.ask(SCHEDULER, RenewLease(Term("scheduler:none", 1))), Reason.STALE_EPOCH)


@pytest.mark.parametrize("number", [INT_MAX, 2**63, 2**200])
def test_no_renewal_makes_a_lease_that_cannot_be_read(number: int) -> None:
    """Its own holder could otherwise keep all others from ever taking the lease over. [C6.7, K3]"""
    plane = Plane()
    term = acquired(plane, SCHEDULER)
    refusal = refused(plane.ask(SCHEDULER, RenewLease(term, number=number)), Reason.INVALID)
    assert f"number: {number} is above {RENEWALS_MAX}" in refusal.message
    assert lease(plane).renewals == 0
    accepted(plane.ask(SCHEDULER, RenewLease(term, number=RENEWALS_MAX)))
    accepted(plane.ask(SCHEDULER, ReleaseLease(term)))
    assert (lease(plane).holder, lease(plane).renewals) == ("", INT_MAX)
    taken = AcquireLease(SCOPE, 10_000, term.epoch, INT_MAX)
    assert accepted(plane.ask(TWO, taken)).spec.epoch == term.epoch + 1


def test_a_lease_that_was_given_back_is_free_and_the_next_epoch_is_new() -> None:
    """[K3]"""
    plane = Plane()
    term = acquired(plane, SCHEDULER)
    accepted(plane.ask(SCHEDULER, ReleaseLease(term)))
    assert lease(plane).holder == ""
    refused(plane.ask(SCHEDULER, RenewLease(term)), Reason.STALE_EPOCH)
    refused(plane.ask(SCHEDULER, ReleaseLease(term)), Reason.STALE_EPOCH)
    assert acquired(plane, TWO).epoch == 2


@pytest.mark.parametrize("actor", Actor)
def test_callers_hold_only_leases_of_their_own_type(actor: Actor) -> None:
    """A scope that another could take would let any caller stop a controller. [C6.7, K3]"""
    plane = Plane()
    scopes = {
        SCHEDULER: SCOPE,
        who.server("a"): "authority",
        **{
            who.controller(a.value.partition(":")[2]): a.value
            for a in Actor
            if a.value.startswith("controller:")
        },
    }
    callers = {
        Actor.SCHEDULER: SCHEDULER,
        Actor.AUTHORITY: who.server("a"),
        Actor.AGENT: who.agent("n"),
        Actor.USER: ANN,
        Actor.OPERATOR: ADMIN,
    }
    caller = callers.get(actor) or who.controller(actor.value.partition(":")[2])
    for owner, scope in scopes.items():
        answer = plane.ask(caller, AcquireLease(scope, 10_000))
        assert isinstance(answer, Accepted) == (owner == caller), (caller.name, scope, answer)


@pytest.mark.parametrize("scope", ["scheduler:", "scheduler", "", "shard", "controller:nodes/2"])
def test_a_scope_of_unknown_type_cannot_be_held(scope: str) -> None:
    plane = Plane()
    for identity in (SCHEDULER, NODES, who.server("a"), ADMIN):
        refused(plane.ask(identity, AcquireLease(scope, 10_000)), Reason.NOT_OWNER)


@pytest.mark.parametrize("duration_ms", [0, 99, 3_600_001, 2**53])
def test_a_lease_lasts_neither_no_time_nor_for_ever(duration_ms: int) -> None:
    """Candidates wait for as long as the lease says. [K3]"""
    plane = Plane()
    refused(plane.ask(SCHEDULER, AcquireLease(SCOPE, duration_ms)), Reason.INVALID)
    assert epoch(plane) is None


@pytest.mark.parametrize("scope", ["scheduler:" + "x" * 100, "scheduler:a b", "scheduler:Ä"])
def test_a_scope_must_make_a_name(scope: str) -> None:
    plane = Plane()
    refused(plane.ask(SCHEDULER, AcquireLease(scope, 10_000)), Reason.INVALID)


def test_two_scopes_never_share_a_lease() -> None:
    plane = Plane()
    accepted(plane.ask(SCHEDULER, AcquireLease("scheduler:a/b", 10_000)))
    refused(plane.ask(SCHEDULER, AcquireLease("scheduler:a:b", 10_000)), Reason.EXISTS)
    assert lease_name("scheduler:a/b") == lease_name("scheduler:a:b") == "scheduler-a-b"


# Every request that needs a lease, made by its own sort of caller in the best of circumstances.


def gang(it: Furnished) -> Any:
    owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
    hold = HoldCapacity("acme", owner, Intent.GANG, (), it.plane.at(60), it.term(SCHEDULER), 1)
    return owner, hold


def committable(it: Furnished, term: Term) -> CommitGang:
    _, hold = gang(it)
    held = it.yes(SCHEDULER, hold)
    it.yes(SCHEDULER, it.reserve(it.pending(), gang=held.name, intent=Intent.GANG))
    return CommitGang("acme", held.name, held.metadata.uid, term)


def droppable(it: Furnished, term: Term) -> DropReservation:
    _, hold = gang(it)
    held = it.yes(SCHEDULER, hold)
    return DropReservation("acme", held.name, held.metadata.uid, "done", term)


def with_term(request: Any, term: Term | None) -> Any:
    return msgspec.structs.replace(request, term=term)


def preemption(it: Furnished) -> Any:
    victim = it.running(it.of_class("low"))
    return it.preempt(it.pending(it.of_class("high", cpu="8")), victim)


def fenced(it: Furnished) -> Any:
    unknown = it.unknown()
    it.fenced()
    return unknown


Privileged = Callable[[Furnished, Any], Any]
PRIVILEGED: dict[str, tuple[Identity, Privileged]] = {
    "bind": (SCHEDULER, lambda it, term: with_term(it.bind(it.pending()), term)),
    "bind together": (
        SCHEDULER,
        lambda it, term: BindTogether((with_term(it.bind(it.pending()), term),)),
    ),
    "reserve": (SCHEDULER, lambda it, term: with_term(it.reserve(it.pending()), term)),
    "unreserve": (
        SCHEDULER,
        lambda it, term: Unreserve(target(it.reserved()), "Conflict", term),
    ),
    "hold": (SCHEDULER, lambda it, term: with_term(gang(it)[1], term)),
    "commit a gang": (SCHEDULER, committable),
    "drop": (SCHEDULER, droppable),
    "preempt": (SCHEDULER, lambda it, term: with_term(preemption(it), term)),
    "evict": (
        REPAIR,
        lambda it, term: Evict(target(it.running()), Cause.REPAIR, "stuck", term),
    ),
    "judge": (
        NODES,
        lambda it, term: JudgeNode("node-a", it.node.metadata.uid, NodeAction.MARK, term),
    ),
    "make unknown": (
        NODES,
        lambda it, term: with_term(it.to_unknown(it.running(), it.marked()), term),
    ),
    "fail": (REPAIR, lambda it, term: Move(target(fenced(it)), State.FAILED, term=term)),
    "release": (WORKLOADS, lambda it, term: Move(target(it.reserved()), State.RELEASED, term=term)),
    "forget": (GARBAGE, lambda it, term: ForgetOperations((), term)),
    "create": (WORKLOADS, lambda it, term: with_term(it.birth(it.web), term)),
    "update": (WORKLOADS, lambda it, term: Update(it.get(it.web), "status", term=term)),
    "patch": (
        WORKLOADS,
        lambda it, term: Patch(
            "workloads", "acme", "web", PatchType.MERGE, {}, subresource="status", term=term
        ),
    ),
    "remove": (
        WORKLOADS,
        lambda it, term: Remove("replicas", "acme", it.released().name, term=term),
    ),
    "report a stage": (
        who.controller("endpoints"),
        lambda it, term: ReportStage(target(it.ready()), Stage.SERVING, term=term),
    ),
    "report why it waits": (
        SCHEDULER,
        lambda it, term: ReportPending(target(it.pending()), Pending(message="full"), term=term),
    ),
}


def test_every_request_that_can_state_a_term_is_held_to_it() -> None:
    """One whose handler forgets it would take effect after a takeover. [K2, K3]"""
    made = {type(make(it := Furnished(), it.term(of))) for of, make in PRIVILEGED.values()}
    with_one = {kind for kind in REQUESTS if "term" in kind.__struct_fields__}
    # Of a lease itself the tests above know more.
    of_leases = {kind for kind in with_one if issubclass(kind, LeaseRequest)}
    assert with_one - of_leases == made - {BindTogether}


@pytest.mark.parametrize("name", PRIVILEGED)
def test_a_holder_that_was_taken_over_can_do_nothing_privileged(name: str) -> None:
    """It stalls, another takes over, it wakes: every write of it is refused. [K2, K3, INV7, SC7]"""
    identity, make = PRIVILEGED[name]
    it = Furnished()
    mine = it.term(identity)
    request = make(it, mine)
    # A takeover by another life of the same component: the same name, a new epoch.
    held = it.plane.read(f"objects/leases/{lease_name(mine.scope)}").spec
    takeover = AcquireLease(mine.scope, 10_000, held.epoch, held.renewals)
    newer = Term(mine.scope, it.yes(identity, takeover).spec.epoch)
    assert newer.epoch == mine.epoch + 1
    refused(it.ask(identity, request), Reason.STALE_EPOCH)
    if name != "bind together":
        assert isinstance(it.ask(identity, with_term(request, newer)), Accepted)


@pytest.mark.parametrize("name", PRIVILEGED)
def test_the_lease_of_another_holder_serves_no_caller(name: str) -> None:
    """[K1, C6.7]"""
    identity, make = PRIVILEGED[name]
    it = Furnished()
    other = it.term(NODES if identity != NODES else REPAIR)
    refused(it.ask(identity, make(it, other)), Reason.STALE_EPOCH)
    it = Furnished()
    refused(it.ask(identity, make(it, Term("scheduler:nobody", 1))), Reason.STALE_EPOCH)


@pytest.mark.parametrize("name", ["unreserve", "drop", "evict", "make unknown", "fail", "release"])
def test_without_a_lease_nothing_privileged_is_done(name: str) -> None:
    """[K3]"""
    identity, make = PRIVILEGED[name]
    it = Furnished()
    refused(it.ask(identity, make(it, None)), Reason.EPOCH_REQUIRED)


def test_a_takeover_between_the_decision_and_its_commit_is_noticed() -> None:
    """The epoch is compared in the transaction, not looked up before it. [K1, INV7]"""
    it = Furnished()
    replica, mine = it.pending(), it.term(SCHEDULER)
    request = it.bind(replica)
    other = it.plane.new_authority()
    done: list[Any] = []

    def take_over(effect: Any) -> Any:
        transaction = getattr(effect, "transaction", None)
        if transaction is None or not transaction.writes or done:
            return None
        done.append(effect)
        current, it.plane.authority = it.plane.authority, other
        it.plane.spoil = None
        held = it.plane.read(f"objects/leases/{lease_name(mine.scope)}").spec
        accepted(it.plane.ask(TWO, AcquireLease(mine.scope, 10_000, held.epoch, held.renewals)))
        it.plane.authority = current
        return None

    it.plane.spoil = take_over
    refused(it.plane.ask(SCHEDULER, request), Reason.STALE_EPOCH)
    assert len(done) == 1
    assert it.get(replica).status.state is State.PENDING


def test_a_holder_says_where_it_is_reached_and_takes_that_back_with_the_lease() -> None:
    """Other servers find the one that decides by this."""
    plane = Plane()
    address = "https://10.0.0.1:6443"
    asked = AcquireLease(SCOPE, 10_000, address=address)
    made = accepted(plane.ask(SCHEDULER, asked))
    assert made.spec.address == address
    term = Term(SCOPE, made.spec.epoch)
    moved = accepted(plane.ask(SCHEDULER, RenewLease(term, address="https://[::1]:7")))
    assert moved.spec.address == "https://[::1]:7"
    assert accepted(plane.ask(SCHEDULER, RenewLease(term))).spec.address == ""
    accepted(plane.ask(SCHEDULER, RenewLease(term, address=address)))
    given_back = accepted(plane.ask(SCHEDULER, ReleaseLease(term)))
    assert (given_back.spec.holder, given_back.spec.address) == ("", "")


@pytest.mark.parametrize(
    "address", ["10.0.0.1:6443", "http://a", "https://", "https://a:0", "https://u:p@a", "x" * 3000]
)
def test_an_address_that_is_none_is_refused_when_taking_and_when_renewing(address: str) -> None:
    plane = Plane()
    refused(plane.ask(SCHEDULER, AcquireLease(SCOPE, 10_000, address=address)), Reason.INVALID)
    taken = accepted(plane.ask(SCHEDULER, AcquireLease(SCOPE, 10_000)))
    renewal = RenewLease(Term(SCOPE, taken.spec.epoch), address=address)
    refused(plane.ask(SCHEDULER, renewal), Reason.INVALID)


# Forgetting --------------------------------------------------------------------------------------

SERVER = who.server("s1")
DAY_MS = 24 * 3_600_000


def retire(term: Term, renewals: int = 0) -> RetireLease:
    return RetireLease(term.scope, term.epoch, renewals)


def test_a_lease_that_was_not_renewed_for_a_day_is_forgotten_with_its_epoch() -> None:
    """Not before, not with an outdated view, and only by a server. [I4]"""
    it = Furnished()
    term = it.plane.term(SCHEDULER)
    it.plane.elapsed_ms += DAY_MS - 1
    refused(it.ask(SERVER, retire(term)), Reason.LEASE_HELD)
    it.plane.elapsed_ms += 1
    refused(it.ask(SERVER, retire(term, 1)), Reason.LEASE_HELD)
    for identity in (ADMIN, SCHEDULER, NODES):
        refused(it.ask(identity, retire(term)), Reason.NOT_OWNER)
    accepted(it.ask(SERVER, retire(term)))
    assert it.plane.read(keys.epoch(term.scope)) is None
    assert it.plane.read("objects/leases/scheduler-one") is None
    refused(it.ask(SERVER, retire(term)), Reason.MISSING)


def test_a_forgotten_lease_is_not_taken_on_an_older_read() -> None:
    """The request rests on what is gone; a candidate that still wants the lease reads again.
    [INV7]
    """
    it = Furnished()
    term = it.term(SCHEDULER)
    it.plane.elapsed_ms += 2 * 86_400_000
    it.yes(who.server("s1"), RetireLease(term.scope, term.epoch, 0))
    late = AcquireLease(term.scope, 10_000, term.epoch, 0)
    refused(it.ask(who.scheduler("two"), late), Reason.LEASE_HELD)
    taken = it.yes(who.scheduler("two"), AcquireLease(term.scope, 10_000))
    assert taken.spec.epoch > term.epoch


def test_no_epoch_that_was_ever_forgotten_comes_again() -> None:
    """Neither for its own scope nor for any other: what is on its way stays refused. [K3, INV7]"""
    it = Furnished()
    for _ in range(3):
        old = it.plane.term(SCHEDULER)
        accepted(it.ask(SCHEDULER, ReleaseLease(old)))
    low = it.plane.term(NODES)
    it.plane.elapsed_ms += DAY_MS
    # Giving it back counts as a renewal.
    accepted(it.ask(SERVER, retire(old, 1)))
    accepted(it.ask(SERVER, retire(low)))
    pending = it.pending()
    late = bind(pending, it.node, old)
    refused(it.ask(SCHEDULER, late), Reason.STALE_EPOCH)
    again = it.plane.term(SCHEDULER)
    assert again.epoch == old.epoch + 1
    refused(it.ask(SCHEDULER, late), Reason.STALE_EPOCH)
    assert it.plane.term(NODES).epoch == old.epoch + 1
    it.plane.authority = it.plane.new_authority()
    assert it.plane.term(who.scheduler("new")).epoch == old.epoch + 1
