"""controller:endpoints: what is ready is listed, what is listed serves, and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.correct.endpoints import EndpointsController
from holdfast.model.kinds.endpoints import Endpoint, Endpoints
from holdfast.model.kinds.replica import Process, Replica
from holdfast.model.kinds.workload import WorkloadType
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import API_VERSION, OwnerReference
from holdfast.model.requests import Create, Remove, ReportStage, Update
from holdfast.observe.cache import ObjectChange
from tests.unit.correct.controller_rig import (
    ADMIN,
    DONE,
    DOWN,
    LOST_AFTER,
    LOST_BEFORE,
    Rig,
    accepted,
)
from tests.unit.correct.views import NOW, TERM, later, meta, node, replica, view, workload

KEY = ("acme", "web")


def serving(ordinal: int = 0, **more: Any) -> Replica:
    process = Process(addresses={"http": f"127.0.0.1:{8080 + ordinal}"})
    return replica(ordinal=ordinal, process=process, **more)


def entry(ordinal: int = 0) -> Endpoint:
    return Endpoint(f"web-{ordinal}-0", "node-a", "a", {"http": f"127.0.0.1:{8080 + ordinal}"})


def listed(*entries: Endpoint, uid: str = "uid-web", revision: int = 7) -> Endpoints:
    owner = OwnerReference(API_VERSION, "Workload", "web", uid, controller=True)
    metadata = meta("web", "acme", revision, owner_references=(owner,))
    return Endpoints(metadata=metadata, endpoints=entries)


def numbered(of: Endpoints, number: int) -> Endpoints:
    """A list as the store has it, one of several."""
    owners = listed().metadata.owner_references
    name = f"web.{number}" if number else "web"
    kept = meta(name, "acme", 7, uid=f"uid-{number}", owner_references=owners)
    return msgspec.structs.replace(of, metadata=kept)


def asked(*objects: Any) -> tuple[Any, ...]:
    return EndpointsController().reconcile(view(*objects), KEY, TERM, NOW).requests


def test_what_is_ready_is_listed_with_its_addresses_before_it_serves() -> None:
    """Node and zone come with it; the stage waits until the list is there. [A6]"""
    (made,) = asked(workload(2), node(), serving(), replica(State.BOUND, 1))
    assert isinstance(made, Create)
    assert made.object.endpoints == (entry(),)
    assert made.object.metadata.owner_references[0].uid == "uid-web"


def test_what_is_listed_and_ready_serves() -> None:
    """No other replica is listed, and nothing is written twice. [A6]"""
    there = (workload(2), node(), listed(entry(), entry(1)))
    (told,) = asked(*there, serving(), serving(1, stage=Stage.SERVING))
    assert isinstance(told, ReportStage)
    assert (told.target.name, told.stage) == ("web-0-0", Stage.SERVING)
    assert asked(*there, serving(stage=Stage.SERVING), serving(1, stage=Stage.SERVING)) == ()


@pytest.mark.parametrize(
    "left",
    [
        serving(1, stage=Stage.STARTING),
        serving(1, dying=True),
        replica(State.STOPPING, 1),
        replica(State.UNKNOWN, 1),
        replica(State.RELEASED, 1),
    ],
    ids=["unready", "deleted", "stopping", "out-of-contact", "released"],
)
def test_what_is_not_ready_any_more_leaves_the_list(left: Replica) -> None:
    """Whatever the reason, at once. [A6, H4]"""
    there = (workload(2), node(), listed(entry(), entry(1)))
    (written,) = asked(*there, serving(stage=Stage.SERVING), left)
    assert isinstance(written, Update)
    assert written.object.endpoints == (entry(),)
    assert written.object.metadata.resource_version == "14"


def test_a_new_address_is_published_before_it_serves_again() -> None:
    """A list that names an old port must not be taken for the new one. [A6]"""
    old = Endpoint("web-0-0", "node-a", "a", {"http": "127.0.0.1:1"})
    (written,) = asked(workload(), node(), listed(old), serving())
    assert isinstance(written, Update)
    assert written.object.endpoints == (entry(),)


def test_an_empty_list_stays_for_those_who_watch_it_but_is_not_begun() -> None:
    """[I1]"""
    (written,) = asked(workload(), listed(entry()))
    assert isinstance(written, Update)
    assert written.object.endpoints == ()
    assert asked(workload()) == ()


@pytest.mark.parametrize("spec", [{"type": WorkloadType.JOB}, {"type": WorkloadType.CRON}])
def test_work_that_ends_has_no_list(spec: dict[str, Any]) -> None:
    """[A6]"""
    assert asked(workload(**spec), serving()) == ()


def test_a_list_goes_with_its_workload() -> None:
    """Also the list of an earlier workload of the same name."""
    for gone in ((listed(entry()),), (workload(), listed(entry(), uid="another"), serving())):
        (removed,) = asked(*gone)
        assert isinstance(removed, Remove)
        assert (removed.plural, removed.name, removed.uid) == ("endpoints", "web", "uid-web")


def test_a_list_whose_workload_may_not_have_arrived_yet_stays() -> None:
    """Kinds arrive on streams of their own."""
    plan = EndpointsController().reconcile(view(listed(revision=50), told=49), KEY, TERM, NOW)
    assert plan.requests == ()
    assert plan.wake_after_ms


def test_replicas_of_an_earlier_workload_are_not_listed() -> None:
    other = serving()
    spec = msgspec.structs.replace(other.spec, workload_uid="another")
    assert asked(workload(), msgspec.structs.replace(other, spec=spec)) == ()


def test_large_services_rest_between_two_lists() -> None:
    """The list of a thousand is not written for each of them. [I1]"""
    controller = EndpointsController()
    many = [serving(ordinal) for ordinal in range(200)]
    snapshot = view(workload(200), *many)
    assert controller.reconcile(snapshot, KEY, TERM, NOW).requests
    again = controller.reconcile(snapshot, KEY, TERM, NOW)
    assert (again.requests, again.wake_after_ms) == ((), 20)
    assert controller.reconcile(snapshot, KEY, TERM, later(20)).requests


def test_a_client_that_leaves_a_large_list_is_waited_for_less() -> None:
    """Its clients get errors meanwhile."""
    controller = EndpointsController()
    many = [serving(ordinal) for ordinal in range(200)]
    snapshot = view(workload(200), *many)
    assert controller.reconcile(snapshot, KEY, TERM, NOW).requests
    gone = ObjectChange("replicas", many[0], replica(State.STOPPING))
    assert tuple(controller.keys_of(gone, snapshot)) == (KEY,)
    assert controller.reconcile(snapshot, KEY, TERM, NOW).wake_after_ms == 2
    assert controller.reconcile(snapshot, KEY, TERM, later(2)).requests


def test_the_further_lists_of_a_large_service_come_and_go_with_its_addresses() -> None:
    """A leaving replica changes its list only; an empty list is removed."""
    many = [serving(ordinal, stage=Stage.SERVING) for ordinal in range(1_001)]
    made = [it.object for it in asked(workload(1_001), node(), *many)]
    assert [it.name for it in made] == ["web", "web.1"]
    assert [len(it.endpoints) for it in made] == [1_000, 1]
    assert {it.metadata.labels["holdfast.dev/workload"] for it in made} == {"web"}
    there = [numbered(it, number) for number, it in enumerate(made)]
    assert asked(workload(1_001), node(), *there, *many) == ()
    (written,) = asked(workload(1_001), node(), *there, *many[1:])
    assert isinstance(written, Update)
    assert (written.object.name, len(written.object.endpoints)) == ("web", 999)
    last = there[1].endpoints[0].replica
    (removed,) = asked(workload(), node(), *there, *(it for it in many if it.name != last))
    assert isinstance(removed, Remove)
    assert (removed.name, removed.uid, removed.resource_version) == ("web.1", "uid-1", "14")


def test_events_of_any_list_lead_to_its_workload_and_all_go_with_it() -> None:
    further = numbered(listed(entry()), 1)
    change = ObjectChange("endpoints", None, further)
    assert tuple(EndpointsController().keys_of(change, view())) == (KEY,)
    gone = asked(listed(entry()), further)
    assert [it.name for it in gone] == ["web", "web.1"]
    assert tuple(EndpointsController().all_keys(view(listed(entry()), further))) == (KEY,)


def test_only_arrivals_and_departures_wake_a_waiter() -> None:
    controller, snapshot = EndpointsController(), view()
    bound = replica(State.BOUND)
    for before, after, keys in (
        (None, bound, ()),
        (bound, serving(), (KEY,)),
        (serving(), replica(State.STOPPING), (KEY,)),
        (serving(), None, (KEY,)),
    ):
        change = ObjectChange("replicas", before, after)
        assert tuple(controller.keys_of(change, snapshot)) == keys


@pytest.mark.parametrize("fate", [DONE, LOST_AFTER, LOST_BEFORE, DOWN])
def test_no_replica_serves_that_is_not_published(fate: str) -> None:
    """On the real authority, whatever becomes of every third request; in the end who is ready
    serves, and who was stopped is in no list. [A6, C7.5]"""
    rig = Rig()
    rig.plane.tenant()
    rig.plane.node("node-a")
    rig.plane.workload(replicas=3)
    checks: list[int] = []

    def judged(ask: Any) -> str:
        serves = {it.name for it in rig.all("replicas") if is_serving(it)}
        assert serves <= published(rig), serves
        checks.append(len(serves))
        return fate if len(rig.sent) % 3 == 0 else DONE

    rig.fate = judged
    rig.turn(8)
    assert published(rig) == {it.name for it in rig.all("replicas") if is_serving(it)}
    assert len(published(rig)) == 3
    wanted = rig.get("workloads", "web", "acme")
    fewer = msgspec.structs.replace(wanted.spec, replicas=1)
    accepted(rig.plane.ask(ADMIN, Update(msgspec.structs.replace(wanted, spec=fewer))))
    rig.turn(8)
    assert published(rig) == {"web-0-0"}
    assert max(checks) == 3


def is_serving(replica: Replica) -> bool:
    status = replica.status
    return status.state is State.RUNNING and status.stage is Stage.SERVING


def published(rig: Rig) -> set[str]:
    return {entry.replica for it in rig.all("endpoints") for entry in it.endpoints}
