"""The first half of a preemption: victims are stopped, and their places are promised.

A scheduler sends it for one replica, or for as many members of a gang as have to start together.
One transaction judges each victim, stops all of them and promises a place to each replica, under a
reservation of its own; or it does nothing. The binds follow the victims' release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft, for_each
from holdfast.commit.leases import former_holder_refusal, term_refusal
from holdfast.commit.ledgers.charges import (
    allowance_refusal,
    capacity_class,
    charge_tenant,
    cohort_of,
    held_by_binding,
)
from holdfast.commit.lifecycle import gangs
from holdfast.commit.lifecycle.bind import life_refusal, load_for_place, node_for, place_refusal
from holdfast.commit.lifecycle.evict import stop
from holdfast.commit.lifecycle.reservations import open_reservation, replica_owner, save
from holdfast.commit.lifecycle.transitions import (
    actor_for,
    current_replica,
    find_replica,
    stale_target_refusal,
)
from holdfast.commit.operations import add_operation, digest
from holdfast.commit.request_steps import (
    PLACE,
    ComparedRecord,
    PlacementStep,
    Replayed,
    age_refusal,
)
from holdfast.model import keys
from holdfast.model.kinds.replica import Displaced, Replica
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationSpec,
    reservation_name,
)
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Cause, State
from holdfast.model.placement.fit import (
    Allocation,
    claim,
    demand_of,
    promise_allocation,
    return_allocation,
    take_allocation,
)
from holdfast.model.placement.gang import is_formed, left_running
from holdfast.model.preemption import (
    Contender,
    Extent,
    contender_of_victim,
    eviction_refusal,
    extent_refusal,
    less_hard,
    preempts_refusal,
    split_gang_refusal,
    turn_refusal,
)
from holdfast.model.quota.charging import budget_of
from holdfast.model.quota.ledger import Amounts, NodeLedger, QuotaLedger, add
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import PromisedPlace, StopAndReserve

# What a victim loses cannot be given back, so its place is looked at again sooner.
PREEMPTION_AGE_MAX_MS = 5_000


class _Place(msgspec.Struct, frozen=True):
    """A place that is asked for, and the replica that is to get it."""

    replica: Replica
    asked: PromisedPlace

    @property
    def node(self) -> str:
        return self.asked.node


Ledgers = Mapping[str, NodeLedger]


def stop_and_reserve(
    draft: Draft, context: Context, request: StopAndReserve
) -> Reservation | Replayed | Refusal:
    """Stop the victims and promise their places to pending replicas; the binds follow their
    release. The answer is the reservation of the first.
    """
    # Nothing is loaded for either refusal.
    refusal = _sender_refusal(context) or extent_refusal(_extent(request, ()))
    if refusal is not None:
        return refusal
    victims = _load(draft, request)
    mark = digest(request)
    replica = current_replica(draft, request.target, request.operation, mark)
    if isinstance(replica, Refusal):
        return former_holder_refusal(draft, context, request.term, replica)
    if not isinstance(replica, Replica):
        return replica
    refusal = (
        extent_refusal(_extent(request, victims))
        or term_refusal(draft, context, request.term)
        or age_refusal(context, request.snapshot_age_ms, PREEMPTION_AGE_MAX_MS)
        or _preempts_refusal(draft, replica)
    )
    if refusal is not None:
        return refusal
    places: list[_Place] = []
    ledgers: dict[str, NodeLedger] = {}
    for asked in request.places:
        found = _place(draft, context, replica, asked, ledgers)
        if isinstance(found, Refusal):
            return found
        places.append(found)
    refusal = _members_refusal(draft, places)
    if refusal is not None:
        return refusal
    emptied = _stop_victims(draft, context, request, places, ledgers)
    if isinstance(emptied, Refusal):
        return emptied
    return _promise(draft, context, request, places, emptied, mark)


def _sender_refusal(context: Context) -> Refusal | None:
    """Refuse others than schedulers, whatever their rights and whatever they ask for."""
    if context.is_actor(*StopAndReserve.senders):
        return None
    return Refusal(
        Reason.NOT_OWNER,
        f"only a scheduler may stop work for other work, not {context.identity.name}",
        {"owners": ", ".join(it.value for it in StopAndReserve.senders)},
    )


def _load(draft: Draft, request: StopAndReserve) -> list[Replica]:
    """Load what the decision reads of each place and each victim, as far as the keys are known:
    one after the other would take a read of the store for each. Returns the victims that are there.
    """
    kind = kind_of_struct(Reservation)
    for_each(
        request.places, lambda it: load_for_place(draft, it.target, it.node, request.term.scope)
    )
    draft.load(
        *(
            keys.object_key(
                kind, it.target.namespace, reservation_name(it.target.name, Intent.PREEMPTION)
            )
            for it in request.places
        )
    )
    found = for_each(request.victims, lambda target: find_replica(draft, target))
    victims = [it for it in found if isinstance(it, Replica)]
    draft.load(
        *(keys.disruption_ledger(it.namespace, it.spec.workload) for it in victims),
        *(keys.node_ledger(_node_of(it)) for it in victims if _node_of(it)),
        *(
            keys.object_key(kind_of_struct(Workload), it.namespace, it.spec.workload)
            for it in victims
            if it.spec.gang
        ),
    )
    for_each(victims, lambda it: gangs.record_of(draft, it) if it.spec.gang else None)
    return victims


def _extent(request: StopAndReserve, victims: Iterable[Replica]) -> Extent:
    """How much the request touches, as far as its victims are known."""
    victims = tuple(victims)
    nodes = {it.node for it in request.places} | {_node_of(it) for it in victims}
    return Extent(
        len(request.places),
        len(nodes),
        len(request.victims),
        len({it.spec.workload_uid for it in victims}),
        len({it.spec.workload_uid for it in victims if it.spec.gang}),
        len({it.namespace for it in victims} | {request.target.namespace}),
    )


def _preempts_refusal(draft: Draft, replica: Replica) -> Refusal | None:
    """Refuse a preemption for work whose class may not preempt."""
    name = budget_of(replica.spec.template.priority_class)
    return preempts_refusal(draft.object(PriorityClass, "", name), name)


# The places --------------------------------------------------------------------------------------


def _place(
    draft: Draft,
    context: Context,
    first: Replica,
    asked: PromisedPlace,
    ledgers: dict[str, NodeLedger],
) -> _Place | Refusal:
    """A place that is asked for, as far as it does not depend on the victims."""
    replica = find_replica(draft, asked.target)
    if isinstance(replica, Refusal):
        return replica
    refusal = stale_target_refusal(asked.target, replica)
    if refusal is not None:
        return refusal
    actor = actor_for(context, replica, State.BOUND)
    if isinstance(actor, Refusal):
        return actor
    ledger = node_for(draft, asked.node, asked.node_uid)
    if isinstance(ledger, Refusal):
        return ledger
    refusal = (
        life_refusal(draft, replica)
        or _stranger_refusal(first, replica)
        or place_refusal(draft, replica, asked.node, ledger)
    )
    if refusal is not None:
        return refusal
    ledgers[asked.node] = ledger
    return _Place(replica, asked)


def _stranger_refusal(first: Replica, replica: Replica) -> Refusal | None:
    """Refuse to promise anything to others than the members of one gang of one value."""
    mine, theirs = first.spec, replica.spec
    is_fellow = bool(mine.gang) and mine.workload_uid == theirs.workload_uid
    same = mine.priority == theirs.priority and (
        mine.template.priority_class == theirs.template.priority_class
    )
    if replica.metadata.uid == first.metadata.uid or (is_fellow and same):
        return None
    return Refusal(
        Reason.INVALID,
        f"members: {replica.name} is not of the gang and the priority class of {first.name}",
    )


def _members_refusal(draft: Draft, places: Sequence[_Place]) -> Refusal | None:
    """Refuse to stop anything for a part of a gang that could not start with it."""
    first = places[0].replica
    if len({it.replica.metadata.uid for it in places}) < len(places):
        return Refusal(Reason.INVALID, "members: each is named once")
    return gangs.start_refusal(draft, first, len(places)) if first.spec.gang else None


def _claims(ledgers: Ledgers, places: Iterable[_Place]) -> list[Allocation] | Refusal:
    """What the replicas would take on these nodes, one after the other."""
    left, found = dict(ledgers), []
    for it in places:
        demand = demand_of(it.replica.spec.template)
        held = claim(left[it.node], demand, it.asked.devices)
        if isinstance(held, Refusal):
            why = f"node {it.node}, even without the victims: {held.message}"
            return msgspec.structs.replace(held, message=why)
        left[it.node] = take_allocation(left[it.node], held, it.replica.metadata.uid)
        found.append(held)
    return found


# The victims -------------------------------------------------------------------------------------


def _stop_victims(
    draft: Draft,
    context: Context,
    request: StopAndReserve,
    places: Sequence[_Place],
    ledgers: Ledgers,
) -> Ledgers | Refusal:
    """Stop each victim. Returns the nodes' ledgers as they will be when all of them are gone."""
    replica = places[0].replica
    preemptor = _contender(draft, places)
    quota = draft.ledger(QuotaLedger, keys.quota_ledger(preemptor.cohort)) or QuotaLedger()
    running: set[str] = set()
    emptied, stopped = dict(ledgers), []
    for target in request.victims:
        # Read again: a victim that is named twice has been stopped by now.
        victim = find_replica(draft, target)
        if isinstance(victim, Refusal):
            return victim
        refusal = stale_target_refusal(target, victim)
        if refusal is not None:
            return refusal
        binding = victim.status.binding
        contender = contender_of_victim(victim, cohort_of(draft, victim.namespace))
        refusal = eviction_refusal(preemptor, contender, quota) or _turn_refusal(
            context, replica, victim
        )
        if refusal is not None:
            return _of_victim(refusal, victim, replica)
        if _is_in_running_gang(draft, victim):
            running.add(victim.spec.workload_uid)
        if contender.of is CapacityClass.HARD:
            quota = less_hard(quota, victim.namespace, contender.amounts)
        way = _way_for(victim, replica)
        why = Displaced(
            by=replica.spec.workload_uid,
            priority=replica.spec.priority,
            at=context.at,
            incarnation=victim.spec.incarnation,
        )
        after = stop(draft, context, victim, Cause.PREEMPTION, way, displaced=why)
        if isinstance(after, Refusal):
            return _of_victim(after, victim, replica)
        stopped.append(victim)
        if binding is not None and binding.node in emptied:
            held = held_by_binding(binding)
            emptied[binding.node] = return_allocation(
                emptied[binding.node], held, victim.metadata.uid
            )
    groups = _groups(draft, stopped, running)
    refusal = _gangs_refusal(draft, replica, groups) or _elsewhere_refusal(ledgers, groups)
    return refusal or _unneeded_refusal(draft, context, places, emptied, groups) or emptied


