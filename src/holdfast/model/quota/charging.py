"""What is charged to whom: which reservations count, and which quota, class and budget pay.

Proposal, commit, correction and explanation call these, so that none of them counts differently.
"""

from __future__ import annotations

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Intent, Reservation, ReservationPhase
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, Quota
from holdfast.model.lifecycle import CHARGED
from holdfast.model.meta import Object
from holdfast.model.quota.ledger import Amounts, add

# The name of the Quota object that limits a tenant.
QUOTA_NAME = "default"
# The priority class of work that names none.
PRIORITY_NAME = "default"

_HOLDING = (ReservationPhase.HELD, ReservationPhase.COMMITTED)


def is_active(reservation: Reservation) -> bool:
    """Whether a reservation counts: its open claims hold capacity and quota."""
    return reservation.status.phase in _HOLDING


def hard_charge(owner: Object) -> Amounts:
    """What a replica or a reservation is charged of its tenant's committed capacity."""
    if isinstance(owner, Reservation):
        spec = owner.spec
        if not is_active(owner) or not spec.quota or spec.capacity_class is not CapacityClass.HARD:
            return {}
        total: Amounts = {}
        for claim in owner.status.claims:
            total = total if claim.consumed else add(total, claim.charge)
        return total
    if not isinstance(owner, Replica) or owner.status.state not in CHARGED:
        return {}
    binding = owner.status.binding
    is_hard = binding is not None and binding.capacity_class in ("", CapacityClass.HARD.value)
    return binding.charge if binding is not None and is_hard else {}


def is_recovery(owner: Object) -> bool:
    """Whether what this owner holds of a node is reserved for recovery, and so never diluted."""
    return isinstance(owner, Reservation) and owner.spec.intent is Intent.RECOVERY


def quota_cohort(quota: Quota | None, tenant: str) -> str:
    """The cohort in whose ledger a tenant with this Quota is charged.

    A tenant without one has a cohort of its own. No real cohort can have its name, because it
    contains a colon.
    """
    return quota.spec.cohort if quota is not None and quota.spec.cohort else f"tenant:{tenant}"


def budget_of(priority_class: str) -> str:
    """The priority class whose budget is charged: the default if the work names none."""
    return priority_class or PRIORITY_NAME


def capacity_class_of(found: PriorityClass | None) -> CapacityClass:
    """Whether work of this class is charged as committed or as reclaimable capacity."""
    return found.spec.capacity_class if found is not None else CapacityClass.HARD
