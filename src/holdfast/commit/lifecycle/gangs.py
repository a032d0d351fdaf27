"""Gangs: no member is bound before enough of them have a place, and a broken gang starts again.

The record of a gang (`model/placement/gang.py`) is written here, in the same transaction as the
bind or the end of a member, so these rules hold for any number of schedulers:

    bound together        one transaction, at least `minAvailable` members: the record is Consumed
    bound from its claims the record was Committed before, by one write
    bound alone           only while the gang runs: the member joins its record
    stopped, failed       the member leaves the record; with too few left the record is Released,
                          and controller:repair stops the others
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft, for_each
from holdfast.commit.lifecycle.reservations import open_reservation, save
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
    ReservationSpec,
)
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import State
from holdfast.model.placement.fit import Allocation
from holdfast.model.placement.gang import (
    FORMED,
    available,
    claim_of,
    gang_record_name,
    is_broken,
    is_formed,
    is_of_gang,
    members_needed,
    names_members,
    phase_when_over,
    with_member_ports,
    without_member,
)
from holdfast.model.quota.charging import is_active
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.refusal import Reason, Refusal

# A record that is bound at once is never held; its deadline only has to be in the future.
RECORD_FOR = timedelta(minutes=5)


def record_of(draft: Draft, replica: Replica) -> Reservation | None:
    """The record of the gang of this replica, if it is not that of an earlier workload."""
    record = draft.object(Reservation, replica.namespace, gang_record_name(replica.spec.gang))
    return record if is_of_gang(record, replica.spec.workload_uid) else None


def members_of(draft: Draft, replica: Replica) -> list[Replica]:
    """The members that the record of the gang of this replica names."""
    record = record_of(draft, replica)
    names = [it.replica for it in record.status.claims] if record is not None else []
    found = for_each(names, lambda name: draft.object(Replica, replica.namespace, name))
    return [it for it in found if it is not None]


def workload_of(draft: Draft, replica: Replica) -> Workload | None:
    """The workload of a replica with exactly its uid."""
    found = draft.object(Workload, replica.namespace, replica.spec.workload)
    return found if found is not None and found.metadata.uid == replica.spec.workload_uid else None


def member_allocation(
    ledger: NodeLedger, replica: Replica, held: Allocation, claimed: tuple[str, ...] = ()
) -> Allocation | Refusal:
    """What a member takes, with the numbers of all its ports: those of its claim, or free ones."""
    template = replica.spec.template
    if claimed and len(claimed) == len(template.ports):
        return msgspec.structs.replace(held, ports=claimed)
    return with_member_ports(ledger, template, held, zlib.crc32(replica.metadata.uid.encode()))


def member_claim(
    draft: Draft, replica: Replica, node: str, ledger: NodeLedger, held: Allocation
) -> Claim:
    """The place of a member for the record, with its address if the members learn of each other."""
    workload = workload_of(draft, replica) if replica.spec.gang else None
    is_named = workload is not None and names_members(workload)
    return Claim(
        node=node,
        replica=replica.name,
        address=ledger.gate.address if is_named else "",
        charge=held.charge,
        devices=held.devices,
        ports=held.ports,
    )


def join(
    draft: Draft, replica: Replica, node: str, ledger: NodeLedger, held: Allocation
) -> Refusal | None:
    """Add a member to its running gang, or refuse: the first members are bound together."""
    record = record_of(draft, replica)
    if record is None or not is_formed(record, replica.spec.workload_uid):
        return Refusal(
            Reason.GANG_INCOMPLETE,
            f"gang {replica.spec.gang} does not run: its first members are bound together, and "
            f"{replica.name} alone is not",
            {"gang": replica.spec.gang},
        )
    if claim_of(record, replica.name) is None:
        _add(draft, record, (member_claim(draft, replica, node, ledger, held),))
    return None


def form(
    draft: Draft, context: Context, members: Sequence[Replica], claims: Sequence[Claim], epoch: int
) -> Refusal | None:
    """Write the record of a gang whose members were bound together by this transaction."""
    first = members[0]
    uids = {it.spec.workload_uid for it in members}
    if len(uids) > 1 or not all(it.spec.gang for it in members):
        return Refusal(Reason.INVALID, "binds: the members of one gang are bound by themselves")
    workload = workload_of(draft, first)
    if workload is None or workload.metadata.deletion_timestamp is not None:
        return Refusal(
            Reason.TERMINATING, f"workload {first.spec.workload} is gone or being deleted"
        )
    record = record_of(draft, first)
    if record is not None and is_formed(record, first.spec.workload_uid):
        _add(draft, record, tuple(claims))
        return None
    if record is not None and is_active(record):
        return Refusal(
            Reason.RESERVATION_EXISTS,
            f"gang {first.spec.gang} is being placed by {record.status.by}",
            {"reservation": record.name},
        )
    needed = members_needed(workload)
    # A member that is named twice, or was bound before, takes no place here and so does not count.
    if len(claims) < needed:
        return _too_few(first, needed, f"{len(claims)} are bound together")
    binding = first.status.binding
    spec = ReservationSpec(
        owner=ReservationOwner(
            "Workload", workload.name, workload.metadata.uid, workload.metadata.generation
        ),
        intent=Intent.GANG,
        deadline=context.at + RECORD_FOR,
        priority_class=binding.priority_class if binding is not None else "",
        min_available=max(1, needed),
    )
    name = gang_record_name(first.spec.gang)
    made = open_reservation(draft, context, first.namespace, name, spec, epoch)
    if isinstance(made, Refusal):
        return made
    status = msgspec.structs.replace(made.status, phase=ReservationPhase.CONSUMED)
    _add(draft, msgspec.structs.replace(made, status=status), tuple(claims))
    return None


def start_refusal(draft: Draft, member: Replica, places: int) -> Refusal | None:
    """Refuse to make room for fewer members than the gang needs to start; one that runs may grow
    by one.
    """
    record = record_of(draft, member)
    if record is not None and is_formed(record, member.spec.workload_uid):
        return None
    workload = workload_of(draft, member)
    needed = members_needed(workload) if workload is not None else 0
    if places < needed:
        return _too_few(member, needed, f"places are asked for {places}")
    return None


def _too_few(member: Replica, needed: int, there: str) -> Refusal:
    return Refusal(
        Reason.GANG_INCOMPLETE,
        f"gang {member.spec.gang} needs {needed} members, {there}",
        {"gang": member.spec.gang, "needed": str(needed)},
    )


def _add(draft: Draft, record: Reservation, claims: tuple[Claim, ...]) -> None:
    consumed = (msgspec.structs.replace(it, consumed=True) for it in claims)
    status = msgspec.structs.replace(record.status, claims=(*record.status.claims, *consumed))
    save(draft, msgspec.structs.replace(record, status=status))


def commit_refusal(draft: Draft, record: Reservation) -> Refusal | None:
    """Refuse to commit a gang before enough of its members have a place."""
    owner = record.spec.owner
    workload = draft.object(Workload, record.namespace, owner.name)
    needed = record.spec.min_available
    if workload is not None and workload.metadata.uid == owner.uid:
        needed = max(needed, members_needed(workload))
    if len(record.status.claims) >= needed:
        return None
    return Refusal(
        Reason.GANG_INCOMPLETE,
        f"{len(record.status.claims)} of {needed} members have a place",
        {"gang": owner.name, "needed": str(needed)},
    )


def leave(draft: Draft, replica: Replica, to: State) -> None:
    """Take a member that stops, or has ended, out of the record of its gang.

    With fewer left than needed the gang is over: the record is Released, no other member joins it,
    and controller:repair stops those that still run, so that it can start again as a whole.
    """
    if not replica.spec.gang or to not in (State.STOPPING, State.FAILED, State.RELEASED):
        return
    record = record_of(draft, replica)
    claim = claim_of(record, replica.name) if record is not None else None
    if record is None or claim is None or not claim.consumed:
        return
    workload = workload_of(draft, replica)
    is_job = workload is not None and workload.spec.type is WorkloadType.JOB
    succeeded = is_job and replica.status.state is State.SUCCEEDED
    after = without_member(record, replica.name, succeeded=succeeded)
    gang = workload.spec.gang if workload is not None else None
    least = gang.min_available if gang is not None else 1
    if record.status.phase in FORMED and is_broken(after, least):
        says = f"{available(after)} of {min(after.spec.min_available, least)} members are left"
        status = msgspec.structs.replace(after.status, phase=phase_when_over(after), reason=says)
        after = msgspec.structs.replace(after, status=status)
    save(draft, after)
