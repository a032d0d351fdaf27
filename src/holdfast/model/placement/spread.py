"""Keeping replicas apart or together: skew and affinity arithmetic.

These are proposal rules: a scheduler keeps them on what it sees and correction repairs what two
schedulers broke together. They are not promised across concurrent schedulers, and the commit does
not check them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.model.kinds.placement import Affinity, Spread, Topology
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selection.selectors import LabelSelector, selects


def skew_after(counts: Mapping[str, int], eligible: Iterable[str], place: str) -> int:
    """How many more `place` would have than the emptiest eligible place, after one more there.

    It counts among the places itself, so this is never negative.
    """
    here = counts.get(place, 0) + 1
    return here - min([here, *(counts.get(other, 0) for other in eligible if other != place)])


def spread_refusal(
    rule: Spread, counts: Mapping[str, int], eligible: Iterable[str], place: str
) -> Refusal | None:
    """Whether one more replica in `place` keeps a required spread."""
    if not rule.required:
        return None
    skew = skew_after(counts, eligible, place)
    if skew <= rule.max_skew:
        return None
    return Refusal(
        Reason.SPREAD_VIOLATED,
        f"{rule.over.value} {place} would have {skew} more than the emptiest, "
        f"at most {rule.max_skew} is allowed",
        {"place": place, "skew": str(skew)},
    )


def affinity_refusal(
    rule: Affinity, here: Iterable[Mapping[str, str]], *, anti: bool, first: bool = False
) -> Refusal | None:
    """Whether the replicas already in the place keep a required affinity or anti-affinity.

    `first` says that nothing in the whole cluster matches yet and the replica matches its own
    rule: then an affinity cannot be met by anybody, and the first one may go anywhere.
    """
    if not rule.required:
        return None
    found = any(selects(rule.selector, labels) for labels in here)
    if anti and found:
        return Refusal(
            Reason.ANTI_AFFINITY_VIOLATED,
            f"the same {rule.within.value} has a replica to stay away from",
        )
    if not anti and not found and not first:
        return Refusal(
            Reason.AFFINITY_UNMET, f"the same {rule.within.value} has no replica to be near"
        )
    return None


def repulsion_refusal(
    rules: Iterable[tuple[LabelSelector, Topology]], labels: Mapping[str, str]
) -> Refusal | None:
    """Whether a replica that is there already has to stay away from one with these labels.

    `rules` are the required anti-affinities of the replicas that are in the same place, each with
    what counts as the same place. Who wants to be away from others keeps them away as well, or it
    would depend on who came first.
    """
    for selector, within in rules:
        if selects(selector, labels):
            return Refusal(
                Reason.ANTI_AFFINITY_VIOLATED,
                f"the same {within.value} has a replica that stays away from such as this one",
            )
    return None


def crowd_refusal(limit: int, here: int) -> Refusal | None:
    """Whether a node that has `here` replicas of the workload may get one more; 0 is no limit."""
    if not limit or here < limit:
        return None
    return Refusal(
        Reason.TOO_MANY_PER_NODE,
        f"the node has {here} replicas of this workload, at most {limit} are allowed",
        {"limit": str(limit)},
    )
