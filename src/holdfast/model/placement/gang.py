"""Gangs: how many members start together, who belongs to one, and who may be taken from it.

A gang is the replicas of a workload with `spec.gang`. Its record is the reservation of intent gang
that the workload owns: a claim for each member that has a place, with its node's address and ports.
The commit writes it in the transaction of each bind and each end of a member, so that scheduler,
controller:repair, agents, explain and the simulator's checkers ask these functions about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationPhase,
    reservation_name,
)
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import State
from holdfast.model.placement.fit import Allocation
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.workload.indexes import parse
from holdfast.model.workload.jobs import completions

# Members of a gang that may be bound, or that run.
FORMED = (ReservationPhase.COMMITTED, ReservationPhase.CONSUMED)
# The states of a member that has a place and is not on its way out.
PLACED = (State.RESERVED, State.BOUND, State.RUNNING, State.UNKNOWN)
# A member in one of these no longer counts for its gang.
LEFT = (State.PENDING, State.STOPPING, State.FAILED, State.RELEASED)


def gang_record_name(workload: str) -> str:
    """The name of the record of a workload's gang."""
    return reservation_name(workload, Intent.GANG)


def is_of_gang(record: Reservation | None, workload_uid: str) -> bool:
    """Whether this is the record of this workload's gang, and not of an earlier one of its name."""
    is_record = record is not None and record.spec.intent is Intent.GANG
    return is_record and record is not None and record.spec.owner.uid == workload_uid


def is_formed(record: Reservation | None, workload_uid: str) -> bool:
    """Whether the gang may run: enough members have places, by one committed write."""
    if record is None or not is_of_gang(record, workload_uid):
        return False
    return record.status.phase in FORMED


def runs(record: Reservation, workload_uid: str) -> bool:
    """Whether members of the gang may run by this record, so that it has to stay."""
    return is_formed(record, workload_uid) and bool(record.status.claims)


def claim_of(record: Reservation, replica: str) -> Claim | None:
    """The place of a member in the record of its gang."""
    return next((it for it in record.status.claims if it.replica == replica), None)


def available(record: Reservation) -> int:
    """How many members a gang has: those with a place, and those that have done their work."""
    return len(record.status.claims) + record.status.succeeded


def spare_members(record: Reservation, min_available: int) -> int:
    """How many members may leave a gang so that it goes on without them; negative if it does not.

    A `minAvailable` that was lowered since it started counts at once, one that was raised at the
    next start.
    """
    return available(record) - min(record.spec.min_available, min_available)


def is_broken(record: Reservation, min_available: int) -> bool:
    """Whether too few members of a gang are left, so that the others stop and it starts again."""
    return spare_members(record, min_available) < 0


def left_running(members: Iterable[Replica]) -> int:
    """How many of these members have a place and are not on their way out."""
    return sum(it.status.state in PLACED for it in members)


def phase_when_over(record: Reservation) -> ReservationPhase:
    """The phase of the record of a gang with too few members: no member may be bound any more.

    What it still holds stays held, until its scheduler gives it back or the deadline passes.
    """
    holds = any(not it.consumed for it in record.status.claims)
    return ReservationPhase.HELD if holds else ReservationPhase.RELEASED


def without_member(record: Reservation, replica: str, *, succeeded: bool) -> Reservation:
    """The record after a member gave back its place; one that has done its work still counts."""
    claims = tuple(it for it in record.status.claims if it.replica != replica)
    done = record.status.succeeded + (succeeded and len(claims) < len(record.status.claims))
    status = msgspec.structs.replace(record.status, claims=claims, succeeded=done)
    return msgspec.structs.replace(record, status=status)


def members_needed(workload: Workload) -> int:
    """How many members must have a place before any of them starts; 0 if it is not a gang.

    A job that is started again needs no more members than it has indexes to complete.
    """
    gang = workload.spec.gang
    if gang is None:
        return 0
    if workload.spec.type is not WorkloadType.JOB:
        return gang.min_available
    left = completions(workload.spec) - len(parse(workload.status.job.completed_indexes))
    return max(1, min(gang.min_available, left))


