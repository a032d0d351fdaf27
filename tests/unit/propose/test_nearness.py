"""Work goes near its data: by names of zones and regions, and by the distance between regions."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.placement import Placement
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.meta import ObjectMeta
from holdfast.observe.node_columns import Floats
from holdfast.propose.fleet_snapshot import FleetSnapshot, snapshot_of
from holdfast.propose.scores.nearness import locality, network
from tests.plane import template

ZONES = (("eu", "eu-a"), ("eu", "eu-b"), ("us", "us-a"), ("ap", "ap-a"))


def _region(name: str, **latency_ms: int) -> Region:
    return Region(ObjectMeta(name=name), spec=RegionSpec(latency_ms=latency_ms))


def _view(*regions: Region) -> FleetSnapshot:
    nodes = [
        Node(ObjectMeta(name=zone, uid=zone), spec=NodeSpec(region=region, zone=zone))
        for region, zone in ZONES
    ]
    return snapshot_of({"nodes": nodes, "regions": regions})


def _scores(score: Any, view: FleetSnapshot, *data: str) -> list[float]:
    spec = ReplicaSpec("w", "w", template(placement=Placement(data=data)))
    work = view.work(Replica(ObjectMeta(name="r", namespace="acme", uid="r"), spec=spec))
    found: Floats = score(work, view, view.columns.all, 0)
    rows = [view.fleet.get(zone) for _, zone in ZONES]
    return [float(found[it.row]) for it in rows if it is not None]


@pytest.mark.parametrize(
    "data, near, far",
    [
        (("eu",), [100, 100, 0, 0], [100, 100, 50, 0]),
        (("eu-b",), [50, 100, 0, 0], [100, 100, 50, 0]),
        (("us", "eu-a"), [100, 50, 100, 0], [100, 100, 100, 25]),
        (("nowhere",), [0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_the_nearest_data_counts(
    data: tuple[str, ...], near: list[float], far: list[float]
) -> None:
    """Of two statements of a distance the larger counts; without any it is far. [F1, F3]"""
    view = _view(_region("eu", us=10), _region("us", eu=5, ap=30))
    assert _scores(locality, view, *data) == near
    assert _scores(network, view, *data) == far


def test_a_distance_of_zero_and_one_of_a_minute_are_both_fine() -> None:
    """[F3]"""
    view = _view(_region("eu", us=0, ap=60_000))
    assert _scores(network, view, "eu") == [100, 100, 100, 0]
