"""Every reason for a refusal has a deliberate reaction."""

from __future__ import annotations

import pytest

from holdfast.model.refusal import Reason
from holdfast.propose.binder import RefusalReaction, reaction_to

# Whatever is not named here was sorted on purpose in the code; these are worth a pause only.
PAUSES = {
    Reason.INVALID,
    Reason.UNAUTHENTICATED,
    Reason.OBJECT_CAP,
    Reason.DISRUPTION_BUDGET,
    Reason.MAY_NOT_PREEMPT,
    Reason.VICTIM_PROTECTED,
    Reason.VICTIM_NOT_NEEDED,
    Reason.PREEMPTION_COOLDOWN,
    Reason.RESERVATION_MISSING,
    Reason.RESERVATION_EXPIRED,
    Reason.RESERVATION_EXISTS,
    Reason.GANG_INCOMPLETE,
    Reason.NOT_ALLOWED,
    Reason.STALE_MARK,
    Reason.NOT_FENCED,
    Reason.STALE_INCARNATION,
    Reason.STALE_PLACE,
    Reason.OVERRIDE_NOT_IN_FORCE,
    Reason.POLICY_CHANGED,
    Reason.LEASE_HELD,
    Reason.EXISTS,
    Reason.CONTENTION,
    # An earlier run may have done it, so it was looked up before this.
    Reason.OPERATION_REUSED,
    Reason.TOO_OLD,
    Reason.RECORDS_DISAGREE,
    Reason.RECORD_UNREADABLE,
    Reason.QUOTA_QUARANTINED,
}


@pytest.mark.parametrize("reason", list(Reason))
def test_a_reason_leads_to_a_pause_or_another_reaction(reason: Reason) -> None:
    """A new reason has to be sorted before this passes. [C4, E5]"""
    assert (reaction_to(reason) is RefusalReaction.PAUSE) == (reason in PAUSES)
