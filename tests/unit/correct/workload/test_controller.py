"""controller:workload: births, replacements, scaling down and deletion."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.correct.controller import ReconcilePlan
from holdfast.correct.workload.controller import WorkloadController
from holdfast.correct.workload.endings import ENDINGS_ANNOTATION
from holdfast.correct.workload.ordinals import ORDINALS_PER_RANGE
from holdfast.correct.workload.replica_creation import revision_of
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import EnvVar
from holdfast.model.kinds.workload import Cron, Gang, Job, Workload, WorkloadType
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import Object
from holdfast.model.requests import Create, Evict, Move, Remove, Update
from holdfast.model.time import sooner
from holdfast.observe.cache import ObjectChange
from holdfast.observe.snapshot import Snapshot
from tests.plane import template
from tests.unit.correct.controller_rig import ADMIN, Rig, accepted
from tests.unit.correct.views import (
    AGENT,
    NOW,
    TEMPLATE,
    TERM,
    later,
    record,
    replica,
    view,
    workload,
)

KEY = ("acme", "web")


def plan(*objects: Object, after_ms: int = 0) -> ReconcilePlan:
    return looked(WorkloadController(), view(*objects), after_ms)


def looked(controller: WorkloadController, picture: Snapshot, after_ms: int = 0) -> ReconcilePlan:
    """What it wants of all its keys, without being told of anything."""
    requests: list[Any] = []
    wake_ms: int | None = None
    for key in (KEY, ("acme", "web/0")):
        made = controller.reconcile(picture, key, TERM, later(after_ms))
        requests += made.requests
        wake_ms = sooner(wake_ms, made.wake_after_ms)
    return ReconcilePlan(tuple(requests), wake_after_ms=wake_ms)


def wanted(*objects: Object) -> list[tuple[str, str]]:
    return [_short(request) for request in plan(*objects).requests]


def _short(request: Any) -> tuple[str, str]:
    match request:
        case Create(object=obj) | Update(object=obj):
            return type(request).__name__, obj.name
        case Move(target=target, to=to):
            return to.value, target.name
        case Evict(target=target, cause=cause):
            return cause.value, target.name
        case Remove(name=name):
            return "Remove", name
    raise AssertionError(request)


def test_every_empty_place_gets_its_first_replica() -> None:
    """Names follow from the place, so that asking twice makes nothing twice. [I1, E5]"""
    service = workload(3)
    made = plan(service, replica(State.RUNNING, 1))
    assert [_short(it) for it in made.requests] == [("Create", "web-0-0"), ("Create", "web-2-0")]
    assert made == plan(service, replica(State.RUNNING, 1))
    assert len({it.operation for it in made.requests}) == 2


def test_a_large_service_is_not_planned_all_at_once() -> None:
    """Each range of ordinals is a plan of its own; together they are all. [I1]"""
    controller, service = WorkloadController(), workload(1_000)
    picture = view(service, replica(State.RUNNING, 1_100))
    keys = list(controller.all_keys(picture))
    assert keys == [KEY, *(("acme", f"web/{number}") for number in range(5))]
    plans = [controller.reconcile(picture, key, TERM, NOW).requests for key in keys]
    span = ORDINALS_PER_RANGE
    assert [len(it) for it in plans] == [0, span, span, span, 1_000 - 3 * span, 1]
    assert _short(plans[5][0]) == ("ScaleDown", "web-1100-0")


def test_a_replica_carries_what_it_is_made_from() -> None:
    """Workload, place, template, revision, gang, and the template's annotations. [A2, A3]"""
    service = workload(1, gang=Gang(min_available=1))
    spec = plan(service).requests[0].object.spec
    assert (spec.workload, spec.workload_uid, spec.ordinal) == ("web", "uid-web", 0)
    assert spec.template == service.spec.template
    assert spec.revision == revision_of(service.spec.template)
    assert spec.gang == "web"
    assert spec.expected_seconds is None
    job = workload(1, type=WorkloadType.JOB, job=Job(expected_seconds=90))
    assert plan(job).requests[0].object.spec.expected_seconds == 90


def test_a_revision_follows_from_the_template_alone() -> None:
    """The same template has the same revision, another one another."""
    other = msgspec.structs.replace(TEMPLATE, env=(EnvVar("A", "1"),))
    assert revision_of(TEMPLATE) == revision_of(msgspec.structs.replace(TEMPLATE))
    assert revision_of(TEMPLATE) != revision_of(other)


@pytest.mark.parametrize(
    "state", [State.UNKNOWN, State.STOPPING, State.FAILED, State.SUCCEEDED, State.BOUND]
)
def test_a_place_is_not_taken_before_it_was_released(state: State) -> None:
    """What may still run has no successor yet. [INV2, C6.4, H5, I3]"""
    assert wanted(workload(1), replica(state)) == []


def test_a_released_place_gets_the_next_incarnation_and_the_old_object_stays() -> None:
    """The released replica goes only once its successor is there."""
    service = workload(1)
    old = replica(State.RELEASED, incarnation=2)
    assert wanted(service, old) == [("Create", "web-0-3")]
    new = replica(State.PENDING, incarnation=3)
    assert wanted(service, old, new) == [("Remove", "web-0-2")]


