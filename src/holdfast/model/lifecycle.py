"""The life of a replica: its states, and who may move it from one to the next.

The table below is the law. `commit/` refuses whatever it does not list or lists for somebody else; controllers,
`explain`, the simulator's checkers and the documentation read the same rows. Each row also says by when it is due and
what happens when it is overdue, so that no state is left without a way out.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class State(StrEnum):
    """Who owns the replica's fate at the moment."""

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
    """How far a replica has come, for people and other controllers. Each is completed on its own."""

    ADMITTED = "Admitted"
    QUEUED = "Queued"
    SCHEDULED = "Scheduled"
    BOUND = "Bound"
    STARTING = "Starting"
    READY = "Ready"
    SERVING = "Serving"


STAGES = tuple(Stage)


class Actor(StrEnum):
    """Who proposes. AGENT means the agent of the very node that the replica is bound to, same incarnation."""

    SCHEDULER = "scheduler"
    WORKLOAD = "controller:workload"
    ROLLOUT = "controller:rollout"
    DRAIN = "controller:drain"
    NODES = "controller:nodes"
    REPAIR = "controller:repair"
    STATUS = "controller:status"
    ENDPOINTS = "controller:endpoints"
    DISRUPTION = "controller:disruption"
    AUTOSCALE = "controller:autoscale"
    POLICY = "controller:policy"
    QUOTA = "controller:quota"
    GARBAGE = "controller:garbage"
    AGENT = "agent"
    USER = "user"
    OPERATOR = "operator"
    AUTHORITY = "authority"


class Cause(StrEnum):
    """Why a replica is being stopped. Each cause belongs to one actor."""

    SCALE_DOWN = "ScaleDown"
    DELETED = "Deleted"
    ROLLOUT = "Rollout"
    DRAIN = "Drain"
    PREEMPTION = "Preemption"
    REPAIR = "Repair"
    DEADLINE = "Deadline"
    USER_DELETE = "UserDelete"


CAUSE_OWNER: dict[Cause, Actor] = {
    Cause.SCALE_DOWN: Actor.WORKLOAD,
    Cause.DELETED: Actor.WORKLOAD,
    Cause.ROLLOUT: Actor.ROLLOUT,
    Cause.DRAIN: Actor.DRAIN,
    Cause.PREEMPTION: Actor.SCHEDULER,
    Cause.REPAIR: Actor.REPAIR,
    Cause.DEADLINE: Actor.WORKLOAD,
    Cause.USER_DELETE: Actor.USER,
}

# Whoever may stop running work, through one door: evict, with the disruption ledger in the transaction.
EVICTORS = tuple(dict.fromkeys(CAUSE_OWNER.values()))


class Transition(msgspec.Struct, frozen=True):
    """One row of the law.

    `within` names the time in which a replica should have left `source` by this row; `overdue` says who notices and
    what then happens.
    """

    source: State | None
    target: State
    actors: tuple[Actor, ...]
    evidence: str
    within: str
    overdue: str


