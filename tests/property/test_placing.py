"""Columns, filters and runs against the rules they stand for, on random fleets and work.

The columns add up what ledgers say; filters for many nodes say what the rule says of each; what a
board has kept equals what a new search finds; and many placed at once are those placed one by one.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.kinds.node import (
    Device,
    Node,
    NodeDrain,
    NodePhase,
    NodeSpec,
    NodeStatus,
    PortShare,
    Protection,
)
from holdfast.model.kinds.placement import (
    Affinity,
    Isolation,
    Placement,
    Preference,
    Spread,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
    Topology,
)
from holdfast.model.kinds.region import Pool, Region, RegionSpec
from holdfast.model.kinds.replica import Binding, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy, SchedulerPolicySpec
from holdfast.model.kinds.template import DeviceRequest, Port, Resources, Template, TemplateMeta
from holdfast.model.kinds.tenant import Tenant, TenantSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.fit import Allocation, claim, demand_of
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selection.selectors import Expression, LabelSelector, SelectorOperator
from holdfast.model.time import Instant
from holdfast.observe.cache import ObjectChange
from holdfast.observe.node_columns import Level
from holdfast.propose.decide import propose
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import BindReplica, PlacementReport, StayPending
from holdfast.propose.feasibility.unschedulable import candidate_at
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.filters import FILTERS
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.topology.topology_counts import traits_of
from tests.scale import examples

some = st.sampled_from
NOW = Instant(1_000, 1_800_000_000_000)
KEPT = Protection(tenants=("other",))
TOP = Protection(priority_classes=("top",))

NODES = st.fixed_dictionaries(
    {
        "region": some(["eu", "us", "nowhere"]),
        "zone": some(["a", "b", "c"]),
        "pool": some(["general", "kept"]),
        "capacity": some(
            [
                {"cpu": "1", "memory": "1Gi"},
                {"cpu": "4", "memory": "8Gi", "replicas": "3"},
                {"cpu": "3", "memory": "16Gi"},
                {"cpu": "3", "memory": "16Gi", "disk": "10Gi"},
            ]
        ),
        "devices": some(
            [
                (),
                (),
                (Device(id="g0", device_class="gpu", model="A", memory="40Gi"),),
                (
                    Device(id="g0", device_class="gpu", model="A", memory="40Gi"),
                    Device(id="g1", device_class="gpu", model="B", memory="16Gi", numa=1),
                    Device(id="f0", device_class="fpga"),
                ),
            ]
        ),
        "cordoned": some([False, False, False, True]),
        "drain": some([None, None, None, NodeDrain(reason="x")]),
        "taints": some(
            [
                (),
                (),
                (Taint(key="slow", value="1"),),
                (Taint(key="mild", effect=TaintEffect.PREFER_NO_SCHEDULE),),
            ]
        ),
        "protected_for": some([None, None, None, KEPT, TOP, Protection(tenants=("acme",))]),
        "phase": some([NodePhase.READY] * 4 + [NodePhase.SUSPECT, NodePhase.UNKNOWN]),
        "isolation": some([None, None, *Isolation]),
        "labels": st.dictionaries(some(["disk", "size"]), some(["ssd", "7", "12", "x"])),
        "images": some([(), ("img:1",), ("acme img:1",), ("other img:1",)]),
        "cost_per_hour": some([0, "1", "2500m"]),
        "port_share": some([None, None, PortShare(index=0, of=2), PortShare(index=1, of=2)]),
    }
)
EXPRESSIONS = st.builds(
    Expression,
    key=some(["disk", "size"]),
    operator=some(list(SelectorOperator)),
    values=some([("ssd",), ("7",), ("10",), ("ssd", "x")]),
)
SELECTOR = LabelSelector(match_labels={"app": "web"})
OTHER = LabelSelector(
    match_expressions=(Expression(key="app", operator=SelectorOperator.NOT_IN, values=("web",)),)
)
COMPANY: dict[str, Any] = {
    "spread": some(
        [
            (),
            (),
            (Spread(over=Topology.ZONE, required=True),),
            (Spread(over=Topology.NODE, required=True, max_skew=2),),
            (Spread(over=Topology.REGION, required=True), Spread(over=Topology.NODE)),
            (Spread(over=Topology.ZONE), Spread(over=Topology.NODE, required=True)),
        ]
    ),
    "affinity": some(
        [
            (),
            (),
            (Affinity(selector=SELECTOR, within=Topology.ZONE),),
            (Affinity(selector=OTHER, within=Topology.REGION),),
            (Affinity(selector=SELECTOR, within=Topology.NODE, required=False),),
        ]
    ),
    "anti_affinity": some(
        [
            (),
            (),
            (Affinity(selector=SELECTOR, within=Topology.NODE),),
            (Affinity(selector=SELECTOR, within=Topology.ZONE),),
            (Affinity(selector=OTHER, within=Topology.NODE),),
        ]
    ),
    "max_per_node": some([0, 0, 0, 1, 2]),
}
SITED: dict[str, Any] = {
    "regions": some([(), (), ("eu",)]),
    "zones": some([(), (), ("a", "b")]),
    "residency": some(["", "", "eu-law"]),
    "pool": some(["", "", "general"]),
    "node_selector": some([{}, {}, {"disk": "ssd"}, {"size": "nine"}]),
    "node_expressions": st.lists(EXPRESSIONS, max_size=2).map(tuple),
    "tolerations": some(
        [
            (),
            (Toleration(key="slow", value="1"),),
            (Toleration(operator=TolerationOperator.EXISTS),),
        ]
    ),
    "prefer": some([(), (Preference(expressions=(Expression("disk", SelectorOperator.EXISTS),)),)]),
}
DEVICES = some(
    [
        (),
        (),
        (DeviceRequest(device_class="gpu"),),
        (DeviceRequest(device_class="gpu", share="500m"),),
        (DeviceRequest(device_class="gpu", count=2, same_numa=True),),
        (DeviceRequest(device_class="gpu", models=("B",)), DeviceRequest(device_class="gpu")),
        (DeviceRequest(device_class="gpu", memory="20Gi"), DeviceRequest(device_class="fpga")),
    ]
)
RESOURCES = some(
    [
        Resources(cpu="1", memory="1Gi"),
        Resources(cpu="500m"),
        Resources(cpu="2", memory="3Gi", disk="1Gi"),
        Resources(),
    ]
)


def templates(**placement: Any) -> st.SearchStrategy[Template]:
    return st.builds(
        Template,
        metadata=some([TemplateMeta(), TemplateMeta(labels={"app": "web"})]),
        resources=RESOURCES,
        devices=DEVICES,
        ports=some([(), (), (Port(name="http", port=80),)]),
        image=some(["", "img:1"]),
        priority_class=some(["", "top"]),
        isolation=some([Isolation.NONE, Isolation.NONE, *Isolation]),
        user=some(["", "", "app", "daemon"]),
        placement=st.builds(Placement, **placement),
    )


WORK = templates(**SITED, **COMPANY)
PLAIN = st.builds(
    Template,
    metadata=some([TemplateMeta(), TemplateMeta(labels={"app": "web"})]),
    resources=RESOURCES,
    placement=st.builds(Placement, **COMPANY),
)
TENANTS = some(
    [
        TenantSpec(),
        TenantSpec(users=("app",)),
        TenantSpec(residency="eu-law"),
        TenantSpec(regions=("us",)),
    ]
)
POLICIES = some(
    [
        None,
        None,
        SchedulerPolicySpec(weights={"packing": 3}),
        SchedulerPolicySpec(weights={"cost": 1, "headroom": 2, "image": 7, "spread": 5}),
    ]
)


class Things:
    """Objects to look up."""

    def __init__(self, tenant: TenantSpec) -> None:
        pools = (Pool(name="kept", protected_for=TOP), Pool(name="general"))
        self.found: dict[tuple[str, str], Any] = {
            ("tenants", "acme"): Tenant(ObjectMeta(name="acme"), spec=tenant)
        }
        for name, law in (("eu", ("eu-law",)), ("us", ())):
            spec = RegionSpec(jurisdictions=law, pools=pools)
            self.found["regions", name] = Region(ObjectMeta(name=name), spec=spec)

    def get(self, plural: str, namespace: str, name: str) -> Any:
        return self.found.get((plural, name))


def node(index: int, facts: dict[str, Any]) -> Node:
    spec = {**facts}
    phase, labels, images = spec.pop("phase"), spec.pop("labels"), spec.pop("images")
    isolation = spec.pop("isolation")
    meta = ObjectMeta(name=f"n{index}", uid=f"uid-{index}", labels=labels)
    status = NodeStatus(phase=phase, images=images, isolation=isolation)
    return Node(meta, spec=NodeSpec(**spec), status=status)


def replica(name: str, wanted: Template, workload: str = "web") -> Replica:
    spec = ReplicaSpec(workload=workload, workload_uid=workload, template=wanted)
    labels = wanted.metadata.labels
    return Replica(ObjectMeta(name=name, namespace="acme", uid=name, labels=labels), spec=spec)


def bound(one: Replica, where: str, held: Allocation, **status: Any) -> Replica:
    binding = Binding(
        node=where, node_uid="", charge=held.charge, devices=held.devices, ports=held.ports
    )
    state = status.pop("state", State.BOUND)
    return msgspec.structs.replace(
        one, status=ReplicaStatus(state=state, binding=binding, **status)
    )


def viewed(
    fleet: Fleet, tenant: TenantSpec, policy: SchedulerPolicySpec | None = None
) -> FleetSnapshot:
    made = SchedulerPolicy(ObjectMeta(name="p"), spec=policy) if policy is not None else None
    return FleetSnapshot(Things(tenant), fleet=fleet, policy=made)


# Events of a fleet -------------------------------------------------------------------------------

MOVES = st.lists(
    st.tuples(
        some(["place", "bind", "end", "assume", "back", "node", "gone", "shun"]),
        st.integers(0, 3),
        NODES,
        WORK,
    ),
    max_size=12,
)


class World:
    """A fleet that things happen to, each told as the cache would tell it."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self.fleet = Fleet()
        self.nodes: dict[str, Node] = {}
        self.there: dict[str, Replica] = {}
        self.assumed: list[str] = []
        self.made = 0
        for index, facts in enumerate(nodes):
            self.put(node(index, facts))

    def put(self, new: Node) -> None:
        self.fleet.notice(ObjectChange("nodes", self.nodes.get(new.name), new))
        self.nodes[new.name] = new

    def happen(self, what: str, index: int, facts: dict[str, Any], wanted: Template) -> None:
        name = f"n{index}"
        site = self.fleet.get(name)
        match what:
            case "node":
                self.put(node(index, facts))
            case "gone" if name in self.nodes:
                self.fleet.notice(ObjectChange("nodes", self.nodes.pop(name), None))
            case "shun":
                self.fleet.shun(name, Refusal(Reason.NODE_FULL, "x"), NOW.monotonic_ms)
            case "place" | "assume" | "bind" if site is not None:
                held = claim(site.ledger, demand_of(wanted))
                if isinstance(held, Allocation):
                    self.made += 1
                    one = replica(f"r{self.made}", wanted, workload=f"w{index % 2}")
                    self._take(what, one, name, held)
            case "end" if self.there:
                uid = sorted(self.there)[index % len(self.there)]
                self.fleet.notice(ObjectChange("replicas", self.there.pop(uid), None))
            case "back" if self.assumed:
                self.fleet.unassume(self.assumed.pop(index % len(self.assumed)))

    def _take(self, what: str, one: Replica, name: str, held: Allocation) -> None:
        if what != "place":
            self.fleet.assume(one.name, ("acme", one.name), name, held, 0, traits_of(one))
            self.assumed.append(one.name)
        if what != "assume":
            after = bound(one, name, held)
            self.fleet.notice(ObjectChange("replicas", None, one))
            self.fleet.notice(ObjectChange("replicas", one, after))
            self.there[one.name] = after
        if what == "bind":
            self.assumed.remove(one.name)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(NODES, min_size=1, max_size=4), MOVES)
