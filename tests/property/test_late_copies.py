"""No request takes effect twice, however late its copies come and whatever happened in between.

For each type of request there are stories: a plane on which it is accepted, and the steps that its
successors take afterwards, most of which undo what it did. Up to three copies of the request arrive
at any places of the story. At most one of them may change the store; all others are refused, or
answered as what was done before. A type of request without a story fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any

import msgspec
import pytest

from holdfast.commit.decide import HANDLERS
from holdfast.model import identity as who
from holdfast.model import keys
from holdfast.model import requests as ask
from holdfast.model.identity import Identity
from holdfast.model.kinds.endpoints import Endpoints
from holdfast.model.kinds.event import Event, ObjectReference
from holdfast.model.kinds.lease import lease_name
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.replica import Pending
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.kinds.workload import Cron, Workload, WorkloadSpec, WorkloadType
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import API_VERSION, ObjectMeta
from holdfast.model.plane_format import FORMAT
from holdfast.model.quarantine import Quarantined
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, NodeWord, PatchType
from holdfast.model.runs import run_of
from holdfast.model.time import timestamp
from holdfast.store.contract import KEY_END
from tests.furnished import AGENT, ANN, GARBAGE, Furnished
from tests.plane import ADMIN, NODES, REPAIR, SCHEDULER, WORKLOADS, target, template
from tests.unit.commit.test_table import older_format

ENDPOINTS, STATUS = who.controller("endpoints"), who.controller("status")
EVENTS, SERVER = who.controller("events"), who.server("one")
COPIES = 3
DAY_MS = 86_400_000

Asked = tuple[Identity, Any]
Step = Callable[[Furnished], None]


class Story(msgspec.Struct, frozen=True):
    """How a request comes about on a furnished plane, and what others do after it."""

    name: str
    request: type[Any]
    begin: Callable[[Furnished], Asked]
    steps: tuple[Step, ...]


STORIES: list[Story] = []


def story(request: type[Any], *steps: Step) -> Callable[[Any], Any]:
    """Tell a story of this request with the function that it decorates."""

    def told(begin: Callable[[Furnished], Asked]) -> Callable[[Furnished], Asked]:
        STORIES.append(Story(begin.__name__, request, begin, steps))
        return begin

    return told


def contents(it: Furnished) -> dict[str, bytes]:
    """All that the store holds, but for what is written down for the audit."""
    records = it.plane.store.range("", KEY_END).records
    return {r.key: r.value for r in records if not r.key.startswith(keys.AUDIT)}


def effects_of(told: Story, places: tuple[int, ...]) -> list[Any]:
    """The answers to the copies that changed something, in a story with copies at these places."""
    it = Furnished()
    identity, request = told.begin(it)
    request = it.plane.grounded(identity, request)
    changed = []
    for place in range(len(told.steps) + 1):
        for _ in range(places.count(place)):
            before = contents(it)
            # As it was sent, and not as it would be sent now.
            it.plane.grounds = False
            answer = it.ask(identity, request)
            it.plane.grounds = True
            assert isinstance(answer, Accepted | Refusal), answer
            if contents(it) != before:
                changed.append(answer)
        if place < len(told.steps):
            told.steps[place](it)
            # Another server decides what comes next, and knows of nothing before it.
            it.plane.authority = it.plane.new_authority()
    return changed


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


def judged(*words: NodeWord) -> Step:
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


@story(ask.Create, *LIVES, *ENDS, born(0, 1), on("web-0-1", deleted), on("web-0-1", released))
def birth_that_a_person_deletes(it: Furnished) -> Asked:
    return WORKLOADS, it.birth(it.web)


@story(ask.Create, on("web-0-0", released), on("web-0-0", removed), born(0, 1))
def birth_without_a_place(it: Furnished) -> Asked:
    return WORKLOADS, it.birth(it.web)


@story(ask.Create, on("web-0-1", released), on("web-0-1", removed), born(0, 2))
def birth_of_a_successor(it: Furnished) -> Asked:
    first = it.yes(WORKLOADS, it.birth(it.web))
    released(it, first)
    return WORKLOADS, it.birth(it.web, 0, 1)


@story(ask.Create, without("workloads", "cron-28000000"))
def birth_of_a_run(it: Furnished) -> Asked:
    it.plane.elapsed_ms = 28_000_000 * 60_000 - it.plane.now.wall_ms + it.plane.elapsed_ms
    spec = {"type": WorkloadType.CRON, "cron": Cron(schedule="* * * * *")}
    cron = it.plane.workload("cron", **spec)
    return WORKLOADS, ask.Create(run_of(cron, timestamp(28_000_000 * 60_000)), operation="run")


@story(ask.Create, without("workloads", "api"))
def workload_of_a_person(it: Furnished) -> Asked:
    made = Workload(ObjectMeta(name="api", namespace="acme"), spec=WorkloadSpec(template()))
    return ANN, ask.Create(made, operation="mine")


@story(ask.Create, lambda it: it.ask(ENDPOINTS, ask.Remove("endpoints", "acme", "web")) and None)
def endpoints(it: Furnished) -> Asked:
    return ENDPOINTS, ask.Create(Endpoints(ObjectMeta(name="web", namespace="acme")))


@story(ask.Create, lambda it: it.ask(GARBAGE, ask.Remove("events", "acme", "told")) and None)
def event(it: Furnished) -> Asked:
    made = Event(
        metadata=ObjectMeta(name="told", namespace="acme"),
        involved_object=ObjectReference(kind="Workload", namespace="acme", name="web"),
        reason="Told",
    )
    return EVENTS, ask.Create(made)


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


@story(ask.Update, lambda it: it.updated(it.web, replicas=3) and None)
def status_of_a_controller(it: Furnished) -> Asked:
    web = it.get(it.web)
    status = msgspec.structs.replace(web.status, observed_generation=7)
    return STATUS, ask.Update(msgspec.structs.replace(web, status=status), "status")


@story(ask.Update, labelled("b"), labelled("c"))
def update_of_a_person_with_an_id(it: Furnished) -> Asked:
    web = it.get(it.web)
    metadata = msgspec.structs.replace(web.metadata, labels={"l": "a"})
    return ANN, ask.Update(msgspec.structs.replace(web, metadata=metadata), operation="mine")


@story(ask.Patch, labelled("b"), labelled("c"))
def patch_with_an_id(it: Furnished) -> Asked:
    body = {"metadata": {"labels": {"l": "a"}}}
    return ANN, ask.Patch(
        "workloads", "acme", "web", PatchType.MERGE, body, manager="m", operation="p"
    )


@story(ask.Patch, without("workloads", "api"))
def apply_that_makes_its_object(it: Furnished) -> Asked:
    body = {
        "apiVersion": API_VERSION,
        "kind": "Workload",
        "metadata": {"name": "api", "namespace": "acme"},
        "spec": {"template": {"command": ["sleep", "60"]}},
    }
    return ANN, ask.Patch(
        "workloads", "acme", "api", PatchType.APPLY, body, manager="m", operation="p"
    )


def made_again(it: Furnished) -> None:
    if it.plane.read("objects/workloads/acme/api") is None:
        it.plane.workload("api")


def let_go(it: Furnished) -> None:
    found = it.plane.read("objects/workloads/acme/api")
    if found is not None and found.metadata.deletion_timestamp is not None:
        metadata = msgspec.structs.replace(found.metadata, finalizers=())
        it.ask(WORKLOADS, ask.Update(msgspec.structs.replace(found, metadata=metadata)))


@story(ask.Remove, let_go, made_again)
def removal_by_a_person_with_an_id(it: Furnished) -> Asked:
    it.plane.workload("api")
    return ANN, ask.Remove("workloads", "acme", "api", operation="gone")


def run_again(it: Furnished) -> None:
    if it.plane.read("objects/workloads/acme/cron-28000000") is None:
        it.plane.workload("cron-28000000")


@story(ask.Remove, without("workloads", "cron-28000000"), run_again)
def removal_by_a_controller(it: Furnished) -> Asked:
    made = it.yes(*birth_of_a_run(it))
    return WORKLOADS, ask.Remove("workloads", "acme", made.name)


# Places ------------------------------------------------------------------------------------------


def unreserved(it: Furnished, found: Any) -> None:
    it.ask(SCHEDULER, ask.Unreserve(target(found), "no", it.term(SCHEDULER)))


@story(ask.Bind, on("web-0-0", agent_moves(State.RUNNING)), *ENDS, born(0, 1))
def binding(it: Furnished) -> Asked:
    return SCHEDULER, it.bind(it.yes(WORKLOADS, it.birth(it.web)))


@story(ask.BindTogether, on("web-0-0", agent_moves(State.RUNNING)), *ENDS, born(0, 1))
def binding_together(it: Furnished) -> Asked:
    pending = [it.yes(WORKLOADS, it.birth(it.web, n)) for n in range(2)]
    return SCHEDULER, ask.BindTogether(tuple(it.bind(one) for one in pending))


@story(ask.Reserve, on("web-0-0", unreserved), on("web-0-0", released), born(0, 1))
def reserving(it: Furnished) -> Asked:
    return SCHEDULER, it.reserve(it.yes(WORKLOADS, it.birth(it.web)))


def reserved_again(it: Furnished, found: Any) -> None:
    it.ask(SCHEDULER, it.reserve(found))


@story(ask.Unreserve, on("web-0-0", reserved_again))
def unreserving(it: Furnished) -> Asked:
    held = it.yes(SCHEDULER, it.reserve(it.yes(WORKLOADS, it.birth(it.web))))
    return SCHEDULER, ask.Unreserve(target(held), "no", it.term(SCHEDULER))


def holding(it: Furnished, intent: Intent, **more: Any) -> ask.HoldCapacity:
    owner = ReservationOwner("Workload", "web", it.web.metadata.uid)
    claims = (Claim(node="node-a", charge={"cpu": 1_000}),)
    return ask.HoldCapacity(
        "acme", owner, intent, claims, it.plane.at(3_600), it.term(SCHEDULER), **more
    )


@story(ask.HoldCapacity, dropped("web-rebalance"))
def holding_capacity(it: Furnished) -> Asked:
    return SCHEDULER, holding(it, Intent.REBALANCE)


def held_again(it: Furnished) -> None:
    it.ask(SCHEDULER, holding(it, Intent.REBALANCE, operation=f"again-{it.plane.store.revision}"))


@story(ask.DropReservation, held_again)
def dropping_a_reservation(it: Furnished) -> Asked:
    held = it.yes(SCHEDULER, holding(it, Intent.REBALANCE))
    uid = held.metadata.uid
    return SCHEDULER, ask.DropReservation("acme", held.name, uid, "done", it.term(SCHEDULER))


@story(ask.CommitGang, dropped("web-gang"))
def committing_a_gang(it: Furnished) -> Asked:
    held = it.yes(SCHEDULER, holding(it, Intent.GANG, min_available=1))
    return SCHEDULER, ask.CommitGang("acme", held.name, held.metadata.uid, it.term(SCHEDULER))


@story(ask.Evict, on("web-0-0", agent_moves(State.RELEASED)), born(0, 1), on("web-0-1", bound))
def eviction(it: Furnished) -> Asked:
    first = it.yes(SCHEDULER, it.bind(it.yes(WORKLOADS, it.birth(it.web))))
    return WORKLOADS, it.evict(it.moved(first, State.RUNNING))


@story(
    ask.StopAndReserve,
    on("web-0-0", agent_moves(State.RELEASED)),
    dropped("of-high-0-0-preemption"),
)
def preemption(it: Furnished) -> Asked:
    victim = it.yes(SCHEDULER, it.bind(it.yes(WORKLOADS, it.birth(it.web))))
    high = it.yes(WORKLOADS, it.birth(it.of_class("high")))
    return SCHEDULER, it.preempt(high, it.moved(victim, State.RUNNING), operation="p")


# Lives -------------------------------------------------------------------------------------------


def started(it: Furnished) -> Any:
    return it.moved(it.yes(SCHEDULER, it.bind(it.yes(WORKLOADS, it.birth(it.web)))), State.RUNNING)


def unknown(it: Furnished, found: Any) -> None:
    it.ask(NODES, it.judge(NodeWord.MARK))
    it.ask(NODES, it.to_unknown(found, it.mark_of()))
    it.ask(NODES, it.judge(NodeWord.CLEAR, mark=it.mark_of()))


@story(ask.Move, on("web-0-0", unknown), on("web-0-0", agent_moves(State.RUNNING)))
def restart_in_place(it: Furnished) -> Asked:
    return AGENT, ask.Move(target(started(it)), State.RUNNING, incarnation=1)


@story(ask.Move, on("web-0-0", agent_moves(State.RUNNING)), judged(NodeWord.MARK))
def giving_up_for_the_moment(it: Furnished) -> Asked:
    running = started(it)
    return NODES, it.to_unknown(running, it.marked())


@story(
    ask.ReportStage,
    on("web-0-0", stage(Stage.STARTING)),
    on("web-0-0", stage(Stage.READY)),
    on("web-0-0", stage(Stage.STARTING)),
)
def becoming_ready(it: Furnished) -> Asked:
    return AGENT, ask.ReportStage(target(started(it)), Stage.READY, 1)


@story(ask.ReportStage, on("web-0-0", stage(Stage.STARTING)), on("web-0-0", stage(Stage.READY)))
def serving(it: Furnished) -> Asked:
    return ENDPOINTS, ask.ReportStage(target(it.at_stage(started(it), Stage.READY)), Stage.SERVING)


def waits_for(word: str) -> Callable[[Furnished, Any], None]:
    def act(it: Furnished, found: Any) -> None:
        it.ask(SCHEDULER, ask.ReportPending(target(found), Pending(message=word)))

    return act


@story(ask.ReportPending, on("web-0-0", waits_for("b")), on("web-0-0", waits_for("c")))
def waiting(it: Furnished) -> Asked:
    pending = it.yes(WORKLOADS, it.birth(it.web))
    return SCHEDULER, ask.ReportPending(target(pending), Pending(message="a"))


# Nodes -------------------------------------------------------------------------------------------


def facts(cpus: int, name: str = "node-a") -> Node:
    capacity = {"cpu": cpus, "memory": "32Gi"}
    return Node(ObjectMeta(name=name), spec=NodeSpec(region="eu-west", capacity=capacity))


@story(ask.RegisterNode, registered(5), registered(8))
def registration(it: Furnished) -> Asked:
    return AGENT, ask.RegisterNode(facts(6))


@story(ask.RegisterNode, judged(NodeWord.MARK, NodeWord.FENCE))
def registration_before_a_fence(it: Furnished) -> Asked:
    return AGENT, ask.RegisterNode(facts(6))


@story(ask.RegisterNode, lambda it: it.ask(ADMIN, ask.Remove("nodes", "", "node-z")) and None)
def first_registration(it: Furnished) -> Asked:
    return who.agent("node-z"), ask.RegisterNode(facts(6, "node-z"), operation="first")


@story(ask.JudgeNode, judged(NodeWord.TRUST), judged(NodeWord.SUSPECT))
def suspicion(it: Furnished) -> Asked:
    return NODES, it.judge(NodeWord.SUSPECT)


@story(ask.JudgeNode, judged(NodeWord.TRUST), judged(NodeWord.MARK), judged(NodeWord.CLEAR))
def mark(it: Furnished) -> Asked:
    it.yes(NODES, it.judge(NodeWord.SUSPECT))
    return NODES, it.judge(NodeWord.MARK)


@story(ask.JudgeNode, registered(5), judged(NodeWord.MARK))
def fence(it: Furnished) -> Asked:
    return NODES, it.judge(NodeWord.FENCE, mark=it.marked())


# Leases, and what servers clear away -------------------------------------------------------------


@story(ask.AcquireLease, given_back, taken_over)
def acquisition(it: Furnished) -> Asked:
    return SCHEDULER, ask.AcquireLease("scheduler:one", 1_000)


@story(ask.RenewLease, given_back, taken_over)
def renewal(it: Furnished) -> Asked:
    return SCHEDULER, ask.RenewLease(it.term(SCHEDULER), number=1)


@story(ask.ReleaseLease, lambda it: it.plane.term(SCHEDULER) and None, taken_over)
def release(it: Furnished) -> Asked:
    return SCHEDULER, ask.ReleaseLease(it.term(SCHEDULER))


def come_back(it: Furnished) -> None:
    if lease_of(it, "scheduler:one") is None:
        it.plane.term(SCHEDULER)
        it.plane.elapsed_ms += 2 * DAY_MS


@story(ask.RetireLease, come_back)
def retirement(it: Furnished) -> Asked:
    term = it.term(SCHEDULER)
    it.plane.elapsed_ms += 2 * DAY_MS
    return SERVER, ask.RetireLease(term.scope, term.epoch, 0)


@story(ask.ForgetOperations, made_again)
def forgetting(it: Furnished) -> Asked:
    it.plane.workload("api")
    it.yes(ANN, ask.Remove("workloads", "acme", "api", operation="gone"))
    it.plane.elapsed_ms += DAY_MS
    return SERVER, ask.ForgetOperations(("ann/gone",))


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


@story(ask.QuarantineRecord, repaired, quarantined_again, repaired)
def quarantine_of_a_ledger(it: Furnished) -> Asked:
    return SERVER, quarantine(it)


@story(ask.RepairRecord, quarantined_again, repaired, quarantined_again)
def repair_of_a_ledger(it: Furnished) -> Asked:
    it.ask(SERVER, quarantine(it))
    return ADMIN, repair(it)


# The format ---------------------------------------------------------------------------------------


def raised_before(it: Furnished) -> None:
    it.ask(ADMIN, ask.RaiseFormat(FORMAT, "all run this version"))


@story(ask.RaiseFormat, raised_before)
def raising_the_format(it: Furnished) -> Asked:
    return ADMIN, older_format(it)


@pytest.mark.parametrize("told", STORIES, ids=lambda it: it.name)
def test_of_all_copies_of_a_request_one_takes_effect(told: Story) -> None:
    """[C7.5, E5, INV2, INV3, INV7]"""
    places = range(len(told.steps) + 1)
    assert effects_of(told, (0,)), "a story in which nothing happens says nothing"
    for combination in combinations_with_replacement(places, COPIES):
        changed = effects_of(told, combination)
        assert len(changed) <= 1, (combination, changed)


def test_every_type_of_request_has_a_story() -> None:
    """A new one must say what keeps it from taking effect twice. [C7.5, INV3]"""
    assert {it.request for it in STORIES} == {*HANDLERS}
    for told in STORIES:
        assert type(told.begin(Furnished())[1]) is told.request
