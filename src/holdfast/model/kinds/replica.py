"""Replica: one unit of work, from pending to released."""

from __future__ import annotations

from holdfast.model.kind_declaration import (
    Kind,
    KindRules,
    Unwritten,
    Writers,
    count,
    join_map,
    text,
)
from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.template import Template
from holdfast.model.lifecycle import Actor, Cause, Stage, State
from holdfast.model.meta import (
    Condition,
    Count,
    Int,
    Millis,
    Object,
    Part,
    Revision,
    Seconds,
    Timestamp,
)
from holdfast.model.service_class import service_class


class DeviceShare(Part, frozen=True):
    """A device, or a part of one, that belongs to this replica.

    device: the device's id on its node.
    device_class: the class of device.
    milli: how much of it, in thousandths; 1000 is all of it.
    """

    device: str
    device_class: str
    milli: Count


class ReplicaSpec(Part, frozen=True):
    """What this replica is. It never changes; a change is a new replica.

    workload: the workload it belongs to.
    workload_uid: that workload's uid.
    ordinal: its ordinal among the workload's replicas.
    incarnation: how many replicas had this ordinal before.
    revision: the revision of the template it was made from.
    priority: the priority that its class had at admission.
    region: the region whose plane places it; empty if there is only one plane.
    gang: the gang it starts with, if any.
    expected_seconds: how long it is expected to run, as its job states.
    template: what to run.
    """

    workload: str
    workload_uid: str
    template: Template
    ordinal: Count = 0
    incarnation: Count = 0
    revision: str = ""
    priority: Int = 0
    region: str = ""
    gang: str = ""
    expected_seconds: Seconds | None = None


class Binding(Part, frozen=True):
    """The committed placement, with what the decision rested on.

    node: the node.
    node_uid: that node's uid.
    node_incarnation: the incarnation of the node that the work belongs to.
    at: when it was committed.
    by: the identity that proposed it.
    scope: the lease scope under which it was proposed.
    epoch: the epoch of that lease.
    policy: the SchedulerPolicy revision in force.
    snapshot_revision: the revision that the proposal had seen.
    snapshot_age_ms: the age of that snapshot.
    charge: what is charged to the node and the tenant, in internal units.
    devices: the devices it owns.
    ports: the fixed ports it owns, such as TCP/8080.
    cohort: the quota cohort that was charged.
    capacity_class: the quota class that was charged.
    priority_class: the priority class whose budget was charged.
    reservation: the reservation it consumed, if any.
    token: the fencing token; it grows with every binding of the store.
    deadline: for temporary placements: when it ends unless confirmed.
    installation: the installation of the node's agent that runs it. For work that keeps running
        when cut off, only this one can prove that it has stopped.
    address: the agent's address at the time of the bind, to find the machine.
    tenant_uid: the uid of its tenant, which distinguishes it from a later tenant of that name.
    isolation: the isolation that its template or its tenant requires.
    node_revision: the last write of the node that the proposal had seen.
    """

    node: str
    node_uid: str
    node_incarnation: Count = 0
    at: Timestamp | None = None
    by: str = ""
    scope: str = ""
    epoch: Revision = 0
    policy: str = ""
    snapshot_revision: Revision = 0
    snapshot_age_ms: Millis = 0
    charge: dict[str, Int] = {}
    devices: tuple[DeviceShare, ...] = ()
    ports: tuple[str, ...] = ()
    cohort: str = ""
    capacity_class: str = ""
    priority_class: str = ""
    reservation: str = ""
    token: Revision = 0
    deadline: Timestamp | None = None
    installation: str = ""
    address: str = ""
    tenant_uid: str = ""
    isolation: Isolation = Isolation.NONE
    node_revision: Revision = 0


class Process(Part, frozen=True):
    """The process as its agent reports it.

    id: pid, start time and boot, so that a reused pid is never mistaken for it.
    started_at: when it started.
    restarts: how often it was started again in place.
    exit_code: the code it ended with.
    signal: the signal that ended it.
    oom_killed: whether it ran out of memory.
    reason: why it ended or could not start.
    limits: which limits are enforced, and by which mechanism.
    addresses: where its named ports can be reached.
    """

    id: str = ""
    started_at: Timestamp | None = None
    restarts: Count = 0
    exit_code: Int | None = None
    signal: Count | None = None
    oom_killed: bool = False
    reason: str = ""
    limits: dict[str, str] = {}
    addresses: dict[str, str] = {}


class Pending(Part, frozen=True):
    """Why it waits, and who acts next.

    reasons: how many nodes each reason ruled out, or the one reason that is not about nodes.
    message: a sentence for users.
    verdict: Never, NotWithThisFleet, Waiting or BlockedBy.
    nearest_miss: the node that came closest and what it lacked.
    smallest_change: the smallest change that would let it fit.
    attempts: how many placement attempts there were.
    since: when the wait began.
    next_wake: the latest time of the next attempt.
    owner: who acts next.
    estimated_start: when it may start by the stated durations of others, if they say so; the
        message has the basis.
    """

    reasons: dict[str, Int] = {}
    message: str = ""
    verdict: str = ""
    nearest_miss: str = ""
    smallest_change: str = ""
    attempts: Count = 0
    since: Timestamp | None = None
    next_wake: Timestamp | None = None
    owner: str = ""
    estimated_start: Timestamp | None = None