def test_columns_say_what_the_ledgers_say(nodes: list[Any], moves: list[Any]) -> None:
    """After whatever happened, all sums, devices and ports; also without what is assumed."""
    world = World(nodes)
    for move in moves:
        world.happen(*move)
        columns = world.fleet.columns
        assert set(np.flatnonzero(columns.live).tolist()) == {site.row for site in world.fleet}
        for site in world.fleet:
            for ledger, level in (
                (site.ledger, Level.NOW),
                (site.settled, Level.SETTLED),
                (site.empty, Level.EMPTY),
            ):
                for number, resource in enumerate(columns.resources.values):
                    left = columns.left(number, np.array([site.row]), level)
                    assert left[0] == ledger.free(resource)
            devices = [slot.free() for _, slot in sorted(site.ledger.devices.items())]
            assert columns.devices.free[site.row][: len(devices)].tolist() == devices
            is_taken = site.row in columns.ports.taken("TCP/80", settled=False)
            assert is_taken == ("TCP/80" in site.ledger.ports)
            is_taken = site.row in columns.ports.taken("TCP/80", settled=True)
            assert is_taken == ("TCP/80" in site.settled.ports)


# Filters -----------------------------------------------------------------------------------------


@settings(max_examples=examples(350), deadline=None)
@given(TENANTS, st.lists(NODES, min_size=1, max_size=4), MOVES, WORK)
def test_a_filter_for_many_nodes_says_what_the_rule_says_of_each(
    tenant: TenantSpec, nodes: list[Any], moves: list[Any], wanted: Template
) -> None:
    """Every filter, every node, the same reason. [F2]"""
    world = World(nodes)
    for move in moves:
        world.happen(*move)
    view = viewed(world.fleet, tenant)
    work = view.work(replica("new", wanted))
    for each in FILTERS:
        codes = each.judge(work, view, view.columns.all, Level.NOW)
        for site in world.fleet:
            refusal = each.rule(work, candidate_at(view, site))
            code = int(codes[site.row]) if codes is not None else 0
            if each.name == "shunned":
                assert bool(code) == (refusal is not None)
            else:
                said = each.reasons[code - 1] if code else None
                assert said == (refusal.reason if refusal is not None else None), each.name


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(NODES, min_size=1, max_size=4), MOVES, PLAIN)
def test_rules_about_company_say_of_places_what_the_model_says_of_one(
    nodes: list[Any], moves: list[Any], wanted: Template
) -> None:
    """[F2, F3]"""
    world = World(nodes)
    for move in moves:
        world.happen(*move)
    view = viewed(world.fleet, TenantSpec())
    equivalence = VerdictCache().class_of(replica("new", wanted, workload="w0"), view)
    assert not isinstance(equivalence, PlacementReport)
    if equivalence.topology_rules is None:
        return
    codes = equivalence.topology_rules.codes(view, equivalence.verdicts)
    for site in world.fleet:
        if equivalence.verdicts.code[site.row] == 0:
            refusal = equivalence.topology_rules.refusal(view, equivalence.verdicts, site.row)
            assert bool(codes[site.row]) == (refusal is not None)


