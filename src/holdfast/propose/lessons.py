"""What a refused bind teaches. Each reason leads to exactly one way on.

The scheduler looks here after each refusal; a test walks all reasons, so that a new one cannot be
forgotten.
"""

from __future__ import annotations

from enum import Enum, auto

from holdfast.model.refusal import Reason


class Lesson(Enum):
    """What to do after a refusal."""

    # The picture of that node is wrong: leave it alone for a moment and try the next at once.
    ANOTHER_NODE = auto()
    # The picture of the replica is wrong, or it needs no place: wait for news of it.
    AWAIT_NEWS = auto()
    # Somebody has to allow it first.
    AWAIT_ALLOWANCE = auto()
    # We are not the holder of our scope any more.
    LEASE_LOST = auto()
    # An earlier life of this scheduler did it already: look.
    LOOK = auto()
    # Nothing to learn but that now is a bad moment.
    PAUSE = auto()


_ANOTHER_NODE = (
    Reason.NODE_MISSING,
    Reason.NODE_NOT_READY,
    Reason.NODE_CORDONED,
    Reason.NODE_DRAINING,
    Reason.NODE_CHANGED,
    Reason.HEARTBEAT_LATE,
    Reason.NODE_FULL,
    Reason.DEVICE_TAKEN,
    Reason.DEVICE_MISSING,
    Reason.PORT_TAKEN,
    Reason.PORT_NOT_OFFERED,
    Reason.TAINTED,
    Reason.REGION_MISMATCH,
    Reason.ZONE_MISMATCH,
    Reason.POOL_MISMATCH,
    Reason.SELECTOR_MISMATCH,
    Reason.RESIDENCY_FORBIDDEN,
    Reason.RESIDENCY_UNKNOWN,
    Reason.TENANCY_FORBIDDEN,
    Reason.PROTECTED_CAPACITY,
    Reason.ISOLATION_TOO_WEAK,
    Reason.USER_NOT_ALLOWED,
    Reason.HOST_NETWORK_NOT_ALLOWED,
    Reason.IMAGE_NOT_ALLOWED,
    Reason.NODE_OF_ANOTHER_TENANT,
    Reason.SPREAD_VIOLATED,
    Reason.AFFINITY_UNMET,
    Reason.ANTI_AFFINITY_VIOLATED,
    Reason.TOO_MANY_PER_NODE,
    Reason.NODE_QUARANTINED,
)
_AWAIT_NEWS = (
    Reason.STALE_REPLICA,
    Reason.STALE_OBJECT,
    Reason.WRONG_STATE,
    Reason.MISSING,
    Reason.TERMINATING,
)
_AWAIT_ALLOWANCE = (
    Reason.QUOTA_EXCEEDED,
    Reason.QUOTA_UNKNOWN,
    Reason.COHORT_EXHAUSTED,
    Reason.PRIORITY_BUDGET_EXCEEDED,
    Reason.GRANT_EXPIRED,
    Reason.GRANT_EXCEEDED,
    Reason.TENANT_SUSPENDED,
)
_LEASE_LOST = (Reason.STALE_EPOCH, Reason.EPOCH_REQUIRED, Reason.NOT_OWNER)

_LESSONS: dict[Reason, Lesson] = {
    **dict.fromkeys(_ANOTHER_NODE, Lesson.ANOTHER_NODE),
    **dict.fromkeys(_AWAIT_NEWS, Lesson.AWAIT_NEWS),
    **dict.fromkeys(_AWAIT_ALLOWANCE, Lesson.AWAIT_ALLOWANCE),
    **dict.fromkeys(_LEASE_LOST, Lesson.LEASE_LOST),
    Reason.OPERATION_REUSED: Lesson.LOOK,
}


def lesson_of(reason: Reason) -> Lesson:
    """What to do after this refusal."""
    return _LESSONS.get(reason, Lesson.PAUSE)
