"""One-per-node work whose nodes' names lead to the same place."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import pytest

from holdfast.correct.workload.each_node import pin_to_node
from holdfast.model.kinds.workload import WorkloadType
from holdfast.model.lifecycle import State
from holdfast.model.placement import vacancy
from holdfast.model.placement.vacancy import first_place
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Move, Remove
from tests.furnished import Furnished
from tests.plane import WORKLOADS, refused, target


def colliding() -> tuple[str, str]:
    """Two names of nodes with one first place; among some thousand there are such."""
    seen: dict[int, str] = {}
    for number in count():
        name = f"node-{number}"
        other = seen.setdefault(first_place(name), name)
        if other != name:
            return other, name
    raise AssertionError


class Daemon(Furnished):
    """A workload of one per node, and two nodes that collide."""

    def __init__(self) -> None:
        super().__init__()
        self.daemon = self.plane.workload("daemon", type=WorkloadType.PER_NODE)
        self.one, self.other = colliding()
        self.place = first_place(self.one)

    def for_node(self, node: str, place: int, incarnation: int = 0) -> Create:
        birth = self.birth(self.daemon, place, incarnation)
        template = pin_to_node(self.daemon.spec.template, node)
        spec = msgspec.structs.replace(birth.object.spec, template=template)
        return Create(msgspec.structs.replace(birth.object, spec=spec))

    def gone(self, replica: Any) -> None:
        self.yes(WORKLOADS, Move(target(replica), State.RELEASED, term=self.term(WORKLOADS)))
        self.yes(WORKLOADS, Remove("replicas", "acme", replica.name))


def test_a_node_that_moved_on_is_found_there() -> None:
    """A controller that does not know of its replica may not create a second one for it. [INV2]"""
    it = Daemon()
    first = it.yes(WORKLOADS, it.for_node(it.one, it.place))
    moved = it.yes(WORKLOADS, it.for_node(it.other, it.place + 1))
    again = it.for_node(it.other, it.place, 1)
    refused(it.ask(WORKLOADS, again), Reason.STALE_PLACE)
    it.gone(first)
    no = refused(it.ask(WORKLOADS, again), Reason.STALE_PLACE)
    assert no.details == {"replica": moved.name}
    # Its own node may have the place back, and the other one too once its replica has gone.
    it.gone(moved)
    it.yes(WORKLOADS, again)
    refused(it.ask(WORKLOADS, it.for_node(it.other, it.place + 1, 1)), Reason.STALE_PLACE)
    it.yes(WORKLOADS, it.for_node(it.one, it.place + 1, 1))


def test_no_replica_skips_a_place_that_was_never_used() -> None:
    """No component would look for it there. [INV2]"""
    it = Daemon()
    no = refused(it.ask(WORKLOADS, it.for_node(it.other, it.place + 1)), Reason.STALE_PLACE)
    assert no.details["next"] == str(it.place)
    it.yes(WORKLOADS, it.for_node(it.one, it.place))
    it.yes(WORKLOADS, it.for_node(it.other, it.place + 1))


def test_the_places_go_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last comes the first."""
    it = Daemon()
    monkeypatch.setattr(vacancy, "PLACES_MAX", 2)
    last = [name for name in (f"more-{number}" for number in range(40)) if first_place(name) == 1]
    it.yes(WORKLOADS, it.for_node(last[0], 1))
    it.yes(WORKLOADS, it.for_node(last[1], 0))
