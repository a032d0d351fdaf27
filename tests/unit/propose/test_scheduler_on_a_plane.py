"""The scheduler against the real authority: what it proposes is what the commit's rules accept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.ledgers.recount import excesses, recount
from holdfast.commit.record_encoding import decode
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.errors import OutcomeUnknown
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import DeviceRequest, Port
from holdfast.model.lifecycle import State
from holdfast.model.meta import Object
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason
from holdfast.model.registry import kind_of
from holdfast.model.requests import Bind, Move, Update
from holdfast.observe.watch_events import Departed, Present
from tests.plane import ADMIN, SCHEDULER, Plane, accepted, bind, target, template
from tests.unit.propose.rig import Rig


class OnPlane(Rig):
    """A rig whose servers decide by the real rules over the real store."""

    def __init__(self, **more: Any) -> None:
        self.plane = Plane()
        super().__init__(**more)
        self.objects.clear()
        self.plane.region()
        self.plane.tenant()
        # Answers to committed binds that get lost.
        self.losses = 0
        self.answers: list[Any] = []

    def start(self) -> None:
        self.sync()
        super().start()

    def do(self, act: Any) -> Any:
        """Change the plane, then send the events."""
        self.plane.elapsed_ms = self.now_ms
        result = act()
        self.sync()
        return result

    def sync(self) -> None:
        """Send events for everything that changed in the store since the last call."""
        self.revision = self.plane.store.revision
        current: dict[str, dict[Any, Any]] = {}
        page = self.plane.store.range(keys.OBJECTS, keys.after_prefix(keys.OBJECTS))
        for record in page.records:
            obj = _versioned(decode(record.key, record.value), record.modified)
            current.setdefault(kind_of(obj).plural, {})[obj.namespace, obj.name] = obj
        before, self.objects = self.objects, current
        for plural in dict.fromkeys((*before, *current)):
            old, new = before.get(plural, {}), current.get(plural, {})
            events: list[Any] = [
                Present(obj, self._written(obj)) for key, obj in new.items() if old.get(key) != obj
            ]
            events += [Departed(obj, self.revision) for key, obj in old.items() if key not in new]
            self._send_events(plural, *sorted(events, key=lambda each: each.revision))

    def answer_request(self, request: Any) -> Any:
        if isinstance(request, Get):
            found = self.objects.get(request.plural, {}).get((request.namespace, request.name))
            return GetResult(found, self.revision)
        answer = self.do(lambda: self.plane.ask(SCHEDULER, request))
        self.answers.append((request, answer))
        if isinstance(request, Bind) and self.losses:
            self.losses -= 1
            return OutcomeUnknown("the answer was lost")
        return answer

    def works(self, count: int, name: str = "web", **asked: Any) -> list[Any]:
        """`count` pending replicas of a workload."""
        workload = self.plane.workload(name, template=template(**asked))
        made = [self.plane.replica(workload, ordinal) for ordinal in range(count)]
        self.sync()
        return made

    @property
    def bound(self) -> list[Replica]:
        return [r for r in self.objects["replicas"].values() if r.status.state is State.BOUND]

    @property
    def refused(self) -> list[Any]:
        return [answer for request, answer in self.answers if hasattr(answer, "reason")]

    def check_ledgers(self) -> None:
        """Nothing is charged twice, nothing beyond what there is."""
        records = self.plane.store.range("", "\U0010ffff").records
        assert recount(records) == []
        assert excesses(records) == []


def _versioned(obj: Any, revision: int) -> Any:
    metadata = msgspec.structs.replace(obj.metadata, resource_version=object_version(revision))
    return msgspec.structs.replace(obj, metadata=metadata)


def test_a_full_fleet_is_filled_to_the_last_core_without_one_refusal() -> None:
    """What it assumes adds up to what the commit's ledgers say. [F4, F1, C4]"""
    rig = OnPlane()
    for name in ("node-a", "node-b", "node-c"):
        rig.plane.node(name)
    rig.start()
    rig.works(30)
    rig.pass_time(5_000)
    assert len(rig.bound) == 24
    assert rig.refused == []
    rig.check_ledgers()
    waiting = [r for r in rig.objects["replicas"].values() if r.status.state is State.PENDING]
    assert [r.status.pending.reasons for r in waiting] == [{"NodeFull": 3}] * 6


def test_devices_and_ports_are_given_once() -> None:
    """[F2, C6.1]"""
    rig = OnPlane()
    rig.plane.node("node-a", gpus=2)
    rig.plane.node("node-b", gpus=1)
    rig.start()
    rig.works(
        4,
        devices=(DeviceRequest(device_class="gpu", memory="10Gi"),),
        ports=(Port(name="http", port=80),),
    )
    rig.pass_time(5_000)
    assert sorted(r.status.binding.node for r in rig.bound) == ["node-a", "node-b"]
    assert rig.refused == []
    rig.check_ledgers()


