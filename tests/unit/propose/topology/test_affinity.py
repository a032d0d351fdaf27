"""Topology rules: enforced, explained, and waited for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.placement import Affinity, Placement, Spread, Topology
from holdfast.model.kinds.replica import Binding
from holdfast.model.kinds.template import Template, TemplateMeta
from holdfast.model.lifecycle import State
from holdfast.model.selection.selectors import LabelSelector
from tests.plane import template
from tests.unit.propose.rig import Rig

WEB = LabelSelector(match_labels={"app": "web"})
DB = LabelSelector(match_labels={"app": "db"})
EVEN = Spread(over=Topology.ZONE, required=True)


def zoned(*zones: str, cpu: str = "8") -> Rig:
    """One node in each of these zones."""
    rig = Rig()
    for index, zone in enumerate(zones):
        rig.node(f"node-{index}", cpu=cpu, zone=zone, region="eu")
    rig.start()
    return rig


def asked(**placement: Any) -> Template:
    labels = TemplateMeta(labels={"app": "web"})
    return template(metadata=labels, placement=Placement(**placement))


def put(rig: Rig, name: str, wanted: Template, app: str = "web") -> Any:
    """A replica with its labels, as the controller makes it."""
    rig.is_deaf = True
    made = rig.replica(name, template=wanted)
    rig.is_deaf = False
    metadata = msgspec.structs.replace(made.metadata, labels={"app": app})
    return rig.put(msgspec.structs.replace(made, metadata=metadata))


def zones(rig: Rig, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for index in range(count):
        where = rig.where(f"web-{index}-0")
        if where:
            found[rig.objects["nodes"]["", where].spec.zone] += 1
    return found


def test_a_required_spread_keeps_the_zones_even() -> None:
    """Also where one zone has most of the nodes. [F2, F3]"""
    rig = zoned("a", "a", "a", "a", "b", "c")
    for index in range(9):
        put(rig, f"web-{index}-0", asked(spread=(EVEN,)))
    assert zones(rig, 9) == {"a": 3, "b": 3, "c": 3}


def test_a_spread_that_cannot_be_kept_waits_and_says_so() -> None:
    """[E3, F2]"""
    rig = zoned("a", "b")
    small = rig.objects["nodes"]["", "node-1"]
    spec = msgspec.structs.replace(small.spec, capacity={"cpu": "1", "memory": "1Ti"})
    rig.put(msgspec.structs.replace(small, spec=spec))
    for index in range(4):
        put(rig, f"web-{index}-0", asked(spread=(EVEN,)))
    rig.pass_time(5_000)
    assert zones(rig, 4) == {"a": 2, "b": 1}
    pending = rig.get("web-3-0").status.pending
    assert pending.reasons == {"NodeFull": 1, "SpreadViolated": 1}
    assert "zone eu/a would have 2 replicas more than the emptiest, at most 1 is allowed" in (
        pending.nearest_miss
    )
    # A replica that leaves the full zone makes room for one in either.
    gone = next(n for n in range(3) if rig.where(f"web-{n}-0") == "node-1")
    rig.status(rig.get(f"web-{gone}-0"), state=State.RELEASED)
    rig.pass_time(1_000)
    assert rig.where("web-3-0") == "node-1"


def test_a_zone_that_takes_no_work_does_not_hold_the_others_back() -> None:
    """Its replicas have to run somewhere else. [F2]"""
    rig = zoned("a", "b")
    lost = rig.objects["nodes"]["", "node-1"]
    status = msgspec.structs.replace(lost.status, phase=NodePhase.LOST)
    rig.put(msgspec.structs.replace(lost, status=status))
    for index in range(4):
        put(rig, f"web-{index}-0", asked(spread=(EVEN,)))
    assert zones(rig, 4) == {"a": 4}


def test_a_zone_that_is_lost_wakes_the_replicas_that_it_held_back() -> None:
    """Long before the resync: they have to run somewhere. [E1]"""
    rig = zoned("a", "b")
    small = rig.objects["nodes"]["", "node-1"]
    spec = msgspec.structs.replace(small.spec, capacity={"cpu": "500m", "memory": "1Ti"})
    small = rig.put(msgspec.structs.replace(small, spec=spec))
    for index in range(3):
        put(rig, f"web-{index}-0", asked(spread=(EVEN,)))
    rig.pass_time(2_000)
    assert zones(rig, 3) == {"a": 1}
    status = msgspec.structs.replace(small.status, phase=NodePhase.LOST)
    rig.put(msgspec.structs.replace(small, status=status))
    rig.pass_time(1_000)
    assert zones(rig, 3) == {"a": 3}


@pytest.mark.parametrize("within", [Topology.NODE, Topology.ZONE])
def test_an_anti_affinity_keeps_others_away_as_well(within: Topology) -> None:
    """Also new replicas without rules, until it is gone; others may come near. [F2]"""
    rig = zoned("a", "a", "b", cpu="2")
    rule = Affinity(selector=WEB, within=within)
    put(rig, "db-0-0", template(placement=Placement(anti_affinity=(rule,))), "db")
    rig.pass_time(1_000)
    assert rig.where("db-0-0")
    others = [name for name in ("node-0", "node-1", "node-2") if name != rig.where("db-0-0")]
    if within is Topology.ZONE:
        zone = rig.objects["nodes"]["", rig.where("db-0-0")].spec.zone
        others = [n for n in others if rig.objects["nodes"]["", n].spec.zone != zone]
    for index in range(6):
        put(rig, f"web-{index}-0", asked())
    rig.pass_time(5_000)
    found = [rig.where(f"web-{index}-0") for index in range(6)]
    assert sorted(set(found) - {""}) == sorted(others)
    waits = found.index("")
    assert "AntiAffinityViolated" in rig.get(f"web-{waits}-0").status.pending.reasons
    put(rig, "job-0-0", template(), "job")
    rig.pass_time(1_000)
    assert rig.where("job-0-0") not in ("", *others)
    rig.remove(rig.get("db-0-0"))
    rig.pass_time(1_000)
    assert rig.where(f"web-{waits}-0")
    # What is kept about this work knows no rule about others any more.
    cache = rig.scheduler.verdict_cache
    kept = cache.known(cache.key(rig.get(f"web-{waits}-0")))
    assert kept is not None
    assert kept.topology_rules is None


def test_replicas_that_stay_apart_get_a_node_each_and_the_next_waits() -> None:
    """[F2, E3]"""
    rig = zoned("a", "a", "b")
    apart = asked(anti_affinity=(Affinity(selector=WEB),))
    for index in range(4):
        put(rig, f"web-{index}-0", apart)
    rig.pass_time(5_000)
    assert sorted(rig.where(f"web-{index}-0") for index in range(4)) == [
        "",
        "node-0",
        "node-1",
        "node-2",
    ]
    waits = next(n for n in range(4) if not rig.where(f"web-{n}-0"))
    pending = rig.get(f"web-{waits}-0").status.pending
    assert pending.reasons == {"AntiAffinityViolated": 3}
    assert pending.verdict == "Waiting"
    rig.node("node-3", cpu="8", zone="b")
    rig.pass_time(1_000)
    assert rig.where(f"web-{waits}-0") == "node-3"


def test_work_with_an_affinity_waits_for_a_matching_replica_and_is_woken_by_it() -> None:
    """Long before the resync. [E1, F2]"""
    rig = zoned("a", "b")
    put(rig, "web-0-0", asked(affinity=(Affinity(selector=DB, within=Topology.ZONE),)))
    rig.pass_time(2_000)
    assert rig.get("web-0-0").status.pending.reasons == {"AffinityUnmet": 2}
    put(rig, "db-0-0", template(), app="db")
    rig.pass_time(2_000)
    assert rig.where("web-0-0") == rig.where("db-0-0") != ""


def test_replicas_of_another_tenant_do_not_match_an_affinity() -> None:
    """[F2]"""
    rig = zoned("a")
    rig.put(msgspec.structs.replace(rig.objects["tenants"]["", "acme"]))
    put(rig, "web-0-0", asked(affinity=(Affinity(selector=DB),)))
    made = rig.replica("db-0-0", tenant="other")
    labelled = msgspec.structs.replace(made.metadata, labels={"app": "db"})
    rig.put(msgspec.structs.replace(made, metadata=labelled))
    rig.pass_time(2_000)
    assert rig.where("web-0-0") == ""


def test_the_first_replica_of_an_affinity_may_go_anywhere() -> None:
    """[F2]"""
    rig = zoned("a", "b", "c")
    for index in range(3):
        put(rig, f"web-{index}-0", asked(affinity=(Affinity(selector=WEB, within=Topology.ZONE),)))
    assert len(zones(rig, 3)) == 1


def test_the_limit_per_node_holds_for_one_workload() -> None:
    """[F2]"""
    rig = zoned("a", "b")
    for index in range(5):
        put(rig, f"web-{index}-0", asked(max_per_node=2))
    rig.pass_time(5_000)
    assert sum(bool(rig.where(f"web-{index}-0")) for index in range(5)) == 4
    waits = next(n for n in range(5) if not rig.where(f"web-{n}-0"))
    pending = rig.get(f"web-{waits}-0").status.pending
    assert pending.reasons == {"TooManyPerNode": 2}
    assert "at most 2 are allowed" in pending.nearest_miss


@pytest.mark.parametrize(
    "placement, even",
    [
        ({"spread": (Spread(over=Topology.ZONE),)}, {"a": 2, "b": 2}),
        ({"anti_affinity": (Affinity(selector=WEB, within=Topology.ZONE, required=False),)}, None),
    ],
)
def test_soft_rules_rank_and_refuse_nothing(
    placement: dict[str, Any], even: dict[str, int] | None
) -> None:
    """All are placed; the emptier zone is better although its node is fuller. [F3]"""
    rig = zoned("a", "a", "a", "b")
    for index in range(4):
        put(rig, f"web-{index}-0", asked(**placement))
    found = zones(rig, 4)
    assert sum(found.values()) == 4
    assert found["b"] >= 1
    if even is not None:
        assert found == even


def test_replicas_known_before_their_node_count_in_its_zone() -> None:
    """Counts that started before the node was known are counted again with it. [F2]"""
    rig = zoned("a")
    put(rig, "web-0-0", asked(spread=(EVEN,)))
    rig.is_deaf = True
    early = rig.replica("web-9-0", template=asked(spread=(EVEN,)))
    rig.is_deaf = False
    binding = Binding(node="node-9", node_uid="x", charge={"cpu": 1000, "replicas": 1})
    rig.status(early, state=State.BOUND, binding=binding)
    # Full, so that the next one has to go where it may go only if the other zone has one already.
    rig.node("node-9", cpu="1", zone="b", region="eu")
    put(rig, "web-1-0", asked(spread=(EVEN,)))
    rig.pass_time(1_000)
    assert rig.where("web-1-0") == "node-0"
