"""What a rollout sees of a workload: who holds each of its places, and whether that one is well.

controller:rollout makes a survey before each decision; `rollout_course.py` decides by it. A replica
is well when it has been ready for `minReadySeconds` without a break, and twice as long for each
time that it has ended before: work that crashes soon after its start is ready again and again, and
must not pass for well in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from holdfast.correct.controller import View
from holdfast.correct.workload.each_node import belongs, in_force, takes
from holdfast.correct.workload.endings import endings_before
from holdfast.correct.workload.replica_creation import FURTHER, worth
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import RolloutStrategy, Workload, WorkloadType
from holdfast.model.lifecycle import Cause, State
from holdfast.model.placement.disruption import is_available
from holdfast.model.placement.vacancy import home_of, vacates
from holdfast.model.rollouts import goal, target_of, wanted_places
from holdfast.model.time import Instant, wall_ms
from holdfast.observe.cache import Key

_DOUBLINGS_MAX = 4


class RolloutPlace(msgspec.Struct, frozen=True):
    """One place: which revision it takes, who holds it, and how well that one is.

    `left_ms` says in how long the holder counts as well if it stays as it is: 0 for one that does,
    None for one that is not ready, and for a place without a holder. `ready_ms` is for how long it
    has been ready.
    """

    number: int
    target: str
    is_surge: bool = False
    holder: Replica | None = None
    left_ms: int | None = None
    ready_ms: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether its holder does its work at the moment."""
        return self.left_ms is not None

    @property
    def is_well(self) -> bool:
        """Whether its holder counts as capacity."""
        return self.left_ms == 0

    @property
    def is_misplaced(self) -> bool:
        """Whether its holder is of a revision that the place does not take."""
        return self.holder is not None and self.holder.spec.revision != self.target

    @property
    def is_done(self) -> bool:
        """Whether its holder is well and what it should be."""
        return self.is_well and not self.is_misplaced


class RolloutSurvey(msgspec.Struct, frozen=True):
    """All places that a workload has at the moment, in order.

    `stated` is how many there should be in the end; `unplaced` how many of those have no place yet,
    which is so for nodes alone; `strays` how many replicas may still run that are not of the
    revision that all should have.
    """

    places: tuple[RolloutPlace, ...]
    stated: int
    unplaced: int
    strays: int

    @property
    def lasting(self) -> list[RolloutPlace]:
        """The places that stay when the rollout is over."""
        return [it for it in self.places if not it.is_surge]

    @property
    def well(self) -> int:
        """How many replicas count as capacity, of whatever revision."""
        return sum(it.is_well for it in self.places)


def survey(
    workload: Workload, mine: Iterable[Replica], nodes: int, ready_ms: Mapping[str, int]
) -> RolloutSurvey:
    """Look at a workload's replicas. `nodes` is how many one per node should have, `ready_ms` for
    how long each has been ready, by uid.
    """
    lives: dict[int, list[Replica]] = {}
    strays, aim = 0, goal(workload)
    for replica in mine:
        lives.setdefault(replica.spec.ordinal, []).append(replica)
        strays += replica.spec.revision != aim and not vacates(replica)
    is_service = workload.spec.type is WorkloadType.SERVICE
    stated = workload.spec.replicas if is_service else nodes
    numbers = range(wanted_places(workload)) if is_service else sorted(lives)
    places = tuple(
        _place(workload, number, lives.get(number, []), is_service and number >= stated, ready_ms)
        for number in numbers
    )
    return RolloutSurvey(places, stated, max(0, stated - len(places)), strays)


def _place(
    workload: Workload,
    number: int,
    lives: list[Replica],
    is_surge: bool,
    ready_ms: Mapping[str, int],
) -> RolloutPlace:
    alive = [it for it in lives if it.status.state in FURTHER]
    holder = max(alive, key=worth, default=None)
    target = target_of(workload, number)
    if holder is None:
        return RolloutPlace(number, target, is_surge)
    for_ms = max(0, ready_ms[holder.metadata.uid])
    left_ms = _left_ms(workload, holder, for_ms)
    return RolloutPlace(number, target, is_surge, holder, left_ms, for_ms)


