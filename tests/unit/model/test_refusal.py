"""Reason codes are a promise: they may be added to, never changed."""

from __future__ import annotations

import re

import pytest

from holdfast.model.errors import Conflict, Forbidden, Missing, Rejected
from holdfast.model.refusal import Reason, Refusal

# Written down once more on purpose: dashboards and scripts of users rest on these very words.
STABLE = (
    "NodeMissing",
    "NodeNotReady",
    "NodeCordoned",
    "NodeDraining",
    "NodeChanged",
    "HeartbeatLate",
    "NodeFull",
    "DeviceTaken",
    "DeviceMissing",
    "PortTaken",
    "PortNotOffered",
    "Tainted",
    "RegionMismatch",
    "ZoneMismatch",
    "PoolMismatch",
    "SelectorMismatch",
    "ResidencyForbidden",
    "ResidencyUnknown",
    "TenancyForbidden",
    "ProtectedCapacity",
    "SpreadViolated",
    "AffinityUnmet",
    "AntiAffinityViolated",
    "TooManyPerNode",
    "QuotaExceeded",
    "QuotaUnknown",
    "CohortExhausted",
    "ClaimedByLenders",
    "GrantExpired",
    "GrantExceeded",
    "ObjectCapReached",
    "DisruptionBudget",
    "ReservationMissing",
    "ReservationExpired",
    "ReservationExists",
    "GangIncomplete",
    "NotOwner",
    "NotAllowed",
    "WrongState",
    "StaleReplica",
    "StaleObject",
    "StaleEpoch",
    "EpochRequired",
    "StaleMark",
    "NotFenced",
    "StaleIncarnation",
    "PolicyChanged",
    "LeaseHeld",
    "OperationReused",
    "TenantSuspended",
    "Terminating",
    "Missing",
    "AlreadyExists",
    "Contention",
    "ObservationTooOld",
)


def test_no_reason_code_was_renamed_or_dropped() -> None:
    """Each code is one word in the form of Kubernetes' reasons. [E3]"""
    assert set(STABLE) <= {reason.value for reason in Reason}
    assert all(re.fullmatch("[A-Z][A-Za-z]+", reason) for reason in Reason)
    assert len(STABLE) == len(set(STABLE))


@pytest.mark.parametrize(
    "reason, error",
    [
        (Reason.STALE_REPLICA, Conflict),
        (Reason.STALE_OBJECT, Conflict),
        (Reason.STALE_EPOCH, Conflict),
        (Reason.STALE_MARK, Conflict),
        (Reason.STALE_INCARNATION, Conflict),
        (Reason.NODE_CHANGED, Conflict),
        (Reason.POLICY_CHANGED, Conflict),
        (Reason.EXISTS, Conflict),
        (Reason.WRONG_STATE, Conflict),
        (Reason.CONTENTION, Conflict),
        (Reason.MISSING, Missing),
        (Reason.NODE_MISSING, Missing),
        (Reason.RESERVATION_MISSING, Missing),
        (Reason.QUOTA_EXCEEDED, Forbidden),
        (Reason.NOT_OWNER, Forbidden),
        (Reason.DEVICE_TAKEN, Forbidden),
        (Reason.RESIDENCY_UNKNOWN, Forbidden),
        (Reason.EPOCH_REQUIRED, Forbidden),
    ],
)
def test_a_refusal_raises_as_what_its_caller_does_next(
    reason: Reason, error: type[Rejected]
) -> None:
    """Conflict means look again, Missing often done already, Forbidden wait for a change. [C4]"""
    raised = Refusal(reason, "why").error()
    assert type(raised) is error
    assert (raised.code, raised.message) == (reason.value, "why")


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_an_answer_to_the_caller(reason: Reason) -> None:
    """None of them is a fault or an unknown outcome: it was decided."""
    error = Refusal(reason, "why").error()
    assert isinstance(error, Rejected)
    assert error.code == reason
