"""A hypothesis is the snapshot that the changed objects would give, and its origin stays as it was.

Whatever is added, removed or changed, and in whatever order: both show the same objects, ledgers
and quotas, and `propose` decides the same on both.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.kinds.node import NodeDrain
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.kinds.schedulerpolicy import PolicyStage, SchedulerPolicy, SchedulerPolicySpec
from holdfast.model.kinds.template import Resources, Template
from holdfast.model.kinds.tenant import (
    CapacityClass,
    PriorityClass,
    PriorityClassSpec,
    Quota,
    QuotaSpec,
    Tenant,
    TenantSpec,
)
from holdfast.model.kinds.workload import Gang, Workload, WorkloadSpec
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.placement.fit import Allocation, claim, demand_of
from holdfast.model.quota.ledger import QuotaLedger
from holdfast.model.registry import kind_of
from holdfast.model.time import timestamp
from holdfast.observe.cache import Key
from holdfast.propose.decide import could_place, propose
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot, snapshot_of
from tests.property.test_placing import NODES, NOW, POLICIES, WORK, Things, bound, node, replica
from tests.scale import examples

some = st.sampled_from
OTHER = "globex"
GANG_WORK = Template(resources=Resources(cpu="1"))
CLASSES = {
    "": PriorityClassSpec(value=0, preempts=True),
    "top": PriorityClassSpec(value=100, preempts=True),
    "spot": PriorityClassSpec(value=-10, capacity_class=CapacityClass.RECLAIMABLE),
}
NODE_CHANGES = ("node", "node", "node gone", "cordon", "uncordon", "drain")
RULE_CHANGES = ("quota", "quota", "quota gone", "policy", "policy gone", "suspend", "tenant")
RULE_CHANGES += ("class", "class gone", "region", "region gone")
WORK_CHANGES = ("run", "run", "run for another", "wait", "victim", "end", "gone", "gang")
WORK_CHANGES += ("reserve", "promise", "reservation gone")
CHANGES = st.lists(
    st.tuples(
        some(NODE_CHANGES + RULE_CHANGES + WORK_CHANGES), st.integers(0, 3), NODES, WORK, POLICIES
    ),
    max_size=6,
)
Change = tuple[str, int, dict[str, Any], Template, SchedulerPolicySpec | None]


class Plane:
    """The objects of a plane by plural and key, and what a change does to them."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self.there: dict[str, dict[Key, Any]] = {}
        self.made = 0
        rules = [it for (plural, _), it in Things(TenantSpec()).found.items() if plural]
        classes = [
            PriorityClass(ObjectMeta(name=name or "default"), spec=spec)
            for name, spec in CLASSES.items()
        ]
        places = [node(index, facts) for index, facts in enumerate(nodes)]
        for it in (*rules, Tenant(ObjectMeta(name=OTHER)), *classes, *places):
            self.put(it)
        self.put(_gang(3))
        for number in range(3):
            self.put(_member(number))

    def snapshot(self) -> FleetSnapshot:
        return snapshot_of({plural: list(some.values()) for plural, some in self.there.items()})

    def all(self, plural: str) -> list[Any]:
        return [it for _, it in sorted(self.there.get(plural, {}).items())]

    def put(self, obj: Object) -> None:
        self.there.setdefault(kind_of(obj).plural, {})[obj.namespace, obj.name] = obj

    def drop(self, obj: Object) -> None:
        self.there[kind_of(obj).plural].pop((obj.namespace, obj.name), None)

    def change(self, change: Change) -> tuple[list[Any], list[Any]]:
        """Apply a change. Returns the objects that were put, and those that are gone."""
        put, gone = self._effect(*change)
        for it in put:
            self.put(it)
        for it in gone:
            self.drop(it)
        return put, gone

    def _effect(
        self,
        what: str,
        index: int,
        facts: dict[str, Any],
        wanted: Template,
        policy: SchedulerPolicySpec | None,
    ) -> tuple[list[Any], list[Any]]:
        whose = ("acme", OTHER)[index % 2]
        if what.endswith("gone"):
            plural = {
                "node gone": "nodes",
                "quota gone": "quotas",
                "policy gone": "schedulerpolicies",
                "class gone": "priorityclasses",
                "region gone": "regions",
                "gone": "replicas",
                "reservation gone": "reservations",
            }[what]
            found = self.all(plural)
            return [], found[index : index + 1]
        if what in ("cordon", "uncordon", "drain"):
            drain = NodeDrain(reason="x") if what == "drain" else None
            return [
                _respecified(it, cordoned=what == "cordon", drain=drain)
                for it in self.all("nodes")[index:]
            ], []
        return self._made(what, index, facts, wanted, policy, whose), []

    def _made(
        self,
        what: str,
        index: int,
        facts: dict[str, Any],
        wanted: Template,
        policy: SchedulerPolicySpec | None,
        whose: str,
    ) -> list[Any]:
        self.made += 1
        match what:
            case "node":
                made = node(index, facts)
                if self.made % 3:
                    return [made]
                # Another machine of the same name.
                return [_renamed(made, uid=f"again-{self.made}")]
            case "quota":
                spec = QuotaSpec(
                    hard={"cpu": str(index)},
                    borrowing={"cpu": "2"} if self.made % 2 else {},
                    cohort="house" if self.made % 2 else "",
                    priority_classes={"top": {"cpu": "1"}} if index == 3 else {},
                )
                return [Quota(ObjectMeta(name="default", namespace=whose), spec=spec)]
            case "policy":
                spec = policy if policy is not None else SchedulerPolicySpec(filters=("unknown",))
                stage = PolicyStage.ACTIVE if index else PolicyStage.INACTIVE
                spec = msgspec.structs.replace(spec, stage=stage)
                return [SchedulerPolicy(ObjectMeta(name=f"p{index}"), spec=spec)]
            case "suspend" | "tenant":
                users = ("app",) if index > 1 else ()
                spec = TenantSpec(suspended=what == "suspend", users=users)
                return [Tenant(ObjectMeta(name=whose), spec=spec)]
            case "class":
                spec = PriorityClassSpec(value=index, preempts=index > 1)
                return [PriorityClass(ObjectMeta(name=("default", "top")[index % 2]), spec=spec)]
            case "region":
                spec = RegionSpec(jurisdictions=("eu-law",) if index else ())
                return [Region(ObjectMeta(name=("eu", "us")[index % 2]), spec=spec)]
            case "gang":
                return [_gang(index + 1), _member(2 + index)]
            case "run" | "run for another":
                return self._running(index, wanted, "acme" if what == "run" else OTHER)
            case "wait":
                return [replica(f"wait{self.made}", wanted)]
            case "victim" | "end":
                state = State.RELEASED if what == "end" else State.STOPPING
                running = [it for it in self.all("replicas") if it.status.binding is not None]
                return [
                    _restated(it, state=state, cause=Cause.PREEMPTION)
                    for it in running[index : index + 1]
                ]
        return self._held(what, index, wanted, whose)

    def _running(self, index: int, wanted: Template, tenant: str) -> list[Any]:
        """A replica on a node that has room for it."""
        site = self.snapshot().fleet.get(f"n{index}")
        held = claim(site.ledger, demand_of(wanted)) if site is not None else None
        if not isinstance(held, Allocation):
            return []
        made = bound(replica(f"run{self.made}", wanted, f"w{index % 2}"), f"n{index}", held)
        binding = made.status.binding
        of = CapacityClass.RECLAIMABLE if self.made % 2 else CapacityClass.HARD
        binding = msgspec.structs.replace(binding, capacity_class=of.value, priority_class="spot")
        made = _restated(made, binding=binding, state=State.RUNNING)
        return [_renamed(made, namespace=tenant)]

    def _held(self, what: str, index: int, wanted: Template, whose: str) -> list[Any]:
        """A reservation, or a promise, of a place on a node."""
        site = self.snapshot().fleet.get(f"n{index}")
        held = claim(site.ledger, demand_of(wanted)) if site is not None else None
        if not isinstance(held, Allocation):
            return []
        intent = Intent.PREEMPTION if what == "promise" else Intent.BIND
        spec = ReservationSpec(
            ReservationOwner("Replica", "nobody", "nobody"), intent, timestamp(0), quota=True
        )
        claims = (Claim(node=f"n{index}", charge=held.charge, devices=held.devices),)
        status = ReservationStatus(phase=ReservationPhase.HELD, claims=claims)
        meta = ObjectMeta(name=f"held{self.made}", namespace=whose, uid=f"held{self.made}")
        return [Reservation(meta, spec=spec, status=status)]