def _contender(draft: Draft, places: Sequence[_Place]) -> Contender:
    """The preemptor for the rule: as all of it would be charged."""
    replica = places[0].replica
    return Contender(
        replica.namespace,
        replica.spec.priority,
        capacity_class(draft, replica.spec.template.priority_class),
        cohort_of(draft, replica.namespace),
        _sum(demand_of(it.replica.spec.template).amounts for it in places),
    )


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for each in amounts:
        total = add(total, each)
    return total


def _turn_refusal(context: Context, replica: Replica, victim: Replica) -> Refusal | None:
    displaced = replica.status.displaced
    ago_ms = context.age_ms(displaced.at) if displaced is not None and displaced.at else 0
    return turn_refusal(displaced, victim.spec.workload_uid, ago_ms)


def _of_victim(refusal: Refusal, victim: Replica, replica: Replica) -> Refusal:
    """The refusal with the victim that it is about: by name only within its tenant."""
    is_own = victim.namespace == replica.namespace
    name = victim.name if is_own else "work of another tenant"
    return msgspec.structs.replace(
        refusal,
        message=f"victim {name}: {refusal.message}",
        details={**refusal.details, "victim": victim.metadata.uid},
    )


def _way_for(victim: Replica, replica: Replica) -> str:
    """What a victim makes way for. Of another tenant's work it learns the priority and no name."""
    if victim.namespace == replica.namespace:
        return f"makes way for {replica.name}"
    return f"makes way for another tenant's work of priority {replica.spec.priority}"


