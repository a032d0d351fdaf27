"""What a decision says: bind here, stop other work first, bind a gang together, or wait.

`decide.py` `propose` answers with these; the scheduler turns a Bind into the request of that name
and a report into the pending reason in a replica's status. Reasons are codes of `model/refusal.py`
where one exists; the codes below are the scheduler's own and never change once released.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
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
# A decision of several steps was given up, and not for a refusal.
PLAN_ENDED = "PlanGivenUp"
# Its place is promised to it, and victims still hold it.
VICTIMS_STOPPING = "VictimsStopping"
# Its gang cannot start yet: members or nodes are missing, or the last run has not ended.
GANG_WAITS = "GangWaits"
# Its gang is being bound, by a decision of several steps.
GANG_BINDING = "GangBinding"
# The tenant or the workload has too many pending replicas for this one to be considered.
PENDING_CAP = "PendingCapReached"
# The tenant or the workload has as many binds in flight as its quota allows.
BINDS_CAP = "BindsInFlight"

# A job that waits has a reserved start on the nodes that are left, and this work would delay it.
RESERVED_START = "ReservedStart"


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
    # A bind of the same tenant was settled.
    BINDS = "binds"


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
    the verdict. `estimated_ms` is when it may start by what others state.
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
    estimated_ms: int | None = None

    @property
    def next_mover(self) -> str:
        return self.owner or next_mover(self.verdict)


class Ranked(msgspec.Struct, frozen=True, gc=False):
    """A feasible node, its score, and the score of each scorer."""

    node: str
    score: float
    scores: dict[str, float]


class BindReplica(msgspec.Struct, frozen=True, gc=False):
    """The chosen node, what the replica would take there, and why it was chosen.

    `scores` is the chosen node's score by scorer; `reasons` counts what ruled out the infeasible
    nodes, and `best` has the scores of the best ones. Where many replicas of one class were placed
    at once, these three describe the moment before the first. `reservation` is what already holds
    the place for it, `node_revision` the last write of the node that was seen.
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
    node_revision: int = 0


class MemberPlace(msgspec.Struct, frozen=True, gc=False):
    """A place for a member of a gang once other work has stopped."""

    replica: Replica
    node: str
    node_uid: str
    held: Allocation


class Preempt(msgspec.Struct, frozen=True, gc=False):
    """Other work has to stop first. `report` is why no node has room as it is.

    `victims` is what each of them holds, by uid, and `keys` their names in the same order. None of
    both means that the store shows a promise already: the victims stop, and the replica waits for
    them, or `is_over` says that the promise must be given back. For a gang `members` are all
    places, of which the first is the one that is named.
    """

    node: str
    node_uid: str
    held: Allocation
    victims: dict[str, Allocation]
    keys: tuple[tuple[str, str], ...]
    report: PlacementReport
    snapshot_revision: int
    snapshot_age_ms: int
    grace_s: int = 0
    is_over: bool = False
    members: tuple[MemberPlace, ...] = ()


class BindGang(msgspec.Struct, frozen=True, gc=False):
    """Members of a gang to be bound: `needed` of them at once, or none.

    `needed` is 0 if the gang runs, and these join it one by one. `rest` is why the members without
    a place wait, if there are any.
    """

    workload: Workload
    places: tuple[tuple[Replica, BindReplica], ...]
    needed: int = 0
    rest: PlacementReport | None = None

    @property
    def is_promised(self) -> bool:
        """Whether a preemption has promised them their places."""
        return any(place.reservation for _, place in self.places)


class StayPending(msgspec.Struct, frozen=True, gc=False):
    """Nothing can be done now. `is_underway` says that an earlier decision is being carried out,
    by a plan that reports for itself.
    """

    report: PlacementReport
    is_underway: bool = False


# The answer about one replica, and the answer about any work.
ReplicaDecision = BindReplica | Preempt | StayPending
Decision = ReplicaDecision | BindGang
