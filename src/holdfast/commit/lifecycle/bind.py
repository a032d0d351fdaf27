"""The bind: one transaction that commits a placement.

It reads, and therefore compares, the replica, the node's ledger with its gate, the tenant, its
quota and cohort ledger, the region's rules, the priority class, the policy revision and the
proposer's epoch. It writes the replica, the node's ledger and the quota ledger together. Nothing is
checked first and written later.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import UNCOMMITTED, Draft, NotLoaded, for_each
from holdfast.commit.leases import former_holder_refusal, term_refusal
from holdfast.commit.ledgers.charges import (
    capacity_class,
    charge_tenant,
    cohort_of,
    take_node,
)
from holdfast.commit.lifecycle import gangs
from holdfast.commit.lifecycle.reservations import (
    claim_for,
    consume_claim,
    drop_claims,
    give_back,
    held_for,
    is_promise,
    overdue_refusal,
    save,
)
from holdfast.commit.lifecycle.transitions import (
    actor_for,
    current_replica,
    find_replica,
    record_transition,
)
from holdfast.commit.operations import digest
from holdfast.commit.request_steps import PLACE, PlacementStep, Replayed, age_refusal
from holdfast.model import keys
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Binding, DeviceShare, Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation, ReservationPhase
from holdfast.model.kinds.schedulerpolicy import PolicyStage, SchedulerPolicy
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, Quota, Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Stage, State
from holdfast.model.placement import placement_rules
from holdfast.model.placement.fit import Allocation, claim, demand_of, withdraw_promise
from holdfast.model.placement.gang import gang_record_name
from holdfast.model.quota.charging import PRIORITY_NAME, QUOTA_NAME, budget_of, is_active
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import Bind, BindTogether, Target


def load_for_place(draft: Draft, target: Target, node: str, scope: str) -> None:
    """Load all records of a placement at once, as far as their keys are known before the first
    is read.
    """
    tenant = target.namespace
    draft.load(
        keys.object_key(kind_of_struct(Replica), tenant, target.name),
        keys.node_ledger(node),
        keys.object_key(kind_of_struct(Tenant), "", tenant),
        keys.object_key(kind_of_struct(Quota), tenant, QUOTA_NAME),
        keys.object_key(kind_of_struct(PriorityClass), "", PRIORITY_NAME),
        keys.grant_ledger(tenant),
        keys.epoch(scope),
    )
    draft.load(keys.quota_ledger(cohort_of(draft, tenant)))


def node_for(draft: Draft, node: str, uid: str) -> NodeLedger | Refusal:
    """The ledger of exactly the node that was proposed."""
    ledger = draft.ledger(NodeLedger, keys.node_ledger(node))
    if ledger is None:
        return Refusal(Reason.NODE_MISSING, f"node {node} is not registered", {"node": node})
    if ledger.gate.uid != uid:
        return Refusal(
            Reason.NODE_CHANGED, f"node {node} was replaced: propose again", {"node": node}
        )
    if ledger.quarantined:
        return Refusal(
            Reason.NODE_QUARANTINED,
            f"the ledger of node {node} is in quarantine; see `holdfast repair list`",
            {"node": node},
        )
    return ledger


def place_refusal(
    draft: Draft, work: Replica | Workload, node: str, ledger: NodeLedger
) -> Refusal | None:
    """Refuse a placement that a placement rule forbids, by the same rules as the proposal's
    filters.
    """
    gate = ledger.gate
    tenant = draft.object(Tenant, "", work.namespace)
    region = draft.object(Region, "", gate.region) if gate.region else None
    refusal = placement_rules.place_refusal(
        gate, work.spec.template, work.namespace, tenant, region
    ) or placement_rules.neighbour_refusal(gate, ledger.tenants, work.namespace)
    if refusal is None or refusal.reason is Reason.TENANT_SUSPENDED:
        return refusal
    return msgspec.structs.replace(
        refusal,
        message=f"node {node}: {refusal.message}",
        details={**refusal.details, "node": node},
    )


def fit_on(
    node: str,
    ledger: NodeLedger,
    replica: Replica,
    devices: tuple[DeviceShare, ...] | None,
    holder: str = "",
    claimed: tuple[str, ...] = (),
) -> Allocation | Refusal:
    """What the replica would take of the node, or why it does not fit. `claimed` are the ports that
    were chosen for it, if it is a member of a gang with a claim.
    """
    held = claim(ledger, demand_of(replica.spec.template), devices, holder)
    if replica.spec.gang and not isinstance(held, Refusal):
        held = gangs.member_allocation(ledger, replica, held, claimed)
    if isinstance(held, Refusal):
        return msgspec.structs.replace(
            held, message=f"node {node}: {held.message}", details={**held.details, "node": node}
        )
    return held


def policy_refusal(draft: Draft, policy: str) -> Refusal | None:
    """Refuse a proposal whose policy revision is no longer in force."""
    if not policy:
        return None
    found = draft.object(SchedulerPolicy, "", policy)
    if found is None or found.spec.stage in (PolicyStage.INACTIVE, PolicyStage.SHADOW):
        stage = found.spec.stage.value if found is not None else "missing"
        return Refusal(
            Reason.POLICY_CHANGED,
            f"policy {policy} is {stage}",
            {"policy": policy, "stage": stage},
        )
    return None


def _with_seen(draft: Draft, request: Bind, refusal: Refusal) -> Refusal:
    """Add the revisions that the proposal rested on and the current ones, so that the proposer
    learns: of the node itself, and of what is taken on it.
    """
    node = keys.object_key(kind_of_struct(Node), "", request.node)
    return msgspec.structs.replace(
        refusal,
        details={
            **refusal.details,
            "snapshotRevision": str(request.snapshot_revision),
            "observedNodeRevision": str(request.node_revision),
            "nodeRevision": _revision(draft, node),
            "ledgerRevision": _revision(draft, keys.node_ledger(request.node)),
        },
    )


def _revision(draft: Draft, key: str) -> str:
    found = draft.compare(key)
    return "uncommitted" if found == UNCOMMITTED else str(found)


def bind(draft: Draft, context: Context, request: Bind) -> Replica | Replayed | Refusal:
    """Pending or Reserved to Bound."""
    return _bind_loaded(draft, context, request)


def _bind_loaded(
    draft: Draft, context: Context, request: Bind, forming: list[Claim] | None = None
) -> Replica | Replayed | Refusal:
    """Bind, and on a miss load all that a bind reads. `forming` collects the places of the members
    of a gang that are bound together: then none of them has to belong to a running gang.
    """
    try:
        return _bind(draft, context, request, forming)
    except NotLoaded:
        # Rare, so only now is it worth listing everything that a bind reads. Nothing was written
        # yet.
        load_for_place(draft, request.target, request.node, request.term.scope)
        raise


def _bind(
    draft: Draft, context: Context, request: Bind, forming: list[Claim] | None
) -> Replica | Replayed | Refusal:
    mark = digest(request)
    replica = current_replica(draft, request.target, request.operation, mark)
    if isinstance(replica, Refusal):
        return former_holder_refusal(draft, context, request.term, replica)
    if not isinstance(replica, Replica):
        return replica
    actor = actor_for(context, replica, State.BOUND)
    if isinstance(actor, Refusal):
        return actor
    refusal = (
        term_refusal(draft, context, request.term)
        or age_refusal(context, request.snapshot_age_ms)
        or life_refusal(draft, replica)
        or policy_refusal(draft, request.policy)
    )
    if refusal is not None:
        return refusal
    ledger = node_for(draft, request.node, request.node_uid)
    if isinstance(ledger, Refusal):
        return ledger
    refusal = place_refusal(draft, replica, request.node, ledger)
    if refusal is not None:
        return _with_seen(draft, request, refusal)
    taken = _take(draft, context, request, replica, ledger)
    if isinstance(taken, Refusal):
        return _with_seen(draft, request, taken)
    refusal = _gang_refusal(draft, request, replica, ledger, taken.held, forming)
    if refusal is not None:
        return refusal
    binding = _binding(draft, context, request, replica, ledger, taken)
    return record_transition(
        draft,
        context,
        replica,
        State.BOUND,
        reason="Bound",
        evidence=f"node {request.node} at revision {request.node_revision}, on a snapshot of "
        f"revision {request.snapshot_revision}, {request.snapshot_age_ms} ms old, epoch "
        f"{request.term.epoch}",
        operation=request.operation,
        mark=mark,
        binding=binding,
        reservation="",
        stage=Stage.BOUND,
        pending=None,
    )


def _gang_refusal(
    draft: Draft,
    request: Bind,
    replica: Replica,
    ledger: NodeLedger,
    held: Allocation,
    forming: list[Claim] | None,
) -> Refusal | None:
    """Refuse a member whose gang does not run; otherwise it joins its gang with this bind."""
    name = request.reservation or replica.status.reservation
    if not replica.spec.gang or name == gang_record_name(replica.spec.gang):
        # Its claim is the proof: `_owner_refusal` has looked at the phase.
        return None
    if forming is None:
        return gangs.join(draft, replica, request.node, ledger, held)
    forming.append(gangs.member_claim(draft, replica, request.node, ledger, held))
    return None


def life_refusal(draft: Draft, replica: Replica) -> Refusal | None:
    """Refuse a placement that this replica no longer needs."""
    if replica.metadata.deletion_timestamp is not None:
        return Refusal(Reason.TERMINATING, f"replica {replica.name} is being deleted")
    found: Replica | None = draft.found(keys.key_of(replica))
    if found is None or found.metadata.uid != replica.metadata.uid:
        return Refusal(Reason.STALE_REPLICA, f"replica {replica.name} is not committed yet")
    return None


class _Taken(msgspec.Struct, frozen=True, gc=False):
    """What a bind takes, and from which cohort."""

    held: Allocation
    cohort: str
    of: CapacityClass
    budget: str


def _take(
    draft: Draft, context: Context, request: Bind, replica: Replica, ledger: NodeLedger
) -> _Taken | Refusal:
    """Charge node and tenant, or use a reservation if the replica has one or the request names
    one.
    """
    name = request.reservation or replica.status.reservation
    if name:
        return _take_reserved(draft, context, request, replica, ledger, name)
    held = fit_on(request.node, ledger, replica, request.devices)
    if isinstance(held, Refusal):
        return held
    of = capacity_class(draft, replica.spec.template.priority_class)
    budget = budget_of(replica.spec.template.priority_class)
    cohort = charge_tenant(draft, context, replica.namespace, of, held.charge, budget)
    if isinstance(cohort, Refusal):
        return cohort
    take_node(draft, request.node, ledger, held, replica)
    return _Taken(held, cohort, of, budget)


def _take_reserved(
    draft: Draft, context: Context, request: Bind, replica: Replica, ledger: NodeLedger, name: str
) -> _Taken | Refusal:
    """Turn a claim into a binding: release the claim and take the same, within this transaction."""
    reservation = draft.object(Reservation, replica.namespace, name)
    if reservation is None or not is_active(reservation):
        return Refusal(
            Reason.RESERVATION_MISSING, f"reservation {name} is not active", {"reservation": name}
        )
    refusal = overdue_refusal(context, reservation) or _owner_refusal(reservation, replica)
    if refusal is not None:
        return refusal
    index = claim_for(reservation, replica, request.node)
    if index is None:
        return Refusal(
            Reason.RESERVATION_MISSING,
            f"reservation {name} holds no open claim for {replica.name} on {request.node}",
            {"reservation": name},
        )
    mine = reservation.status.claims[index]
    uid = reservation.metadata.uid
    other = replica.status.reservation
    if other and other != name:
        # The replica needs only one place, so the place that was reserved before is free again.
        drop_claims(draft, context, replica.namespace, other, replica, f"bound by {name}")
        ledger = draft.ledger(NodeLedger, keys.node_ledger(request.node)) or ledger
    give_back(draft, reservation, mine)
    free = draft.ledger(NodeLedger, keys.node_ledger(request.node)) or ledger
    if is_promise(reservation):
        # The promise is kept only if the victims have really released their share.
        held = fit_on(request.node, ledger, replica, mine.devices, uid, mine.ports)
        free = withdraw_promise(ledger, uid)
    else:
        held = fit_on(request.node, free, replica, mine.devices, claimed=mine.ports)
    if isinstance(held, Refusal):
        return held
    of = capacity_class(draft, replica.spec.template.priority_class)
    budget = budget_of(replica.spec.template.priority_class)
    cohort = charge_tenant(draft, context, replica.namespace, of, held.charge, budget)
    if isinstance(cohort, Refusal):
        return cohort
    take_node(draft, request.node, free, held, replica)
    save(draft, consume_claim(reservation, index, replica.name))
    return _Taken(held, cohort, of, budget)


def _owner_refusal(reservation: Reservation, replica: Replica) -> Refusal | None:
    """Refuse a replica that does not own the reservation: the owner is the replica itself, or
    its workload.
    """
    owner = reservation.spec.owner
    if not held_for(reservation, replica):
        return Refusal(
            Reason.PROTECTED_CAPACITY,
            f"reservation {reservation.name} is held for {owner.kind} {owner.name}",
            {"reservation": reservation.name},
        )
    gang = reservation.spec.intent is Intent.GANG
    if gang and reservation.status.phase is not ReservationPhase.COMMITTED:
        return Refusal(
            Reason.GANG_INCOMPLETE,
            f"gang {reservation.name} is not complete yet",
            {"reservation": reservation.name},
        )
    return None


def _binding(
    draft: Draft,
    context: Context,
    request: Bind,
    replica: Replica,
    ledger: NodeLedger,
    taken: _Taken,
) -> Binding:
    held = taken.held
    tenant = draft.object(Tenant, "", replica.namespace)
    return Binding(
        node=request.node,
        node_uid=ledger.gate.uid,
        node_incarnation=ledger.gate.incarnation,
        at=context.at,
        by=context.identity.name,
        scope=request.term.scope,
        epoch=request.term.epoch,
        policy=request.policy,
        snapshot_revision=request.snapshot_revision,
        snapshot_age_ms=request.snapshot_age_ms,
        charge=held.charge,
        devices=held.devices,
        ports=held.ports,
        cohort=taken.cohort,
        capacity_class=taken.of.value,
        priority_class=taken.budget,
        reservation=request.reservation or replica.status.reservation,
        # A replacement of this replica is created after this bind, so its token is larger. The
        # revision of the creation would not do: a name that is deleted and created again within one
        # transaction keeps it.
        token=draft.base(keys.key_of(replica)),
        deadline=request.deadline,
        installation=ledger.gate.installation,
        address=ledger.gate.address,
        tenant_uid=tenant.metadata.uid if tenant is not None else "",
        isolation=placement_rules.isolation_wanted(replica.spec.template, tenant),
        node_revision=request.node_revision,
    )


def bind_together(
    draft: Draft, context: Context, request: BindTogether
) -> tuple[Replica, ...] | Refusal:
    """Bind all or none. A member that this operation bound before counts as bound.

    The members of a gang that does not run yet form it by this transaction.
    """
    bound: list[Replica] = []
    formed: list[Claim] = []
    outcomes = for_each(request.binds, lambda part: _bind_loaded(draft, context, part, formed))
    for part, outcome in zip(request.binds, outcomes, strict=True):
        if isinstance(outcome, Refusal):
            who = f"{part.target.namespace}/{part.target.name}"
            return msgspec.structs.replace(outcome, message=f"{who}: {outcome.message}")
        if isinstance(outcome, Replayed):
            replica = find_replica(draft, part.target)
            if isinstance(replica, Refusal):
                return replica
            outcome = replica
        bound.append(outcome)
    if formed:
        members = [it for it in bound if it.spec.gang]
        refusal = gangs.form(draft, context, members, formed, request.binds[0].term.epoch)
        if refusal is not None:
            return refusal
    return tuple(bound)


STEPS = (
    PlacementStep(
        "bind",
        "scheduler",
        "the proposal's snapshot",
        "node full, device taken, quota used up, drain, another bind, a lost lease",
        "the commit; the refusal names the reason and both revisions",
        is_aged=True,
        request=Bind,
        handler=bind,
        compares=PLACE,
    ),
    PlacementStep(
        "bind several or none",
        "scheduler",
        "the proposal's snapshot",
        "as for one bind, for any of them",
        "the commit; all or none",
        is_aged=True,
        request=BindTogether,
        handler=bind_together,
        compares=PLACE,
    ),
)
