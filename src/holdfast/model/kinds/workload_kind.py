"""The declarations of Workload and WorkloadRevision, apart from their structs: their columns need
the rules of jobs.
"""

from __future__ import annotations

from holdfast.model.kind_declaration import (
    PEOPLE,
    Kind,
    KindRules,
    NoEffectRow,
    Unwritten,
    Writers,
    count,
    join_map,
    text,
)
from holdfast.model.kinds.workload import RolloutPhase, Workload, WorkloadRevision, WorkloadType
from holdfast.model.lifecycle import Actor
from holdfast.model.workload.jobs import completions, finished_condition


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


def _workload_rules() -> KindRules:
    from holdfast.model.validation import workload

    return KindRules(workload.workload, workload.workload_status, workload.workload_update)


WORKLOAD_KIND = Kind(
    Workload,
    "workloads",
    rules=_workload_rules,
    writers=Writers(
        spec=PEOPLE,
        status={
            "observed_generation": Actor.STATUS,
            "progress": Actor.STATUS,
            "rollout": Actor.ROLLOUT,
            "autoscale": Actor.AUTOSCALE,
            "job": Actor.WORKLOAD,
            "cron": Actor.WORKLOAD,
        },
        conditions={
            "Available": Actor.STATUS,
            "Bound": Actor.STATUS,
            "SchedulingRetrying": Actor.STATUS,
            "Complete": Actor.WORKLOAD,
            "Failed": Actor.WORKLOAD,
            "Progressing": Actor.ROLLOUT,
            "RollbackObserved": Actor.ROLLOUT,
            "Recovered": Actor.REPAIR,
            "RepairComplete": Actor.REPAIR,
            "RecoveryReserved": Actor.RESERVES,
            "ScalingLimited": Actor.AUTOSCALE,
            "SchedulerOverrideObserved": Actor.SCHEDULER,
        },
        removers=(Actor.WORKLOAD, Actor.GARBAGE),
        # `job_times.py`: a run of a cron job.
        makers=(Actor.WORKLOAD,),
    ),
    columns=(
        text("Type", lambda o: o.spec.type.value, "Service, Job, Cron or PerNode"),
        text("Ready", _ready, "replicas that are ready, of those wanted; of a job, those complete"),
        count("Serving", lambda o: o.status.progress.serving, "replicas that get traffic"),
        count("Pending", lambda o: o.status.progress.queued, "replicas that wait for a place"),
        text("Rollout", _rollout, "the revision, or how far the next one has come"),
        text(
            "Waits for",
            lambda o: join_map(o.status.progress.pending_reasons),
            "why they wait",
            wide=True,
        ),
        text("Priority", lambda o: o.spec.template.priority_class or "-", "its class", wide=True),
        text("Outcome", _outcome, "how a job has ended, or when a cron job runs next", wide=True),
        text("Last error", lambda o: o.status.progress.last_error, "what went wrong", wide=True),
    ),
    short_names=("wl",),
    scale=True,
    immutable=("spec.type",),
    removal_order=0,
    no_effect=(
        NoEffectRow(
            "spec.autoscale",
            lambda it: it.spec.autoscale is not None,
            "the number of replicas stays at spec.replicas",
        ),
        NoEffectRow(
            "spec.recovery.withinSeconds",
            lambda it: it.spec.recovery is not None,
            "nothing measures how soon the work serves again",
        ),
        NoEffectRow(
            "spec.latencyTargetMs",
            lambda it: it.spec.latency_target_ms is not None,
            "nodes are not ranked by latency",
        ),
    ),
    unwritten=Unwritten(
        ("autoscale",),
        ("Recovered", "RepairComplete", "ScalingLimited", "SchedulerOverrideObserved"),
    ),
)


def _workload_revision_rules() -> KindRules:
    from holdfast.model.validation import replica

    return KindRules(replica.workload_revision)


WORKLOAD_REVISION_KIND = Kind(
    WorkloadRevision,
    "workloadrevisions",
    rules=_workload_revision_rules,
    writers=Writers(spec=(Actor.ROLLOUT,)),
    columns=(
        text("Workload", lambda o: o.spec.workload, "whose template"),
        count("Number", lambda o: o.spec.number, "which in order"),
    ),
    short_names=("wr",),
    status=False,
    immutable=("spec",),
    removal_order=3,
)
