"""What has to stop so that enough members of a gang have a place, on any number of nodes.

`decide.py` asks this when a gang whose priority class preempts has no room. Members are placed one
after the other on a copy of the fleet: where there is room, or where the least has to stop for one
more. A gang within a domain is tried in a few domains, and the least loss is taken. Then whatever
is not needed any more once all have a place is given back, and a decision on a copy of the fleet
without the victims has to find each place again: before that nothing is stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Gang
from holdfast.model.placement.fit import claim, demand_of, take_allocation
from holdfast.model.preemption import Loss, extent_refusal
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.refusal import Refusal
from holdfast.model.time import Instant
from holdfast.observe.cache import ObjectChange
from holdfast.observe.node_columns import Bools
from holdfast.propose.feasibility.outcome import BindReplica, MemberPlace, PlacementReport, Preempt
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.gang.domains import domains, empty_room_by_row, room_by_row
from holdfast.propose.gang.member_places import GangSearch
from holdfast.propose.preemption.evictables import Evictable
from holdfast.propose.preemption.victim_search import GangDemand, VictimSearch, extent_of
from holdfast.propose.proposals import class_of, has_place, place_for_class
from holdfast.propose.topology.topology_counts import traits_of

# In how many domains room is looked for, those that lack the least first.
DOMAINS_EXAMINED_MAX = 4


class _Room(msgspec.Struct, frozen=True):
    """Places for all members, and what stops for them."""

    places: tuple[tuple[Replica, BindReplica], ...]
    victims: tuple[Evictable, ...]

    @property
    def cost(self) -> tuple[tuple[Loss, ...], int]:
        """The victims' losses, the greatest first, as for one place."""
        return tuple(sorted((it.loss for it in self.victims), reverse=True)), len(self.victims)


def gang_preemption(
    search: GangSearch,
    members: Sequence[Replica],
    gang: Gang,
    report: PlacementReport,
    now: Instant,
) -> Preempt | None:
    """Places for all these members once other work has stopped; None if there are none."""
    found = [
        room
        for among in _where(search, gang, len(members))
        if (room := _room(search, members, among, now)) is not None
    ]
    if not found and gang.within and not gang.within_required:
        anywhere = _room(search, members, None, now)
        found = [anywhere] if anywhere is not None else []
    if not found:
        return None
    return _preempt(search.view, min(found, key=lambda it: it.cost), report)


def _where(search: GangSearch, gang: Gang, needed: int) -> Iterator[Bools | None]:
    """The rows on which all members may be placed together, those that lack the least first."""
    if not gang.within:
        yield None
        return
    view, equivalence = search.view, search.equivalence
    room = room_by_row(view, equivalence)
    could = domains(view, gang.within, empty_room_by_row(view, equivalence), needed)
    enough = [it for it in could if it.room >= needed]
    enough.sort(key=lambda it: (-int(np.minimum(room[it.rows], needed).sum()), it.name))
    yield from (it.rows for it in enough[:DOMAINS_EXAMINED_MAX])


class _Trial:
    """A copy of the fleet, on which members are placed and victims are taken out."""

    def __init__(self, search: GangSearch, among: Bools | None) -> None:
        self._fleet = search.view.fleet.copy()
        self.view = msgspec.structs.replace(search.view, fleet=self._fleet)
        self._cache = search.verdict_cache.like_this()
        self._search, self._among = search, among

    def stop(self, victims: Iterable[Evictable]) -> None:
        """Take out work, as if it had stopped."""
        for it in victims:
            replica = self.view.get("replicas", *it.key)
            if replica is not None:
                self._fleet.notice(ObjectChange("replicas", replica, None))

    def place(self, replica: Replica, among: Bools | None = None) -> BindReplica | None:
        """A place for a member, which counts as taken from here on."""
        equivalence = class_of(self.view, replica, self._cache)
        if isinstance(equivalence, PlacementReport):
            return None
        rows = self._among if among is None else among
        place = place_for_class(self.view, equivalence, self._search.salt, rows)
        if place is not None:
            uid, key = replica.metadata.uid, (replica.namespace, replica.name)
            self._fleet.assume(uid, key, place.node, place.held, 0, traits_of(replica))
        return place

    def victims_for(
        self, replica: Replica, count: int, stopped: tuple[Evictable, ...], now: Instant
    ) -> tuple[Evictable, ...]:
        """What has to stop for one more member."""
        equivalence = class_of(self.view, replica, self._cache)
        if isinstance(equivalence, PlacementReport):
            return ()
        demand = GangDemand(count, self._among, stopped)
        search = VictimSearch(
            self.view, equivalence, replica, self._search.salt, now, has_place, demand
        )
        room = search.least()
        return room.victims if room is not None else ()