# Keeping and hurrying ----------------------------------------------------------------------------


@settings(max_examples=examples(150), deadline=None)
@given(
    TENANTS,
    POLICIES,
    st.lists(NODES, min_size=1, max_size=4),
    MOVES,
    st.lists(WORK, min_size=1, max_size=3),
)
def test_what_was_kept_is_what_a_new_search_finds(
    tenant: TenantSpec,
    policy: SchedulerPolicySpec | None,
    nodes: list[Any],
    moves: list[Any],
    wanted: list[Template],
) -> None:
    """A board that saw everything decides as one that sees it for the first time."""
    world, kept = World(nodes), VerdictCache()
    view = viewed(world.fleet, tenant, policy)
    for step, move in enumerate(moves):
        world.happen(*move)
        if step % 3 == 1:
            # Several things may have happened since the last look.
            continue
        for index, each in enumerate(wanted):
            one = replica(f"new{index}", each, workload=f"w{index}")
            usual = propose(view, [one], NOW, step, kept)[0]
            assert usual == propose(view, [one], NOW, step, VerdictCache())[0]
            if isinstance(usual, BindReplica):
                assert all(0 <= score <= 100 for score in usual.scores.values())
                assert 0 <= usual.score <= 100
                assert usual.best[0].node == usual.node
                assert usual.best[0].score == max(ranked.score for ranked in usual.best)


