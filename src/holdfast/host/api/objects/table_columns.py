"""The table columns of each kind: what a person wants to know about it first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.model.jobs import completions, finished_condition
from holdfast.model.kinds.access import Revocation, Role, RoleBinding, Token
from holdfast.model.kinds.admissionpolicy import AdmissionPolicy
from holdfast.model.kinds.commitment import Commitment
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.endpoints import Endpoints
from holdfast.model.kinds.event import Event
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.override import Override
from holdfast.model.kinds.region import Grant, Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import PriorityClass, Quota, Tenant
from holdfast.model.kinds.workload import RolloutPhase, Workload, WorkloadRevision, WorkloadType
from holdfast.model.lifecycle import State
from holdfast.model.meta import Object

Cell = Callable[[Any, datetime], Any]


class Column(msgspec.Struct, frozen=True):
    """One column. Priority 1 is for `-o wide`."""

    name: str
    cell: Cell
    description: str
    type: str = "string"
    format: str = ""
    priority: int = 0


def _of(name: str, get: Callable[[Any], Any], description: str, *, wide: bool = False) -> Column:
    return Column(name, lambda obj, now: get(obj), description, priority=int(wide))


def _count(name: str, get: Callable[[Any], int], description: str) -> Column:
    return Column(name, lambda obj, now: get(obj), description, type="integer")


def _moment(
    name: str, get: Callable[[Any], datetime | None], description: str, *, wide: bool = False
) -> Column:
    def cell(obj: Any, now: datetime) -> str:
        moment = get(obj)
        return moment.isoformat(timespec="seconds") if moment is not None else ""

    return Column(name, cell, description, priority=int(wide))


def _joined(table: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in table.items()) or "-"


def _budgets(quota: Quota) -> str:
    classes = quota.spec.priority_classes
    return ";".join(f"{name}:{_joined(budget)}" for name, budget in classes.items()) or "-"


def _phase(node: Node) -> str:
    gates = [node.status.phase.value]
    if node.spec.cordoned:
        gates.append("Cordoned")
    if node.spec.drain is not None:
        gates.append("Draining")
    return ",".join(gates)


def _node_of(replica: Replica) -> str:
    binding = replica.status.binding
    return binding.node if binding is not None else "-"


def _addresses(replica: Replica) -> str:
    return _joined(replica.status.process.addresses)


def _waits_for(replica: Replica) -> str:
    pending = replica.status.pending
    if pending is not None:
        return ",".join(pending.reasons)
    # The agent's reason: it is not ready, lacks a Secret, or keeps ending.
    is_on = replica.status.state in (State.BOUND, State.RUNNING)
    return replica.status.process.reason.partition(":")[0] if is_on else ""


def _ready(workload: Workload) -> str:
    """How much of what is wanted exists, in the terms of the workload's type."""
    spec, progress = workload.spec, workload.status.progress
    match spec.type:
        case WorkloadType.SERVICE:
            return f"{progress.ready}/{spec.replicas}"
        case WorkloadType.JOB:
            return f"{progress.succeeded}/{completions(spec)}"
        case WorkloadType.PER_NODE:
            return f"{progress.ready}/{progress.desired}"
        case WorkloadType.CRON:
            return f"{len(workload.status.cron.active)} active"


def _rollout(workload: Workload) -> str:
    """The phase of a rollout and how many replicas it has reached; at rest, the current revision.

    A rollout may for a moment have more ready replicas than are wanted; it never shows more.
    """
    spec, rollout = workload.spec, workload.status.rollout
    if rollout.phase in (RolloutPhase.NONE, RolloutPhase.IDLE):
        return rollout.current or "-"
    if rollout.phase is RolloutPhase.FAILED:
        return f"{rollout.reason} to {rollout.stable}"
    is_service = spec.type is WorkloadType.SERVICE
    wanted = spec.replicas if is_service else workload.status.progress.desired
    return f"{rollout.phase.value} {min(rollout.ready, wanted)}/{wanted}"


def _outcome(workload: Workload) -> str:
    over, cron = finished_condition(workload), workload.status.cron
    if over is not None:
        return f"{over.type}: {over.reason}"
    if cron.trouble:
        return cron.trouble
    coming = cron.next_schedule
    return coming.isoformat(timespec="minutes") if coming is not None else "-"