def _room(
    search: GangSearch, members: Sequence[Replica], among: Bools | None, now: Instant
) -> _Room | None:
    """Places for all members on these rows, with what has to stop for them."""
    trial, victims = _Trial(search, among), tuple[Evictable, ...]()
    places: list[tuple[Replica, BindReplica]] = []
    for replica in members:
        place = trial.place(replica)
        if place is None:
            more = trial.victims_for(replica, len(members), victims, now)
            trial.stop(more)
            victims += more
            place = trial.place(replica) if more else None
        if place is None:
            return None
        places.append((replica, place))
    victims = tuple(_needed(search.view, places, victims))
    rows = [site.row for _, it in places if (site := search.view.fleet.get(it.node)) is not None]
    tenant = search.equivalence.work.namespace
    if extent_refusal(extent_of(rows, victims, tenant)) is not None:
        return None
    proven = _proven(search, places, victims)
    return _Room(tuple(proven), victims) if proven is not None else None


def _needed(
    view: FleetSnapshot, places: Sequence[tuple[Replica, BindReplica]], victims: Iterable[Evictable]
) -> list[Evictable]:
    """The victims without which not all places would fit, the most valuable given back first.

    The commit asks the same. Members of a gang that ends are needed together, those among them
    that were spare at first.
    """
    victims = list(victims)
    ended = {it.gang for it in victims if it.loss.in_gang}
    units: dict[object, list[Evictable]] = {}
    for it in victims:
        units.setdefault(it.gang if it.gang in ended else it.uid, []).append(it)
    gone = {it.uid for it in victims}
    for unit in sorted(units.values(), key=_greatest, reverse=True):
        fewer = gone - {it.uid for it in unit}
        if _fit(view, places, fewer):
            gone = fewer
    # In this order each was legal after those before it.
    return [it for it in victims if it.uid in gone]


def _greatest(unit: Iterable[Evictable]) -> tuple[Loss, str]:
    return max((it.loss, it.uid) for it in unit)


def _fit(
    view: FleetSnapshot, places: Sequence[tuple[Replica, BindReplica]], gone: set[str]
) -> bool:
    """Whether all places fit on their nodes without what these hold."""
    ledgers: dict[str, NodeLedger] = {}
    for replica, place in places:
        site = view.fleet.get(place.node)
        if site is None:
            return False
        ledger = ledgers.get(place.node) or site.without(gone)
        held = claim(ledger, demand_of(replica.spec.template), place.held.devices or None)
        if isinstance(held, Refusal):
            return False
        ledgers[place.node] = take_allocation(ledger, held, replica.metadata.uid)
    return True


def _proven(
    search: GangSearch,
    places: Sequence[tuple[Replica, BindReplica]],
    victims: Sequence[Evictable],
) -> list[tuple[Replica, BindReplica]] | None:
    """The places as decisions find them without the victims; None if one of them does not."""
    trial = _Trial(search, None)
    trial.stop(victims)
    found = []
    for replica, place in places:
        site = trial.view.fleet.get(place.node)
        among = np.zeros_like(search.view.columns.live[search.view.columns.all])
        if site is not None:
            among[site.row] = True
        again = trial.place(replica, among)
        if again is None:
            return None
        found.append((replica, again))
    return found


def _preempt(view: FleetSnapshot, room: _Room, report: PlacementReport) -> Preempt:
    victims = room.victims
    found = [view.get("replicas", *it.key) for it in victims]
    graces = [it.spec.template.grace_seconds for it in found if isinstance(it, Replica)]
    members = tuple(
        MemberPlace(it, place.node, place.node_uid, place.held) for it, place in room.places
    )
    first = members[0]
    return Preempt(
        first.node,
        first.node_uid,
        first.held,
        {it.uid: it.held for it in victims},
        tuple(it.key for it in victims),
        report,
        view.revision,
        view.age_ms,
        max(graces, default=0),
        members=members,
    )