def test_a_place_that_crashes_waits_longer_each_time() -> None:
    """The count goes with the replica, so a new controller knows it too. [I1, C7.4]"""
    service = workload(1)
    steps = (record(State.FAILED, AGENT, 0, State.RUNNING),)
    old = replica(State.RELEASED, transitions=steps, annotations={ENDINGS_ANNOTATION: "2"})
    waiting = plan(service, old)
    assert (waiting.requests, waiting.wake_after_ms) == ((), 4_000)
    assert plan(service, old, after_ms=3_999).wake_after_ms == 1
    (birth,) = plan(service, old, after_ms=4_000).requests
    assert birth.object.name == "web-0-1"
    assert birth.object.metadata.annotations == {ENDINGS_ANNOTATION: "3"}


def test_the_highest_places_go_first_when_fewer_are_wanted() -> None:
    """What has no place is released, what runs is stopped, what is ending is left alone."""
    states = (State.RUNNING, State.PENDING, State.RUNNING, State.UNKNOWN, State.RELEASED)
    mine = [replica(state, ordinal) for ordinal, state in enumerate(states)]
    assert wanted(workload(1), *mine) == [
        ("Remove", "web-4-0"),
        ("ScaleDown", "web-2-0"),
        ("Released", "web-1-0"),
    ]


def test_of_two_at_one_place_the_one_that_came_further_stays() -> None:
    """However they came to be there. [C6.4]"""
    running, pending = replica(State.RUNNING), replica(State.PENDING, incarnation=1)
    assert wanted(workload(1), running, pending) == [("Released", "web-0-1")]
    twice = replica(State.RUNNING, incarnation=1)
    assert wanted(workload(1), running, twice) == [("ScaleDown", "web-0-0")]


def test_a_replica_whose_deletion_was_asked_for_is_let_go() -> None:
    """A person deletes one that waits, or one that came back from Unknown."""
    assert wanted(workload(1), replica(State.PENDING, dying=True)) == [("Released", "web-0-0")]
    assert wanted(workload(1), replica(State.RUNNING, dying=True)) == [("ScaleDown", "web-0-0")]


def test_a_deleted_workload_is_emptied_and_then_let_go() -> None:
    """Only the finalizer that is ours goes, and only when nothing is left. [I5, A2]"""
    dying = workload(2, dying=True)
    mine = [replica(State.RUNNING), replica(State.RESERVED, 1), replica(State.STOPPING, 2)]
    assert wanted(dying, *mine, replica(State.RELEASED, 3)) == [
        ("Remove", "web-3-0"),
        ("Released", "web-1-0"),
        ("Deleted", "web-0-0"),
    ]
    assert wanted(dying, replica(State.UNKNOWN)) == []
    (let_go,) = plan(dying).requests
    assert let_go.object.metadata.finalizers == ("example.com/mine",)
    assert let_go.object.metadata.resource_version == dying.metadata.resource_version


def test_an_earlier_workload_of_this_name_is_another_one() -> None:
    """Its replicas are not counted as ours. [A2]"""
    stranger = replica(State.RUNNING)
    spec = msgspec.structs.replace(stranger.spec, workload_uid="uid-before")
    stranger = msgspec.structs.replace(stranger, spec=spec)
    assert wanted(workload(1), stranger) == [("Create", "web-0-0")]


@pytest.mark.parametrize("kind", list(WorkloadType))
def test_a_workload_of_any_type_is_emptied_and_let_go(kind: WorkloadType) -> None:
    """Nothing new is made for it, whatever its type would want, and nothing keeps it. [I5]"""
    dying = workload(2, type=kind, dying=True, cron=Cron("* * * * *"))
    assert wanted(dying) == [("Update", "web")]
    if kind is not WorkloadType.CRON:
        assert wanted(dying, replica(State.RUNNING)) == [("Deleted", "web-0-0")]


def test_after_a_first_look_only_changed_ordinals_are_reconciled_until_the_resync() -> None:
    """However many places there are, one bind costs a look at one of them; what a lost event left
    wrong, a resync rebuilds. [E1, I1]"""
    controller, service = WorkloadController(), workload(3)
    all_there = [replica(State.PENDING, ordinal) for ordinal in range(3)]

    def look(*objects: Object) -> list[tuple[str, str]]:
        return [_short(it) for it in looked(controller, view(service, *objects)).requests]

    assert look(*all_there) == []
    # Two are gone, and the cache received one of the changes.
    controller.keys_of(ObjectChange("replicas", all_there[2], None), view(service))
    assert look(all_there[0]) == [("Create", "web-2-1")]
    assert look(all_there[0]) == [("Create", "web-2-1")]
    for memory in controller.remembers:
        memory.resync(view(service, all_there[0]))
    assert list(controller.all_keys(view(service))) == [KEY, ("acme", "web/0")]
    assert look(all_there[0]) == [("Create", "web-1-1"), ("Create", "web-2-1")]


