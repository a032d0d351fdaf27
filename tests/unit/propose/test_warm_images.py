"""Work goes where its image is: one for all tenants, or one that its own tenant has there."""

from __future__ import annotations

from holdfast.model.kinds.node import Node, NodeStatus
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.template import Runtime
from holdfast.model.meta import ObjectMeta
from holdfast.propose.fleet_snapshot import snapshot_of
from holdfast.propose.scores.scorers import image
from tests.plane import template

IMAGE = "registry.example.com/web:1"
LISTED = {
    "bare": (),
    "for-all": (IMAGE,),
    "own": (f"acme {IMAGE}",),
    "of-another-tenant": (f"other {IMAGE}",),
}


def test_an_image_that_was_pulled_for_a_tenant_is_warm_for_that_tenant_alone() -> None:
    """[F3]"""
    nodes = [
        Node(ObjectMeta(name=name, uid=name), status=NodeStatus(images=images))
        for name, images in LISTED.items()
    ]
    view = snapshot_of({"nodes": nodes})
    spec = ReplicaSpec("w", "w", template(runtime=Runtime.CONTAINER, image=IMAGE))
    work = view.work(Replica(ObjectMeta(name="r", namespace="acme", uid="r"), spec=spec))
    found = image(work, view, view.columns.all, 0)
    sites = {name: view.fleet.get(name) for name in LISTED}
    scores = {name: float(found[it.row]) for name, it in sites.items() if it is not None}
    assert scores == {"bare": 0, "for-all": 100, "own": 100, "of-another-tenant": 0}
