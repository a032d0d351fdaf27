"""The backlog of a scheduler: pending work and free capacity."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model.kinds.tenant import PriorityClass
from holdfast.model.meta import ObjectMeta
from holdfast.model.pulse import OTHERS, Backlog, Beat, FreeCapacity, PendingCount, Pulse
from holdfast.model.time import timestamp
from holdfast.propose.queue import scheduling_queue
from tests.plane import template
from tests.unit.propose.rig import Rig, Silence


def backlog_of(rig: Rig) -> Backlog:
    """The backlog after an encoding round trip."""
    made = rig.scheduler.backlog(rig.now)
    pulse = Pulse("scheduler one", (Beat("scheduler:one", 1, backlog=made),))
    sent = msgspec.json.decode(msgspec.json.encode(pulse), type=Pulse)
    assert sent.beats[0].backlog == made
    return made


def started(**nodes: str) -> Rig:
    """Nodes with this many cores each."""
    rig = Rig()
    for name, cpu in nodes.items():
        rig.node(name, cpu=cpu)
    rig.start()
    return rig


def cordon(rig: Rig, name: str) -> None:
    node = rig.objects["nodes"]["", name]
    spec = msgspec.structs.replace(node.spec, cordoned=True)
    rig.put(msgspec.structs.replace(node, spec=spec))


def test_each_tenants_waiting_replicas_are_counted_by_reason() -> None:
    """One with several reasons counts for each. [E3, M6]"""
    rig = started(a="1", b="4")
    cordon(rig, "b")
    for number in range(3):
        rig.replica(f"web-{number}-0")
    assert backlog_of(rig).waits == (
        PendingCount("acme", "NodeCordoned", 2),
        PendingCount("acme", "NodeFull", 2),
    )


def test_work_that_was_not_evaluated_yet_is_counted_too() -> None:
    """[E3, M6]"""
    rig = started(a="1")
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    assert backlog_of(rig).waits == (PendingCount("acme", scheduling_queue.UNTRIED, 1),)


def test_the_age_of_the_oldest_of_each_priority_class_is_reported() -> None:
    """[M5, M6]"""
    rig = started(a="1")
    rig.put(PriorityClass(ObjectMeta(name="high")))
    for name, priority_class, age_s in (
        ("old-0-0", "", 90),
        ("new-0-0", "", 5),
        ("high-0-0", "high", 7),
    ):
        made = rig.replica(name, template=template(cpu="2", priority_class=priority_class))
        born = timestamp(rig.now.wall_ms - age_s * 1_000)
        meta = msgspec.structs.replace(made.metadata, creation_timestamp=born)
        rig.put(msgspec.structs.replace(made, metadata=meta))
    assert backlog_of(rig).oldest_ms == {"default": 90_000, "high": 7_000}
    rig.node("b", cpu="64")
    assert backlog_of(rig).oldest_ms == {}


def test_what_is_free_in_pieces_too_small_for_the_work_is_a_fragment() -> None:
    """Until work was seen nothing is too small, and closed nodes have no room. [D7, M6]"""
    rig = started(a="3", b="8")
    before = {room.resource: (room.free, room.fragments) for room in backlog_of(rig).rooms}
    assert before["cpu"] == (11_000, 0)
    rig.replica("web-0-0", cpu="6")
    rooms = {room.resource: room for room in backlog_of(rig).rooms}
    assert (rooms["cpu"].free, rooms["cpu"].fragments) == (5_000, 5_000)
    rig.replica("web-1-0", cpu="3")
    assert rig.where("web-1-0") == "a"
    rooms = {room.resource: room for room in backlog_of(rig).rooms}
    assert (rooms["cpu"].free, rooms["cpu"].fragments) == (2_000, 2_000)
    cordon(rig, "b")
    rooms = {room.resource: room for room in backlog_of(rig).rooms}
    assert (rooms["cpu"].free, rooms["cpu"].fragments) == (0, 0)
    assert all(isinstance(room, FreeCapacity) for room in rooms.values())


def test_all_of_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond a bound is counted together."""
    monkeypatch.setattr(scheduling_queue, "LOOKED_AT_MAX", 3)
    monkeypatch.setattr(scheduling_queue, "WAITS_MAX", 1)
    monkeypatch.setattr(scheduling_queue, "ROOMS_MAX", 1)
    monkeypatch.setattr(scheduling_queue, "AGES_MAX", 0)
    rig = started(a="1")
    for number in range(5):
        rig.replica(f"web-{number}-0", cpu="2")
    made = rig.scheduler.backlog(rig.now)
    assert made.waits == (
        PendingCount("acme", "NodeFull", 3),
        PendingCount(OTHERS, scheduling_queue.UNCOUNTED, 2),
    )
    assert (len(made.rooms), made.oldest_ms) == (1, {})
