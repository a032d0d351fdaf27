"""Filters against the law: on the same state, the commit accepts what they let pass, and nothing
that they rule out but by labels, which are the proposer's own rule.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.kinds.node import NodeDrain, Protection
from holdfast.model.kinds.placement import Placement, Taint, Toleration
from holdfast.model.kinds.region import Pool, Region, RegionSpec
from holdfast.model.kinds.template import DeviceRequest, Port, Resources
from holdfast.model.kinds.tenant import Tenant, TenantSpec
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, Create, Update
from holdfast.observe.cache import ObjectChange
from holdfast.propose.decide import propose
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import BindReplica
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.filters import FILTERS
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.proposals import could_take
from tests.plane import ADMIN, SCHEDULER, Plane, accepted, bind, template

some = st.sampled_from
KEPT = Protection(tenants=("other",))

OPERATORS = st.fixed_dictionaries(
    {},
    optional={
        "cordoned": st.booleans(),
        "taints": some([(), (Taint(key="gpu"),), (Taint(key="slow", value="1"),)]),
        "drain": some([None, NodeDrain(reason="x")]),
        "protected_for": some([None, KEPT, Protection(tenants=("acme",))]),
    },
)
NODES = st.tuples(
    st.fixed_dictionaries(
        {
            "region": some(["eu-west", "us-east", "nowhere"]),
            "zone": some(["a", "b"]),
            "pool": some(["general", "kept"]),
            "capacity": some([{"cpu": "1", "memory": "1Gi"}, {"cpu": "8", "memory": "32Gi"}]),
        }
    ),
    some([0, 0, 1]),
    OPERATORS,
)
PLACEMENTS = st.builds(
    Placement,
    regions=some([(), (), ("eu-west",)]),
    zones=some([(), (), ("a",)]),
    residency=some(["", "", "eu"]),
    pool=some(["", "", "general"]),
    tolerations=some([(), (Toleration(key="gpu"),)]),
)
WORK = st.fixed_dictionaries(
    {
        "resources": some([Resources(cpu="1", memory="1Gi"), Resources(cpu="2", memory="1Gi")]),
        "placement": PLACEMENTS,
        "ports": some([(), (Port(name="http", port=80),)]),
        "devices": some([(), (), (DeviceRequest(device_class="gpu", memory="10Gi"),)]),
    }
)
TENANTS = some([TenantSpec(), TenantSpec(residency="eu"), TenantSpec(regions=("us-east",))])


class Store:
    """Looks objects up as a cache that is not behind would."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane

    def get(self, plural: str, namespace: str, name: str) -> Any:
        path = f"{plural}/{namespace}/{name}" if namespace else f"{plural}/{name}"
        return self.plane.read(f"objects/{path}")


def furnished(tenant: TenantSpec, nodes: list[Any]) -> tuple[Plane, list[Any]]:
    plane = Plane()
    pools = (Pool(name="kept", protected_for=KEPT), Pool(name="general"))
    for name, law in (("eu-west", ("eu",)), ("us-east", ("us",))):
        spec = RegionSpec(jurisdictions=law, pools=pools)
        plane.create(Region(ObjectMeta(name=name), spec=spec))
    plane.create(Tenant(ObjectMeta(name="acme"), spec=tenant))
    made = []
    for index, (spec_, gpus, operators) in enumerate(nodes):
        node = plane.node(f"node-{index}", gpus=gpus, **spec_)
        wished = msgspec.structs.replace(node.spec, **operators)
        metadata = msgspec.structs.replace(node.metadata, resource_version="")
        changed = msgspec.structs.replace(node, spec=wished, metadata=metadata)
        made.append(accepted(plane.ask(ADMIN, Update(changed))))
    return plane, made


@settings(max_examples=60)
@given(TENANTS, st.lists(NODES, min_size=1, max_size=4), WORK, WORK, st.integers(0, 9))
def test_the_commit_accepts_what_the_filters_let_pass_and_nothing_else(
    tenant: TenantSpec, nodes: list[Any], first: Any, second: Any, seed: int
) -> None:
    """With something there already: one replica is placed first, as proposed. [F2, C4, B2]"""
    plane, made = furnished(tenant, nodes)
    fleet = Fleet()
    for node in made:
        fleet.notice(ObjectChange("nodes", None, plane.get(node)))
    view = FleetSnapshot(Store(plane), fleet=fleet)
    term = plane.term(SCHEDULER)
    by_name = {node.name: node for node in made}
    for name, work in (("first", first), ("second", second)):
        meta = ObjectMeta(name=name, namespace="acme")
        spec = WorkloadSpec(template=template(**work))
        admitted = plane.ask(ADMIN, Create(Workload(meta, spec=spec)))
        if isinstance(admitted, Refusal):
            # It could never run anywhere, and no scheduler ever sees it.
            continue
        replica = plane.replica(admitted.objects[0])
        decision = propose(view, [replica], plane.now, seed, VerdictCache())[0]
        for node in made:
            if not could_take(view, replica, node.name, plane.now):
                answer = plane.ask(SCHEDULER, bind(replica, node, term))
                assert isinstance(answer, Refusal), (node, work)
        if isinstance(decision, BindReplica):
            chosen = decision.node
            answer = plane.ask(SCHEDULER, bind(replica, by_name[chosen], term))
            assert isinstance(answer, Accepted), (answer, work)
            after = plane.get(replica)
            assert after.status.binding.devices == decision.held.devices
            fleet.notice(ObjectChange("replicas", replica, after))
            site = fleet.get(chosen)
            assert site is not None
            assert site.ledger == plane.ledger(chosen)


def test_every_filter_has_a_name_of_its_own() -> None:
    names = [each.name for each in FILTERS]
    assert len(set(names)) == len(names) == 10