# The reason of a restart in place after several others in quick succession.
CRASH_LOOP = "CrashLoop"
# `Process.reason` of work that was stopped by the fence deadline, because its agent was cut off.
# Such an end says nothing about the work itself.
DEADLINE_PASSED = "DeadlinePassed"


class TransitionRecord(Part, frozen=True):
    """One transition: who made it, when, from which revision and on what evidence.

    from_state: the state it left.
    to: the state it entered.
    by: the authenticated identity.
    at: when, by the authority's clock.
    revision: the revision of the replica that the decision used.
    reason: a stable CamelCase identifier.
    evidence: what the decision rested on.
    """

    to: State
    by: str
    at: Timestamp
    from_state: State | None = None
    revision: Revision = 0
    reason: str = ""
    evidence: str = ""


class Displaced(Part, frozen=True):
    """That it, or the replica before it at its ordinal, was stopped to make room for other work.

    by: the uid of the workload that got the place.
    priority: the priority of that work.
    at: when, by the authority's clock.
    incarnation: the incarnation that was stopped.
    """

    by: str
    priority: Int = 0
    at: Timestamp | None = None
    incarnation: Count = 0


class ReplicaStatus(Part, frozen=True):
    """What was decided and observed.

    state: its lifecycle state.
    stage: its progress.
    ready_since: when it last became ready, by the authority's clock.
    transition_number: grows with each transition; an operation names the one it makes.
    binding: where it runs.
    reservation: the reservation that holds a place for it.
    cause: why it is being stopped.
    displaced: what it, or the replica before it, was stopped for.
    process: the process as its agent reports it.
    pending: why it waits.
    transitions: its last transitions.
    used: what it used when its node's agent last sampled it, by resource. The server that received
        the sample fills it in when one replica is read; it is not stored.
    conditions: each type has one writer; Bound, SchedulingRetrying, Ready, Serving and Repairing
        are not written yet: `state`, `stage` and `pending` say the same.
    """

    state: State = State.PENDING
    stage: Stage = Stage.ADMITTED
    ready_since: Timestamp | None = None
    transition_number: Revision = 0
    binding: Binding | None = None
    reservation: str = ""
    cause: Cause | None = None
    displaced: Displaced | None = None
    process: Process = Process()
    pending: Pending | None = None
    transitions: tuple[TransitionRecord, ...] = ()
    used: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()


class Replica(Object, frozen=True, kw_only=True, tag="Replica"):
    """One unit of work.

    A Pending replica is a request to be scheduled; its binding states where it runs.

    spec: what to run.
    status: what was decided and observed.
    """

    spec: ReplicaSpec
    status: ReplicaStatus = ReplicaStatus()


def _node_of(replica: Replica) -> str:
    binding = replica.status.binding
    return binding.node if binding is not None else "-"


def _addresses(replica: Replica) -> str:
    return join_map(replica.status.process.addresses)


def _class_of(replica: Replica) -> str:
    return service_class(replica.spec.template).value


def _waits_for(replica: Replica) -> str:
    pending = replica.status.pending
    if pending is not None:
        return ",".join(pending.reasons)
    # The agent's reason: it is not ready, lacks a Secret, or keeps ending.
    is_on = replica.status.state in (State.BOUND, State.RUNNING)
    return replica.status.process.reason.partition(":")[0] if is_on else ""


def _replica_rules() -> KindRules:
    from holdfast.model.validation import replica

    return KindRules(replica.replica, replica.replica_status, replica.replica_update)


REPLICA_KIND = Kind(
    Replica,
    "replicas",
    rules=_replica_rules,
    writers=Writers(
        spec=(Actor.WORKLOAD,),
        conditions={
            "Bound": Actor.SCHEDULER,
            "SchedulingRetrying": Actor.SCHEDULER,
            "Ready": Actor.AGENT,
            "Serving": Actor.ENDPOINTS,
            "Repairing": Actor.REPAIR,
        },
        removers=(Actor.WORKLOAD, Actor.GARBAGE, Actor.USER),
    ),
    columns=(
        text("State", lambda o: o.status.state.value, "who owns its fate"),
        text("Stage", lambda o: o.status.stage.value, "how far it has come"),
        text("Node", _node_of, "where it runs"),
        count("Restarts", lambda o: o.status.process.restarts, "how often it was started again"),
        text("Waits for", _waits_for, "why it waits"),
        text("Addresses", _addresses, "where it can be reached", wide=True),
        text("Class", _class_of, "Guaranteed, Burstable or BestEffort", wide=True),
        text("Workload", lambda o: o.spec.workload, "what it belongs to", wide=True),
        text("Revision", lambda o: o.spec.revision or "-", "of which template", wide=True),
    ),
    short_names=("rep",),
    immutable=("spec",),
    computed=("used",),
    # Replicas are deleted with their workloads.
    removal_order=None,
    unwritten=Unwritten((), ("Bound", "SchedulingRetrying", "Ready", "Serving", "Repairing")),
)
