"""One decision: where a replica should go, or why it has to wait.

The scheduler calls `propose` for each replica whose turn it is, on a view that may be old; explain
and what-if call it on theirs. It changes nothing. Whatever it proposes, the commit decides.
"""

from __future__ import annotations

import msgspec

from holdfast.model.allowance import never_fits
from holdfast.model.errors import unreachable
from holdfast.model.fit import claim
from holdfast.model.kinds.replica import Replica
from holdfast.model.ledger import limits_of
from holdfast.model.machine import Rng
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.time import Instant
from holdfast.propose.filters import FILTERS, first_refusal
from holdfast.propose.report import NO_NODES, Hope, Miss, Proposal, Report, Verdict
from holdfast.propose.scores import breakdown, weighed, weights_of
from holdfast.propose.site import Site
from holdfast.propose.view import Candidate, View, Work

# The oldest picture on which the commit accepts a bind at all. A server gives a sign of life every
# 15 s, so that a plane in good health is never this far behind.
SNAPSHOT_AGE_MAX_MS = 30_000


def propose(view: View, replica: Replica, now: Instant, rng: Rng) -> Proposal | Report:
    """A place for this replica, or why there is none. Equal places are chosen among at random."""
    work = view.work(replica)
    held_up = _held_up(view, work)
    if held_up is not None:
        return held_up
    reasons: dict[str, int] = {}
    misses: list[_Miss] = []
    fitting: list[Candidate] = []
    for site in view.fleet:
        candidate = _candidate(view, site, now)
        refused = first_refusal(work, candidate)
        if refused is None:
            fitting.append(candidate)
            continue
        miss = _miss(work, site, *refused)
        reason = miss.refusal.reason.value
        reasons[reason] = reasons.get(reason, 0) + 1
        misses.append(miss)
    if not fitting:
        return _nowhere(work, reasons, misses)
    return _best(view, work, fitting, reasons, rng)


def could_take(view: View, replica: Replica, node: str, now: Instant) -> bool:
    """Whether this one node could take the replica: what an event about it is worth."""
    site = view.fleet.get(node)
    if site is None:
        return False
    return first_refusal(view.work(replica), _candidate(view, site, now)) is None


def _candidate(view: View, site: Site, now: Instant) -> Candidate:
    gate = site.empty.gate
    shunned = site.shunned if now.monotonic_ms < site.shunned_until_ms else None
    return Candidate(site, gate, view.region(gate.region), shunned)


def _held_up(view: View, work: Work) -> Report | None:
    """What keeps this work from any node at all."""
    if view.age_ms > SNAPSHOT_AGE_MAX_MS:
        # The age itself would be another message every time.
        return Report(
            {Reason.TOO_OLD.value: 1},
            f"nothing was heard from the servers for more than {SNAPSHOT_AGE_MAX_MS // 1000} s, "
            "and nothing is placed on so old a picture",
            Verdict.WAITING,
            (Hope.FRESHNESS,),
        )
    if work.replica.spec.gang:
        return Report(
            {Reason.GANG_INCOMPLETE.value: 1},
            f"gang {work.replica.spec.gang} is placed together or not at all, "
            "and its other members are not ready to be placed",
            Verdict.WAITING,
            (),
        )
    if work.tenant is not None and work.tenant.spec.suspended:
        return Report(
            {Reason.TENANT_SUSPENDED.value: 1},
            f"tenant {work.namespace} accepts no new work",
            Verdict.BLOCKED_BY,
            (Hope.ALLOWANCE,),
        )
    return _beyond_quota(view, work)


def _beyond_quota(view: View, work: Work) -> Report | None:
    """Whether the quota could not hold this even alone. What else is used only the commit knows."""
    quota = view.quota(work.namespace)
    if quota is None:
        return None
    of = view.capacity_class(work.priority_class)
    refusal = never_fits(limits_of(quota), of, work.demand.amounts)
    if refusal is None:
        return None
    return Report({refusal.reason.value: 1}, refusal.message, Verdict.NEVER, (Hope.ALLOWANCE,))