# Gangs among the victims -------------------------------------------------------------------------


def _is_in_running_gang(draft: Draft, victim: Replica) -> bool:
    record = gangs.record_of(draft, victim) if victim.spec.gang else None
    return is_formed(record, victim.spec.workload_uid)


class _Group(msgspec.Struct, frozen=True):
    """Victims that are needed together or not at all: one, or all members of a gang that ends."""

    victims: tuple[Replica, ...]
    is_gang: bool = False


def _groups(draft: Draft, stopped: Sequence[Replica], running: set[str]) -> list[_Group]:
    """The victims, those of a gang that ends by this transaction as one."""
    ended: dict[str, list[Replica]] = {}
    groups = []
    for victim in stopped:
        uid = victim.spec.workload_uid
        if uid in running and not _is_in_running_gang(draft, victim):
            ended.setdefault(uid, []).append(victim)
        else:
            groups.append(_Group((victim,)))
    return [*groups, *(_Group(tuple(members), is_gang=True) for members in ended.values())]


def _gangs_refusal(draft: Draft, replica: Replica, groups: Iterable[_Group]) -> Refusal | None:
    """Refuse to leave members of a gang running that are too few to go on."""
    for group in groups:
        left = left_running(gangs.members_of(draft, group.victims[0])) if group.is_gang else 0
        refusal = split_gang_refusal(left)
        if refusal is not None:
            return _of_victim(refusal, group.victims[0], replica)
    return None