def _renamed(obj: Any, **meta: Any) -> Any:
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, **meta))


def _respecified(obj: Any, **spec: Any) -> Any:
    return msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, **spec))


def _restated(obj: Any, **status: Any) -> Any:
    return msgspec.structs.replace(obj, status=msgspec.structs.replace(obj.status, **status))


def _gang(min_available: int) -> Workload:
    spec = WorkloadSpec(GANG_WORK, replicas=4, gang=Gang(min_available=min_available))
    return Workload(ObjectMeta(name="ring", namespace="acme", uid="ring"), spec=spec)


def _member(number: int) -> Replica:
    made = replica(f"ring-{number}", GANG_WORK, "ring")
    return _respecified(made, gang="ring", ordinal=number)  # type: ignore[no-any-return]


# What two snapshots must agree on ----------------------------------------------------------------


def _charged(ledger: QuotaLedger) -> dict[str, Any]:
    """What a ledger says, without amounts of nothing."""
    found: dict[str, Any] = msgspec.to_builtins(ledger)

    def some_of(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {key: some_of(it) for key, it in value.items()}
        return {key: it for key, it in kept.items() if it not in (0, {})}

    return {"limits": found.get("limits", {}), "used": some_of(found.get("used", {}))}


def assert_alike(
    one: FleetSnapshot, other: FleetSnapshot, plane: Plane, kept: VerdictCache
) -> None:
    for plural in plane.there:
        seen = {(it.namespace, it.name): it for it in one.all(plural)}
        assert (
            seen
            == {(it.namespace, it.name): it for it in other.all(plural)}
            == {key: one.get(plural, *key) for key in plane.there[plural]}
        )
    assert one.policy == other.policy
    sites = {site.name: site for site in other.fleet}
    assert {site.name for site in one.fleet} == set(sites)
    for site in one.fleet:
        assert site.node == sites[site.name].node
        assert site.ledger == sites[site.name].ledger
    assert one.quota_usage is not None
    assert other.quota_usage is not None
    for tenant in ("acme", OTHER):
        mine, theirs = one.quota_usage.ledger(tenant), other.quota_usage.ledger(tenant)
        assert _charged(mine) == _charged(theirs)
    for work in plane.all("replicas"):
        if work.status.state is not State.PENDING:
            continue
        # A cache that has seen other snapshots must not answer for them here.
        decided = propose(one, [work], NOW, 7, kept)
        assert decided == propose(other, [work], NOW, 7, VerdictCache())
        feasible = could_place(one, work, NOW, kept)
        assert feasible == could_place(other, work, NOW, VerdictCache())


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(NODES, min_size=1, max_size=4),
    CHANGES,
    st.lists(CHANGES, min_size=1, max_size=2),
    st.lists(WORK, min_size=1, max_size=2),
)
def test_a_hypothesis_is_what_the_changed_objects_give(
    nodes: list[Any], before: list[Change], after: list[list[Change]], waiting: list[Template]
) -> None:
    """Changes one by one and one hypothesis upon another; the origin decides as before."""
    plane, kept = Plane(nodes), VerdictCache()
    for index, wanted in enumerate(waiting):
        plane.put(replica(f"new{index}", wanted, workload=f"w{index}"))
    for change in before:
        plane.change(change)
    was = {plural: dict(some) for plural, some in plane.there.items()}
    origin = plane.snapshot()
    for changes in after:
        plane.there = {plural: dict(some) for plural, some in was.items()}
        supposed = origin
        for change in changes:
            put, gone = plane.change(change)
            supposed = supposed.with_objects(*put).without(*gone)
        assert_alike(supposed, plane.snapshot(), plane, kept)
        plane.there = was
        assert_alike(origin, plane.snapshot(), plane, kept)