# fmt: off
def _rows() -> tuple[Transition, ...]:
    s, a = State, Actor
    agent_return = "the node's inventory, due with its first renewal"
    fence = "fenceAfter, counted by controller:nodes"
    row = Transition
    return (
        row(None, s.PENDING, (a.WORKLOAD,), "workload generation",
            "one reconcile", "controller:workload finds it missing at its next resync"),
        row(s.PENDING, s.RESERVED, (a.SCHEDULER,), "reservation and ledger revision",
            "queue bound of its class", "the scheduler publishes the pending reason and the next wake-up"),
        row(s.PENDING, s.BOUND, (a.SCHEDULER,), "compares of the bind, snapshot revision and age",
            "queue bound of its class", "the scheduler publishes the pending reason and the next wake-up"),
        row(s.RESERVED, s.BOUND, (a.SCHEDULER,), "compares of the bind, snapshot revision and age",
            "the reservation's deadline", "controller:repair returns it to Pending past the deadline"),
        row(s.RESERVED, s.PENDING, (a.SCHEDULER, a.REPAIR), "the conflict, or the deadline; the charge is released",
            "the reservation's deadline", "controller:repair scans for reservations past their deadline"),
        row(s.PENDING, s.RELEASED, (a.WORKLOAD,), "deletion or scale-down",
            "one reconcile", "controller:garbage finds replicas whose owner is gone"),
        row(s.RESERVED, s.RELEASED, (a.WORKLOAD,), "deletion or scale-down; the charge is released",
            "one reconcile", "controller:repair scans for reservations past their deadline"),
        row(s.PENDING, s.FAILED, (a.WORKLOAD,), "job deadline",
            "the job's deadline", "controller:workload finds it at its next resync"),
        row(s.BOUND, s.RUNNING, (a.AGENT,), "process identity",
            "startupDeadlineSeconds", "controller:repair evicts it and it is placed anew"),
        row(s.BOUND, s.FAILED, (a.AGENT,), "the start failed, or the exit",
            "startupDeadlineSeconds", "controller:repair evicts it and it is placed anew"),
        row(s.BOUND, s.SUCCEEDED, (a.AGENT,), "the exit",
            "startupDeadlineSeconds", "controller:repair evicts it and it is placed anew"),
        row(s.RUNNING, s.FAILED, (a.AGENT,), "the exit",
            "no bound: it may run for ever", "controller:nodes marks the node when its agent is silent"),
        row(s.RUNNING, s.SUCCEEDED, (a.AGENT,), "the exit",
            "no bound: it may run for ever", "controller:nodes marks the node when its agent is silent"),
        row(s.RUNNING, s.RUNNING, (a.AGENT,), "restart policy and exit; restarts + 1, stage back to Starting",
            "the restart backoff", "the agent reports the crash loop with its next try"),
        row(s.BOUND, s.STOPPING, EVICTORS, "cause and disruption ledger",
            "one reconcile", "the cause's owner finds it again at its next resync"),
        row(s.RUNNING, s.STOPPING, EVICTORS, "cause and disruption ledger",
            "one reconcile", "the cause's owner finds it again at its next resync"),
        row(s.BOUND, s.UNKNOWN, (a.NODES,), "the node's mark",
            "unknownAfter without a renewal", "controller:nodes finds it when it lists the marked node's replicas"),
        row(s.RUNNING, s.UNKNOWN, (a.NODES,), "the node's mark",
            "unknownAfter without a renewal", "controller:nodes finds it when it lists the marked node's replicas"),
        row(s.STOPPING, s.UNKNOWN, (a.NODES,), "the node's mark",
            "unknownAfter without a renewal", "controller:nodes finds it when it lists the marked node's replicas"),
        row(s.UNKNOWN, s.RUNNING, (a.AGENT,), "the mark is cleared and the process is still there",
            agent_return, "controller:repair fails it once the fence has passed"),
        row(s.UNKNOWN, s.STOPPING, (a.AGENT,), "the mark is cleared and it was being stopped",
            agent_return, "controller:repair fails it once the fence has passed"),
        row(s.UNKNOWN, s.SUCCEEDED, (a.AGENT,), "the persisted exit",
            agent_return, "controller:repair fails it once the fence has passed"),
        row(s.UNKNOWN, s.FAILED, (a.AGENT, a.REPAIR, a.OPERATOR),
            "the persisted exit; or the fence, or replaceAfter for keep work; or an operator's word",
            fence, "controller:repair waits and says for which node and until when"),
        row(s.FAILED, s.RELEASED, (a.AGENT, a.REPAIR), "proof of stop, or the fence, or that it was never bound",
            "one renewal", "controller:repair releases it once the node is fenced"),
        row(s.SUCCEEDED, s.RELEASED, (a.AGENT, a.REPAIR), "proof of stop, or the fence",
            "one renewal", "controller:repair releases it once the node is fenced"),
        row(s.STOPPING, s.RELEASED, (a.AGENT, a.REPAIR), "proof of stop, or the fence",
            "graceSeconds and the kill bound", "controller:repair releases it once the node is fenced"),
    )


# fmt: on
TRANSITIONS: tuple[Transition, ...] = _rows()

_BY_MOVE = {(row.source, row.target): row for row in TRANSITIONS}

TERMINAL = frozenset({State.RELEASED})
# In these states the replica's resources are charged to its node and tenant.
CHARGED = frozenset(
    {State.RESERVED, State.BOUND, State.RUNNING, State.STOPPING, State.UNKNOWN, State.FAILED, State.SUCCEEDED}
)
# In these states a process may exist on the node, whatever status says.
MAY_RUN = frozenset(
    {State.BOUND, State.RUNNING, State.STOPPING, State.UNKNOWN, State.FAILED, State.SUCCEEDED}
)


def transition(source: State | None, target: State, actor: Actor) -> Transition | None:
    """The row that lets this actor make this move, or None when there is none."""
    row = _BY_MOVE.get((source, target))
    return row if row is not None and actor in row.actors else None


def owners(source: State | None, target: State) -> tuple[Actor, ...]:
    """Everybody who may make this move; empty when nobody may."""
    row = _BY_MOVE.get((source, target))
    return row.actors if row is not None else ()


def next_moves(source: State | None) -> tuple[Transition, ...]:
    """All rows that leave this state."""
    return tuple(row for row in TRANSITIONS if row.source is source)
