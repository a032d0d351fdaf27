"""Ledgers: they mirror their nodes and quotas exactly, and survive the store."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from holdfast.model.kinds.node import (
    Device,
    Mark,
    Node,
    NodeDrain,
    NodePhase,
    NodeSpec,
    NodeStatus,
    Protection,
)
from holdfast.model.kinds.placement import Taint
from holdfast.model.kinds.tenant import CapacityClass, Quota, QuotaSpec
from holdfast.model.kinds.workload import WorkloadType
from holdfast.model.meta import ObjectMeta
from holdfast.model.quota.ledger import (
    REPLICAS_PER_NODE,
    DeviceSlot,
    DisruptionLedger,
    GrantLedger,
    NodeGate,
    NodeLedger,
    QuotaLedger,
    TenantLimits,
    TenantUse,
    allocatable_of,
    gate_of,
    limits_of,
    mirror_node,
    use_of,
)

AT = datetime(2026, 3, 1, tzinfo=UTC)
FRESH = NodeStatus()


def node(spec: NodeSpec, status: NodeStatus = FRESH) -> Node:
    return Node(metadata=ObjectMeta(name="node-a", uid="u1"), spec=spec, status=status)


def test_the_gate_says_all_that_a_bind_must_know_of_its_node() -> None:
    """Each of these changes what may be placed, so each must be in the compared record. [C4]"""
    spec = NodeSpec(
        region="eu-west",
        zone="a",
        pool="gpu",
        cordoned=True,
        taints=(Taint("t"),),
        drain=NodeDrain(),
        protected_for=Protection(tenants=("risk",)),
    )
    status = NodeStatus(phase=NodePhase.UNKNOWN, incarnation=3, mark=Mark(number=7, at=AT), marks=7)
    assert gate_of(node(spec, status)) == NodeGate(
        uid="u1",
        phase=NodePhase.UNKNOWN,
        cordoned=True,
        draining=True,
        taints=(Taint("t"),),
        incarnation=3,
        mark=7,
        region="eu-west",
        zone="a",
        pool="gpu",
        protected_for=Protection(tenants=("risk",)),
    )
    fresh = gate_of(node(NodeSpec()))
    assert (fresh.mark, fresh.draining, fresh.phase) == (0, False, NodePhase.READY)


@pytest.mark.parametrize(
    "capacity, reserved, overcommit, resource, units",
    [
        ({"cpu": 4}, {}, {}, "cpu", 4000),
        ({"cpu": "3.9999"}, {}, {}, "cpu", 3999),
        ({"cpu": 4}, {"cpu": "0.0001"}, {}, "cpu", 3999),
        ({"cpu": 4}, {"cpu": "500m"}, {"cpu": 150}, "cpu", 5250),
        ({"cpu": 1}, {"cpu": 2}, {"cpu": 200}, "cpu", 0),
        ({"memory": 101}, {}, {"memory": 50}, "memory", 50),
        # A tenth of the memory is headroom, and a factor that gains less changes nothing.
        ({"memory": 1000}, {}, {"memory": 150}, "memory", 1350),
        ({"memory": 1005}, {"memory": 5}, {"memory": 112}, "memory", 1008),
        ({"memory": 1000}, {}, {"memory": 111}, "memory", 1000),
        ({"memory": "1Gi"}, {"disk": "1Gi"}, {"cpu": 200}, "memory", 1 << 30),
        ({}, {}, {}, "replicas", REPLICAS_PER_NODE),
        ({"replicas": 7}, {}, {}, "replicas", 7),
    ],
)
def test_what_is_kept_rounds_up_and_what_is_offered_down(
    capacity: dict[str, str | int | float],
    reserved: dict[str, str | int | float],
    overcommit: dict[str, int],
    resource: str,
    units: int,
) -> None:
    """A fraction of a unit that the system keeps is not promised to work. [D6, INV4]"""
    spec = NodeSpec(capacity=capacity, reserved=reserved, overcommit=overcommit)
    assert allocatable_of(node(spec))[resource] == units


def test_a_changed_node_changes_gate_and_capacity_but_no_charge() -> None:
    """Use, owners, ports and promises belong to those who hold them. [C6.5]"""
    devices = (
        Device("g0", "gpu", model="A", memory="16Gi", numa=1),
        Device("g1", "gpu"),
        Device("g2", "gpu"),
    )
    before = mirror_node(node(NodeSpec(capacity={"cpu": 4}, devices=devices)), None)
    assert before.devices["g0"] == DeviceSlot("gpu", "A", 16 << 30, 1)
    slots = {
        "g0": msgspec.structs.replace(before.devices["g0"], owners={"a": 1000}),
        "g1": msgspec.structs.replace(before.devices["g1"], owners={"b": 500}, promised="p"),
        "g2": before.devices["g2"],
    }
    before = msgspec.structs.replace(
        before,
        used={"cpu": 3000},
        ports={"TCP/80": "a"},
        devices=slots,
        promised={"p": {"cpu": 1}},
        promised_ports={"TCP/80": "p"},
        leaving={"cpu": 1},
    )
    spec = NodeSpec(capacity={"cpu": 2}, devices=(Device("g1", "gpu", model="B"),), cordoned=True)
    after = mirror_node(node(spec), before)
    assert after.gate.cordoned
    assert after.free("cpu") == -1000
    assert after.devices == {
        "g1": DeviceSlot("gpu", "B", owners={"b": 500}, promised="p"),
        "g0": msgspec.structs.replace(slots["g0"], absent=True),
    }
    kept = ("used", "ports", "promised", "promised_ports", "leaving")
    assert [getattr(after, f) for f in kept] == [getattr(before, f) for f in kept]
    again = mirror_node(node(NodeSpec(devices=devices)), after)
    assert again.devices["g0"] == slots["g0"]


def test_what_recovery_holds_is_not_overcommitted() -> None:
    """Others get the factor on the rest, at any order of charges. [D3, D6, INV4]"""
    spec = NodeSpec(capacity={"cpu": 8, "memory": 100}, overcommit={"cpu": 250, "memory": 100})
    ledger = mirror_node(node(spec), None)
    assert (ledger.firm, ledger.free("cpu")) == ({"cpu": 8000}, 20_000)
    held = msgspec.structs.replace(
        ledger,
        used={"cpu": 5000, "memory": 30},
        recovery={"cpu": 3000, "memory": 10},
    )
    # (8 - 3) * 2.5 = 12.5 for others, which use 2.
    assert (held.free("cpu"), held.free("memory"), held.free("disk")) == (10_500, 70, 0)
    lowered = mirror_node(node(NodeSpec(capacity={"cpu": 8})), held)
    assert (lowered.firm, lowered.free("cpu"), lowered.used) == ({}, 3000, held.used)


def test_an_absent_or_promised_device_has_nothing_free() -> None:
    slot = DeviceSlot("gpu", owners={"a": 250})
    assert (slot.left, slot.free(), slot.free("p")) == (750, 750, 750)
    promised = msgspec.structs.replace(slot, promised="p")
    assert (promised.free(), promised.free("q"), promised.free("p")) == (0, 0, 750)
    absent = msgspec.structs.replace(promised, absent=True)
    assert (absent.free("p"), absent.left) == (0, 750)


def test_limits_mirror_the_quota_by_class() -> None:
    """Amounts are rounded down, so that a limit is never passed by rounding. [D3]"""
    spec = QuotaSpec(
        hard={"cpu": "1.0009", "gpu": 2}, reclaimable={"cpu": 3}, borrowing={"cpu": "500m"}
    )
    quota = Quota(metadata=ObjectMeta(name="default", namespace="risk"), spec=spec)
    assert limits_of(quota) == TenantLimits(
        hard={"cpu": 1000, "gpu": 2000}, reclaimable={"cpu": 3000}, borrowing={"cpu": 500}
    )


def test_use_is_kept_apart_by_class() -> None:
    """Nothing was ever charged as soft, whatever else is. [D3]"""
    use = TenantUse(hard={"cpu": 1}, reclaimable={"cpu": 2})
    assert [use_of(use, of) for of in CapacityClass] == [{"cpu": 1}, {"cpu": 2}, {}]


@pytest.mark.parametrize(
    "ledger",
    [
        NodeLedger(
            gate=NodeGate(uid="u", taints=(Taint("t"),), protected_for=Protection(tenants=("a",))),
            allocatable={"cpu": 1, "memory": 2**53},
            used={"cpu": 1},
            devices={"g0": DeviceSlot("gpu", owners={"a": 1}, promised="p", absent=True)},
            ports={"TCP/80": "a"},
            promised={"p": {"cpu": 1}},
            promised_ports={"TCP/80": "p"},
            leaving={"cpu": 1},
            firm={"cpu": 1},
            recovery={"cpu": 1},
        ),
        QuotaLedger(limits={"t": TenantLimits(hard={"cpu": 1})}, used={"t": TenantUse()}),
        DisruptionLedger(allowed=0, replicas=3, healthy=2, type=WorkloadType.JOB),
        DisruptionLedger(),
        GrantLedger(serial=1, expires=AT, budgets={"recovery": {"cpu": 1}}),
    ],
)
def test_a_ledger_comes_back_from_the_store_as_it_went_in(ledger: msgspec.Struct) -> None:
    """An allowance of zero is not taken for none."""
    assert msgspec.json.decode(msgspec.json.encode(ledger), type=type(ledger)) == ledger