# A place -----------------------------------------------------------------------------------------


def _best(
    view: View, work: Work, fitting: list[Candidate], reasons: dict[str, int], rng: Rng
) -> Proposal:
    weights = weights_of(view.policy)
    scores = [breakdown(work, candidate, weights) for candidate in fitting]
    totals = [weighed(each, weights) for each in scores]
    most = max(totals)
    equals = [index for index, total in enumerate(totals) if total == most]
    chosen = equals[int(rng.random() * len(equals))]
    site = fitting[chosen].site
    held = claim(site.ledger, work.demand)
    if isinstance(held, Refusal):
        unreachable(f"node {site.name} was a candidate and does not fit: {held.message}")
    return Proposal(
        node=site.name,
        node_uid=site.uid,
        held=held,
        score=most,
        scores=scores[chosen],
        candidates=len(fitting),
        reasons=reasons,
        policy=view.policy.name if view.policy is not None else "",
        snapshot_revision=view.revision,
        snapshot_age_ms=view.age_ms,
    )


# No place ----------------------------------------------------------------------------------------


class _Miss(msgspec.Struct, frozen=True):
    """A node that does not do, and how many filters it had passed.

    `in_question` says that only binds that are on their way stand in the way.
    """

    site: Site
    place: int
    refusal: Refusal
    in_question: bool = False


def _miss(work: Work, site: Site, place: int, refusal: Refusal) -> _Miss:
    """Say why in words that do not change with every bind that is on its way."""
    if not site.assumed or FILTERS[place].name != "resources":
        return _Miss(site, place, refusal)
    lasting = claim(site.settled, work.demand)
    if isinstance(lasting, Refusal):
        return _Miss(site, place, lasting)
    return _Miss(site, place, refusal, in_question=True)


def _nowhere(work: Work, reasons: dict[str, int], misses: list[_Miss]) -> Report:
    if not misses:
        return Report(
            {NO_NODES: 1}, "there are no nodes", Verdict.NOT_WITH_THIS_FLEET, (Hope.NODES,)
        )
    furthest = max(miss.place for miss in misses)
    nearest = min(
        (miss for miss in misses if miss.place == furthest), key=lambda miss: _lack(work, miss.site)
    )
    fits_some = any(_fits_in_time(work, miss) for miss in misses)
    counts = sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0]))
    counted = ", ".join(f"{count} {reason}" for reason, count in counts)
    message = f"none of {len(misses)} nodes can take it: {counted}"
    hopes: tuple[Hope, ...] = (Hope.NODES,)
    if any(FILTERS[miss.place].name in ("residency", "tenancy") for miss in misses):
        hopes = (Hope.NODES, Hope.ALLOWANCE)
    return Report(
        dict(counts),
        message,
        Verdict.WAITING if fits_some else Verdict.NOT_WITH_THIS_FLEET,
        hopes,
        Miss(nearest.site.name, nearest.refusal.reason.value, nearest.refusal.message),
        try_soon=any(FILTERS[miss.place].name == "shunned" for miss in misses),
        in_question=any(miss.in_question for miss in misses),
    )


def _fits_in_time(work: Work, miss: _Miss) -> bool:
    """Whether this node could take it, were it empty and ready."""
    if not FILTERS[miss.place].passes:
        return False
    return not isinstance(claim(miss.site.empty, work.demand), Refusal)


def _lack(work: Work, site: Site) -> float:
    """How much of a resource is missing at worst: 0 for nothing, 1 for all of it.

    Devices are owned one by one, and sums say nothing about them.
    """
    ledger = site.settled
    devices = {device.device_class for device in work.demand.devices}
    lacks = [
        (units - ledger.free(resource)) / units
        for resource, units in work.demand.amounts.items()
        if units > 0 and resource not in devices
    ]
    return min(1.0, max(0.0, *lacks)) if lacks else 0.0