def _elsewhere_refusal(ledgers: Ledgers, groups: Iterable[_Group]) -> Refusal | None:
    """Refuse victims that make no room where a place is promised. Members of a gang that ends may
    run anywhere, if one of them makes room.
    """
    for group in groups:
        if not any(_node_of(it) in ledgers for it in group.victims):
            victim, nodes = group.victims[0], ", ".join(ledgers)
            return Refusal(Reason.WRONG_STATE, f"{victim.name} does not run on {nodes}")
    return None


def _node_of(victim: Replica) -> str:
    binding = victim.status.binding
    return binding.node if binding is not None else ""


# Room and quota ----------------------------------------------------------------------------------


def _unneeded_refusal(
    draft: Draft,
    context: Context,
    places: Sequence[_Place],
    emptied: Ledgers,
    groups: Sequence[_Group],
) -> Refusal | None:
    """Refuse victims without which there would be room as well, on the nodes and in the quota: the
    snapshot was old, and other work has ended meanwhile.
    """
    replica = places[0].replica
    amounts = _sum(demand_of(it.replica.spec.template).amounts for it in places)
    for group in groups:
        kept = dict(emptied)
        for victim in group.victims:
            binding = victim.status.binding
            if binding is not None and binding.node in kept:
                held = held_by_binding(binding)
                kept[binding.node] = take_allocation(kept[binding.node], held, victim.metadata.uid)
        if isinstance(_claims(kept, places), Refusal):
            continue
        others = [it for other in groups if other is not group for it in other.victims]
        if _allowance(draft, context, replica, amounts, others) is None:
            nodes = ", ".join(kept)
            needless = Refusal(Reason.VICTIM_NOT_NEEDED, f"there is room on node {nodes} beside it")
            return _of_victim(needless, group.victims[0], replica)
    return None


