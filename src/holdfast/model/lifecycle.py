"""The lifecycle of a replica: its states, and who may move it from one to the next.

The table below is the law. `commit/` refuses every transition that it does not list for the caller;
controllers, `explain`, the simulator's checkers and the documentation use the same rows. Each row
also states when it is due and what happens when it is overdue, so that every state has a way out.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class State(StrEnum):
    """The state of a replica, which determines who may act on it."""

    PENDING = "Pending"
    RESERVED = "Reserved"
    BOUND = "Bound"
    RUNNING = "Running"
    STOPPING = "Stopping"
    UNKNOWN = "Unknown"
    FAILED = "Failed"
    SUCCEEDED = "Succeeded"
    RELEASED = "Released"


class Stage(StrEnum):
    """The progress of a replica, for users and other controllers.

    Each stage is completed on its own. Scheduled means that a reservation holds a place; a bind
    without a reservation goes to Bound in one step.
    """

    ADMITTED = "Admitted"
    QUEUED = "Queued"
    SCHEDULED = "Scheduled"
    BOUND = "Bound"
    STARTING = "Starting"
    READY = "Ready"
    SERVING = "Serving"


STAGES = tuple(Stage)
# The stages of work that can do its job.
READY_STAGES = (Stage.READY, Stage.SERVING)


class Actor(StrEnum):
    """Who proposes a transition.

    For each controller here, `correct/all_controllers.py` finds the class of its name.
    AGENT means the agent of the node that the replica is bound to, in the same incarnation.
    `model/nodes/installations.py` has the rules for work that outlived its incarnation.
    """

    SCHEDULER = "scheduler"
    WORKLOAD = "controller:workload"
    NODES = "controller:nodes"
    REPAIR = "controller:repair"
    STATUS = "controller:status"
    ENDPOINTS = "controller:endpoints"
    DRAIN = "controller:drain"
    RESERVES = "controller:reserves"
    GARBAGE = "controller:garbage"
    ROLLOUT = "controller:rollout"
    EVENTS = "controller:events"
    AUTOSCALE = "controller:autoscale"
    POLICY = "controller:policy"
    QUOTA = "controller:quota"
    REVIEW = "controller:review"
    AGENT = "agent"
    USER = "user"
    OPERATOR = "operator"
    AUTHORITY = "authority"


CONTROLLER_SCOPE = "controller:"
CONTROLLERS = tuple(actor for actor in Actor if actor.value.startswith(CONTROLLER_SCOPE))
# They own fields and conditions that nothing writes yet: their controllers are to come.
PLANNED = (Actor.AUTOSCALE, Actor.POLICY, Actor.REVIEW)


class Cause(StrEnum):
    """Why a replica is being stopped. Each cause belongs to one actor."""

    SCALE_DOWN = "ScaleDown"
    DELETED = "Deleted"
    ROLLOUT = "Rollout"
    DRAIN = "Drain"
    TAINT = "Taint"
    PREEMPTION = "Preemption"
    REPAIR = "Repair"
    DEADLINE = "Deadline"
    USER_DELETE = "UserDelete"
    RECLAIM = "Reclaim"


CAUSE_OWNER: dict[Cause, Actor] = {
    Cause.SCALE_DOWN: Actor.WORKLOAD,
    Cause.DELETED: Actor.WORKLOAD,
    Cause.ROLLOUT: Actor.ROLLOUT,
    Cause.DRAIN: Actor.DRAIN,
    Cause.TAINT: Actor.DRAIN,
    Cause.PREEMPTION: Actor.SCHEDULER,
    Cause.REPAIR: Actor.REPAIR,
    Cause.DEADLINE: Actor.WORKLOAD,
    Cause.USER_DELETE: Actor.USER,
    Cause.RECLAIM: Actor.QUOTA,
}

# These stop committed work because its tenant has borrowed what it holds. What stops for one of
# them is given back already, and nothing more is taken for the same debt.
TAKES_BACK = (Cause.PREEMPTION, Cause.RECLAIM)

# The actors that may stop running work. All use one request, Evict, with the disruption ledger in
# the transaction.
EVICTORS = tuple(dict.fromkeys(CAUSE_OWNER.values()))


class Transition(msgspec.Struct, frozen=True):
    """One row of the table.

    `within` names the time in which a replica should leave `source` by this row; `overdue` states
    who notices if it does not, and what happens then.
    """

    source: State | None
    target: State
    actors: tuple[Actor, ...]
    evidence: str
    within: str
    overdue: str


def _rows(
    sources: tuple[State | None, ...],
    targets: tuple[State, ...],
    actors: tuple[Actor, ...],
    evidence: str,
    within: str,
    overdue: str,
) -> tuple[Transition, ...]:
    return tuple(
        Transition(source, target, actors, evidence, within, overdue)
        for source in sources
        for target in targets
    )


_NEXT_RESYNC = "its owner finds it at the next resync"
_SAYS_WHY = "the scheduler publishes the pending reason and the next wake-up"
_FENCE = "controller:repair fails it once the fence has passed"
_ON_NODE = (State.BOUND, State.RUNNING)

TRANSITIONS: tuple[Transition, ...] = (
    *_rows(
        (None,),
        (State.PENDING,),
        (Actor.WORKLOAD,),
        evidence="workload generation",
        within="one reconcile",
        overdue=_NEXT_RESYNC,
    ),
    *_rows(
        (State.PENDING,),
        (State.RESERVED,),
        (Actor.SCHEDULER,),
        evidence="reservation and ledger revision",
        within="the queue bound of its class",
        overdue=_SAYS_WHY,
    ),
    *_rows(
        (State.PENDING, State.RESERVED),
        (State.BOUND,),
        (Actor.SCHEDULER,),
        evidence="what the bind compares; snapshot revision and age",
        within="the queue bound of its class, or the reservation's deadline",
        overdue=_SAYS_WHY,
    ),
    *_rows(
        (State.RESERVED,),
        (State.PENDING,),
        (Actor.SCHEDULER, Actor.REPAIR),
        evidence="the conflict, or the deadline; the charge is released",
        within="the reservation's deadline",
        overdue="controller:repair scans for reservations past their deadline",
    ),
    *_rows(
        (State.PENDING, State.RESERVED),
        (State.RELEASED,),
        (Actor.WORKLOAD,),
        evidence="deletion or scale-down; the charge is released",
        within="one reconcile",
        overdue=_NEXT_RESYNC,
    ),
    *_rows(
        (State.PENDING,),
        (State.FAILED,),
        (Actor.WORKLOAD,),
        evidence="job deadline",
        within="the job's deadline",
        overdue=_NEXT_RESYNC,
    ),
    *_rows(
        (State.BOUND,),
        (State.RUNNING,),
        (Actor.AGENT,),
        evidence="process identity",
        within="startupDeadlineSeconds",
        overdue="controller:repair evicts it and it is placed again",
    ),
    *_rows(
        _ON_NODE,
        (State.FAILED, State.SUCCEEDED),
        (Actor.AGENT,),
        evidence="the exit, or why it could not start",
        within="startupDeadlineSeconds while it starts; then it may run forever",
        overdue="controller:repair evicts what does not start; controller:nodes marks silence",
    ),
    *_rows(
        (State.RUNNING,),
        (State.RUNNING,),
        (Actor.AGENT,),
        evidence="restart policy and exit; restarts + 1, stage back to Starting",
        within="the restart backoff",
        overdue="the agent reports the crash loop with its next try",
    ),
    *_rows(
        _ON_NODE,
        (State.STOPPING,),
        EVICTORS,
        evidence="cause and disruption ledger",
        within="one reconcile",
        overdue=_NEXT_RESYNC,
    ),
    *_rows(
        (*_ON_NODE, State.STOPPING),
        (State.UNKNOWN,),
        (Actor.NODES,),
        evidence="the node's mark",
        within="unknownAfter without a renewal",
        overdue="controller:nodes finds it when it lists the marked node's replicas",
    ),
    *_rows(
        (State.UNKNOWN,),
        (State.RUNNING, State.STOPPING, State.SUCCEEDED),
        (Actor.AGENT,),
        evidence="mark cleared; the process, or its persisted exit",
        within="the first renewal of the returning node",
        overdue=_FENCE,
    ),
    *_rows(
        (State.UNKNOWN,),
        (State.FAILED,),
        (Actor.AGENT, Actor.REPAIR, Actor.OPERATOR),
        evidence="persisted exit; the fence; replaceAfter for keep work; operator's confirmation",
        within="fenceAfter, counted by controller:nodes",
        overdue="controller:repair reports which node it waits for and until when",
    ),
    *_rows(
        (State.FAILED, State.SUCCEEDED, State.STOPPING),
        (State.RELEASED,),
        (Actor.AGENT, Actor.REPAIR, Actor.OPERATOR),
        evidence="proof of stop; the fence; that it was never bound; operator's confirmation",
        within="graceSeconds and the kill bound",
        overdue="controller:repair releases it once the node is fenced",
    ),
)

# The actors that use the request Move; the other transitions have requests of their own.
_OWN_REQUEST = (State.PENDING, State.RESERVED, State.BOUND, State.STOPPING)
MOVERS = tuple(
    dict.fromkeys(
        actor
        for row in TRANSITIONS
        if row.source is not None and row.target not in _OWN_REQUEST
        for actor in row.actors
    )
)

_BY_MOVE = {(row.source, row.target): row for row in TRANSITIONS}

TERMINAL = frozenset({State.RELEASED})
# The states of work that has ended, or was told to, and whose place is not free yet.
ENDING = (State.FAILED, State.SUCCEEDED, State.STOPPING)
# In these states the replica's resources are charged to its node and tenant.
CHARGED = frozenset(
    {
        State.RESERVED,
        State.BOUND,
        State.RUNNING,
        State.STOPPING,
        State.UNKNOWN,
        State.FAILED,
        State.SUCCEEDED,
    }
)
# In these states a process may exist on the node, whatever status says.
MAY_RUN = frozenset(
    {State.BOUND, State.RUNNING, State.STOPPING, State.UNKNOWN, State.FAILED, State.SUCCEEDED}
)


def transition(source: State | None, target: State, actor: Actor) -> Transition | None:
    """The row that allows this actor this transition; None if there is none."""
    row = _BY_MOVE.get((source, target))
    return row if row is not None and actor in row.actors else None


def owners(source: State | None, target: State) -> tuple[Actor, ...]:
    """All actors that may make this transition; empty if none may."""
    row = _BY_MOVE.get((source, target))
    return row.actors if row is not None else ()


def next_moves(source: State | None) -> tuple[Transition, ...]:
    """All rows that leave this state."""
    return tuple(row for row in TRANSITIONS if row.source is source)