def test_quota_is_decided_by_the_commit_and_waits_for_an_operator() -> None:
    """[D1, D2, E3]"""
    rig = OnPlane()
    rig.plane.node("node-a")
    quota = rig.plane.quota(hard={"cpu": "2"})
    rig.start()
    rig.works(3)
    rig.pass_time(120_000)
    assert len(rig.bound) == 2
    (waiting,) = [r for r in rig.objects["replicas"].values() if r.status.binding is None]
    assert waiting.status.pending.reasons == {"QuotaExceeded": 1}
    spec = msgspec.structs.replace(quota.spec, hard={"cpu": "3"})
    now = rig.plane.get(quota)
    metadata = msgspec.structs.replace(now.metadata, resource_version="")
    raised = msgspec.structs.replace(now, spec=spec, metadata=metadata)
    rig.do(lambda: accepted(rig.plane.ask(ADMIN, Update(raised))))
    assert len(rig.bound) == 3
    rig.check_ledgers()


def test_a_lost_answer_over_the_real_rules_leaves_one_binding() -> None:
    """[F6, E5, SC3]"""
    rig = OnPlane()
    rig.plane.node("node-a")
    rig.plane.node("node-b")
    rig.losses = 2
    rig.start()
    rig.works(2)
    rig.pass_time(120_000)
    assert len(rig.bound) == 2
    assert [r.status.transition_number for r in rig.bound] == [1, 1]
    rig.check_ledgers()


def test_a_scheduler_that_lost_everything_repeats_nothing() -> None:
    """It restarts while a bind that it does not know of has just been made. [F6, E1]"""
    rig = OnPlane()
    rig.plane.node("node-a")
    rig.start()
    rig.is_deaf = True
    rig.works(1)
    rig.is_deaf = False
    rig.restart()
    rig.pass_time(5_000)
    (bound,) = rig.bound
    assert bound.status.binding.epoch == 2
    rig.restart()
    rig.pass_time(120_000)
    assert len(rig.binds) == 1
    rig.check_ledgers()


@pytest.mark.parametrize("seed", range(5))
def test_at_rest_nothing_is_written_but_the_lease(seed: int) -> None:
    """[V4]"""
    rig = OnPlane(seed=seed)
    rig.plane.node("node-a")
    rig.plane.quota(hard={"cpu": "6"})
    rig.start()
    rig.works(4)
    rig.works(3, "large", cpu="3")
    rig.works(1, "huge", memory="1Ti")
    rig.pass_time(60_000)
    before = _all_but_leases(rig)
    rig.pass_time(600_000)
    assert _all_but_leases(rig) == before


def _all_but_leases(rig: OnPlane) -> dict[Any, Object]:
    return {
        (plural, *key): obj
        for plural, found in rig.objects.items()
        for key, obj in found.items()
        if not isinstance(obj, Lease)
    }


def test_released_work_makes_room_at_once() -> None:
    """[E1]"""
    rig = OnPlane()
    rig.plane.node("node-a")
    rig.start()
    rig.works(8)
    rig.works(1, "late")
    rig.pass_time(1_000)
    assert len(rig.bound) == 8
    first = rig.bound[0]
    agent = who.agent("node-a")
    for state in (State.FAILED, State.RELEASED):
        now = rig.objects["replicas"][first.namespace, first.name]
        move = Move(target(now), state, incarnation=now.status.binding.node_incarnation)
        rig.do(lambda move=move: accepted(rig.plane.ask(agent, move)))
    assert "late-0-0" in [r.name for r in rig.bound]
    rig.check_ledgers()


@pytest.mark.parametrize("seed", range(4))
def test_a_scheduler_learns_from_the_binds_of_another(seed: int) -> None:
    """It did not see them, is refused, and takes the other node. [F9, C4]"""
    rig = OnPlane(seed=seed)
    nodes = [
        rig.plane.node(name, capacity={"cpu": "1", "memory": "4Gi"})
        for name in ("node-a", "node-b")
    ]
    rig.start()
    rig.is_deaf = True
    (theirs,) = rig.works(1, "theirs")
    two = who.scheduler("two")
    made = bind(theirs, nodes[0], rig.plane.term(two))
    rig.do(lambda: accepted(rig.plane.ask(two, made)))
    rig.is_deaf = False
    rig.works(2)
    rig.pass_time(30_000)
    assert sorted(r.status.binding.node for r in rig.bound) == ["node-a", "node-b"]
    assert {answer.reason for answer in rig.refused} <= {Reason.NODE_FULL}
    rig.check_ledgers()