@settings(max_examples=examples(300), deadline=None)
@given(
    POLICIES,
    st.lists(NODES, min_size=1, max_size=6),
    MOVES,
    PLAIN,
    st.integers(1, 14),
    st.integers(0, 99),
)
def test_many_placed_at_once_are_those_placed_one_by_one(
    policy: SchedulerPolicySpec | None,
    nodes: list[Any],
    moves: list[Any],
    wanted: Template,
    count: int,
    seed: int,
) -> None:
    """The same nodes in the same order with the same scores, and the same end, which is sooner only
    where a placement ranks all nodes again."""
    world = World(nodes)
    for move in moves:
        world.happen(*move)
    view = viewed(world.fleet, TenantSpec(), policy)
    waiting = [replica(f"new{index}", wanted, workload="w0") for index in range(count)]
    verdict_cache = VerdictCache()
    at_once = propose(view, waiting, NOW, seed, verdict_cache)
    one_by_one: list[Any] = []
    for each in waiting:
        decision = propose(view, [each], NOW, seed, verdict_cache)[0]
        if isinstance(decision, StayPending):
            break
        one_by_one.append(decision)
        key = "acme", each.name
        world.fleet.assume(each.name, key, decision.node, decision.held, 0, traits_of(each))
    equivalence = verdict_cache.class_of(waiting[0], view)
    assert not isinstance(equivalence, PlacementReport)
    if not one_by_one:
        assert isinstance(at_once[0], StayPending)
        return
    expected = one_by_one if equivalence.is_plain else one_by_one[:1]
    placed = [(p.node, p.score, p.scores) for p in at_once if isinstance(p, BindReplica)]
    if len(placed) < len(expected):
        last = world.fleet.get(placed[-1][0])
        assert last is not None
        assert equivalence.verdicts.affects_others(view, last.row)
    assert placed == [(p.node, p.score, p.scores) for p in expected[: len(placed)]]
