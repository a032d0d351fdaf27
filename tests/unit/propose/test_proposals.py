"""One decision: filters with reasons, a bounded score, the nearest miss and the verdict."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.node import (
    Device,
    Node,
    NodeDrain,
    NodePhase,
    NodeSpec,
    NodeStatus,
    PortShare,
)
from holdfast.model.kinds.node import Protection as Kept
from holdfast.model.kinds.placement import Placement, Preference, Taint, Toleration
from holdfast.model.kinds.region import Pool, Region, RegionSpec
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy, SchedulerPolicySpec
from holdfast.model.kinds.template import DeviceRequest, Port, RestartPolicy, Template
from holdfast.model.kinds.tenant import Quota, QuotaSpec, Tenant, TenantSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.observation_age import OBSERVATION_AGE_MAX_MS
from holdfast.model.placement.placement_rules import NODE_LABEL
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selection.selectors import Expression, SelectorOperator
from holdfast.model.time import Instant
from holdfast.observe.cache import ObjectChange
from holdfast.propose.decide import propose
from holdfast.propose.feasibility.fleet import SHUNNED_MS, Fleet
from holdfast.propose.feasibility.outcome import (
    NO_NODES,
    BindReplica,
    Decision,
    PlacementReport,
    StayPending,
    Verdict,
    WakeEvent,
)
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.proposals import could_take
from holdfast.propose.scores import SCORERS
from tests.plane import template

NOW = Instant(1_000, 1_800_000_000_000)


class Things:
    """Objects to look up."""

    def __init__(self, *objects: Any) -> None:
        self.found = {
            (f"{type(obj).__name__.lower()}s", obj.namespace, obj.name): obj for obj in objects
        }

    def get(self, plural: str, namespace: str, name: str) -> Any:
        return self.found.get((plural, namespace, name))


ACME = Tenant(ObjectMeta(name="acme"))
WEST = Region(ObjectMeta(name="eu-west"), spec=RegionSpec(jurisdictions=("eu",)))


def node(name: str = "n", **more: Any) -> Node:
    status = NodeStatus(phase=more.pop("phase", NodePhase.READY))
    labels = more.pop("labels", {})
    spec = {"region": "eu-west", "capacity": {"cpu": "4", "memory": "8Gi"}, **more}
    meta = ObjectMeta(name=name, uid=f"uid-{name}", labels=labels)
    return Node(meta, spec=NodeSpec(**spec), status=status)


def fleet(*nodes: Node) -> Fleet:
    made = Fleet()
    for each in nodes:
        made.notice(ObjectChange("nodes", None, each))
    return made


def view(*nodes: Node, objects: tuple[Any, ...] = (ACME, WEST), **more: Any) -> FleetSnapshot:
    return FleetSnapshot(Things(*objects), fleet=fleet(*nodes), **more)


def replica(wanted: Template | None = None, **placement: Any) -> Replica:
    if wanted is None:
        wanted = template(placement=Placement(**placement))
    spec = ReplicaSpec(workload="w", workload_uid="w", template=wanted)
    return Replica(ObjectMeta(name="w-0-0", namespace="acme", uid="r"), spec=spec)


def decide(seen: FleetSnapshot, work: Replica | None = None) -> Decision:
    return propose(seen, [work or replica()], NOW, 1, VerdictCache())[0]


def placed(seen: FleetSnapshot, work: Replica | None = None) -> BindReplica:
    decision = decide(seen, work)
    assert isinstance(decision, BindReplica), decision
    return decision


def waits(seen: FleetSnapshot, work: Replica | None = None) -> PlacementReport:
    decision = decide(seen, work)
    assert isinstance(decision, StayPending), decision
    return decision.report


# Filters -----------------------------------------------------------------------------------------

GPU = template(devices=(DeviceRequest(device_class="gpu"),))
PORT = template(ports=(Port(name="http", port=80),))


@pytest.mark.parametrize(
    "bad, good, work, reason",
    [
        ({"region": "us"}, {}, replica(regions=("eu-west",)), Reason.REGION_MISMATCH),
        ({"zone": "b"}, {"zone": "a"}, replica(zones=("a",)), Reason.ZONE_MISMATCH),
        ({"pool": "x"}, {"pool": "y"}, replica(pool="y"), Reason.POOL_MISMATCH),
        ({"region": "us"}, {}, replica(residency="eu"), Reason.RESIDENCY_UNKNOWN),
        (
            {"protected_for": Kept(tenants=("b",))},
            {"protected_for": Kept(tenants=("acme",))},
            replica(),
            Reason.TENANCY_FORBIDDEN,
        ),
        ({"pool": "kept"}, {"pool": "y"}, replica(), Reason.PROTECTED_CAPACITY),
        ({}, {"labels": {"a": "1"}}, replica(node_selector={"a": "1"}), Reason.SELECTOR_MISMATCH),
        (
            {"labels": {NODE_LABEL: "good"}},
            {"labels": {NODE_LABEL: "bad"}},
            replica(node_selector={NODE_LABEL: "good"}),
            Reason.SELECTOR_MISMATCH,
        ),
        ({"taints": (Taint(key="x"),)}, {}, replica(), Reason.TAINTED),
        ({"capacity": {"cpu": "500m", "memory": "8Gi"}}, {}, replica(), Reason.NODE_FULL),
        ({}, {"devices": (Device(id="g", device_class="gpu"),)}, replica(GPU), "DeviceMissing"),
        ({"phase": NodePhase.SUSPECT}, {}, replica(), Reason.NODE_NOT_READY),
        ({"cordoned": True}, {}, replica(), Reason.NODE_CORDONED),
        ({"drain": NodeDrain()}, {}, replica(), Reason.NODE_DRAINING),
    ],
)
def test_a_filter_lets_one_node_pass_and_says_why_not_the_other(
    bad: dict[str, Any], good: dict[str, Any], work: Replica, reason: str
) -> None:
    """[F2]"""
    kept = Pool(name="kept", protected_for=Kept(priority_classes=("top",)))
    west = Region(ObjectMeta(name="eu-west"), spec=RegionSpec(jurisdictions=("eu",), pools=(kept,)))
    seen = view(node("bad", **bad), node("good", **good), objects=(ACME, west))
    proposal = placed(seen, work)
    assert proposal.node == "good"
    assert proposal.reasons == {str(reason): 1}
    assert could_take(seen, work, "good", NOW)
    assert not could_take(seen, work, "bad", NOW)
    assert not could_take(seen, work, "none-such", NOW)


def test_a_toleration_lets_the_taint_pass() -> None:
    """[F2]"""
    work = replica(tolerations=(Toleration(key="x"),))
    assert placed(view(node(taints=(Taint(key="x"),))), work).node == "n"


def test_nodes_of_one_machine_do_not_give_the_same_fixed_port() -> None:
    """The second one has no place, and its report says why and what would help. [F2]"""
    nodes = [node(f"n{i}", port_share=PortShare(index=i, of=3)) for i in range(3)]
    seen = view(*nodes)
    first = placed(seen, replica(PORT))
    assert first.node == "n2"
    seen.fleet.assume("other", ("acme", "other"), "n2", first.held, 0)
    report = waits(seen, replica(PORT))
    assert report.reasons == {"PortTaken": 1, "PortNotOffered": 2}
    alone = waits(view(nodes[0]), replica(PORT))
    assert alone.reasons == {"PortNotOffered": 1}
    assert alone.smallest_change == "a node that offers the port, or port 0 for any free one"


def test_a_fixed_port_is_given_once() -> None:
    """[F2]"""
    seen = view(node())
    held = placed(seen, replica(PORT)).held
    assert held.ports == ("TCP/80",)
    seen.fleet.assume("other", ("acme", "other"), "n", held, 0)
    assert waits(seen, replica(PORT)).reasons == {"PortTaken": 1}
    assert placed(seen).node == "n"


def test_a_refused_node_is_avoided_for_a_moment_with_the_commits_own_reason() -> None:
    """[F9]"""
    seen = view(node())
    seen.fleet.shun("n", Refusal(Reason.DEVICE_TAKEN, "gone"), NOW.monotonic_ms)
    report = waits(seen)
    assert report.reasons == {"DeviceTaken": 1}
    assert report.try_soon
    assert report.verdict is Verdict.WAITING
    later = Instant(NOW.monotonic_ms + SHUNNED_MS, NOW.wall_ms)
    assert isinstance(propose(seen, [replica()], later, 1, VerdictCache())[0], BindReplica)


# What keeps it from all nodes --------------------------------------------------------------------


def test_nothing_is_proposed_on_a_snapshot_that_is_too_old() -> None:
    """[E4]"""
    report = waits(view(node(), age_ms=OBSERVATION_AGE_MAX_MS + 1))
    assert report.reasons == {"ObservationTooOld": 1}
    assert report.wake_events == (WakeEvent.FRESHNESS,)
    found = placed(view(node(), age_ms=OBSERVATION_AGE_MAX_MS))
    assert found.snapshot_age_ms == OBSERVATION_AGE_MAX_MS


def test_a_suspended_tenant_is_blocked_by_its_operator() -> None:
    """[E3]"""
    acme = Tenant(ObjectMeta(name="acme"), spec=TenantSpec(suspended=True))
    report = waits(view(node(), objects=(acme, WEST)))
    assert report.reasons == {"TenantSuspended": 1}
    assert report.verdict is Verdict.BLOCKED_BY


def test_an_unknown_tenant_is_placed_nowhere() -> None:
    """What cannot be checked is not done. [B2, F2]"""
    report = waits(view(node(), objects=(WEST,)))
    assert report.reasons == {"ResidencyUnknown": 1}
    assert WakeEvent.ALLOWANCE in report.wake_events


def test_what_the_quota_could_never_hold_is_never_placed() -> None:
    """[F2, E3]"""
    quota = Quota(
        ObjectMeta(name="default", namespace="acme"), spec=QuotaSpec(hard={"cpu": "500m"})
    )
    report = waits(view(node(), objects=(ACME, WEST, quota)))
    assert report.reasons == {"QuotaExceeded": 1}
    assert report.verdict is Verdict.NEVER


# Verdicts and misses -----------------------------------------------------------------------------


def test_a_fleet_of_nothing_says_so() -> None:
    """[E3]"""
    report = waits(view())
    assert report.reasons == {NO_NODES: 1}
    assert report.verdict is Verdict.NOT_WITH_THIS_FLEET


def test_a_full_node_is_worth_waiting_for_and_a_small_one_is_not() -> None:
    """[E3]"""
    seen = view(node(), node("far", region="us"))
    seen.fleet.assume("other", ("acme", "o"), "n", placed(seen, replica(template("4"))).held, 0)
    report = waits(seen, replica(regions=("eu-west",)))
    assert report.verdict is Verdict.WAITING
    assert report.reasons == {"NodeFull": 1, "RegionMismatch": 1}
    large = waits(seen, replica(template("64")))
    assert large.verdict is Verdict.NOT_WITH_THIS_FLEET


def test_the_nearest_miss_is_the_node_that_passed_most_and_lacks_least() -> None:
    """[E3]"""
    seen = view(
        node("far", region="us"),
        node("small", capacity={"cpu": "1", "memory": "8Gi"}),
        node("near", capacity={"cpu": "7", "memory": "8Gi"}),
    )
    miss = waits(seen, replica(template("8"))).nearest_miss
    assert miss is not None
    assert (miss.node, miss.reason) == ("near", "NodeFull")
    assert miss.message == "needs 8 cpu, 7 is free"


# Scores ------------------------------------------------------------------------------------------


def test_the_emptier_node_is_better_and_the_score_is_bounded() -> None:
    """[F1, F3]"""
    seen = view(node("a"), node("b"))
    first = placed(seen)
    seen.fleet.assume("x", ("acme", "x"), first.node, first.held, 0)
    second = placed(seen)
    assert second.node != first.node
    assert 0 <= second.score <= 100
    assert second.scores == {"headroom": second.score}
    assert second.candidates == 2


def test_equal_nodes_are_chosen_among_at_random_and_the_seed_decides() -> None:
    seen = view(*(node(f"n{index}") for index in range(8)))

    def chosen(seed: int) -> str:
        decision = propose(seen, [replica()], NOW, seed, VerdictCache())[0]
        assert isinstance(decision, BindReplica)
        return decision.node

    assert len({chosen(seed) for seed in range(40)}) > 4
    assert chosen(3) == chosen(3)


def test_weights_of_scorers_that_are_not_known_count_nothing() -> None:
    """[F3]"""
    policy = SchedulerPolicy(
        ObjectMeta(name="p"), spec=SchedulerPolicySpec(weights={"later": 100, "headroom": 0})
    )
    proposal = placed(view(node(), policy=policy))
    assert proposal.policy == "p"
    assert list(proposal.scores) == ["headroom"]


def test_a_policy_weighs_scorers_by_intent() -> None:
    """Jobs, services and replacements; a scorer that is not named keeps its weight. [F3]"""
    spec = SchedulerPolicySpec(
        weights={"headroom": 10, "cost": 1},
        intents={"batch": {"packing": 50, "headroom": 0}, "recovery": {"cost": 0, "later": 9}},
    )
    seen = view(node(), policy=SchedulerPolicy(ObjectMeta(name="p"), spec=spec))

    def scorers(restart: RestartPolicy, incarnation: int) -> set[str]:
        one = replica(msgspec.structs.replace(template(), restart=restart))
        spec = msgspec.structs.replace(one.spec, incarnation=incarnation)
        it = propose(seen, [msgspec.structs.replace(one, spec=spec)], NOW, 1, VerdictCache())[0]
        assert isinstance(it, BindReplica)
        # The breakdown is kept with the decision.
        assert set(it.best[0].scores) == set(it.scores)
        return set(it.scores)

    assert scorers(RestartPolicy.ALWAYS, 0) == {"headroom", "cost"}
    assert scorers(RestartPolicy.ON_FAILURE, 0) == {"packing", "cost"}
    assert scorers(RestartPolicy.ON_FAILURE, 3) == {"packing", "cost"}
    assert scorers(RestartPolicy.ALWAYS, 3) == {"headroom"}


def test_one_cache_keeps_the_intents_of_one_workload_apart() -> None:
    """A replacement must not get the weights of the replicas before it. [F3]"""
    spec = SchedulerPolicySpec(weights={"headroom": 10}, intents={"recovery": {"cost": 5}})
    seen = view(node(), policy=SchedulerPolicy(ObjectMeta(name="p"), spec=spec))
    cache, found = VerdictCache(), []
    for incarnation in (0, 2, 0):
        one = replica()
        own = msgspec.structs.replace(one.spec, incarnation=incarnation)
        it = propose(seen, [msgspec.structs.replace(one, spec=own)], NOW, 1, cache)[0]
        assert isinstance(it, BindReplica)
        found.append(sorted(it.scores))
    assert found == [["headroom"], ["cost", "headroom"], ["headroom"]]


def test_every_scorer_applies_to_work_that_a_workload_can_ask_for() -> None:
    """One that never does would be a promise of a ranking that is not there. [F1, F3]"""
    gpu = Device(id="0", device_class="gpu")
    seen = view(node("plain"), node("gpu", devices=(gpu,), taints=(Taint(key="k"),)))
    wish = Preference(expressions=(Expression("disk", SelectorOperator.EXISTS),))
    asked = (replica(), replica(GPU), replica(template(image="web:1")), replica(prefer=(wish,)))
    asked += (replica(data=("eu",)),)
    works = [seen.work(it) for it in asked]
    idle = [it.name for it in SCORERS if not any(it.applies(work, seen) for work in works)]
    assert idle == []
