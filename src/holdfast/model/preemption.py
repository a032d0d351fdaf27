"""Who may be stopped to make room for whom: the one rule of preemption.

The commit asks `eviction_refusal` for each victim inside the transaction that stops it, with the
quota ledger that the transaction compares. The proposal, explanations and checkers ask it on what
they see. There are two ways to be a legal victim, and both need a preemptor whose priority class
preempts:

- *Lower value*: its capacity was charged as reclaimable, and its priority is lower.
- *Reclaim*: its tenant uses more committed capacity than its nominal share, and the preemptor's
  tenant, of the same cohort, stays within its own. Then priorities do not matter: what was lent
  is asked back.

Committed work inside the nominal share of its tenant is never a victim, whatever its priority. A
tenant without a limit for a resource is inside its share of it.
"""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.replica import Displaced, Replica
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass
from holdfast.model.placement.disruption import is_available
from holdfast.model.quota.allowance import above_nominal, is_inside_nominal
from holdfast.model.quota.ledger import Amounts, QuotaLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.service_class import CLASS_LOSS, service_class
from holdfast.model.time import wall_ms

# The most victims of one decision, and the most records that its one transaction compares: etcd
# takes 128, of which one is the format of the plane.
VICTIMS_MAX = 64
RECORDS_MAX = 127
# Of the preemptor's tenant and scheduler, and of each tenant of a victim: tenant, quota, ledgers.
_RECORDS_COMMON, _RECORDS_OF_TENANT = 9, 3


class Extent(msgspec.Struct, frozen=True, gc=False):
    """How much one preemption touches.

    places: how many places it promises. nodes: on how many nodes it promises or stops something.
    victims: how many it stops, of so many workloads, gangs and tenants.
    """

    places: int
    nodes: int
    victims: int
    workloads: int
    gangs: int
    tenants: int

    @property
    def records(self) -> int:
        """At most how many records its transaction compares."""
        of_victims = self.victims + self.workloads + 2 * self.gangs
        of_tenants = _RECORDS_COMMON + _RECORDS_OF_TENANT * self.tenants
        return 2 * self.places + self.nodes + of_victims + of_tenants


def extent_refusal(extent: Extent) -> Refusal | None:
    """Refuses a preemption that stops nothing, or more than one transaction may."""
    if 0 < extent.victims <= VICTIMS_MAX and extent.records <= RECORDS_MAX:
        return None
    return Refusal(
        Reason.NOT_ALLOWED,
        f"victims: {extent.victims} for {extent.places} places on {extent.nodes} nodes: must be 1 "
        f"to {VICTIMS_MAX}, and together touch at most {RECORDS_MAX} records, not "
        f"{extent.records}",
    )


class Contender(msgspec.Struct, frozen=True, gc=False):
    """One side of a preemption, as far as the rule looks at it.

    of: how its capacity is charged. cohort: where its tenant is charged. amounts: what it takes,
    or holds.
    """

    tenant: str
    priority: int
    of: CapacityClass
    cohort: str
    amounts: Amounts


def preempts_refusal(priority_class: PriorityClass | None, name: str) -> Refusal | None:
    """Refuses to stop anything for work whose priority class does not preempt."""
    if priority_class is not None and priority_class.spec.preempts:
        return None
    return Refusal(
        Reason.MAY_NOT_PREEMPT,
        f"priority class {name!r} does not preempt other work",
        {"priorityClass": name},
    )


def contender_of_victim(victim: Replica, cohort: str) -> Contender:
    """A bound replica, by what it was charged and not by what its class says today."""
    binding = victim.status.binding
    charged = binding.capacity_class if binding is not None else ""
    return Contender(
        victim.namespace,
        victim.spec.priority,
        CapacityClass(charged) if charged else CapacityClass.HARD,
        cohort,
        binding.charge if binding is not None else {},
    )


def eviction_refusal(
    preemptor: Contender, victim: Contender, ledger: QuotaLedger
) -> Refusal | None:
    """Refuses a victim that this preemptor may not stop. `ledger` is that of the preemptor's
    cohort, less what earlier victims of the same decision give back.
    """
    if victim.of is not CapacityClass.HARD:
        if victim.priority < preemptor.priority:
            return None
        return _protected(
            f"its priority {victim.priority} is not below {preemptor.priority}", "Priority"
        )
    if reclaims(preemptor, victim, ledger):
        return None
    if victim.cohort == preemptor.cohort and above_nominal(ledger, victim.tenant):
        return _protected("it holds nothing that the preemptor's tenant may reclaim", "NoReclaim")
    return _protected("it is committed work inside the nominal quota of its tenant", "Nominal")


