"""Spread and affinity between replicas.

These rules guide proposals: a scheduler applies them to its snapshot, and controllers repair what
two schedulers broke together. They are not guaranteed across concurrent schedulers, and the commit
does not check them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.model.kinds.placement import Affinity, Spread, Topology
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selection.selectors import LabelSelector, selects


def skew_after(counts: Mapping[str, int], eligible: Iterable[str], place: str) -> int:
    """The skew of `place` after one more replica there: its count less the smallest eligible one.

    `place` is eligible itself, so this is never negative.
    """
    here = counts.get(place, 0) + 1
    return here - min([here, *(counts.get(other, 0) for other in eligible if other != place)])


def spread_refusal(
    rule: Spread, counts: Mapping[str, int], eligible: Iterable[str], place: str
) -> Refusal | None:
    """Refuses one more replica in `place` if it breaks a required spread."""
    if not rule.required:
        return None
    skew = skew_after(counts, eligible, place)
    if skew <= rule.max_skew:
        return None
    return Refusal(
        Reason.SPREAD_VIOLATED,
        f"{rule.over.value} {place} would have {skew} replicas more than the emptiest, "
        f"at most {rule.max_skew} is allowed",
        {"place": place, "skew": str(skew)},
    )


def affinity_refusal(
    rule: Affinity, here: Iterable[Mapping[str, str]], *, anti: bool, first: bool = False
) -> Refusal | None:
    """Refuses a place whose replicas break a required affinity or anti-affinity.

    `first` means that no replica in the whole cluster matches yet and the replica matches its own
    rule: then no place can satisfy an affinity, and the first replica may run anywhere.
    """
    if not rule.required:
        return None
    found = any(selects(rule.selector, labels) for labels in here)
    if anti and found:
        return Refusal(
            Reason.ANTI_AFFINITY_VIOLATED,
            f"anti-affinity: the same {rule.within.value} has a matching replica",
        )
    if not anti and not found and not first:
        return Refusal(
            Reason.AFFINITY_UNMET, f"affinity: the same {rule.within.value} has no matching replica"
        )
    return None


def repulsion_refusal(
    rules: Iterable[tuple[LabelSelector, Topology]], labels: Mapping[str, str]
) -> Refusal | None:
    """Refuses a place where the anti-affinity of an existing replica matches these labels.

    `rules` are the required anti-affinities of the replicas in the same place, each with its
    topology. Anti-affinity works both ways, or the result would depend on which replica came first.
    """
    for selector, within in rules:
        if selects(selector, labels):
            return Refusal(
                Reason.ANTI_AFFINITY_VIOLATED,
                f"the same {within.value} has a replica whose anti-affinity matches this one",
            )
    return None


def crowd_refusal(limit: int, here: int) -> Refusal | None:
    """Refuses one more replica of a workload on a node that has `here`; limit 0 means none."""
    if not limit or here < limit:
        return None
    return Refusal(
        Reason.TOO_MANY_PER_NODE,
        f"the node has {here} replicas of this workload, at most {limit} are allowed",
        {"limit": str(limit)},
    )
