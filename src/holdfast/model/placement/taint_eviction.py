"""When a NoExecute taint ends the stay of work that runs on its node.

controller:drain asks `stay_ends` to find what is due, and the commit asks it again inside the
transaction that stops the work, by its own clock and the taints that it compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from holdfast.model.kinds.placement import Taint, TaintEffect, Toleration
from holdfast.model.placement.placement_rules import tolerates


class StayEnds(msgspec.Struct, frozen=True):
    """The taint that ends a stay, and when; None means at once."""

    taint: Taint
    at: datetime | None


def stay_ends(
    taints: Iterable[Taint], tolerations: tuple[Toleration, ...], since: datetime | None
) -> StayEnds | None:
    """The end of the stay of work with these tolerations; None if it may stay for good.

    As in Kubernetes the first toleration that covers a taint counts. Its seconds begin when the
    taint was added, or with the bind (`since`) if that came later.
    """
    found: StayEnds | None = None
    for taint in taints:
        if taint.effect is not TaintEffect.NO_EXECUTE:
            continue
        covers = next((it for it in tolerations if tolerates(it, taint)), None)
        if covers is None:
            return StayEnds(taint, None)
        if covers.toleration_seconds is None:
            continue
        began = max((it for it in (taint.time_added, since) if it is not None), default=None)
        if began is None:
            return StayEnds(taint, None)
        ends = began + timedelta(seconds=covers.toleration_seconds)
        if found is None or found.at is None or ends < found.at:
            found = StayEnds(taint, ends)
    return found


def with_times(
    taints: tuple[Taint, ...], before: tuple[Taint, ...], at: datetime
) -> tuple[Taint, ...]:
    """The taints with the times at which those with NoExecute were added: kept, or now."""
    known = {(it.key, it.value, it.effect): it.time_added for it in before}
    return tuple(
        msgspec.structs.replace(it, time_added=known.get((it.key, it.value, it.effect)) or at)
        if it.effect is TaintEffect.NO_EXECUTE
        else it
        for it in taints
    )
