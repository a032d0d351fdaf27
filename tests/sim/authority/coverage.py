"""What must happen in the authority world over the seeds of the default run."""

from __future__ import annotations

from holdfast.model.lifecycle import TRANSITIONS
from holdfast.model.refusal import Reason
from holdfast.model.requests import (
    REQUESTS,
    QuarantineRecord,
    RaiseFormat,
    RepairRecord,
    RetireLease,
)

# No server gives these as an answer yet, or nothing in this world leads to them: it has no grants,
# no spread, affinity or isolation, one priority class and one region that a workload may require.
ELSEWHERE = frozenset(
    {
        Reason.UNAUTHENTICATED,
        Reason.HEARTBEAT_LATE,
        Reason.REGION_MISMATCH,
        Reason.ZONE_MISMATCH,
        Reason.POOL_MISMATCH,
        Reason.SELECTOR_MISMATCH,
        Reason.RESIDENCY_UNKNOWN,
        Reason.TENANCY_FORBIDDEN,
        Reason.ISOLATION_TOO_WEAK,
        Reason.NODE_OF_ANOTHER_TENANT,
        Reason.SPREAD_VIOLATED,
        Reason.AFFINITY_UNMET,
        Reason.ANTI_AFFINITY_VIOLATED,
        Reason.TOO_MANY_PER_NODE,
        Reason.QUOTA_UNKNOWN,
        Reason.GRANT_EXPIRED,
        Reason.GRANT_EXCEEDED,
        Reason.OBJECT_CAP,
        Reason.CONTENTION,
        # No workload of this world was stopped by another one before (end_to_end.contended).
        Reason.PREEMPTION_COOLDOWN,
        # Nodes here offer every port, and templates name no image, user or network.
        Reason.PORT_NOT_OFFERED,
        Reason.USER_NOT_ALLOWED,
        Reason.HOST_NETWORK_NOT_ALLOWED,
        Reason.IMAGE_NOT_ALLOWED,
        # No record is damaged here; the world `rot` covers that.
        Reason.RECORDS_DISAGREE,
        Reason.RECORD_UNREADABLE,
        Reason.NODE_QUARANTINED,
        Reason.QUOTA_QUARANTINED,
    }
)

# Requests that this world never makes. A lease is retired after a day without use, and this world
# lasts minutes (tests/unit/commit/test_leases.py). Records are damaged in the world `rot`, and
# the format is raised in the world `raised`.
NOT_MADE_HERE = (RetireLease, QuarantineRecord, RepairRecord, RaiseFormat)


def demanded() -> list[str]:
    """The names of all counts: requests accepted, refusals, lifecycle rows used, and the rest."""
    return [
        *(f"accepted {request.__name__}" for request in REQUESTS if request not in NOT_MADE_HERE),
        *(f"refused {reason.value}" for reason in Reason if reason not in ELSEWHERE),
        *(f"move {row.source} -> {row.target}" for row in TRANSITIONS),
        *(f"fate {fate}" for fate in ("TokenApplied", "NotApplied", "Forgotten")),
        *(f"{intent} Consumed" for intent in ("bind", "gang", "recovery", "preemption")),
        "Released because Expired",
        "Released because Ownerless",
        "forced by operator",
        "takeover",
        "forwarded",
        "group refused",
        "group halved",
        "repeated Bind",
        "repeated Move",
    ]


def counts_table(counts: dict[str, int]) -> str:
    """A table of the counts for the test output."""
    width = max(len(what) for what in counts)
    return "\n".join(f"{what:<{width}} {counts[what]:>9,}" for what in sorted(counts))
