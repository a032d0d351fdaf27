"""What a rollout observes of a workload: the replica at each ordinal, and whether it is healthy.

controller:rollout makes a survey before each decision; `progress.py` decides by it. A replica is
healthy when it has been ready for `minReadySeconds` without a break, and twice as long for each
time that it has ended before: work that crashes soon after its start becomes ready again and again,
and must not count as healthy in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from holdfast.correct.remembered import Notes, keys_of
from holdfast.correct.workload.each_node import belongs, in_force, takes
from holdfast.correct.workload.endings import endings_before
from holdfast.correct.workload.replica_creation import FURTHER, worth
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import RolloutStrategy, Workload, WorkloadType
from holdfast.model.lifecycle import Cause, State
from holdfast.model.placement.disruption import is_available
from holdfast.model.placement.vacancy import home_of, vacates
from holdfast.model.time import Instant, wall_ms
from holdfast.model.workload.rollouts import goal, target_of, wanted_places
from holdfast.observe.cache import Key
from holdfast.observe.snapshot import Snapshot

_DOUBLINGS_MAX = 4


class RolloutPlace(msgspec.Struct, frozen=True):
    """One ordinal: its target revision, the replica that holds it, and the replica's health.

    `left_ms` is the time until the holder counts as healthy if it stays ready: 0 for one that is
    healthy, None for one that is not ready and where there is no holder. `ready_ms` is how long it
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
        """Whether its holder is ready now."""
        return self.left_ms is not None

    @property
    def is_well(self) -> bool:
        """Whether its holder counts as capacity."""
        return self.left_ms == 0

    @property
    def is_misplaced(self) -> bool:
        """Whether its holder has another revision than the target."""
        return self.holder is not None and self.holder.spec.revision != self.target

    @property
    def is_done(self) -> bool:
        """Whether its holder is healthy and has the target revision."""
        return self.is_well and not self.is_misplaced


class RolloutSurvey(msgspec.Struct, frozen=True):
    """All ordinals that a workload has now, in order.

    `stated` is how many there should be in the end; `unplaced` how many of those have no ordinal
    yet, which only happens to per-node workloads; `strays` how many replicas may still run that do
    not have the final revision.
    """

    places: tuple[RolloutPlace, ...]
    stated: int
    unplaced: int
    strays: int

    @property
    def lasting(self) -> list[RolloutPlace]:
        """The ordinals that remain when the rollout is over."""
        return [it for it in self.places if not it.is_surge]

    @property
    def well(self) -> int:
        """How many replicas count as capacity, of any revision."""
        return sum(it.is_well for it in self.places)


def survey(
    workload: Workload, mine: Iterable[Replica], nodes: int, ready_ms: Mapping[str, int]
) -> RolloutSurvey:
    """Survey a workload's replicas. `nodes` is the number of nodes of a per-node workload,
    `ready_ms` how long each replica has been ready, by uid.
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
    """The time until it counts as healthy; None while it is not ready."""
    if not is_available(replica):
        return None
    # A replica that is to be replaced needs no probation: ready is healthy.
    is_new = replica.spec.revision == goal(workload)
    ends = replica.status.process.restarts + endings_before(replica) if is_new else 0
    pause_ms = workload.spec.rollout.min_ready_seconds * 1_000 << min(ends, _DOUBLINGS_MAX)
    return max(0, pause_ms - ready_ms)


def is_on_node(replica: Replica) -> bool:
    """Whether it can be evicted. controller:workload releases replicas that are not bound."""
    return replica.status.state in (State.BOUND, State.RUNNING)


# Rollouts of per-node workloads: which nodes count now.
#
# A replica of a per-node workload belongs to one node. While that node takes no new work, a
# replacement could not follow, so a healthy replica there stays as it is until the node takes work
# again, and does not count as spare for stopping another one. Missing replicas there count: those
# that are not ready, and those that the rollout itself has stopped; the node may have been closed
# since. Only replicas that ended there for other reasons are not waited for.


def led_on_nodes(
    view: Snapshot, workload: Workload, mine: list[Replica]
) -> tuple[list[Replica], int]:
    """The replicas that a rollout covers, and on how many nodes there should be one."""
    is_recreate = workload.spec.rollout.strategy is RolloutStrategy.RECREATE
    nodes: list[Node] = list(view.all("nodes"))
    stated = in_force(view, workload)
    counted = {it.name for it in nodes if belongs(stated, it) and takes(view, stated, it)}
    if is_recreate:
        # All of them stop, on whatever node, before any new one is created.
        return [it for it in mine if home_of(it) in counted or not vacates(it)], len(counted)
    led = [it for it in mine if home_of(it) in counted or _is_missing(it)]
    return led, len(counted | {home_of(it) for it in led})


def _is_missing(replica: Replica) -> bool:
    """Whether it counts as missing on a node that takes no new work."""
    if vacates(replica):
        return replica.status.cause is Cause.ROLLOUT
    return not is_available(replica)


# How long replicas have been ready, by the controller's own clock.
#
# The timestamp in a replica's status is from the wall clock of the server that wrote it. It counts
# only for a replica that was ready when it was first seen: for a replica that becomes ready later,
# the time counts on the monotonic clock, and a wall clock that is set meanwhile changes nothing.


class ReadyTimes(Notes[Key, dict[str, tuple[datetime | None, int]]]):
    """When the replicas of each workload were first seen ready, on the monotonic clock."""

    def __init__(self) -> None:
        super().__init__(keys_of("workloads"))

    def ready_ms(self, key: Key, replicas: Iterable[Replica], now: Instant) -> dict[str, int]:
        """How long each of a workload's replicas has been ready without a break, by uid."""
        before = self.get(key, {})
        first: dict[str, tuple[datetime | None, int]] = {}
        for it in replicas:
            uid, since = it.metadata.uid, it.status.ready_since
            known = before.get(uid)
            if known is None or known[0] != since:
                passed_ms = _passed_ms(since, now) if known is None else 0
                known = since, now.monotonic_ms - passed_ms
            first[uid] = known
        self[key] = first
        return {uid: now.monotonic_ms - since_ms for uid, (_, since_ms) in first.items()}


def _passed_ms(since: datetime | None, now: Instant) -> int:
    return max(0, now.wall_ms - wall_ms(since)) if since is not None else 0
