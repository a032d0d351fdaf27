"""Which ordinals a rollout begins next, and which replicas it stops for that.

Part of controller:rollout: `progress.py` asks how far the targets may be widened, and
`controller.py` which replicas to stop for the committed targets.

An ordinal is begun only while fewer are in progress than may be missing or surplus. A replica that
is out of contact, stopping, or not ready counts as missing. Ordinals whose holder is not ready come
first: otherwise a fix for crashing work would wait for that work to become healthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.correct.rollout.survey import RolloutPlace, RolloutSurvey, is_on_node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import RolloutPhase, RolloutStatus, Workload
from holdfast.model.placement.disruption import portion
from holdfast.model.workload.indexes import Indexes, parse
from holdfast.model.workload.rollouts import limits


def hold_seconds(workload: Workload) -> int | None:
    """How long the ordinals of the canary step have to be ready; None after the last step."""
    steps, rollout = workload.spec.rollout.canary, workload.status.rollout
    is_step = rollout.step < len(steps) and bool(rollout.stable)
    return steps[rollout.step].hold_seconds if is_step else None


def ordinals_allowed(workload: Workload, seen: RolloutSurvey) -> int:
    """How many ordinals may take the new revision by now."""
    count = len(seen.lasting)
    if hold_seconds(workload) is None:
        return count
    step = workload.spec.rollout.canary[workload.status.rollout.step]
    return min(count, portion(step.portion, seen.stated, round_up=True))


def widen(
    workload: Workload, seen: RolloutSurvey, status: RolloutStatus, lag: int
) -> RolloutStatus:
    """The status with as many more ordinals as may be in progress. `lag` of them already are."""
    missing, surge = limits(workload.spec.rollout, seen.stated)
    # A canary step uses no surge, unless it could not proceed without one.
    surge = 0 if hold_seconds(workload) is not None and missing else surge
    if not status.stable or status.stable == status.current:
        # All ordinals take the only revision; their holders are replaced in turn.
        surge = surge if any(it.is_misplaced for it in seen.places) else 0
        return msgspec.structs.replace(status, surge=max(status.surge, surge))
    room = missing + status.surge - lag
    chosen = _chosen(seen, status, room, ordinals_allowed(workload, seen))
    return msgspec.structs.replace(
        status, surge=max(status.surge, surge), updated=text_of(seen, chosen)
    )


def _chosen(seen: RolloutSurvey, status: RolloutStatus, room: int, most: int) -> list[int]:
    """The ordinals that take the new revision from now on, where `room` more may be in progress."""
    updated = parse(status.updated)
    chosen = [it.number for it in seen.lasting if it.number in updated][:most]
    rest = [it for it in seen.lasting if it.number not in updated]
    # Ordinals that already have the new revision, as after scaling, need no room.
    there = [it for it in rest if _is_of(it.holder, status.current)]
    others = [it for it in rest if not _is_of(it.holder, status.current)]
    idle = [it for it in others if not it.is_ready]
    busy = [it for it in others if it.is_ready]
    spare = room - len(idle) - seen.unplaced
    more = [*there, *idle[: max(0, room)], *busy[: max(0, spare)]]
    return chosen + [it.number for it in more[: max(0, most - len(chosen))]]


def _is_of(holder: Replica | None, revision: str) -> bool:
    return holder is not None and holder.spec.revision == revision


def text_of(seen: RolloutSurvey, numbers: Iterable[int]) -> str:
    """Ordinals as text. Neighbours in the survey form one range, so that the text stays short also
    where ordinals are derived from node names.
    """
    chosen = set(numbers)
    spans: list[tuple[int, int]] = []
    is_open = False
    for place in seen.lasting:
        if place.number not in chosen:
            is_open = False
        elif is_open:
            spans[-1] = spans[-1][0], place.number
        else:
            spans.append((place.number, place.number))
            is_open = True
    return str(Indexes(tuple(spans)))


def to_stop(workload: Workload, seen: RolloutSurvey) -> Iterator[RolloutPlace]:
    """The ordinals whose holder may be stopped for the committed targets.

    A holder that is not ready stops at once. A ready one stops only while enough others are
    healthy, and a rollback never stops the last one.
    """
    spec, status = workload.spec.rollout, workload.status.rollout
    if spec.paused or status.phase is RolloutPhase.PAUSED:
        return
    missing, _ = limits(spec, seen.stated)
    floor = seen.stated - missing
    if status.phase is RolloutPhase.REVERTING:
        floor = max(floor, min(1, seen.stated))
    spare = len(seen.places) if status.held else seen.well - floor
    for place in seen.places:
        if not place.is_misplaced or place.holder is None or not is_on_node(place.holder):
            continue
        if not place.is_ready:
            yield place
        elif spare > 0:
            spare -= 1
            yield place
