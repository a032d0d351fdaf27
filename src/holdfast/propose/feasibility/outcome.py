"""The result of a decision: where a replica should go, or why no node is feasible.

`placement.py` makes these; the scheduler turns a proposal into a Bind and a report into the pending
reason in a replica's status. Reasons are codes of `model/refusal.py` where one exists; the codes
below are the scheduler's own and never change once released.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.lifecycle import Actor
from holdfast.model.placement.fit import Allocation

# The answer to a bind was lost, and reading showed that it has not happened (yet): it is sent
# again. The condition of that name in other schedulers means the same.
SCHEDULING_RETRYING = "SchedulingRetrying"
# The servers could not be reached, so nothing was decided.
SERVERS_UNAVAILABLE = "ServersUnavailable"
# There is not a single node.
NO_NODES = "NoNodes"
# The policy in force names a filter that this scheduler does not have.
FILTER_UNKNOWN = "FilterUnknown"
# The replica is a member of a gang, and no scheduler places gangs yet.
GANGS_NOT_SCHEDULED = "GangsNotScheduled"
# The tenant has too many pending replicas for this one to be considered.
PENDING_CAP = "PendingCapReached"


class Verdict(StrEnum):
    """Whether and when the work could be placed."""

    # No change of the fleet would help: the work, or its tenant's rules, would have to change.
    NEVER = "Never"
    # No node could take it even if it were empty and ready.
    NOT_WITH_THIS_FLEET = "NotWithThisFleet"
    # An existing node could take it, once something ends or recovers.
    WAITING = "Waiting"
    # A person has to act first: an operator's quota, a suspended tenant.
    BLOCKED_BY = "BlockedBy"


_NEXT_MOVER = {
    Verdict.NEVER: Actor.USER.value,
    Verdict.NOT_WITH_THIS_FLEET: Actor.OPERATOR.value,
    Verdict.BLOCKED_BY: Actor.OPERATOR.value,
}


def next_mover(verdict: Verdict) -> str:
    """Who acts next, where nothing more is known than the verdict.

    Schedulers are not distinguished: of several that compete, any may be the next, and each would
    overwrite the others' names.
    """
    return _NEXT_MOVER.get(verdict, Actor.SCHEDULER.value)


class WakeEvent(StrEnum):
    """The kinds of events that could help a waiting replica (queueing hints)."""

    # A node was added, became ready, was uncordoned, grew, or something on it was released.
    NODES = "nodes"
    # Tenant, quota, region or priority class changed.
    ALLOWANCE = "allowance"
    # The quota has more room: the tenant, or one that shares it, released something.
    QUOTA = "quota"
    # The snapshot of the plane is fresh again.
    FRESHNESS = "freshness"
    # Replicas of the same tenant came or went, which affinity and spread rules depend on.
    TOPOLOGY = "topology"


class Miss(msgspec.Struct, frozen=True):
    """The node that came closest, and what it lacked."""

    node: str
    reason: str
    message: str


class PlacementReport(msgspec.Struct, frozen=True):
    """Why no node is feasible.

    `reasons` counts the nodes that each reason ruled out, or is the one reason that is not about
    nodes. `try_soon` says that a node is only avoided for a moment: no event announces the end of
    that. `in_question` says that a place is only assumed to be taken, by binds that are not
    answered or not seen yet: the answer may soon be another one. `nodes` is how many were tested,
    `smallest_change` what would let it fit, `owner` who acts next where that does not follow from
    the verdict.
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
    """A feasible node, its score, and the score of each scorer."""

    node: str
    score: float
    scores: dict[str, float]


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """The chosen node, what the replica would take there, and why it was chosen.

    `scores` is the chosen node's score by scorer; `reasons` counts what ruled out the infeasible
    nodes, and `best` has the scores of the best ones. Where many replicas of one class were placed
    at once, these three describe the moment before the first. `reservation` is what already holds
    the place for it.
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
