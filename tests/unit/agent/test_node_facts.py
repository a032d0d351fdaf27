"""What an agent says of its machine, and what the authority takes of it."""

from __future__ import annotations

from holdfast.agent.node_facts import NodeFacts
from holdfast.model.access import identity as who
from holdfast.model.kinds.node import Device
from holdfast.model.requests import RegisterNode
from tests.plane import Plane, accepted


def test_the_authority_takes_in_every_fact_at_the_first_registration() -> None:
    """A fact that is lost on the way would place work on the wrong machine. [D4, A4]"""
    plane = Plane()
    plane.region()
    facts = NodeFacts(
        region="eu-west",
        zone="eu-west-b",
        pool="batch",
        labels={"disk": "ssd"},
        cost_per_hour="1.5",
        capacity={"cpu": "4", "memory": "8Gi"},
        reserved={"cpu": "500m"},
        devices=(Device(id="gpu-0", device_class="gpu"),),
        images=("web:1",),
        agent_version="0.1",
        address="10.0.0.7:7000",
    )
    node = accepted(plane.ask(who.agent("n1"), RegisterNode(facts.node("n1", "boot-7"))))
    spec, status = node.spec, node.status
    assert (spec.region, spec.zone, spec.pool) == ("eu-west", "eu-west-b", "batch")
    assert (spec.cost_per_hour, spec.capacity["cpu"], spec.reserved["cpu"]) == ("1.5", "4", "500m")
    assert [device.id for device in spec.devices] == ["gpu-0"]
    assert node.metadata.labels == {"disk": "ssd"}
    assert (status.agent_version, status.address, status.boot_id) == (
        "0.1",
        "10.0.0.7:7000",
        "boot-7",
    )
    assert (status.images, status.incarnation) == (("web:1",), 1)