def test_a_change_of_what_is_wanted_opens_all_places_and_one_of_the_status_none() -> None:
    """The status is written after each change that the controller itself brought about."""
    controller, service = WorkloadController(), workload(1)
    status = msgspec.structs.replace(service.status, observed_generation=1)
    told = msgspec.structs.replace(service, status=status)
    metadata = msgspec.structs.replace(service.metadata, generation=2)
    more = msgspec.structs.replace(workload(2), metadata=metadata)
    there = replica(State.PENDING)

    def look(before: Workload, after: Workload) -> int:
        controller.keys_of(ObjectChange("workloads", before, after), view(after))
        return len(looked(controller, view(after)).requests)

    assert not looked(controller, view(service, there)).requests
    assert look(service, told) == 0
    assert look(told, more) == 2


def test_a_workload_that_is_gone_needs_nothing() -> None:
    """A key may be looked at after its object went."""
    assert WorkloadController().reconcile(view(), KEY, TERM, NOW).requests == ()


def rig_with(**spec: Any) -> Rig:
    rig = Rig()
    rig.plane.tenant()
    rig.plane.node("node-a")
    rig.plane.workload(**spec)
    return rig


def test_a_crash_loop_slows_down_and_says_so() -> None:
    """Five crashes in a row, on the real authority, with growing pauses and a reason. [I1, E3]"""
    rig = rig_with(replicas=1)
    pauses = []
    for incarnation in range(5):
        rig.turn(1)
        rig.bind_all()
        rig.agents()
        rig.run(100)
        last = rig.get("replicas", f"web-0-{incarnation}", "acme")
        rig.ends(last)
        since_ms = rig.now_ms
        rig.run(200)
        status = rig.get("workloads", "web", "acme").status
        assert status.progress.pending_reasons == {"CrashLoopBackoff": 1}
        assert f"{incarnation + 1} in a row" in status.progress.last_error
        while rig.get("replicas", f"web-0-{incarnation + 1}", "acme") is None:
            rig.run(100)
        pauses.append(round((rig.now_ms - since_ms) / 1000))
    assert pauses == [1, 2, 4, 8, 16]


def test_a_person_deletes_a_waiting_replica_and_gets_a_new_one() -> None:
    """Its object goes with its release; the place is filled again, by the next one."""
    rig = rig_with(replicas=1)
    rig.run()
    for incarnation in range(3):
        name = f"web-0-{incarnation}"
        assert rig.states() == {name: "Pending"}
        accepted(rig.plane.ask(ADMIN, Remove("replicas", "acme", name)))
        rig.run()
    assert rig.states() == {"web-0-3": "Pending"}


def test_no_replica_is_created_twice_whatever_the_controller_has_forgotten() -> None:
    """A new life that never saw the replica of that name learns which is next. [E5, INV2, INV3]"""
    rig = rig_with(replicas=1)
    rig.turn()
    for number in range(2):
        rig.start()
        accepted(rig.plane.ask(ADMIN, Remove("replicas", "acme", f"web-0-{number}")))
        rig.agents()
        assert rig.states() == {}
        rig.turn()
        assert rig.states() == {f"web-0-{number + 1}": "Running"}
    made = [ask.body for ask in rig.sent if isinstance(ask.body, Create)]
    births = [it for it in made if isinstance(it.object, Replica)]
    # Each new life asks once for the first one, is refused, and then asks for the next.
    names = [it.object.name for it in births]
    assert names == ["web-0-0", "web-0-0", "web-0-1", "web-0-0", "web-0-2"]
    assert all(it.term is not None for it in births)


def test_a_job_is_deleted_while_it_waits() -> None:
    """The real authority takes the finalizer's removal for any type. [I5]"""
    rig = rig_with(type=WorkloadType.JOB, job=Job(completions=1), template=template())
    rig.run()
    assert rig.states() == {"web-0-0": "Pending"}
    accepted(rig.plane.ask(ADMIN, Remove("workloads", "acme", "web")))
    rig.run()
    assert rig.get("workloads", "web", "acme") is None


def test_deletion_waits_for_work_out_of_contact_until_its_fence() -> None:
    """Nothing is forced: the replica goes when its node is fenced. [C6.4, I5]"""
    rig = rig_with(replicas=1)
    rig.turn()
    rig.silent = {"node-a"}
    rig.run(45_000)
    assert rig.states() == {"web-0-0": "Unknown"}
    accepted(rig.plane.ask(ADMIN, Remove("workloads", "acme", "web")))
    rig.run(20_000)
    assert rig.states() == {"web-0-0": "Unknown"}
    rig.run(45_000)
    assert rig.states() == {}
    assert rig.get("workloads", "web", "acme") is None


def test_scale_down_causes_are_those_of_the_table() -> None:
    """Evictions name the cause that belongs to this controller. [A9]"""
    (evict,) = plan(workload(0), replica(State.RUNNING)).requests
    assert (evict.cause, evict.term) == (Cause.SCALE_DOWN, TERM)
