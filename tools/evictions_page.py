"""Print docs/evictions.md: `make evictions-page` rewrites it.

Its tables are answers of the rules themselves: the page asks `model/preemption.py` for each pair of
a preemptor and a victim, and `model/placement/disruption.py` for each cause of a stop.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.model.encoding.schema import field_descriptions
from holdfast.model.kinds.tenant import (
    CapacityClass,
    FairShare,
    Lending,
    ObjectCaps,
    QueueLimits,
    QuotaSpec,
    TenantSpec,
)
from holdfast.model.lifecycle import CAUSE_OWNER, Cause
from holdfast.model.placement.disruption import disruption_refusal
from holdfast.model.preemption import Contender, eviction_refusal
from holdfast.model.quota.ledger import DisruptionLedger, QuotaLedger, TenantLimits, TenantUse

PAGE = Path(__file__).parent.parent / "docs" / "evictions.md"

_HEAD = """# Who may stop whose work, and what limits a tenant

Printed by `make evictions-page`: each answer below is that of the rule which the commit applies,
asked with an example. [contention.md](contention.md) explains the rules.

## Preemption

The work that needs room has a priority class with `preempts`, and priority 100. A tenant is over
its nominal quota if it borrows from its cohort. *Inside* means that the tenant of the waiting work
stays inside its own nominal quota with it.

"""
_CAUSES = """
## All causes

Each cause of a stop belongs to one actor, and the commit refuses it to all others. Where a budget
holds, the stop is refused while `spec.disruption` of the workload allows no more replicas to be
missing. All stops grant the work its grace.

| cause | asked by | a used-up budget |
|---|---|---|
"""
_LIMITS = """
## What limits a noisy neighbour

What one tenant asks for cannot take more from the others than these limits allow. Fields of a
Quota, unless they begin with `Tenant`:

| field | what it limits |
|---|---|
"""
_TAIL = """
Without any quota, under overload every tenant still gets an equal part of a server
([overload.md](overload.md)), and on nodes the limits of [runtimes.md](runtimes.md) hold for each
replica.
"""

_NOMINAL, _WORK = 10, {"cpu": 2}
# The cohort of the examples: `mine` is the preemptor's tenant, `over` borrows, `in` does not.
_LIMITS_OF = {name: TenantLimits(hard={"cpu": _NOMINAL}) for name in ("mine", "over", "in")}
_VICTIMS = {
    "reclaimable, lower priority": ("in", CapacityClass.RECLAIMABLE, 10),
    "reclaimable, the same priority": ("in", CapacityClass.RECLAIMABLE, 100),
    "committed, its tenant inside its nominal quota, lower priority": (
        "in",
        CapacityClass.HARD,
        10,
    ),
    "committed, its tenant over its nominal quota, lower priority": (
        "over",
        CapacityClass.HARD,
        10,
    ),
    "committed, its tenant over its nominal quota, higher priority": (
        "over",
        CapacityClass.HARD,
        900,
    ),
    "committed, of the same tenant, lower priority": ("mine", CapacityClass.HARD, 10),
    "committed, of another cohort, lower priority": ("elsewhere", CapacityClass.HARD, 10),
}
_PREEMPTORS = {
    "inside": 0,
    "not inside": _NOMINAL,
}
_FIELDS: tuple[tuple[str, type[msgspec.Struct], tuple[str, ...]], ...] = (
    ("spec", QuotaSpec, ("hard", "reclaimable", "borrowing", "priority_classes")),
    ("spec", QuotaSpec, ("requests_per_second", "write_bytes_per_second")),
    ("spec.objects", ObjectCaps, ObjectCaps.__struct_fields__),
    ("spec.queue", QueueLimits, QueueLimits.__struct_fields__),
    ("spec.fairness", FairShare, FairShare.__struct_fields__),
    ("spec.lending", Lending, Lending.__struct_fields__),
    ("Tenant spec", TenantSpec, ("regions", "isolation", "users", "images", "minimum")),
)


def _may(used: int, victim: tuple[str, CapacityClass, int]) -> str:
    """The answer of the rule."""
    tenant, charged, priority = victim
    ledger = QuotaLedger(
        _LIMITS_OF,
        {
            "mine": TenantUse(hard={"cpu": used}),
            "over": TenantUse(hard={"cpu": _NOMINAL + 2}),
            "in": TenantUse(hard={"cpu": _NOMINAL}),
        },
    )
    cohort = "theirs" if tenant == "elsewhere" else "ours"
    refusal = eviction_refusal(
        Contender("mine", 100, CapacityClass.HARD, "ours", _WORK),
        Contender(tenant, priority, charged, cohort, _WORK),
        ledger,
    )
    return "may be stopped" if refusal is None else f"no ({refusal.details['rule']})"


def _preemption() -> str:
    heads = ["work that runs", *(f"for work that is {it}" for it in _PREEMPTORS)]
    lines = [heads, ["---"] * len(heads)]
    for said, victim in _VICTIMS.items():
        lines.append([said, *(_may(it, victim) for it in _PREEMPTORS.values())])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cause(cause: Cause) -> str:
    used_up = DisruptionLedger(desired=1, allowed=0, replicas=1, healthy=1)
    refusal = disruption_refusal(used_up, cause, available=True)
    holds = "does not matter" if refusal is None else f"refuses it (`{refusal.reason.value}`)"
    return f"| {cause.value} | {CAUSE_OWNER[cause].value} | {holds} |\n"


def _limits() -> str:
    rows = []
    for where, struct, names in _FIELDS:
        said = field_descriptions(struct)
        spelled = {it.name: it.encode_name for it in msgspec.structs.fields(struct)}
        rows += [f"| `{where}.{spelled[it]}` | {said[it]} |\n" for it in names]
    return "".join(rows)


def page() -> str:
    """The whole page."""
    causes = "".join(map(_cause, Cause))
    return _HEAD + _preemption() + _CAUSES + causes + _LIMITS + _limits() + _TAIL


if __name__ == "__main__":
    PAGE.write_text(page())
