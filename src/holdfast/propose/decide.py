"""The decision about work: where it goes, what has to stop first, or why it waits.

`propose` is the one function that decides, about single replicas and about gangs. The scheduler
calls it on what it sees, `explain/replay.py` on what a scheduler saw, explanations on what is
stored, and each question "what if" on a hypothesis (`FleetSnapshot.with_objects`, `without`).
Nothing is changed here. Whatever is proposed, the commit decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.kinds.replica import Replica
from holdfast.model.time import Instant
from holdfast.propose.feasibility.outcome import Decision
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.gang.decide import decide_gang
from holdfast.propose.proposals import decide_batch


def propose(
    view: FleetSnapshot,
    work: Sequence[Replica],
    now: Instant,
    salt: int,
    verdict_cache: VerdictCache,
) -> list[Decision]:
    """The decisions about waiting replicas of one equivalence class, in their order.

    There may be fewer than replicas, but at least one: what these take matters to the rest. Members
    of a gang have one decision for the whole gang. `salt` decides between nodes that are equal.
    """
    view.fleet.forgive(now.monotonic_ms)
    if work[0].spec.gang:
        return [decide_gang(view, work[0], salt, verdict_cache)]
    return [*decide_batch(view, work, now, salt, verdict_cache)]
