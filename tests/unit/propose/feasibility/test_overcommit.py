"""What the scheduler takes for free on overcommitted nodes is what the commit's ledger says."""

from __future__ import annotations

import random

import pytest

from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.meta import ObjectMeta
from holdfast.model.time import timestamp
from holdfast.observe.cache import ObjectChange
from holdfast.propose.feasibility.fleet import Fleet

_OWNER = ReservationOwner("Workload", "web", "w")


def _node(percent: int) -> Node:
    spec = NodeSpec(capacity={"cpu": 8, "memory": "8Gi"}, overcommit={"cpu": percent})
    return Node(ObjectMeta(name="n", uid="n"), spec=spec)


def _lane(name: str, cpu: int, intent: Intent) -> Reservation:
    spec = ReservationSpec(_OWNER, intent, timestamp(10**12))
    status = ReservationStatus(claims=(Claim(node="n", charge={"cpu": cpu}),))
    return Reservation(ObjectMeta(name=name, namespace="acme", uid=name), spec=spec, status=status)


@pytest.mark.parametrize("seed", range(20))
def test_the_columns_follow_every_change_of_lanes_and_factor(seed: int) -> None:
    """A fleet that saw the changes one by one equals one that sees only the end. [D6, INV4]"""
    rng, fleet = random.Random(seed), Fleet()
    objects: dict[str, Node | Reservation] = {}
    for _ in range(40):
        name = rng.choice(("n", "n", "a", "b", "c"))
        before = objects.get(name)
        after: Node | Reservation | None
        if name == "n":
            after = _node(rng.choice((50, 100, 150, 300)))
        elif before is not None and rng.random() < 0.4:
            after = None
        else:
            kind = rng.choice((Intent.RECOVERY, Intent.GANG, Intent.PREEMPTION))
            after = _lane(name, rng.choice((500, 1000, 3000)), kind)
        plural = "nodes" if name == "n" else "reservations"
        fleet.notice(ObjectChange(plural, before, after))
        objects = {**objects, name: after} if after is not None else _without(objects, name)
        site = fleet.get("n")
        if site is None:
            continue
        columns = fleet.columns
        free = int(columns.free[columns.resources.number("cpu"), site.row])
        assert free == site.ledger.free("cpu")
        again = Fleet()
        for key, obj in objects.items():
            again.notice(ObjectChange("nodes" if key == "n" else "reservations", None, obj))
        other = again.get("n")
        assert other is not None
        assert other.ledger == site.ledger


def _without(objects: dict[str, Node | Reservation], name: str) -> dict[str, Node | Reservation]:
    return {key: obj for key, obj in objects.items() if key != name}