def _allowance(
    draft: Draft, context: Context, replica: Replica, amounts: Amounts, leavers: Sequence[Replica]
) -> Refusal | None:
    """Whether the quota would refuse the binds once these have released what they hold."""
    name = replica.spec.template.priority_class
    of, budget = capacity_class(draft, name), budget_of(name)
    return allowance_refusal(draft, context, replica.namespace, of, amounts, budget, leavers)


def _promise(
    draft: Draft,
    context: Context,
    request: StopAndReserve,
    places: Sequence[_Place],
    emptied: Ledgers,
    mark: str,
) -> Reservation | Refusal:
    """Promise each place under a reservation of its replica."""
    claims = _claims(emptied, places)
    if isinstance(claims, Refusal):
        return claims
    first = places[0].replica
    leavers = [
        v for v in (find_replica(draft, t) for t in request.victims) if isinstance(v, Replica)
    ]
    # No victim is stopped for work that its own quota would refuse afterwards.
    total = _sum(held.charge for held in claims)
    refusal = _allowance(draft, context, first, total, leavers)
    if refusal is not None:
        return refusal
    made: list[Reservation] = []
    for it, held in zip(places, claims, strict=True):
        promise = _promised(draft, context, request, it, held)
        if isinstance(promise, Refusal):
            return promise
        made.append(promise)
    answer = add_operation(draft, context, made[0], request.operation, mark)
    for promise in (answer, *made[1:]):
        save(draft, promise)
    # The replica stays Pending with its transition number. A late copy finds its operation here,
    # and the active reservations and the victims' numbers refuse any other try.
    noted = add_operation(draft, context, first, request.operation, mark)
    draft.write(keys.key_of(first), noted)
    return answer


def _promised(
    draft: Draft, context: Context, request: StopAndReserve, place: _Place, held: Allocation
) -> Reservation | Refusal:
    """The reservation of one promised place, which its node's ledger has from now on."""
    replica = place.replica
    of = capacity_class(draft, replica.spec.template.priority_class)
    budget = budget_of(replica.spec.template.priority_class)
    # Charged at once where the quota has room already, so that nothing else takes that room before
    # the bind. Otherwise the bind charges what the victims gave back.
    cohort = charge_tenant(draft, context, replica.namespace, of, held.charge, budget)
    spec = ReservationSpec(
        owner=replica_owner(replica),
        intent=Intent.PREEMPTION,
        deadline=request.deadline,
        capacity_class=of,
        priority_class=budget,
        quota=not isinstance(cohort, Refusal),
    )
    name = reservation_name(replica.name, Intent.PREEMPTION)
    made = open_reservation(draft, context, replica.namespace, name, spec, request.term.epoch)
    if isinstance(made, Refusal):
        return made
    promise = Claim(
        node=place.node,
        replica=replica.name,
        charge=held.charge,
        devices=held.devices,
        ports=held.ports,
    )
    key = keys.node_ledger(place.node)
    real = draft.ledger(NodeLedger, key)
    if real is not None:
        draft.write(key, promise_allocation(real, held, made.metadata.uid))
    status = msgspec.structs.replace(
        made.status, claims=(promise,), cohort=cohort if isinstance(cohort, str) else ""
    )
    return msgspec.structs.replace(made, status=status)


STEPS = (
    PlacementStep(
        "stop victims and promise their place",
        "scheduler",
        "a snapshot with the victims on it",
        "a victim ends, a budget is used up, the quota would not allow the bind",
        "the commit; no victim is stopped in vain",
        is_aged=True,
        age_max_ms=PREEMPTION_AGE_MAX_MS,
        request=StopAndReserve,
        handler=stop_and_reserve,
        compares=(*PLACE, ComparedRecord.DISRUPTION_LEDGER),
    ),
)