# As many as fit a line.
ENDPOINTS_SHOWN = 3
COLUMNS: dict[type[Object], tuple[Column, ...]] = {
    Workload: (
        _of("Type", lambda o: o.spec.type.value, "Service, Job, Cron or PerNode"),
        _of("Ready", _ready, "replicas that are ready, of those wanted; of a job, those complete"),
        _count("Serving", lambda o: o.status.progress.serving, "replicas that get traffic"),
        _count("Pending", lambda o: o.status.progress.queued, "replicas that wait for a place"),
        _of("Rollout", _rollout, "the revision, or how far the next one has come"),
        _of(
            "Waits for",
            lambda o: _joined(o.status.progress.pending_reasons),
            "why they wait",
            wide=True,
        ),
        _of("Priority", lambda o: o.spec.template.priority_class or "-", "its class", wide=True),
        _of("Outcome", _outcome, "how a job has ended, or when a cron job runs next", wide=True),
        _of("Last error", lambda o: o.status.progress.last_error, "what went wrong", wide=True),
    ),
    Replica: (
        _of("State", lambda o: o.status.state.value, "who owns its fate"),
        _of("Stage", lambda o: o.status.stage.value, "how far it has come"),
        _of("Node", _node_of, "where it runs"),
        _count("Restarts", lambda o: o.status.process.restarts, "how often it was started again"),
        _of("Waits for", _waits_for, "why it waits"),
        _of("Addresses", _addresses, "where it can be reached", wide=True),
        _of("Workload", lambda o: o.spec.workload, "what it belongs to", wide=True),
        _of("Revision", lambda o: o.spec.revision or "-", "of which template", wide=True),
    ),
    Node: (
        _of("Phase", _phase, "what may be believed about it, and whether it takes work"),
        _of("Region", lambda o: o.spec.region, "where it is"),
        _of("Zone", lambda o: o.spec.zone, "its failure domain"),
        _of("Pool", lambda o: o.spec.pool, "the pool it belongs to"),
        _of("Capacity", lambda o: _joined(o.spec.capacity), "what it has", wide=True),
        _count("Devices", lambda o: len(o.spec.devices), "how many devices it has"),
        _of("Address", lambda o: o.status.address or "-", "of its agent", wide=True),
        _of("Version", lambda o: o.status.agent_version or "-", "of its agent", wide=True),
        _moment(
            "Heartbeat", lambda o: o.status.last_heartbeat, "when its agent renewed", wide=True
        ),
    ),
    Reservation: (
        _of("Phase", lambda o: o.status.phase.value, "Held, Committed, Consumed or Released"),
        _of("Intent", lambda o: o.spec.intent.value, "what it is held for"),
        _of("Owner", lambda o: f"{o.spec.owner.kind}/{o.spec.owner.name}", "whom it is held for"),
        _count("Claims", lambda o: len(o.status.claims), "how many places it holds"),
        _moment("Deadline", lambda o: o.spec.deadline, "when it is given back"),
    ),
    Quota: (
        _of("Cohort", lambda o: o.spec.cohort or "-", "with whom it lends and borrows"),
        _of("Hard", lambda o: _joined(o.spec.hard), "what may be committed"),
        _of("Used", lambda o: _joined(o.status.used.get("hard", {})), "what is committed"),
        _of("Borrowing", lambda o: _joined(o.spec.borrowing), "on top of that", wide=True),
        _of("Budgets", _budgets, "by priority class", wide=True),
    ),
    AdmissionPolicy: (
        _of("Rules", lambda o: str(len(o.spec.rules)), "how many rules it has"),
        _of("Failure", lambda o: o.spec.failure.value, "what becomes of what cannot be judged"),
    ),
    Tenant: (
        _of("Phase", lambda o: o.status.phase.value, "Active or Terminating"),
        _of("Residency", lambda o: o.spec.residency or "-", "where its data must stay"),
        _of("Regions", lambda o: ",".join(o.spec.regions) or "*", "which it may use", wide=True),
    ),
    PriorityClass: (
        _count("Value", lambda o: o.spec.value, "higher goes first"),
        _of("Class", lambda o: o.spec.capacity_class.value, "how its capacity is charged"),
        _of("Tenants", lambda o: ",".join(o.spec.allowed_tenants) or "*", "who may use it"),
    ),
    Region: (
        _of("Phase", lambda o: o.status.phase or "-", "how it is doing"),
        _of("Law", lambda o: ",".join(o.spec.jurisdictions) or "-", "the residencies it satisfies"),
        _of("Zones", lambda o: ",".join(o.spec.zones) or "-", "its failure domains"),
    ),
    SchedulerPolicy: (
        _of("Stage", lambda o: o.spec.stage.value, "how much of the work it decides for"),
        _of("Fallback", lambda o: o.spec.fallback or "-", "what to go back to"),
        _of("Weights", lambda o: _joined(o.spec.weights), "how much each scorer counts", wide=True),
    ),
    Grant: (
        _of("Tenant", lambda o: o.spec.tenant, "whose quota it is cut from"),
        _of("Region", lambda o: o.spec.region, "who may spend it"),
        _moment("Expires", lambda o: o.spec.expires, "when it ends"),
    ),
    Override: (
        _of("Type", lambda o: o.spec.type.value, "what kind of intervention"),
        _of("Phase", lambda o: o.status.phase or "-", "whether it is in force"),
        _of("Requester", lambda o: o.spec.requester, "who asked for it"),
        _moment("Expires", lambda o: o.spec.expires, "when it ends by itself"),
        _of("Reason", lambda o: o.spec.reason, "why", wide=True),
    ),
    Lease: (
        _of("Holder", lambda o: o.spec.holder or "-", "who may act"),
        _count("Epoch", lambda o: o.spec.epoch, "how often it was taken over"),
        _moment("Renewed", lambda o: o.spec.renewed, "when it was last renewed"),
    ),
    Commitment: (
        _of("State", lambda o: o.status.state.value, "Holding, AtRisk, Broken or Unknown"),
        _of("Workload", lambda o: o.spec.promise.workload, "of which workload it speaks"),
        _moment("Proven", lambda o: o.status.proven_at, "when it was last shown"),
    ),
    Event: (
        _of("Type", lambda o: o.type.value, "Normal or Warning"),
        _of("Reason", lambda o: o.reason, "one stable word"),
        _of(
            "Object",
            lambda o: f"{o.involved_object.kind.lower()}/{o.involved_object.name}",
            "what it happened to",
        ),
        _of("Message", lambda o: o.message, "a sentence"),
        _count("Count", lambda o: o.count, "how often"),
    ),
    Decision: (
        _of("Replica", lambda o: o.spec.replica, "what it is about"),
        _of("Chosen", lambda o: o.spec.chosen or "-", "the node that was proposed"),
        _of("Result", lambda o: o.spec.result, "Accepted, or why not"),
        _of("Message", lambda o: o.spec.message, "a sentence", wide=True),
    ),
    Role: (_count("Rules", lambda o: len(o.rules), "how many rules it has"),),
    RoleBinding: (
        _of("Role", lambda o: o.role_ref.name, "what is given"),
        _of("Subjects", lambda o: ",".join(s.name for s in o.subjects), "to whom"),
    ),
    Token: (
        _of("Purpose", lambda o: o.spec.purpose.value, "Bearer or Join"),
        _of("User", lambda o: o.spec.user or "-", "who the bearer is"),
        _moment("Expires", lambda o: o.spec.expires, "when it ends"),
        _of("Revoked", lambda o: str(o.spec.revoked).lower(), "whether it was taken back"),
    ),
    Revocation: (
        _of("User", lambda o: o.spec.user, "whose certificates and tokens"),
        _moment("Before", lambda o: o.spec.before, "those that were issued until then"),
        _of("Reason", lambda o: o.spec.reason, "why"),
        _moment("Expires", lambda o: o.spec.expires, "when all of them have ended anyway"),
    ),
    Secret: (
        _of("Type", lambda o: o.type, "what it is"),
        _count("Data", lambda o: len(o.data), "how many values it has"),
    ),
    WorkloadRevision: (
        _of("Workload", lambda o: o.spec.workload, "whose template"),
        _count("Number", lambda o: o.spec.number, "which in order"),
    ),
    Endpoints: (
        _count("Ready", lambda o: len(o.endpoints), "how many replicas serve"),
        _of(
            "Addresses",
            lambda o: (
                ",".join(a for e in o.endpoints[:ENDPOINTS_SHOWN] for a in e.ports.values()) or "-"
            ),
            "where the first few can be reached",
        ),
    ),
}
