"""Replays a decision round from its record and from the objects stored at that time.

A server calls this when a user requests a replay (`host/server/explaining.py`); tests replay every
record. The snapshot is rebuilt from the objects at the revisions that the scheduler had seen, with
the placements that it assumed and the nodes that it avoided, and the same functions decide again.
A different answer means that the record is wrong, that the scheduler had missed a change, or that
the code has changed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.model.errors import Invalid
from holdfast.model.kinds.replica import DeviceShare, Replica
from holdfast.model.meta import Object
from holdfast.model.observation_age import OBSERVATION_AGE_MAX_MS
from holdfast.model.placement.fit import Allocation, demand_of
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.time import Instant
from holdfast.propose.decide import propose
from holdfast.propose.decision_rounds import Case, DecisionRound
from holdfast.propose.feasibility.outcome import BindGang, BindReplica, Decision, Preempt
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.filters import Filter
from holdfast.propose.fleet_snapshot import charge_assumed, snapshot_of
from holdfast.propose.gpu import Mix
from holdfast.propose.scores import Scorer
from holdfast.propose.topology.topology_counts import traits_of

_START = Instant(0, 0)
# Namespace, name and uid of a replica, its node, and its devices.
_Member = tuple[str, str, str, str, tuple[DeviceShare, ...]]


class Difference(msgspec.Struct, frozen=True):
    """A replica whose replayed decision differs: the recorded answer, and the new one."""

    namespace: str
    replica: str
    then: str
    now: str


def decide_again(
    decided: DecisionRound,
    objects: Mapping[str, Iterable[Object]],
    earlier: Mapping[int, DecisionRound],
    *,
    filters: Sequence[Filter] = (),
    scorers: Sequence[Scorer] = (),
) -> list[Difference]:
    """Replays a round and returns the differences; none if the record is right.

    `objects` holds the objects by plural, each kind at the revision in `decided.seen`. `earlier`
    are the rounds that `decided.assumed` names. Raises Invalid if the record is not sufficient.
    """
    if decided.left_out:
        raise Invalid(
            f"round {decided.name} cannot be replayed: its record lacks {decided.left_out} assumed "
            "placements"
        )
    again = _Again(decided, objects)
    for left in decided.assumed:
        if left.sequence not in earlier:
            raise Invalid(
                f"round {decided.name} cannot be replayed: it assumed placements of round "
                f"{left.sequence}, which is no longer kept"
            )
        members = _members(earlier[left.sequence])
        for index in left.indexes():
            again.assume(*members[index])
    verdict_cache = VerdictCache(filters, scorers)
    found: list[Difference] = []
    for case in decided.cases:
        found += again.compare(case, verdict_cache)
    return found


class _Again:
    """The snapshot of one round, for the replay."""

    def __init__(self, decided: DecisionRound, objects: Mapping[str, Iterable[Object]]) -> None:
        self._salt = decided.salt
        self._view = snapshot_of(
            objects,
            decided.snapshot_revision,
            decided.snapshot_age_ms,
            age_max_ms=decided.snapshot_age_max_ms or OBSERVATION_AGE_MAX_MS,
        )
        self._fleet = self._view.fleet
        self._fleet.pools.use_mixes(msgspec.convert(decided.mixes, dict[str, Mix]))
        for node, (reason, message) in decided.shunned.items():
            self._fleet.shun(node, Refusal(Reason(reason), message), 0)

    def assume(
        self, namespace: str, name: str, uid: str, node: str, devices: tuple[DeviceShare, ...]
    ) -> None:
        """Counts a placement as made, as the scheduler did."""
        replica = self._replica(namespace, name, uid)
        demand = demand_of(replica.spec.template)
        held = Allocation(charge=demand.amounts, devices=devices, ports=demand.ports)
        self._fleet.assume(uid, (namespace, name), node, held, 0, traits_of(replica))
        if self._view.quota_usage is not None:
            charge_assumed(self._view.quota_usage, replica, held.charge, self._view)

    def _replica(self, namespace: str, name: str, uid: str) -> Replica:
        found = self._view.get("replicas", namespace, name)
        if not isinstance(found, Replica) or found.metadata.uid != uid:
            raise Invalid(
                f"replica {namespace}/{name} with uid {uid} did not exist at that revision"
            )
        return found

    def compare(self, case: Case, verdict_cache: VerdictCache) -> list[Difference]:
        """Replays one case, then assumes the placements of the record."""
        asked = [
            self._replica(case.namespace, name, uid)
            for name, uid in zip(case.replicas, case.uids, strict=True)
        ]
        sites = (self._view.fleet.get(name) for name in case.closed)
        closed = tuple(site.row for site in sites if site is not None)
        view = msgspec.structs.replace(self._view, closed=closed)
        answers = propose(view, asked, _START, self._salt, verdict_cache)
        then = [_then(case, index) for index in range(len(asked))]
        now = [_said(answer) for answer in answers] + ["nothing"] * len(asked)
        found = [
            Difference(case.namespace, name, old, new)
            for name, old, new in zip(case.replicas, then, now, strict=False)
            if old != new
        ]
        for place in _members_of(case) if case.nodes else ():
            if case.victims:
                self._promise(place, case.victims)
            else:
                self.assume(*place)
        return found

    def _promise(self, place: _Member, victims: list[str]) -> None:
        """Counts a place as promised, as the scheduler did."""
        namespace, name, uid, node, devices = place
        replica = self._replica(namespace, name, uid)
        demand = demand_of(replica.spec.template)
        held = Allocation(demand.amounts, devices, demand.ports)
        leaving: dict[str, Allocation] = {}
        for named in victims:
            victim = self._view.get("replicas", *named.split("/"))
            binding = victim.status.binding
            leaving[victim.metadata.uid] = Allocation(
                binding.charge, binding.devices, binding.ports, victim.namespace
            )
        self._fleet.promise(uid, node, held, leaving)
        if self._view.quota_usage is not None:
            charge_assumed(self._view.quota_usage, replica, held.charge, self._view)


def _members(decided: DecisionRound) -> list[_Member]:
    """All members in the order of their bits. The node of a member without a place is empty."""
    return [member for case in decided.cases for member in _members_of(case)]


def _members_of(case: Case) -> list[_Member]:
    count = len(case.replicas)
    nodes = case.nodes or [""] * count
    devices = case.devices or [()] * count
    return [
        (case.namespace, name, uid, node, tuple(held))
        for name, uid, node, held in zip(case.replicas, case.uids, nodes, devices, strict=True)
    ]


def _then(case: Case, index: int) -> str:
    if case.waits is None:
        return f"to {case.nodes[index]}{_after(case.victims)}"
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(case.filtered.items()))
    waits = case.waits
    return f"{waits.verdict}: {counts}; {waits.nearest_miss}; {waits.smallest_change}"


def _after(victims: list[str]) -> str:
    return f" after {', '.join(victims)}" if victims else ""


def _said(answer: Decision) -> str:
    if isinstance(answer, BindReplica):
        return f"to {answer.node}"
    if isinstance(answer, Preempt) and answer.keys:
        return f"to {answer.node}{_after([f'{ns}/{name}' for ns, name in answer.keys])}"
    if isinstance(answer, BindGang):
        return f"to {', '.join(place.node for _, place in answer.places)} as a gang"
    report = answer.report
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(report.reasons.items()))
    miss = report.nearest_miss
    nearest = f"node {miss.node}: {miss.message}" if miss is not None else ""
    return f"{report.verdict.value}: {counts}; {nearest}; {report.smallest_change}"
