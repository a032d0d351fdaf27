"""Cases of `late_copies`: for each type of request a plane on which it is accepted, and what others
do after it. A new type of request needs one here that says what keeps it from taking effect twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model import keys
from holdfast.model import requests as ask
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.decision import Decision, DecisionSpec
from holdfast.model.kinds.endpoints import Endpoints
from holdfast.model.kinds.event import Event, ObjectReference
from holdfast.model.kinds.lease import lease_name
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.replica import Pending
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.workload import (
    Cron,
    Gang,
    Workload,
    WorkloadRevision,
    WorkloadRevisionSpec,
    WorkloadSpec,
    WorkloadType,
)
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import API_VERSION, ObjectMeta
from holdfast.model.plane_format import FORMAT
from holdfast.model.quarantine import Quarantined
from holdfast.model.requests import NodeAction, PatchType
from holdfast.model.time import timestamp
from holdfast.model.workload.jobs import run_of
from tests.furnished import AGENT, ANN, DRAINS, GARBAGE, ROLLOUTS, Furnished, every
from tests.plane import ADMIN, NODES, REPAIR, SCHEDULER, WORKLOADS, target, template
from tests.property.late_copies import Asked, Case, Step
from tests.unit.commit.test_authority_table import older_format

ENDPOINTS, STATUS = who.controller("endpoints"), who.controller("status")
EVENTS, SERVER = who.controller("events"), who.server("one")
RESERVES = who.controller("reserves")
DAY_MS = 86_400_000

CASES: list[Case] = []


def case(request: type[Any], *steps: Step, finds_it_so: bool = False) -> Callable[[Any], Any]:
    """Make a case of this request with the function that it decorates."""

    def added(begin: Callable[[Furnished], Asked]) -> Callable[[Furnished], Asked]:
        CASES.append(Case(begin.__name__, request, begin, steps, finds_it_so))
        return begin

    return added


# Steps that others take --------------------------------------------------------------------------


def replica(it: Furnished, name: str = "web-0-0") -> Any:
    return it.plane.read(f"objects/replicas/acme/{name}")


def on(name: str, act: Callable[[Furnished, Any], Any]) -> Step:
    """Do something with a replica, if it is there."""

    def step(it: Furnished) -> None:
        found = replica(it, name)
        if found is not None:
            act(it, found)

    return step


def released(it: Furnished, found: Any) -> None:
    it.ask(WORKLOADS, ask.Move(target(found), State.RELEASED, term=it.term(WORKLOADS)))


def removed(it: Furnished, found: Any) -> None:
    it.ask(WORKLOADS, ask.Remove("replicas", "acme", found.name))


def deleted(it: Furnished, found: Any) -> None:
    it.ask(ANN, ask.Remove("replicas", "acme", found.name))


def bound(it: Furnished, found: Any) -> None:
    it.ask(SCHEDULER, it.bind(found))


def released_by_repair(it: Furnished, found: Any) -> None:
    to = State.RELEASED if found.status.state is State.FAILED else State.FAILED
    it.ask(REPAIR, it.repaired(found, to))


def unknown_now(it: Furnished, found: Any) -> None:
    """Its node is marked, and it is given up for the moment."""
    it.ask(NODES, it.judge(NodeAction.MARK))
    it.ask(NODES, it.to_unknown(found, it.mark_of()))


def started(it: Furnished) -> Any:
    return it.moved(it.yes(SCHEDULER, it.bind(it.yes(WORKLOADS, it.birth(it.web)))), State.RUNNING)


def agent_moves(to: State) -> Callable[[Furnished, Any], None]:
    def act(it: Furnished, found: Any) -> None:
        it.ask(AGENT, ask.Move(target(found), to, incarnation=1))

    return act


def stage(to: Stage, identity: Identity = AGENT) -> Callable[[Furnished, Any], None]:
    def act(it: Furnished, found: Any) -> None:
        it.ask(identity, ask.ReportStage(target(found), to, 1 if identity is AGENT else None))

    return act


def born(ordinal: int, incarnation: int) -> Step:
    return lambda it: it.ask(WORKLOADS, it.birth(it.web, ordinal, incarnation)) and None


def judged(*words: NodeAction) -> Step:
    def step(it: Furnished) -> None:
        for word in words:
            it.ask(NODES, it.judge(word, mark=it.mark_of()))

    return step


def registered(cpus: int) -> Step:
    def step(it: Furnished) -> None:
        if it.get(it.node) is not None:
            it.registered(capacity={"cpu": cpus, "memory": "32Gi"})

    return step


def gone(it: Furnished, plural: str, name: str, tenant: str = "acme") -> None:
    """A person deletes an object, and its controllers let go of it."""
    it.ask(ADMIN, ask.Remove(plural, tenant, name))
    found = it.plane.read(f"objects/{plural}/{tenant}/{name}")
    if found is not None:
        metadata = msgspec.structs.replace(found.metadata, finalizers=())
        it.ask(WORKLOADS, ask.Update(msgspec.structs.replace(found, metadata=metadata)))


def without(plural: str, name: str) -> Step:
    return lambda it: gone(it, plural, name)


def lease_of(it: Furnished, scope: str) -> Any:
    return it.plane.read(f"objects/leases/{lease_name(scope)}")


def given_back(it: Furnished) -> None:
    lease = lease_of(it, "scheduler:one")
    if lease is not None and lease.spec.holder:
        term = ask.Term("scheduler:one", lease.spec.epoch)
        it.ask(SCHEDULER, ask.ReleaseLease(term))


def taken_over(it: Furnished) -> None:
    lease = lease_of(it, "scheduler:one")
    if lease is not None:
        seen = lease.spec.epoch, lease.spec.renewals
        it.ask(who.scheduler("two"), ask.AcquireLease("scheduler:one", 1_000, *seen))


def dropped(name: str) -> Step:
    def step(it: Furnished) -> None:
        held = it.reservation(name)
        if held is not None:
            request = ask.DropReservation(
                "acme", name, held.metadata.uid, "done", it.term(SCHEDULER)
            )
            it.ask(SCHEDULER, request)
            it.ask(REPAIR, ask.Remove("reservations", "acme", name))

    return step


# Births ------------------------------------------------------------------------------------------

LIVES = (on("web-0-0", bound), on("web-0-0", agent_moves(State.RUNNING)))
ENDS = (on("web-0-0", deleted), on("web-0-0", agent_moves(State.RELEASED)))


@case(ask.Create, *LIVES, *ENDS, born(0, 1), on("web-0-1", deleted), on("web-0-1", released))
def birth_that_a_person_deletes(it: Furnished) -> Asked:
    return WORKLOADS, it.birth(it.web)


@case(ask.Create, on("web-0-0", released), on("web-0-0", removed), born(0, 1))
def birth_without_a_place(it: Furnished) -> Asked:
    return WORKLOADS, it.birth(it.web)


@case(ask.Create, on("web-0-1", released), on("web-0-1", removed), born(0, 2))
def birth_of_a_successor(it: Furnished) -> Asked:
    first = it.yes(WORKLOADS, it.birth(it.web))
    released(it, first)
    return WORKLOADS, it.birth(it.web, 0, 1)


@case(ask.Create, without("workloads", "cron-28000000"))
def birth_of_a_run(it: Furnished) -> Asked:
    it.plane.elapsed_ms = 28_000_000 * 60_000 - it.plane.now.wall_ms + it.plane.elapsed_ms
    spec = {"type": WorkloadType.CRON, "cron": Cron(schedule="* * * * *")}
    cron = it.plane.workload("cron", **spec)
    return WORKLOADS, ask.Create(run_of(cron, timestamp(28_000_000 * 60_000)), operation="run")


@case(ask.Create, without("workloads", "api"))
def workload_of_a_person(it: Furnished) -> Asked:
    made = Workload(ObjectMeta(name="api", namespace="acme"), spec=WorkloadSpec(template()))
    return ANN, ask.Create(made, operation="mine")


@case(ask.Create, lambda it: it.ask(ENDPOINTS, ask.Remove("endpoints", "acme", "web")) and None)
def endpoints(it: Furnished) -> Asked:
    return ENDPOINTS, ask.Create(Endpoints(ObjectMeta(name="web", namespace="acme")))


@case(ask.Create, lambda it: it.ask(GARBAGE, ask.Remove("events", "acme", "told")) and None)
def event(it: Furnished) -> Asked:
    made = Event(
        metadata=ObjectMeta(name="told", namespace="acme"),
        involved_object=ObjectReference(kind="Workload", namespace="acme", name="web"),
        reason="Told",
    )
    return EVENTS, ask.Create(made)


@case(ask.Create, lambda it: it.ask(GARBAGE, ask.Remove("decisions", "acme", "why")) and None)
def decision(it: Furnished) -> Asked:
    spec = DecisionSpec(replica="web-0-0")
    made = Decision(metadata=ObjectMeta(name="why", namespace="acme"), spec=spec)
    return SCHEDULER, ask.Create(made)


def revision_gone(it: Furnished) -> None:
    it.ask(ROLLOUTS, ask.Remove("workloadrevisions", "acme", "web-1"))


@case(ask.Create, revision_gone)
def revision_of_a_workload(it: Furnished) -> Asked:
    spec = WorkloadRevisionSpec(workload="web", number=1, digest="d", template=template())
    made = WorkloadRevision(metadata=ObjectMeta(name="web-1", namespace="acme"), spec=spec)
    return ROLLOUTS, ask.Create(made)


def secrets_gone(it: Furnished) -> None:
    for found in every(it.plane, Secret):
        it.ask(ANN, ask.Remove("secrets", "acme", found.name))


@case(ask.Create, secrets_gone)
def generated_name(it: Furnished) -> Asked:
    made = Secret(ObjectMeta(generate_name="s-", namespace="acme"))
    return ANN, ask.Create(made, operation="one")


# Other ordinary verbs ----------------------------------------------------------------------------


def labelled(value: str) -> Step:
    patch = ask.Patch(
        "workloads",
        "acme",
        "web",
        PatchType.MERGE,
        {"metadata": {"labels": {"l": value}}},
        manager="m",
    )
    return lambda it: it.ask(ANN, patch) and None


def status_of(generation: int) -> Step:
    """The controller writes the status as well, on what it sees by then."""

    def step(it: Furnished) -> None:
        web = it.get(it.web)
        status = msgspec.structs.replace(web.status, observed_generation=generation)
        it.ask(STATUS, ask.Update(msgspec.structs.replace(web, status=status), "status"))

    return step


@case(ask.Update, status_of(8), lambda it: it.updated(it.web, replicas=3) and None)
def status_of_a_controller(it: Furnished) -> Asked:
    web = it.get(it.web)
    status = msgspec.structs.replace(web.status, observed_generation=7)
    return STATUS, ask.Update(msgspec.structs.replace(web, status=status), "status")


@case(ask.Update, labelled("b"), labelled("c"))
def update_of_a_person_with_an_id(it: Furnished) -> Asked:
    web = it.get(it.web)
    metadata = msgspec.structs.replace(web.metadata, labels={"l": "a"})
    return ANN, ask.Update(msgspec.structs.replace(web, metadata=metadata), operation="mine")


@case(ask.Patch, labelled("b"), labelled("c"))
def patch_with_an_id(it: Furnished) -> Asked:
    body = {"metadata": {"labels": {"l": "a"}}}
    return ANN, ask.Patch(
        "workloads", "acme", "web", PatchType.MERGE, body, manager="m", operation="p"
    )


def made_again(it: Furnished) -> None:
    if it.plane.read("objects/workloads/acme/api") is None:
        it.plane.workload("api")


def let_go(it: Furnished) -> None:
    found = it.plane.read("objects/workloads/acme/api")
    if found is not None and found.metadata.deletion_timestamp is not None:
        metadata = msgspec.structs.replace(found.metadata, finalizers=())
        it.ask(WORKLOADS, ask.Update(msgspec.structs.replace(found, metadata=metadata)))


@case(ask.Remove, let_go, made_again)
def removal_by_a_person_with_an_id(it: Furnished) -> Asked:
    it.plane.workload("api")
    return ANN, ask.Remove("workloads", "acme", "api", operation="gone")


def run_again(it: Furnished) -> None:
    if it.plane.read("objects/workloads/acme/cron-28000000") is None:
        it.plane.workload("cron-28000000")


@case(ask.Remove, without("workloads", "cron-28000000"), run_again)
def removal_by_a_controller(it: Furnished) -> Asked:
    made = it.yes(*birth_of_a_run(it))
    return WORKLOADS, ask.Remove("workloads", "acme", made.name)


AGAIN = (without("workloads", "api"), made_again)


def changed(value: str) -> Step:
    """Another client changes a label of the workload `api`."""
    body = {"metadata": {"labels": {"l": value}}}
    patch = ask.Patch("workloads", "acme", "api", PatchType.MERGE, body, manager="m")
    return lambda it: it.ask(ADMIN, patch) and None


def api(it: Furnished, label: str = "") -> Any:
    it.plane.workload("api")
    if label:
        changed(label)(it)
    return it.plane.read("objects/workloads/acme/api")


@case(ask.Patch, *AGAIN, changed("b"))
def merge_patch_of_what_is_made_again(it: Furnished) -> Asked:
    api(it)
    body = {"metadata": {"labels": {"l": "a"}}}
    return ANN, ask.Patch("workloads", "acme", "api", PatchType.MERGE, body, operation="p")


@case(ask.Patch, changed("b"), *AGAIN, finds_it_so=True)
def merge_patch_that_changes_nothing(it: Furnished) -> Asked:
    api(it, "a")
    body = {"metadata": {"labels": {"l": "a"}}}
    return ANN, ask.Patch("workloads", "acme", "api", PatchType.MERGE, body, operation="p")


@case(ask.Patch, *AGAIN, changed("b"))
def json_patch_of_what_is_made_again(it: Furnished) -> Asked:
    api(it)
    body = [{"op": "add", "path": "/spec/replicas", "value": 3}]
    return ANN, ask.Patch("workloads", "acme", "api", PatchType.JSON, body, operation="p")


@case(ask.Patch, *AGAIN, changed("b"), without("workloads", "api"))
def apply_that_makes_its_object(it: Furnished) -> Asked:
    body = {
        "apiVersion": API_VERSION,
        "kind": "Workload",
        "metadata": {"name": "api", "namespace": "acme", "labels": {"l": "a"}},
        "spec": {"template": {"command": ["sleep", "60"]}},
    }
    more = {"manager": "m", "force": True, "operation": "p"}
    return ANN, ask.Patch("workloads", "acme", "api", PatchType.APPLY, body, **more)


@case(ask.Patch, *AGAIN, changed("b"), without("workloads", "api"))
def apply_that_changes_its_object(it: Furnished) -> Asked:
    api(it)
    return apply_that_makes_its_object(it)


@case(ask.Patch, status_of(8), lambda it: it.updated(it.web, replicas=3) and None)
def json_patch_of_a_controller(it: Furnished) -> Asked:
    body = [{"op": "add", "path": "/status/observedGeneration", "value": 7}]
    where = ("workloads", "acme", "web", PatchType.JSON)
    return STATUS, ask.Patch(*where, body, "status")


@case(ask.Update, *AGAIN, changed("b"))
def update_of_what_is_made_again(it: Furnished) -> Asked:
    seen = api(it)
    metadata = ObjectMeta(name="api", namespace="acme", labels={"l": "a"})
    return ANN, ask.Update(msgspec.structs.replace(seen, metadata=metadata), operation="u")


@case(ask.Update, changed("b"), *AGAIN, finds_it_so=True)
def update_that_changes_nothing(it: Furnished) -> Asked:
    seen = api(it, "a")
    metadata = ObjectMeta(name="api", namespace="acme", labels={"l": "a"})
    return ANN, ask.Update(msgspec.structs.replace(seen, metadata=metadata), operation="u")


def scaled_to(count: int) -> Step:
    def step(it: Furnished) -> None:
        if it.plane.read("objects/workloads/acme/api") is not None:
            body = {"spec": {"replicas": count}}
            it.ask(ADMIN, ask.Patch("workloads", "acme", "api", PatchType.MERGE, body))

    return step


@case(ask.Patch, scaled_to(5), *AGAIN)
def scaling(it: Furnished) -> Asked:
    api(it)
    where = ("workloads", "acme", "api", PatchType.MERGE)
    return ANN, ask.Patch(*where, {"spec": {"replicas": 3}}, "scale", operation="p")


@case(ask.Update, made_again, without("workloads", "api"))
def letting_go(it: Furnished) -> Asked:
    api(it)
    it.ask(ADMIN, ask.Remove("workloads", "acme", "api"))
    found = it.plane.read("objects/workloads/acme/api")
    metadata = msgspec.structs.replace(found.metadata, finalizers=())
    return WORKLOADS, ask.Update(msgspec.structs.replace(found, metadata=metadata))


@case(ask.Remove, *AGAIN, finds_it_so=True)
def removal_of_what_goes_already(it: Furnished) -> Asked:
    api(it)
    it.ask(ADMIN, ask.Remove("workloads", "acme", "api"))
    return ANN, ask.Remove("workloads", "acme", "api", operation="gone")


def web_again(it: Furnished) -> None:
    """The workload is deleted and made again, with a first replica of the same name."""
    gone(it, "workloads", "web")
    if it.plane.read("objects/workloads/acme/web") is None:
        it.web = it.plane.workload(replicas=8)
        it.ask(WORKLOADS, it.birth(it.web))


@case(
    ask.Remove,
    on("web-0-0", agent_moves(State.RELEASED)),
    web_again,
    on("web-0-0", bound),
    on("web-0-0", agent_moves(State.RUNNING)),
)
def removal_of_running_work_by_a_person(it: Furnished) -> Asked:
    started(it)
    return ANN, ask.Remove("replicas", "acme", "web-0-0", operation="gone")


@case(ask.Remove, on("web-0-0", released), web_again)
def removal_of_waiting_work_by_a_person(it: Furnished) -> Asked:
    it.yes(WORKLOADS, it.birth(it.web))
    return ANN, ask.Remove("replicas", "acme", "web-0-0", operation="gone")


@case(ask.Remove, judged(NodeAction.FENCE), on("web-0-0", released_by_repair), web_again)
def removal_by_force(it: Furnished) -> Asked:
    it.unknown(started(it))
    return ADMIN, ask.Remove("replicas", "acme", "web-0-0", operation="gone", force=True)


@case(ask.Remove, on("web-0-0", removed), web_again)
def removal_of_a_released_replica(it: Furnished) -> Asked:
    released(it, it.yes(WORKLOADS, it.birth(it.web)))
    return WORKLOADS, ask.Remove("replicas", "acme", "web-0-0")


def told_again(it: Furnished) -> None:
    if it.plane.read("objects/events/acme/told") is None:
        it.ask(*event(it))


@case(ask.Remove, told_again)
def removal_by_the_collector(it: Furnished) -> Asked:
    it.yes(*event(it))
    return GARBAGE, ask.Remove("events", "acme", "told")


# Places ------------------------------------------------------------------------------------------


def unreserved(it: Furnished, found: Any) -> None:
    it.ask(SCHEDULER, ask.Unreserve(target(found), "no", it.term(SCHEDULER)))


@case(ask.Bind, on("web-0-0", agent_moves(State.RUNNING)), *ENDS, born(0, 1))
def binding(it: Furnished) -> Asked:
    return SCHEDULER, it.bind(it.yes(WORKLOADS, it.birth(it.web)))


@case(ask.BindTogether, on("web-0-0", agent_moves(State.RUNNING)), *ENDS, born(0, 1))
def binding_together(it: Furnished) -> Asked:
    pending = [it.yes(WORKLOADS, it.birth(it.web, n)) for n in range(2)]
    return SCHEDULER, ask.BindTogether(tuple(it.bind(one) for one in pending))


@case(ask.Reserve, on("web-0-0", unreserved), on("web-0-0", released), born(0, 1))
def reserving(it: Furnished) -> Asked:
    return SCHEDULER, it.reserve(it.yes(WORKLOADS, it.birth(it.web)))


def reserved_again(it: Furnished, found: Any) -> None:
    it.ask(SCHEDULER, it.reserve(found))


@case(ask.Unreserve, on("web-0-0", reserved_again))
def unreserving(it: Furnished) -> Asked:
    held = it.yes(SCHEDULER, it.reserve(it.yes(WORKLOADS, it.birth(it.web))))
    return SCHEDULER, ask.Unreserve(target(held), "no", it.term(SCHEDULER))


def holding(it: Furnished, intent: Intent, **more: Any) -> ask.HoldCapacity:
    owner = ReservationOwner("Workload", "web", it.web.metadata.uid)
    claims = (Claim(node="node-a", charge={"cpu": 1_000}),)
    return ask.HoldCapacity(
        "acme", owner, intent, claims, it.plane.at(3_600), it.term(SCHEDULER), **more
    )


@case(ask.HoldCapacity, dropped("web-rebalance"))
def holding_capacity(it: Furnished) -> Asked:
    return SCHEDULER, holding(it, Intent.REBALANCE)


def held_again(it: Furnished) -> None:
    it.ask(SCHEDULER, holding(it, Intent.REBALANCE, operation=f"again-{it.plane.store.revision}"))


@case(ask.DropReservation, held_again)
def dropping_a_reservation(it: Furnished) -> Asked:
    held = it.yes(SCHEDULER, holding(it, Intent.REBALANCE))
    uid = held.metadata.uid
    return SCHEDULER, ask.DropReservation("acme", held.name, uid, "done", it.term(SCHEDULER))


@case(ask.CommitGang, dropped("web-gang"))
def committing_a_gang(it: Furnished) -> Asked:
    held = it.yes(SCHEDULER, holding(it, Intent.GANG, min_available=1))
    return SCHEDULER, ask.CommitGang("acme", held.name, held.metadata.uid, it.term(SCHEDULER))


@case(ask.Evict, on("web-0-0", agent_moves(State.RELEASED)), born(0, 1), on("web-0-1", bound))
def eviction(it: Furnished) -> Asked:
    first = it.yes(SCHEDULER, it.bind(it.yes(WORKLOADS, it.birth(it.web))))
    return WORKLOADS, it.evict(it.moved(first, State.RUNNING))


@case(
    ask.StopAndReserve,
    on("of-low-0-0", agent_moves(State.RELEASED)),
    dropped("of-high-0-0-preemption"),
)
def preemption(it: Furnished) -> Asked:
    victim = it.yes(SCHEDULER, it.bind(it.yes(WORKLOADS, it.birth(it.of_class("low")))))
    high = it.yes(WORKLOADS, it.birth(it.of_class("high", cpu="8")))
    return SCHEDULER, it.preempt(high, it.moved(victim, State.RUNNING), operation="p")


@case(ask.Evict, on("web-0-0", unknown_now), on("web-0-0", agent_moves(State.RELEASED)), born(0, 1))
def eviction_by_a_person(it: Furnished) -> Asked:
    return ANN, it.evict(started(it), Cause.USER_DELETE)


@case(
    ask.StopAndReserve,
    on("of-low-0-0", agent_moves(State.RELEASED)),
    dropped("ring-1-0-preemption"),
    dropped("ring-2-0-preemption"),
)
def preemption_for_a_gang(it: Furnished) -> Asked:
    """The promise of one member is given back before that of another."""
    victim = it.yes(SCHEDULER, it.bind(it.yes(WORKLOADS, it.birth(it.of_class("low")))))
    made = template(cpu="4", priority_class="high")
    ring = it.plane.workload("ring", template=made, replicas=2, gang=Gang(min_available=2))
    first, second = it.plane.replica(ring, 1), it.plane.replica(ring, 2)
    other = ask.PromisedPlace(target(second), it.node.name, it.node.metadata.uid)
    running = it.moved(victim, State.RUNNING)
    return SCHEDULER, it.preempt(first, running, operation="g", members=(other,))


@case(ask.Evict, on("web-0-0", unknown_now), judged(NodeAction.CLEAR))
def eviction_by_a_drain(it: Furnished) -> Asked:
    running = started(it)
    it.draining()
    return DRAINS, it.evict(running, Cause.DRAIN)


def hour_later(it: Furnished) -> None:
    it.plane.elapsed_ms += 3_600_000


@case(ask.Unreserve, on("web-0-0", reserved_again), hour_later)
def unreserving_past_the_deadline(it: Furnished) -> Asked:
    held = it.yes(SCHEDULER, it.reserve(it.yes(WORKLOADS, it.birth(it.web))))
    hour_later(it)
    return REPAIR, ask.Unreserve(target(held), "Expired", it.term(REPAIR))


@case(ask.DropReservation, held_again, hour_later, hour_later)
def dropping_what_is_over(it: Furnished) -> Asked:
    held = it.yes(SCHEDULER, holding(it, Intent.REBALANCE))
    hour_later(it)
    hour_later(it)
    uid = held.metadata.uid
    return REPAIR, ask.DropReservation("acme", held.name, uid, "Expired", it.term(REPAIR))


def lane(it: Furnished, units: int, **more: Any) -> ask.HoldCapacity:
    owner = ReservationOwner("Workload", "web", it.web.metadata.uid)
    claims = (Claim(node="node-a", charge={"cpu": units}),)
    term, until = it.term(RESERVES), it.plane.at(3_600)
    return ask.HoldCapacity("acme", owner, Intent.RECOVERY, claims, until, term, **more)


def lane_of(units: int) -> Step:
    def step(it: Furnished) -> None:
        it.ask(RESERVES, lane(it, units, operation=f"lane-{it.plane.store.revision}"))

    return step


def lane_dropped(it: Furnished) -> None:
    held = it.reservation("web-recovery")
    if held is not None:
        uid, term = held.metadata.uid, it.term(RESERVES)
        it.ask(RESERVES, ask.DropReservation("acme", held.name, uid, "done", term))


@case(ask.HoldCapacity, lane_of(2_000), lane_dropped, lane_of(3_000))
def recovery_lane(it: Furnished) -> Asked:
    it.yes(RESERVES, lane(it, 500, operation="first"))
    return RESERVES, lane(it, 1_000, operation="lane")


@case(ask.HoldCapacity, lane_of(2_000), lane_dropped)
def recovery_lane_that_is_there(it: Furnished) -> Asked:
    it.yes(RESERVES, lane(it, 1_000, operation="first"))
    return RESERVES, lane(it, 1_000, operation="lane")


# Lives -------------------------------------------------------------------------------------------


def unknown(it: Furnished, found: Any) -> None:
    it.ask(NODES, it.judge(NodeAction.MARK))
    it.ask(NODES, it.to_unknown(found, it.mark_of()))
    it.ask(NODES, it.judge(NodeAction.CLEAR, mark=it.mark_of()))


@case(ask.Move, on("web-0-0", unknown), on("web-0-0", agent_moves(State.RUNNING)))
def restart_in_place(it: Furnished) -> Asked:
    return AGENT, ask.Move(target(started(it)), State.RUNNING, incarnation=1)


@case(ask.Move, on("web-0-0", agent_moves(State.RUNNING)), judged(NodeAction.MARK))
def giving_up_for_the_moment(it: Furnished) -> Asked:
    running = started(it)
    return NODES, it.to_unknown(running, it.marked())


@case(ask.Move, on("web-0-0", removed), web_again)
def release_of_what_waits(it: Furnished) -> Asked:
    pending = it.yes(WORKLOADS, it.birth(it.web))
    return WORKLOADS, ask.Move(target(pending), State.RELEASED, term=it.term(WORKLOADS))


@case(ask.Move, on("web-0-0", agent_moves(State.RELEASED)), on("web-0-0", removed), born(0, 1))
def failure(it: Furnished) -> Asked:
    return AGENT, ask.Move(target(started(it)), State.FAILED, incarnation=1)


@case(ask.Move, on("web-0-0", removed), born(0, 1), on("web-0-1", bound))
def proof_of_stop(it: Furnished) -> Asked:
    failed = it.moved(started(it), State.FAILED)
    return AGENT, ask.Move(target(failed), State.RELEASED, incarnation=1)


@case(ask.Move, on("web-0-0", released_by_repair), registered(5), born(0, 1), on("web-0-1", bound))
def repair_of_what_was_fenced(it: Furnished) -> Asked:
    lost = it.unknown(started(it))
    it.fenced()
    return REPAIR, it.repaired(lost, State.FAILED)


@case(ask.Move, registered(5), on("web-0-0", removed), born(0, 1), on("web-0-1", bound))
def release_by_repair(it: Furnished) -> Asked:
    lost = it.unknown(started(it))
    it.fenced()
    failed = it.yes(REPAIR, it.repaired(lost, State.FAILED))
    return REPAIR, it.repaired(failed, State.RELEASED)


@case(ask.Move, judged(NodeAction.CLEAR), on("web-0-0", agent_moves(State.RELEASED)), born(0, 1))
def word_of_an_operator(it: Furnished) -> Asked:
    lost = it.unknown(started(it))
    return ADMIN, ask.Move(target(lost), State.FAILED, word="I saw it burn")


@case(ask.Move, on("web-0-0", unknown), judged(NodeAction.MARK), judged(NodeAction.CLEAR))
def return_of_an_agent(it: Furnished) -> Asked:
    lost = it.unknown(started(it))
    it.cleared()
    return AGENT, ask.Move(target(lost), State.RUNNING, incarnation=1)


@case(
    ask.ReportStage,
    on("web-0-0", stage(Stage.STARTING)),
    on("web-0-0", stage(Stage.READY)),
    on("web-0-0", stage(Stage.STARTING)),
)
def becoming_ready(it: Furnished) -> Asked:
    return AGENT, ask.ReportStage(target(started(it)), Stage.READY, 1)


@case(ask.ReportStage, on("web-0-0", stage(Stage.STARTING)), on("web-0-0", stage(Stage.READY)))
def serving(it: Furnished) -> Asked:
    return ENDPOINTS, ask.ReportStage(target(it.at_stage(started(it), Stage.READY)), Stage.SERVING)


def waits_for(word: str) -> Callable[[Furnished, Any], None]:
    def act(it: Furnished, found: Any) -> None:
        it.ask(SCHEDULER, ask.ReportPending(target(found), Pending(message=word)))

    return act


@case(ask.ReportPending, on("web-0-0", waits_for("b")), on("web-0-0", waits_for("c")))
def waiting(it: Furnished) -> Asked:
    pending = it.yes(WORKLOADS, it.birth(it.web))
    return SCHEDULER, ask.ReportPending(target(pending), Pending(message="a"))


# Nodes -------------------------------------------------------------------------------------------


def facts(cpus: int, name: str = "node-a") -> Node:
    capacity = {"cpu": cpus, "memory": "32Gi"}
    return Node(ObjectMeta(name=name), spec=NodeSpec(region="eu-west", capacity=capacity))


@case(ask.RegisterNode, registered(5), registered(8))
def registration(it: Furnished) -> Asked:
    return AGENT, ask.RegisterNode(facts(6))


@case(ask.RegisterNode, judged(NodeAction.MARK, NodeAction.FENCE))
def registration_before_a_fence(it: Furnished) -> Asked:
    return AGENT, ask.RegisterNode(facts(6))


@case(ask.RegisterNode, lambda it: it.ask(ADMIN, ask.Remove("nodes", "", "node-z")) and None)
def first_registration(it: Furnished) -> Asked:
    return who.agent("node-z"), ask.RegisterNode(facts(6, "node-z"), operation="first")


@case(ask.RegisterNode, judged(NodeAction.MARK, NodeAction.FENCE), registered(5))
def registration_after_a_fence(it: Furnished) -> Asked:
    it.fenced()
    return AGENT, ask.RegisterNode(facts(6))


@case(
    ask.RegisterNode,
    judged(NodeAction.MARK),
    judged(NodeAction.FENCE),
    registered(8),
    finds_it_so=True,
)
def registration_that_changes_nothing(it: Furnished) -> Asked:
    return AGENT, ask.RegisterNode(Node(ObjectMeta(name="node-a"), spec=it.get(it.node).spec))


def node_z_again(it: Furnished) -> None:
    if it.plane.read("objects/nodes/node-z") is None:
        it.ask(who.agent("node-z"), ask.RegisterNode(facts(5, "node-z"), operation="again"))


def node_z_removed(it: Furnished) -> None:
    it.ask(ADMIN, ask.Remove("nodes", "", "node-z"))


@case(ask.RegisterNode, node_z_removed, node_z_again)
def first_registration_and_the_next(it: Furnished) -> Asked:
    return who.agent("node-z"), ask.RegisterNode(facts(6, "node-z"), operation="first")


@case(ask.JudgeNode, judged(NodeAction.SUSPECT), judged(NodeAction.MARK), judged(NodeAction.CLEAR))
def trust(it: Furnished) -> Asked:
    it.yes(NODES, it.judge(NodeAction.SUSPECT))
    return NODES, it.judge(NodeAction.TRUST)


@case(ask.JudgeNode, judged(NodeAction.SUSPECT), judged(NodeAction.TRUST), finds_it_so=True)
def trust_that_changes_nothing(it: Furnished) -> Asked:
    return NODES, it.judge(NodeAction.TRUST)


@case(ask.JudgeNode, judged(NodeAction.MARK), judged(NodeAction.FENCE), registered(5))
def clearing(it: Furnished) -> Asked:
    return NODES, it.judge(NodeAction.CLEAR, mark=it.marked())


@case(ask.JudgeNode, registered(5), judged(NodeAction.MARK), judged(NodeAction.FENCE))
def loss(it: Furnished) -> Asked:
    it.fenced()
    return NODES, it.judge(NodeAction.LOSE)


@case(ask.JudgeNode, judged(NodeAction.TRUST), judged(NodeAction.SUSPECT))
def suspicion(it: Furnished) -> Asked:
    return NODES, it.judge(NodeAction.SUSPECT)


@case(ask.JudgeNode, judged(NodeAction.TRUST), judged(NodeAction.MARK), judged(NodeAction.CLEAR))
def mark(it: Furnished) -> Asked:
    it.yes(NODES, it.judge(NodeAction.SUSPECT))
    return NODES, it.judge(NodeAction.MARK)


@case(ask.JudgeNode, registered(5), judged(NodeAction.MARK))
def fence(it: Furnished) -> Asked:
    return NODES, it.judge(NodeAction.FENCE, mark=it.marked())


# Leases, and what servers clear away -------------------------------------------------------------


@case(ask.AcquireLease, given_back, taken_over)
def acquisition(it: Furnished) -> Asked:
    return SCHEDULER, ask.AcquireLease("scheduler:one", 1_000)


@case(ask.RenewLease, given_back, taken_over)
def renewal(it: Furnished) -> Asked:
    return SCHEDULER, ask.RenewLease(it.term(SCHEDULER), number=1)


def taken_back(it: Furnished) -> None:
    lease = lease_of(it, "scheduler:one")
    if lease is not None:
        seen = lease.spec.epoch, lease.spec.renewals
        it.ask(SCHEDULER, ask.AcquireLease("scheduler:one", 1_000, *seen))


@case(ask.ReleaseLease, taken_back, taken_over)
def release(it: Furnished) -> Asked:
    return SCHEDULER, ask.ReleaseLease(it.term(SCHEDULER))


@case(ask.AcquireLease, given_back, taken_back, taken_over)
def takeover(it: Furnished) -> Asked:
    term = it.term(SCHEDULER)
    return who.scheduler("two"), ask.AcquireLease("scheduler:one", 1_000, term.epoch, 0)


@case(ask.RenewLease, given_back, taken_back)
def renewal_by_a_server(it: Furnished) -> Asked:
    lease = it.yes(SERVER, ask.AcquireLease("authority", 1_000))
    return SERVER, ask.RenewLease(ask.Term("authority", lease.spec.epoch), number=1)


def come_back(it: Furnished) -> None:
    if lease_of(it, "scheduler:one") is None:
        it.plane.term(SCHEDULER)
        it.plane.elapsed_ms += 2 * DAY_MS


@case(ask.RetireLease, come_back)
def retirement(it: Furnished) -> Asked:
    term = it.term(SCHEDULER)
    it.plane.elapsed_ms += 2 * DAY_MS
    return SERVER, ask.RetireLease(term.scope, term.epoch, 0)


@case(ask.ForgetOperations, made_again)
def forgetting(it: Furnished) -> Asked:
    it.plane.workload("api")
    it.yes(ANN, ask.Remove("workloads", "acme", "api", operation="gone"))
    it.plane.elapsed_ms += DAY_MS
    return SERVER, ask.ForgetOperations(("ann/gone",))


@case(ask.ForgetOperations, made_again)
def forgetting_by_the_collector(it: Furnished) -> Asked:
    _, request = forgetting(it)
    return GARBAGE, ask.ForgetOperations(request.operations, it.term(GARBAGE))


# Quarantine --------------------------------------------------------------------------------------

LEDGER = keys.node_ledger("node-a")


def seen_at(it: Furnished) -> int:
    record = it.plane.store.get(LEDGER)
    assert record is not None
    return record.modified


def quarantine(it: Furnished) -> ask.QuarantineRecord:
    return ask.QuarantineRecord(
        Quarantined(LEDGER, seen_at(it), "RecordsDisagree", "wrong", "Move", it.plane.at())
    )


def repair(it: Furnished) -> ask.RepairRecord:
    return ask.RepairRecord(LEDGER, ask.RepairAction.RELEASE, seen_at(it), "it was counted")


def quarantined_again(it: Furnished) -> None:
    it.ask(SERVER, quarantine(it))


def repaired(it: Furnished) -> None:
    it.ask(ADMIN, repair(it))


@case(ask.QuarantineRecord, repaired, quarantined_again, repaired)
def quarantine_of_a_ledger(it: Furnished) -> Asked:
    return SERVER, quarantine(it)


@case(ask.RepairRecord, quarantined_again, repaired, quarantined_again)
def repair_of_a_ledger(it: Furnished) -> Asked:
    it.ask(SERVER, quarantine(it))
    return ADMIN, repair(it)


def counted(it: Furnished) -> ask.RepairRecord:
    value = msgspec.to_builtins(it.plane.read(LEDGER))
    value["quarantined"] = False
    return ask.RepairRecord(LEDGER, ask.RepairAction.RECOUNT, seen_at(it), "counted", value)


@case(ask.RepairRecord, quarantined_again, repaired, quarantined_again)
def recount_of_a_ledger(it: Furnished) -> Asked:
    it.ask(SERVER, quarantine(it))
    return ADMIN, counted(it)


@case(ask.RepairRecord, registered(5), quarantined_again, repaired)
def recount_of_a_ledger_that_is_right(it: Furnished) -> Asked:
    return ADMIN, counted(it)


@case(ask.RepairRecord, quarantined_again, repaired, registered(5))
def restoring_a_ledger(it: Furnished) -> Asked:
    it.ask(SERVER, quarantine(it))
    return ADMIN, msgspec.structs.replace(counted(it), action=ask.RepairAction.RESTORE)


TENANT = "objects/tenants/globex"


def unreadable(it: Furnished) -> ask.QuarantineRecord:
    record = it.plane.store.get(TENANT)
    assert record is not None
    found = Quarantined(
        TENANT, record.modified, "RecordUnreadable", "wrong", "Create", it.plane.at()
    )
    return ask.QuarantineRecord(found)


def found_unreadable(it: Furnished) -> None:
    it.ask(SERVER, unreadable(it))


def unreadable_released(it: Furnished) -> None:
    record = it.plane.store.get(TENANT)
    assert record is not None
    release = ask.RepairAction.RELEASE
    it.ask(ADMIN, ask.RepairRecord(TENANT, release, record.modified, "it is right"))


def damaged(it: Furnished) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(it.plane.read(TENANT))
    it.plane.damage(TENANT, b"{")
    it.plane.authority = it.plane.new_authority()
    return value


@case(ask.QuarantineRecord, unreadable_released, found_unreadable)
def quarantine_of_what_cannot_be_read(it: Furnished) -> Asked:
    damaged(it)
    return SERVER, unreadable(it)


@case(ask.RepairRecord, found_unreadable, unreadable_released)
def restoring_what_cannot_be_read(it: Furnished) -> Asked:
    value = damaged(it)
    it.ask(SERVER, unreadable(it))
    record = it.plane.store.get(TENANT)
    assert record is not None
    restore = ask.RepairAction.RESTORE
    return ADMIN, ask.RepairRecord(TENANT, restore, record.modified, "from before", value)


# The format ---------------------------------------------------------------------------------------


def raised_before(it: Furnished) -> None:
    it.ask(ADMIN, ask.RaiseFormat(FORMAT, "all run this version"))


@case(ask.RaiseFormat, raised_before)
def raising_the_format(it: Furnished) -> Asked:
    return ADMIN, older_format(it)