def reclaims(preemptor: Contender, victim: Contender, ledger: QuotaLedger) -> bool:
    """Whether the victim holds what the preemptor's tenant has lent and needs itself."""
    if preemptor.of is not CapacityClass.HARD or victim.of is not CapacityClass.HARD:
        return False
    if preemptor.tenant == victim.tenant or preemptor.cohort != victim.cohort:
        return False
    lender = ledger.limits.get(preemptor.tenant)
    # Without a nominal amount of its own a tenant lends nothing, and has nothing to ask back.
    is_lent = lender is not None and any(
        resource in lender.hard
        and preemptor.amounts.get(resource, 0)
        and victim.amounts.get(resource, 0)
        for resource in above_nominal(ledger, victim.tenant)
    )
    return is_lent and is_inside_nominal(ledger, preemptor.tenant, preemptor.amounts)


def less_hard(ledger: QuotaLedger, tenant: str, amounts: Amounts) -> QuotaLedger:
    """The ledger after a tenant gave back this much committed capacity: a borrower may lose only
    what it has borrowed, so that the next victim is judged without the one before.
    """
    use = ledger.used.get(tenant)
    if use is None:
        return ledger
    hard = {resource: units - amounts.get(resource, 0) for resource, units in use.hard.items()}
    used = {**ledger.used, tenant: msgspec.structs.replace(use, hard=hard)}
    return msgspec.structs.replace(ledger, used=used)


def split_gang_refusal(left: int) -> Refusal | None:
    """Refuses to stop some members of a gang so that this many run on that are too few to.

    An elastic gang may be taken members as far as its `minAvailable` remains; from there on, and of
    a rigid gang, all are stopped or none.
    """
    if not left:
        return None
    return _protected(f"{left} other members of its gang would be too few to go on", "Gang")


def _protected(why: str, rule: str) -> Refusal:
    return Refusal(Reason.VICTIM_PROTECTED, f"it may not be stopped: {why}", {"rule": rule})


# Taking turns.

# For this long the work of a workload stops none of the workload that stopped it: whatever makes
# each more important in turn, such as a changed class or quota, they do not swap places for it.
COOLDOWN_MS = 600_000


def turn_refusal(displaced: Displaced | None, workload_uid: str, ago_ms: int) -> Refusal | None:
    """Refuses to stop the work of a workload that stopped the preemptor's own just before.

    `displaced` is the preemptor's, and `ago_ms` how long ago that was.
    """
    if displaced is None or displaced.by != workload_uid or ago_ms >= COOLDOWN_MS:
        return None
    left_s = (COOLDOWN_MS - ago_ms) // 1_000
    return Refusal(
        Reason.PREEMPTION_COOLDOWN,
        f"its workload stopped the preemptor's {ago_ms // 1_000} s ago; it may be stopped in turn "
        f"in {left_s} s",
        {"seconds": str(left_s)},
    )


def is_requeued(replica: Replica) -> bool:
    """Whether the replica before it was stopped for other work: it goes first in its class."""
    displaced = replica.status.displaced
    return displaced is not None and displaced.incarnation == replica.spec.incarnation - 1


# The loss. Of legal victims the least loss is taken.


class Loss(msgspec.Struct, frozen=True, gc=False, order=True):
    """What stopping a replica costs; less is lost first.

    is_committed: committed capacity is taken back only when reclaimable work does not suffice.
    priority: the value of its class.
    in_gang: its whole gang would have to stop.
    was_displaced: it, or the one before it, was stopped for other work already.
    has_budget: its workload states how much of it may be missing at once, as far as is known.
    is_ready: it does its work; one that is still starting has lost less.
    firmness: what its service class is worth.
    redo_ms: what has to be done again, less the time of the comparison: how long it took to start,
        and what it has done since.
    """

    is_committed: bool
    priority: int
    in_gang: bool
    was_displaced: bool
    has_budget: bool
    is_ready: bool
    firmness: int
    redo_ms: int


def loss_of(replica: Replica) -> Loss:
    """What stopping this replica costs."""
    status, binding = replica.status, replica.status.binding
    is_committed = binding is None or binding.capacity_class in ("", CapacityClass.HARD.value)
    return Loss(
        is_committed=is_committed,
        priority=replica.spec.priority,
        in_gang=bool(replica.spec.gang),
        was_displaced=status.displaced is not None,
        has_budget=False,
        is_ready=is_available(replica),
        firmness=CLASS_LOSS[service_class(replica.spec.template)],
        redo_ms=_redo_ms(replica),
    )


def _redo_ms(replica: Replica) -> int:
    """How long it took from its bind, or its last start in place, until it was ready, less when its
    process began: the earlier, the more it has done.
    """
    status, binding = replica.status, replica.status.binding
    bound = binding.at if binding is not None else None
    began, ready = status.process.started_at or bound, status.ready_since
    if began is None:
        return 0
    since = began if status.process.restarts or bound is None else bound
    start_ms = wall_ms(ready) - wall_ms(since) if ready is not None else 0
    return max(0, start_ms) - wall_ms(began)
