"""Places for the members of a gang, found on one snapshot and, if asked, within one domain.

`decide.py` calls this for the first members of a gang, and for the rest of one that runs. Nothing
is assumed in the scheduler's own fleet before all members have a place: a placement that changes
more than sums is tried on a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Gang
from holdfast.observe.node_columns import Bools
from holdfast.propose.batch_placement import BatchPlacement
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass
from holdfast.propose.feasibility.outcome import BindReplica, PlacementReport
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.gang.domains import domains, room_by_row
from holdfast.propose.proposals import class_of, place_for_class
from holdfast.propose.topology.topology_counts import traits_of


class GangSearch(msgspec.Struct, frozen=True):
    """What a search needs: a snapshot, the members' class, and how ties are broken."""

    view: FleetSnapshot
    equivalence: EquivalenceClass
    verdict_cache: VerdictCache
    salt: int


def gang_places(
    search: GangSearch, members: Sequence[Replica], gang: Gang, needed: int
) -> list[BindReplica]:
    """Places for as many members as one domain takes; empty if they are fewer than needed.

    With `withinRequired: false` any nodes are tried once no domain takes enough.
    """
    found: list[BindReplica] = []
    if not gang.within:
        found = places(search, members)
        return found if len(found) >= needed else []
    room = room_by_row(search.view, search.equivalence)
    for domain in domains(search.view, gang.within, room, len(members)):
        if domain.room < needed:
            break
        there = places(search, members, domain.rows)
        if len(there) > len(found):
            found = there
        if len(found) >= min(domain.room, len(members)):
            break
    if len(found) < needed and not gang.within_required:
        found = places(search, members)
    return found if len(found) >= needed else []


def places(
    search: GangSearch, members: Sequence[Replica], among: Bools | None = None
) -> list[BindReplica]:
    """Places for as many of these members as there are on these nodes, in their order."""
    view, equivalence = search.view, search.equivalence
    first = place_for_class(view, equivalence, search.salt, among)
    if first is None:
        return []
    if len(members) == 1:
        return [first]
    if not equivalence.is_plain or equivalence.verdicts.packer is not None:
        return _one_by_one(search, members, among)
    run = BatchPlacement(view, equivalence, len(members), search.salt, among)
    rules = equivalence.topology_rules
    weight = max(1, equivalence.verdicts.weight + (rules.weight if rules is not None else 0))
    found = []
    for row, total, scores in run.choices(len(members)):
        site = view.fleet.at(row)
        found.append(
            msgspec.structs.replace(
                first,
                node=site.name,
                node_uid=site.uid,
                score=total / weight,
                scores=scores,
                node_revision=site.revision,
            )
        )
    return found


def _one_by_one(
    search: GangSearch, members: Sequence[Replica], among: Bools | None
) -> list[BindReplica]:
    """The same where a placement changes more than sums: each is assumed on a copy of the fleet."""
    fleet = search.view.fleet.copy()
    view = msgspec.structs.replace(search.view, fleet=fleet)
    cache = search.verdict_cache.like_this()
    found: list[BindReplica] = []
    for replica in members:
        equivalence = class_of(view, replica, cache)
        if isinstance(equivalence, PlacementReport):
            break
        place = place_for_class(view, equivalence, search.salt, among)
        if place is None:
            break
        found.append(place)
        uid, key = replica.metadata.uid, (replica.namespace, replica.name)
        fleet.assume(uid, key, place.node, place.held, 0, traits_of(replica))
    return found