def _left_ms(workload: Workload, replica: Replica, ready_ms: int) -> int | None:
    """In how long it counts as well; None while it is not ready."""
    if not is_available(replica):
        return None
    # What is to be replaced need not prove itself: it counts as what it is at the moment.
    is_new = replica.spec.revision == goal(workload)
    ends = replica.status.process.restarts + endings_before(replica) if is_new else 0
    pause_ms = workload.spec.rollout.min_ready_seconds * 1_000 << min(ends, _DOUBLINGS_MAX)
    return max(0, pause_ms - ready_ms)


def is_on_node(replica: Replica) -> bool:
    """Whether it can be evicted. What waits for a place is released by controller:workload."""
    return replica.status.state in (State.BOUND, State.RUNNING)


# One per node and its rollout: which nodes count at the moment.
#
# Part of controller:rollout. A replica of one per node has its node and no other. While that takes
# nothing new nobody could follow, so what works there is left as it is until the node takes work
# again, and is no ground to stop another one either. What is missing there counts: a replica that
# does not work, and a place that the rollout itself has emptied; its node may have been closed
# since. Only what ended there for other reasons is not waited for.


def led_on_nodes(view: View, workload: Workload, mine: list[Replica]) -> tuple[list[Replica], int]:
    """The replicas that a rollout leads, and on how many nodes there should be one."""
    is_recreate = workload.spec.rollout.strategy is RolloutStrategy.RECREATE
    nodes: list[Node] = list(view.all("nodes"))
    stated = in_force(view, workload)
    counted = {it.name for it in nodes if belongs(stated, it) and takes(view, stated, it)}
    if is_recreate:
        # All of them go, wherever they are, before anything is born.
        return [it for it in mine if home_of(it) in counted or not vacates(it)], len(counted)
    led = [it for it in mine if home_of(it) in counted or _is_missing(it)]
    return led, len(counted | {home_of(it) for it in led})


def _is_missing(replica: Replica) -> bool:
    """Whether its place counts as missing on a node that takes nothing new."""
    if vacates(replica):
        return replica.status.cause is Cause.ROLLOUT
    return not is_available(replica)


# For how long replicas have been ready, as far as one's own clock can tell.
#
# Part of controller:rollout. The moment in a replica's status is by the calendar of the server that
# wrote it down. It is believed only of a replica that was ready when it was first seen: whatever
# becomes ready while we watch is counted on our own clock, and no calendar that is set meanwhile
# makes it older or younger.


class ReadyTimes:
    """When the replicas of each workload were first seen to be ready as they are."""

    def __init__(self) -> None:
        self._first: dict[Key, dict[str, tuple[datetime | None, int]]] = {}

    def ready_ms(self, key: Key, replicas: Iterable[Replica], now: Instant) -> dict[str, int]:
        """For how long each of a workload's replicas has been as ready as it is, by uid."""
        before = self._first.get(key, {})
        first: dict[str, tuple[datetime | None, int]] = {}
        for it in replicas:
            uid, since = it.metadata.uid, it.status.ready_since
            known = before.get(uid)
            if known is None or known[0] != since:
                told_ms = _told_ms(since, now) if known is None else 0
                known = since, now.monotonic_ms - told_ms
            first[uid] = known
        self._first[key] = first
        return {uid: now.monotonic_ms - since_ms for uid, (_, since_ms) in first.items()}

    def forget(self, key: Key) -> None:
        """The workload is gone, or nothing is asked about it for now."""
        self._first.pop(key, None)


def _told_ms(since: datetime | None, now: Instant) -> int:
    return max(0, now.wall_ms - wall_ms(since)) if since is not None else 0
