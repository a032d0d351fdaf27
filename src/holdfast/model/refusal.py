"""Refusals as values, with stable reason codes.

The codes appear in API responses, pending reasons, decisions, metrics and dashboards. New codes may
be added, but an existing code is never renamed and never changes its meaning.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.errors import Conflict, FieldError, Forbidden, Invalid, Missing, Rejected


class Reason(StrEnum):
    """Every reason why the authority refuses a request or a proposal finds no node."""

    # The request itself.
    INVALID = "Invalid"
    UNAUTHENTICATED = "Unauthenticated"
    # The node.
    NODE_MISSING = "NodeMissing"
    NODE_NOT_READY = "NodeNotReady"
    NODE_CORDONED = "NodeCordoned"
    NODE_DRAINING = "NodeDraining"
    NODE_CHANGED = "NodeChanged"
    HEARTBEAT_LATE = "HeartbeatLate"
    NODE_FULL = "NodeFull"
    DEVICE_TAKEN = "DeviceTaken"
    DEVICE_MISSING = "DeviceMissing"
    PORT_TAKEN = "PortTaken"
    PORT_NOT_OFFERED = "PortNotOffered"
    TAINTED = "Tainted"
    # Where it may run.
    REGION_MISMATCH = "RegionMismatch"
    ZONE_MISMATCH = "ZoneMismatch"
    POOL_MISMATCH = "PoolMismatch"
    SELECTOR_MISMATCH = "SelectorMismatch"
    RESIDENCY_FORBIDDEN = "ResidencyForbidden"
    RESIDENCY_UNKNOWN = "ResidencyUnknown"
    TENANCY_FORBIDDEN = "TenancyForbidden"
    PROTECTED_CAPACITY = "ProtectedCapacity"
    ISOLATION_TOO_WEAK = "IsolationTooWeak"
    USER_NOT_ALLOWED = "UserNotAllowed"
    HOST_NETWORK_NOT_ALLOWED = "HostNetworkNotAllowed"
    IMAGE_NOT_ALLOWED = "ImageNotAllowed"
    NODE_OF_ANOTHER_TENANT = "NodeOfAnotherTenant"
    SPREAD_VIOLATED = "SpreadViolated"
    AFFINITY_UNMET = "AffinityUnmet"
    ANTI_AFFINITY_VIOLATED = "AntiAffinityViolated"
    TOO_MANY_PER_NODE = "TooManyPerNode"
    # What it may use.
    QUOTA_EXCEEDED = "QuotaExceeded"
    QUOTA_UNKNOWN = "QuotaUnknown"
    COHORT_EXHAUSTED = "CohortExhausted"
    CLAIMED_BY_LENDERS = "ClaimedByLenders"
    PRIORITY_BUDGET_EXCEEDED = "PriorityBudgetExceeded"
    GRANT_EXPIRED = "GrantExpired"
    OVERRIDE_NOT_IN_FORCE = "OverrideNotInForce"
    GRANT_EXCEEDED = "GrantExceeded"
    OBJECT_CAP = "ObjectCapReached"
    DISRUPTION_BUDGET = "DisruptionBudget"
    # A preemption: of the preemptor, of a victim, and of both.
    MAY_NOT_PREEMPT = "MayNotPreempt"
    VICTIM_PROTECTED = "VictimProtected"
    VICTIM_NOT_NEEDED = "VictimNotNeeded"
    PREEMPTION_COOLDOWN = "PreemptionCooldown"
    RESERVATION_MISSING = "ReservationMissing"
    RESERVATION_EXPIRED = "ReservationExpired"
    RESERVATION_EXISTS = "ReservationExists"
    GANG_INCOMPLETE = "GangIncomplete"
    # Permission, ownership, and stale preconditions.
    NOT_OWNER = "NotOwner"
    NOT_ALLOWED = "NotAllowed"
    WRONG_STATE = "WrongState"
    STALE_REPLICA = "StaleReplica"
    STALE_OBJECT = "StaleObject"
    STALE_EPOCH = "StaleEpoch"
    EPOCH_REQUIRED = "EpochRequired"
    STALE_MARK = "StaleMark"
    NOT_FENCED = "NotFenced"
    STALE_INCARNATION = "StaleIncarnation"
    STALE_PLACE = "StalePlace"
    POLICY_CHANGED = "PolicyChanged"
    LEASE_HELD = "LeaseHeld"
    OPERATION_REUSED = "OperationReused"
    TENANT_SUSPENDED = "TenantSuspended"
    TERMINATING = "Terminating"
    MISSING = "Missing"
    EXISTS = "AlreadyExists"
    CONTENTION = "Contention"
    TOO_OLD = "ObservationTooOld"
    # Records that the decision needs are wrong, confirmed by the store (model/quarantine).
    RECORDS_DISAGREE = "RecordsDisagree"
    RECORD_UNREADABLE = "RecordUnreadable"
    NODE_QUARANTINED = "NodeQuarantined"
    QUOTA_QUARANTINED = "QuotaQuarantined"


_CONFLICTS = frozenset(
    {
        Reason.STALE_REPLICA,
        Reason.STALE_OBJECT,
        Reason.STALE_EPOCH,
        Reason.STALE_MARK,
        Reason.STALE_INCARNATION,
        Reason.STALE_PLACE,
        Reason.POLICY_CHANGED,
        Reason.NODE_CHANGED,
        Reason.EXISTS,
        Reason.CONTENTION,
        Reason.LEASE_HELD,
        Reason.WRONG_STATE,
        Reason.OPERATION_REUSED,
        Reason.TOO_OLD,
    }
)
_MISSING = frozenset({Reason.MISSING, Reason.NODE_MISSING, Reason.RESERVATION_MISSING})


class Refusal(msgspec.Struct, frozen=True):
    """A refusal with its reason. `causes` lists every invalid field.

    `details` holds values for programs: field, node, revisions, amounts.
    """

    reason: Reason
    message: str
    details: dict[str, str] = {}
    causes: tuple[FieldError, ...] = ()

    def error(self) -> Rejected:
        """The refusal as an exception, for callers that raise."""
        if self.reason is Reason.INVALID:
            return Invalid(self.message, self.causes)
        for reasons, error in ((_CONFLICTS, Conflict), (_MISSING, Missing)):
            if self.reason in reasons:
                return error(self.message, code=self.reason)
        return Forbidden(self.message, code=self.reason)