def names_members(workload: Workload) -> bool:
    """Whether the members learn of each other: names, and where their ports are.

    The pieces of a job that is not indexed are alike, and none addresses another.
    """
    is_job = workload.spec.type is WorkloadType.JOB
    return workload.spec.gang is not None and (not is_job or workload.spec.job.indexed)


# Ports of members. --------------------------------------------------------------------------------
#
# A member must know the ports of the others before any of them starts, so the commit chooses a
# number for each port 0 of a member when it takes the place. The numbers are below those that
# agents choose from (`host/runtime/ports.py`), so that no agent gives one to other work.

PORTS_FIRST, PORTS_LAST = 15_000, 19_999


def with_member_ports(
    ledger: NodeLedger, template: Template, held: Allocation, start: int
) -> Allocation | Refusal:
    """The allocation with a number for each port of the template, in its order.

    The search begins at `start`, so that a number is seldom used again at once: a peer of earlier
    work may still try to reach it.
    """
    taken = set(held.ports)
    ports: list[str] = []
    for port in template.ports:
        key = f"{port.protocol.value}/{port.port}"
        if not port.port:
            found = _free_port(ledger, port.protocol.value, taken, start)
            if found is None:
                return Refusal(
                    Reason.PORT_TAKEN,
                    f"port {port.name}: all of {PORTS_FIRST}-{PORTS_LAST} are taken",
                    {"port": port.name},
                )
            key = found
        taken.add(key)
        ports.append(key)
    return msgspec.structs.replace(held, ports=tuple(ports))


def _free_port(ledger: NodeLedger, protocol: str, taken: set[str], start: int) -> str | None:
    count = PORTS_LAST + 1 - PORTS_FIRST
    for offset in range(count):
        key = f"{protocol}/{PORTS_FIRST + (start + offset) % count}"
        is_held = key in taken or key in ledger.ports or key in ledger.promised_ports
        if not is_held and ledger.offers(key):
            return key
    return None


def with_numbers(template: Template, ports: Sequence[str]) -> Template:
    """The template with the numbers that were chosen for its ports, in its order."""
    if len(ports) != len(template.ports):
        return template
    numbered = tuple(
        msgspec.structs.replace(port, port=int(key.partition("/")[2]))
        for port, key in zip(template.ports, ports, strict=True)
    )
    return msgspec.structs.replace(template, ports=numbered)


def member_variables(record: Reservation, template: Template) -> Mapping[str, str]:
    """What the work of a member learns about its gang, as variables.

    The members are in the order of their indexes, and their addresses in the same order.
    """
    claims = sorted(record.status.claims, key=lambda it: (_index(it.replica), it.replica))
    known = {"HOLDFAST_GANG_SIZE": str(len(claims))}
    if not all(it.address for it in claims):
        # A job that is not indexed.
        return known
    known["HOLDFAST_MEMBERS"] = ",".join(it.replica for it in claims)
    for place, port in enumerate(template.ports):
        if any(len(it.ports) != len(template.ports) for it in claims):
            break
        name = "HOLDFAST_MEMBERS_" + port.name.upper().replace("-", "_").replace(".", "_")
        known[name] = ",".join(_address(it, place) for it in claims)
    return known


def _address(claim: Claim, place: int) -> str:
    host = f"[{claim.address}]" if ":" in claim.address else claim.address
    return f"{host}:{claim.ports[place].partition('/')[2]}"


def _index(replica: str) -> int:
    """The index of a member, by the name of its replica: <workload>-<index>-<incarnation>."""
    parts = replica.rsplit("-", 2)
    return int(parts[-2]) if len(parts) == 3 and parts[-2].isdigit() else 0
