"""Hypothesis strategies for what the rules judge: nodes, ledgers, templates, quotas, places.

They are small on purpose: few devices of few models, amounts that collide with limits, names that
repeat. A rule breaks where things meet, and small worlds make them meet often.
"""

from __future__ import annotations

from hypothesis import strategies as st

from holdfast.model.kinds.node import Device, Node, NodeSpec
from holdfast.model.kinds.placement import Placement
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.template import DeviceRequest, Port, Protocol, Resources, Template
from holdfast.model.kinds.tenant import Tenant, TenantSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.fit import Demand, DeviceDemand
from holdfast.model.quantity import MILLI
from holdfast.model.quota.ledger import (
    Amounts,
    DeviceSlot,
    NodeGate,
    NodeLedger,
    QuotaLedger,
    TenantLimits,
)

CLASSES = ("gpu", "npu")
MODELS = ("A", "B")
TENANTS = ("ant", "bee", "cat")
RESOURCES = ("cpu", "gpu")
PRIORITY_CLASSES = ("critical", "batch")
REGIONS = ("eu-west", "eu-central", "us-east")
JURISDICTIONS = ("eu", "us", "de")

names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
gib = st.sampled_from((0, 16, 80)).map(lambda size: f"{size}Gi")
# Thousandths that add up to a whole device in several ways, and one that never does.
millis = st.sampled_from((250, 300, 500, 750))

devices = st.builds(
    Device,
    id=st.integers(0, 11).map(lambda number: f"d{number}"),
    device_class=st.sampled_from(CLASSES),
    model=st.sampled_from(MODELS),
    memory=gib,
    numa=st.integers(0, 1),
)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """A node whose capacity a handful of small replicas use up."""
    cores, memory = draw(st.integers(0, 8)), draw(st.integers(0, 8))
    spec = NodeSpec(
        region=draw(st.sampled_from(REGIONS)),
        capacity={
            "cpu": draw(st.sampled_from((cores, f"{cores}500m"))),
            "memory": f"{memory}Gi",
            "disk": "10Gi",
        },
        reserved=draw(st.sampled_from(({}, {"cpu": "1"}, {"cpu": "0.0001", "memory": "0.5"}))),
        overcommit=draw(st.sampled_from(({}, {"cpu": 150}, {"memory": 50}, {"memory": 130}))),
        devices=tuple(draw(st.lists(devices, max_size=5, unique_by=lambda d: d.id))),
    )
    return Node(metadata=ObjectMeta(name="node-a", uid="node-uid"), spec=spec)


device_requests = st.one_of(
    st.builds(
        DeviceRequest,
        device_class=st.sampled_from(CLASSES),
        count=st.integers(1, 3),
        models=st.sampled_from(((), ("A",), ("A", "B"))),
        memory=gib,
        same_numa=st.booleans(),
    ),
    st.builds(
        DeviceRequest,
        device_class=st.sampled_from(CLASSES),
        share=millis.map(lambda milli: f"{milli}m"),
        models=st.sampled_from(((), ("B",))),
    ),
)
ports = st.builds(
    Port,
    name=names,
    port=st.sampled_from((0, 0, 80, 443)),
    protocol=st.sampled_from(Protocol),
)
templates = st.builds(
    Template,
    resources=st.builds(
        Resources,
        cpu=st.sampled_from((0, "250m", 1, 1.5, "3", "0.0001")),
        memory=st.sampled_from((0, "1Gi", "1.5Gi", 1)),
        disk=st.sampled_from((0, "4Gi")),
    ),
    devices=st.lists(device_requests, max_size=2).map(tuple),
    ports=st.lists(ports, max_size=2, unique_by=lambda p: (p.port, p.protocol)).map(tuple),
)


@st.composite
def device_slots(draw: st.DrawFn) -> DeviceSlot:
    """A device in any state of ownership that is allowed."""
    owners = draw(
        st.one_of(
            st.just({}),
            st.just({"whole": MILLI}),
            st.dictionaries(st.sampled_from(("x", "y")), st.sampled_from((250, 500)), max_size=2),
        )
    )
    return DeviceSlot(
        device_class=draw(st.sampled_from(("gpu", "gpu", "gpu", "npu"))),
        model=draw(st.sampled_from(MODELS)),
        memory=draw(st.sampled_from((0, 16, 80))),
        numa=draw(st.integers(0, 1)),
        owners=owners,
        absent=draw(st.sampled_from((False, False, False, bool(owners)))),
    )


device_ledgers = st.dictionaries(
    st.integers(0, 20).map(lambda number: f"d{number}"), device_slots(), max_size=6
).map(lambda slots: NodeLedger(gate=NodeGate(uid="node-uid"), devices=slots))


@st.composite
def device_demands(draw: st.DrawFn) -> Demand:
    """Up to three requests for devices that get in each other's way."""
    whole = st.builds(
        DeviceDemand,
        device_class=st.just("gpu"),
        count=st.integers(1, 3),
        milli=st.just(MILLI),
        models=st.sampled_from(((), ("A",), ("B",), ("A", "B"))),
        memory=st.sampled_from((0, 16, 80)),
        same_numa=st.booleans(),
    )
    share = st.builds(
        DeviceDemand,
        device_class=st.just("gpu"),
        count=st.just(1),
        milli=millis,
        models=st.sampled_from(((), ("A",), ("B",))),
    )
    requests = tuple(draw(st.lists(st.one_of(whole, whole, share), min_size=1, max_size=3)))
    return Demand(amounts={"gpu": sum(r.total for r in requests)}, devices=requests)


def amounts(most: int = 6) -> st.SearchStrategy[Amounts]:
    return st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, most), max_size=2)


limits = st.builds(
    TenantLimits,
    hard=amounts(6),
    reclaimable=amounts(6),
    borrowing=amounts(9),
    classes=st.dictionaries(st.sampled_from(PRIORITY_CLASSES), amounts(6), max_size=2),
)
quota_ledgers = st.builds(
    QuotaLedger, limits=st.dictionaries(st.sampled_from(TENANTS), limits, max_size=3)
)

placements = st.builds(
    Placement,
    regions=st.lists(st.sampled_from(REGIONS), max_size=2).map(tuple),
    residency=st.sampled_from(("", *JURISDICTIONS)),
)
tenants = st.builds(
    lambda spec: Tenant(metadata=ObjectMeta(name="risk"), spec=spec),
    st.builds(
        TenantSpec,
        residency=st.sampled_from(("", *JURISDICTIONS)),
        regions=st.lists(st.sampled_from(REGIONS), max_size=2).map(tuple),
    ),
)
regions = st.builds(
    lambda name, spec: Region(metadata=ObjectMeta(name=name), spec=spec),
    st.sampled_from(REGIONS),
    st.builds(
        RegionSpec, jurisdictions=st.lists(st.sampled_from(JURISDICTIONS), max_size=2).map(tuple)
    ),
)
