"""Replays a decision round from its record and from the objects stored at that time.

A server calls this when a user requests a replay (`host/server/explaining.py`); tests replay every
record. The snapshot is rebuilt from the objects at the revisions that the scheduler had seen, with
the placements that it assumed and the nodes that it avoided, and the same functions decide again.
A different answer means that the record is wrong, that the scheduler had missed a change, or that
the code has changed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.model.errors import Invalid
from holdfast.model.kinds.replica import DeviceShare, Replica
from holdfast.model.placement.fit import Allocation, demand_of
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.time import Instant
from holdfast.observe.cache import ObjectChange
from holdfast.propose.decision_rounds import Case, DecisionRound
from holdfast.propose.decision_view import QUOTA_NAME, View, budget_of, policy_in_force
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import PlacementReport, Proposal
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.filters import Filter
from holdfast.propose.gpu import Mix
from holdfast.propose.proposals import propose_batch
from holdfast.propose.queue.quota_usage import QuotaUsage
from holdfast.propose.scores import Scorer
from holdfast.propose.topology.topology_counts import traits_of

_START = Instant(0, 0)
# The kinds that the fleet is built from, in the order in which it receives them.
_PLACES = ("nodes", "reservations", "replicas")


class Difference(msgspec.Struct, frozen=True):
    """A replica whose replayed decision differs: the recorded answer, and the new one."""

    namespace: str
    replica: str
    then: str
    now: str


class _Objects:
    """All objects of one snapshot, with the lookups of a cache."""

    def __init__(self, objects: Mapping[str, Iterable[Any]]) -> None:
        self.by_plural = {
            plural: {(obj.namespace, obj.name): obj for obj in some}
            for plural, some in objects.items()
        }

    def get(self, plural: str, namespace: str, name: str) -> Any:
        return self.by_plural.get(plural, {}).get((namespace, name))

    def all(self, plural: str) -> list[Any]:
        return list(self.by_plural.get(plural, {}).values())


def decide_again(
    decided: DecisionRound,
    objects: Mapping[str, Iterable[Any]],
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
    again = _Again(decided, _Objects(objects))
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

    def __init__(self, decided: DecisionRound, objects: _Objects) -> None:
        self._objects, self._salt = objects, decided.salt
        self._fleet, self._quota_usage = Fleet(), QuotaUsage()
        for quota in objects.all("quotas"):
            if quota.name == QUOTA_NAME:
                self._quota_usage.limit(quota.namespace, quota)
        for plural in _PLACES:
            for obj in objects.all(plural):
                self._fleet.notice(ObjectChange(plural, None, obj))
        self._fleet.pools.use_mixes(msgspec.convert(decided.mixes, dict[str, Mix]))
        self._quota_usage.recount(objects.all("replicas"), objects.all("reservations"))
        for node, (reason, message) in decided.shunned.items():
            self._fleet.shun(node, Refusal(Reason(reason), message), 0)
        self._view = View(
            self._fleet,
            objects,
            decided.snapshot_revision,
            decided.snapshot_age_ms,
            policy_in_force(objects.all("schedulerpolicies")),
            quota_usage=self._quota_usage,
        )

    def assume(
        self, namespace: str, name: str, uid: str, node: str, devices: tuple[DeviceShare, ...]
    ) -> None:
        """Counts a placement as made, as the scheduler did."""
        replica = self._replica(namespace, name, uid)
        demand = demand_of(replica.spec.template)
        held = Allocation(charge=demand.amounts, devices=devices, ports=demand.ports)
        self._fleet.assume(uid, (namespace, name), node, held, 0, traits_of(replica))
        of = self._view.capacity_class(replica.spec.template.priority_class)
        self._quota_usage.assume(uid, namespace, of, held.charge, budget_of(replica))

    def _replica(self, namespace: str, name: str, uid: str) -> Replica:
        found = self._objects.get("replicas", namespace, name)
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
        answers = propose_batch(self._view, asked, _START, self._salt, verdict_cache)
        then = [_then(case, index) for index in range(len(asked))]
        now = [_said(answer) for answer in answers] + ["nothing"] * len(asked)
        found = [
            Difference(case.namespace, name, old, new)
            for name, old, new in zip(case.replicas, then, now, strict=False)
            if old != new
        ]
        if case.nodes:
            for place in _members_of(case):
                self.assume(*place)
        return found


def _members(decided: DecisionRound) -> list[tuple[str, str, str, str, tuple[DeviceShare, ...]]]:
    """All members in the order of their bits. The node of a member without a place is empty."""
    return [member for case in decided.cases for member in _members_of(case)]


def _members_of(case: Case) -> list[tuple[str, str, str, str, tuple[DeviceShare, ...]]]:
    count = len(case.replicas)
    nodes = case.nodes or [""] * count
    devices = case.devices or [()] * count
    return [
        (case.namespace, name, uid, node, tuple(held))
        for name, uid, node, held in zip(case.replicas, case.uids, nodes, devices, strict=True)
    ]


def _then(case: Case, index: int) -> str:
    if case.waits is None:
        return f"to {case.nodes[index]}"
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(case.filtered.items()))
    waits = case.waits
    return f"{waits.verdict}: {counts}; {waits.nearest_miss}; {waits.smallest_change}"


def _said(answer: Proposal | PlacementReport) -> str:
    if isinstance(answer, Proposal):
        return f"to {answer.node}"
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(answer.reasons.items()))
    miss = answer.nearest_miss
    nearest = f"node {miss.node}: {miss.message}" if miss is not None else ""
    return f"{answer.verdict.value}: {counts}; {nearest}; {answer.smallest_change}"
