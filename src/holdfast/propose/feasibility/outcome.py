"""What a decision says: where a replica should go, or why there is no place for it.

`decide.py` makes these; the scheduler turns a proposal into a Bind and a report into what people
read in a replica's status. Reasons are codes of `model/refusal.py` where one exists; the words
below are of the scheduler itself and never change once released.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.lifecycle import Actor
from holdfast.model.placement.fit import Allocation

# The answer to a bind was lost, and reading showed that it has not happened (yet): it is sent
# again. The condition of that name in other schedulers means the same.
SCHEDULING_RETRYING = "SchedulingRetrying"
# The servers could not be reached, so that nothing was decided.
SERVERS_UNAVAILABLE = "ServersUnavailable"
# There is not a single node.
NO_NODES = "NoNodes"
# The policy in force names a filter that this scheduler was not given.
FILTER_UNKNOWN = "FilterUnknown"
# The replica is a member of a gang, and no scheduler places gangs yet.
GANGS_NOT_SCHEDULED = "GangsNotScheduled"
# The tenant has so much waiting that this one is not even looked at.
PENDING_CAP = "PendingCapReached"


class Verdict(StrEnum):
    """How much of a hope there is."""

    # No change of the fleet would help: the work, or its tenant's rules, would have to change.
    NEVER = "Never"
    # None of the nodes could take it even if it were empty and ready.
    NOT_WITH_THIS_FLEET = "NotWithThisFleet"
    # A node that is here could take it, once something ends or recovers.
    WAITING = "Waiting"
    # Somebody has to act first: an operator's quota, a tenant that is suspended.
    BLOCKED_BY = "BlockedBy"


_NEXT_MOVER = {
    Verdict.NEVER: Actor.USER.value,
    Verdict.NOT_WITH_THIS_FLEET: Actor.OPERATOR.value,
    Verdict.BLOCKED_BY: Actor.OPERATOR.value,
}


def next_mover(verdict: Verdict) -> str:
    """Who moves next, where nothing more is known than this.

    Schedulers are not told apart: of several that run free any may be the next, and each would
    write its own name over the others'.
    """
    return _NEXT_MOVER.get(verdict, Actor.SCHEDULER.value)


class WakeEvent(StrEnum):
    """What kind of event could help a replica that waits."""

    # A node came, became ready, was uncordoned, grew, or something on it was given back.
    NODES = "nodes"
    # Tenant, quota, region or priority class changed.
    ALLOWANCE = "allowance"
    # The quota has more room: the tenant, or one that shares it, gave something back.
    QUOTA = "quota"
    # The picture of the plane is fresh again.
    FRESHNESS = "freshness"
    # Replicas of the same tenant came or went, and with them whom to be near to or away from.
    TOPOLOGY = "topology"


class Miss(msgspec.Struct, frozen=True):
    """The node that came closest, and what it lacked."""

    node: str
    reason: str
    message: str


class PlacementReport(msgspec.Struct, frozen=True):
    """Why there is no place.

    `reasons` counts the nodes that each reason ruled out, or is the one reason that is not about
    nodes. `try_soon` says that a node is only left alone for a moment: no event will tell when
    that is over. `in_question` says that a place is only assumed to be taken, by binds that are
    not answered or not seen yet: in a moment there may be another answer. `nodes` is how many were
    looked at, `smallest_change` what would let it fit, `owner` who moves next where that does not
    follow from the verdict.
    """

    reasons: dict[str, int]
    message: str
    verdict: Verdict
    wake_events: tuple[WakeEvent, ...]
    nearest_miss: Miss | None = None
    try_soon: bool = False
    in_question: bool = False
    nodes: int = 0
    smallest_change: str = ""
    owner: str = ""

    @property
    def next_mover(self) -> str:
        return self.owner or next_mover(self.verdict)


class Ranked(msgspec.Struct, frozen=True, gc=False):
    """A node that would do, its score, and what each scorer said."""

    node: str
    score: float
    scores: dict[str, float]


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """A place, what it would take there, and why this one of all.

    `scores` is the breakdown of the chosen node's score by scorer; `reasons` counts what ruled out
    the nodes that were not candidates, and `best` has the breakdown of the best ones. Where many
    that are alike were placed at once, these three speak of the moment before the first.
    `reservation` is what holds the place for it already.
    """

    node: str
    node_uid: str
    held: Allocation
    score: float
    scores: dict[str, float]
    candidates: int
    reasons: dict[str, int]
    policy: str
    snapshot_revision: int
    snapshot_age_ms: int
    best: tuple[Ranked, ...] = ()
    reservation: str = ""
