"""What is reserved for a workload's recovery is room for its replacements only."""

from __future__ import annotations

from typing import Any

from holdfast.model.access import identity as who
from holdfast.model.kinds.node import NodeDrain
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.requests import HoldCapacity, Update
from tests.plane import ADMIN, accepted, template
from tests.unit.correct.views import replaced
from tests.unit.propose.test_scheduler_on_a_plane import OnPlane

RESERVES = who.controller("reserves")
ONE = {"cpu": 1000, "memory": 2**30, "replicas": 1}


class Lane(OnPlane):
    """Two nodes of two cores; `web` holds places there, and `other` fills the rest."""

    def __init__(self, *nodes: str, after_s: float = 600) -> None:
        super().__init__()
        for name in ("node-a", "node-b"):
            self.plane.node(name, capacity={"cpu": 2, "memory": "8Gi"})
        self.web = self.plane.workload("web", replicas=8)
        self.term = self.plane.term(RESERVES)
        owner = ReservationOwner("Workload", "web", self.web.metadata.uid)
        claims = tuple(Claim(node=name, charge=ONE) for name in nodes)
        request = HoldCapacity(
            "acme", owner, Intent.RECOVERY, claims, self.plane.at(after_s), self.term
        )
        accepted(self.plane.ask(RESERVES, request))
        self.start()
        self.works(4 - len(nodes), "other")
        self.pass_time(3_000)

    def born(self, ordinal: int, incarnation: int = 1, workload: Any = None) -> None:
        of = workload or self.web
        make = self.plane.replacement if incarnation else self.plane.replica
        self.do(lambda: make(of, ordinal))
        self.pass_time(3_000)

    def homes(self) -> dict[str, str]:
        return {
            it.name: it.status.binding.node
            for it in self.bound
            if it.spec.workload in ("web", "rival")
        }


def test_a_replacement_binds_into_the_lane_when_there_is_no_other_room() -> None:
    """And it takes what was held, not more. [D5, INV12]"""
    rig = Lane("node-a", "node-b")
    assert len(rig.bound) == 2
    rig.born(0)
    rig.born(1)
    assert sorted(rig.homes().values()) == ["node-a", "node-b"]
    assert all(it.status.binding.reservation == "web-recovery" for it in rig.bound[2:])
    assert rig.refused == []
    rig.check_ledgers()
    rig.born(2)
    assert len(rig.homes()) == 2


def test_several_go_to_several_places_at_once() -> None:
    """No two to the same, while neither answer is there. [F4]"""
    rig = Lane("node-a", "node-a", "node-b")

    def births() -> None:
        for ordinal in range(3):
            rig.plane.replacement(rig.web, ordinal)

    rig.do(births)
    rig.pass_time(3_000)
    assert sorted(rig.homes().values()) == ["node-a", "node-a", "node-b"]
    assert rig.refused == []
    rig.check_ledgers()


def test_free_room_comes_before_the_lane() -> None:
    """[D5]"""
    rig = Lane("node-a")
    rig.do(lambda: rig.plane.node("node-c", capacity={"cpu": 2, "memory": "8Gi"}))
    rig.born(0)
    assert rig.homes() == {"web-0-1": "node-c"}


def test_growing_is_not_what_a_lane_is_for() -> None:
    """Nor is it for others. [D5, C6.8]"""
    rig = Lane("node-a")
    rig.born(0, incarnation=0)
    rival = rig.do(lambda: rig.plane.workload("rival", replicas=1))
    rig.born(0, workload=rival)
    assert rig.homes() == {}
    assert rig.refused == []


def test_a_lane_is_no_use_past_its_time_on_a_closed_node_or_for_another_size() -> None:
    """No request is sent in vain."""
    rig = Lane("node-a", after_s=12)
    rig.pass_time(5_000)
    rig.born(0)
    assert rig.homes() == {}
    rig = Lane("node-a")
    node = rig.objects["nodes"]["", "node-a"]
    closed = replaced(node, spec=replaced(node.spec, drain=NodeDrain()))
    rig.do(lambda: accepted(rig.plane.ask(ADMIN, Update(closed))))
    rig.born(0)
    assert rig.homes() == {}
    rig = Lane("node-a")
    web = rig.objects["workloads"]["acme", "web"]
    larger = replaced(web, spec=replaced(web.spec, template=template(cpu="2")))
    rig.web = rig.do(lambda: accepted(rig.plane.ask(ADMIN, Update(larger))))
    rig.born(0)
    assert rig.homes() == {}
    assert rig.refused == []
