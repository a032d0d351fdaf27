"""Workload: what a user wants to run, and its progress."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from holdfast.model.kinds.template import Template
from holdfast.model.meta import (
    INT_MAX,
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

# "25%" or a whole number, as in Kubernetes.
Portion = Int | str


class WorkloadType(StrEnum):
    SERVICE = "Service"
    JOB = "Job"
    CRON = "Cron"
    PER_NODE = "PerNode"


# Types whose replicas run until they are told to stop.
LASTING = (WorkloadType.SERVICE, WorkloadType.PER_NODE)


class FailureAction(StrEnum):
    FAIL_JOB = "FailJob"
    IGNORE = "Ignore"
    COUNT = "Count"


class FailureRule(Part, frozen=True):
    """What a failure with one of these exit codes means for the job.

    exit_codes: the codes; a signal counts as 128 plus its number.
    action: FailJob ends the job, Ignore starts again for free, Count uses up one retry.
    """

    exit_codes: tuple[Annotated[int, Meta(ge=0, le=255)], ...]
    action: FailureAction


class Job(Part, frozen=True):
    """Work that ends.

    completions: how many replicas must succeed; absent means as many as `replicas`.
    parallelism: how many may run at once; absent means all of them, 0 pauses the job.
    indexed: each completion is a different piece of the work, identified by HOLDFAST_INDEX; the
        members of a gang learn the addresses of the others. Every job has the index.
    retries: how many failures the job survives, including restarts in place; a replica that is
        stopped on purpose or lost with its node does not count.
    failure_policy: what certain exit codes mean; the first rule that names the code decides.
    deadline_seconds: how long the whole job may take.
    expected_seconds: how long one replica is expected to run. A job that waits is told when it may
        start by what others stated, and work that ends in time may start before it. Nothing is
        stopped for running longer.
    ttl_seconds_after_finished: how long after its end the job is deleted; absent means never.
    """

    completions: Count | None = None
    parallelism: Count | None = None
    indexed: bool = False
    retries: Count = 6
    failure_policy: tuple[FailureRule, ...] = ()
    deadline_seconds: Seconds | None = None
    expected_seconds: Seconds | None = None
    ttl_seconds_after_finished: Seconds | None = None


class Concurrency(StrEnum):
    FORBID = "Forbid"
    ALLOW = "Allow"
    REPLACE = "Replace"


class MissedRuns(StrEnum):
    SKIP = "Skip"
    RUN_LAST = "RunLast"


class Cron(Part, frozen=True):
    """When to start a job periodically.

    schedule: five fields as in crontab, or @hourly and the like.
    time_zone: an IANA name; UTC by default.
    concurrency: what to do if the last run is still active: Forbid skips, Replace stops it, Allow
        runs both.
    missed: after a time without a controller, Skip the missed runs or RunLast once.
    starting_deadline_seconds: a run that would start later than this is skipped.
    suspend: start no more runs; runs missed while suspended are skipped.
    history: how many finished runs to keep.
    """

    schedule: str
    time_zone: str = "UTC"
    concurrency: Concurrency = Concurrency.FORBID
    missed: MissedRuns = MissedRuns.RUN_LAST
    starting_deadline_seconds: Seconds | None = None
    suspend: bool = False
    history: Count = 3


class RolloutStrategy(StrEnum):
    ROLLING = "Rolling"
    CANARY = "Canary"
    RECREATE = "Recreate"


class CanaryStep(Part, frozen=True):
    """One step of a canary: the portion of the new revision, and how long to hold it.

    portion: how many replicas, or which percentage, run the new revision.
    hold_seconds: how long they must stay ready.
    """

    portion: Portion
    hold_seconds: Seconds = 60


class Rollout(Part, frozen=True):
    """How a new template replaces the old one.

    strategy: Rolling a few at a time, Canary in stated steps, Recreate all at once.
    max_unavailable: how many, or which percentage, may be missing during the rollout.
    max_surge: how many, or which percentage, may be extra during the rollout.
    canary: the steps of a canary.
    paused: whether the rollout is paused.
    min_ready_seconds: how long a replica must be ready before it counts, doubled for each time that
        it has ended.
    progress_deadline_seconds: the rollout pauses after this time without progress; nothing is
        deleted.
    auto_revert: revert to the last good revision when the deadline passes.
    history: how many old revisions to keep.
    """

    strategy: RolloutStrategy = RolloutStrategy.ROLLING
    max_unavailable: Portion = "25%"
    max_surge: Portion = "25%"
    canary: tuple[CanaryStep, ...] = ()
    paused: bool = False
    min_ready_seconds: Seconds = 3
    progress_deadline_seconds: Seconds = 600
    auto_revert: bool = False
    history: Count = 10


class Disruption(Part, frozen=True):
    """How many replicas may be stopped on purpose at the same time, for all causes together.

    max_unavailable: how many, or which percentage, may be missing.
    min_available: how many, or which percentage, must remain; set one of the two.
    """

    max_unavailable: Portion | None = None
    min_available: Portion | None = None


class Gang(Part, frozen=True):
    """Replicas that start together or not at all; more of them start as room appears.

    min_available: how many must be placed before any starts. If fewer are left, all are stopped,
        and the gang starts again.
    timeout_seconds: how long places are held for the rest.
    within: a label of nodes, or zone or region: all members run on nodes with the same value of
        it; empty means on any nodes.
    within_required: whether that is a hard rule; otherwise such nodes are only tried first.
    """

    min_available: Annotated[int, Meta(ge=1, le=1_000_000)]
    timeout_seconds: Seconds = 300
    within: str = ""
    within_required: bool = True


class Recovery(Part, frozen=True):
    """What happens when the region of this work is lost.

    eligible: whether it may run elsewhere at all.
    regions: where to recover, in this order.
    within_seconds: the promised time until it serves again. It has no effect yet.
    replicas: how many must be back by then; absent means all.
    reserve: reserve capacity for this in advance.
    """

    eligible: bool = True
    regions: tuple[str, ...] = ()
    within_seconds: Seconds = 300
    replicas: Count | None = None
    reserve: bool = False


class Autoscale(Part, frozen=True):
    """Scales the replica count with the load. It has no effect yet.

    min: never fewer.
    max: never more.
    metric: what to follow, such as cpu or requests.
    target: the value per replica to aim for.
    max_step: how many to add or remove at a time.
    cooldown_seconds: how long to wait after a change.
    scale_down_delay_seconds: how long the load must stay low before removing any.
    """

    max: Count
    min: Count = 1
    metric: str = "cpu"
    target: Annotated[int, Meta(ge=1, le=INT_MAX)] = 70
    max_step: Annotated[int, Meta(ge=1, le=10_000)] = 4
    cooldown_seconds: Seconds = 60
    scale_down_delay_seconds: Seconds = 300


class WorkloadSpec(Part, frozen=True):
    """The desired state.

    type: Service runs permanently, Job ends, Cron starts jobs by a schedule, PerNode runs
        once on every fitting node.
    replicas: how many, for services and jobs.
    template: the template of each replica.
    job: for jobs and cron.
    cron: for cron.
    rollout: how a new template replaces the old one.
    disruption: how many replicas may be stopped on purpose at once.
    gang: start together or not at all.
    recovery: what happens when its region is lost.
    autoscale: scale the replica count with the load. It has no effect yet.
    latency_target_ms: the latency its users expect. It has no effect yet.
    """

    template: Template
    type: WorkloadType = WorkloadType.SERVICE
    replicas: Count = 1
    job: Job = Job()
    cron: Cron | None = None
    rollout: Rollout = Rollout()
    disruption: Disruption | None = None
    gang: Gang | None = None
    recovery: Recovery | None = None
    autoscale: Autoscale | None = None
    latency_target_ms: Millis | None = None


class Progress(Part, frozen=True):
    """How many replicas have reached each stage.

    Each stage counts the replicas that reached it and still hold it.

    desired: how many are desired.
    admitted: accepted and existing.
    queued: waiting for a place.
    scheduled: a reservation holds a place, and no binding is committed yet; a bind without a
        reservation passes this stage in one step.
    bound: a place is committed.
    starting: the process is being started.
    ready: it answers its readiness probe.
    serving: its address is published.
    stopping: it is being stopped.
    unknown: its node is out of contact.
    failed: it ended in failure and is not replaced yet.
    succeeded: it ended well.
    updated: of the current template.
    pending_reasons: how many wait for each reason.
    last_action: the last action for this workload.
    last_error: the last error.
    deadline: the active deadline, if any.
    deadline_state: None, Running, Met or Missed.
    """

    desired: Count = 0
    admitted: Count = 0
    queued: Count = 0
    scheduled: Count = 0
    bound: Count = 0
    starting: Count = 0
    ready: Count = 0
    serving: Count = 0
    stopping: Count = 0
    unknown: Count = 0
    failed: Count = 0
    succeeded: Count = 0
    updated: Count = 0
    pending_reasons: dict[str, Int] = {}
    last_action: str = ""
    last_error: str = ""
    deadline: Timestamp | None = None
    deadline_state: str = ""


class RolloutPhase(StrEnum):
    """The state of a rollout; empty before controller:rollout has processed the workload."""

    NONE = ""
    IDLE = "Idle"
    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    REVERTING = "Reverting"
    FAILED = "Failed"


class RolloutStatus(Part, frozen=True):
    """The state of a rollout; written by the rollout controller only.

    New replicas follow it: an ordinal takes `current` if it is in `updated` or beyond the stated
    count, and `stable` otherwise.

    current: the revision that all replicas should reach.
    stable: the last revision that was completely ready.
    updated: the ordinals that take the current revision, such as 0-3,7; empty without a rollout.
    surge: how many ordinals there are beyond the stated count.
    held: whether no replica is created until the last one of another revision is gone.
    step: the current canary step.
    ready: the most ordinals that were ready with the current revision.
    phase: Idle, Progressing, Paused, Reverting or Failed.
    reason: a stable CamelCase identifier for the cause.
    message: a sentence for users.
    since: when this phase began.
    progressed_at: when it last made progress.
    revisions: how many revisions there have been.
    observed_generation: the generation that this refers to.
    """

    current: str = ""
    stable: str = ""
    updated: str = ""
    surge: Count = 0
    held: bool = False
    step: Count = 0
    ready: Count = 0
    phase: RolloutPhase = RolloutPhase.NONE
    reason: str = ""
    message: str = ""
    since: Timestamp | None = None
    progressed_at: Timestamp | None = None
    revisions: Revision = 0
    observed_generation: Revision = 0


class AutoscaleStatus(Part, frozen=True):
    """What the autoscaler last decided and why; written by the autoscale controller only.

    desired: the replica count that it requests.
    reason: why it changed the count, or why not.
    last_change: when it last changed the count.
    """

    desired: Int = 0
    reason: str = ""
    last_change: Timestamp | None = None


class JobStatus(Part, frozen=True):
    """The progress of a job; written by the workload controller only.

    It is the account of ended replicas: a replica that is counted here may be deleted, and a
    complete index never runs again.

    active: replicas that have not ended yet.
    succeeded: how many indexes are complete.
    failed: how many failures used up a retry.
    completed_indexes: which indexes are complete, such as 0-3,7.
    failures: how often each index has failed, of those that have.
    start_time: when the deadline started.
    completion_time: when the job was found to be complete or failed.
    """

    active: Count = 0
    succeeded: Count = 0
    failed: Int = 0
    completed_indexes: str = ""
    failures: dict[str, Int] = {}
    start_time: Timestamp | None = None
    completion_time: Timestamp | None = None


class CronStatus(Part, frozen=True):
    """The runs of a cron job; written by the workload controller only.

    last_schedule: the scheduled time of the last run; written with the run itself.
    recent_schedules: the scheduled times of the last runs, in the order in which they started. A
        wall clock that was ahead leaves a time in the future.
    next_schedule: the next scheduled time.
    active: the active runs.
    observed_generation: the generation of the spec whose schedule is followed.
    counts_from: earlier times do not belong to this schedule; it is reset when the spec changes.
    last_skipped: the last scheduled time without a run.
    skipped_because: why it was skipped.
    trouble: why no runs are started at all, if so.
    """

    last_schedule: Timestamp | None = None
    recent_schedules: tuple[Timestamp, ...] = ()
    next_schedule: Timestamp | None = None
    active: tuple[str, ...] = ()
    observed_generation: Revision = 0
    counts_from: Timestamp | None = None
    last_skipped: Timestamp | None = None
    skipped_because: str = ""
    trouble: str = ""


class WorkloadStatus(Part, frozen=True):
    """What was observed. Each part has one writer.

    observed_generation: the generation of the spec that the counts refer to.
    progress: counts by stage and reason; written by the status controller.
    rollout: the state of a rollout.
    autoscale: what the autoscaler decided; it is not written yet.
    job: the progress of a job.
    cron: the runs of a cron job.
    conditions: each type has one writer; Recovered, RepairComplete, ScalingLimited and
        SchedulerOverrideObserved are not written yet.
    """

    observed_generation: Revision = 0
    progress: Progress = Progress()
    rollout: RolloutStatus = RolloutStatus()
    autoscale: AutoscaleStatus = AutoscaleStatus()
    job: JobStatus = JobStatus()
    cron: CronStatus = CronStatus()
    conditions: tuple[Condition, ...] = ()


class Workload(Object, frozen=True, kw_only=True, tag="Workload"):
    """A service, a job, a cron job, or one replica per node: what a user wants to run.

    spec: the desired state.
    status: what was observed.
    """

    spec: WorkloadSpec
    status: WorkloadStatus = WorkloadStatus()


# WorkloadRevision: an earlier template of a workload, for reverts.


class WorkloadRevisionSpec(Part, frozen=True):
    """The template of a revision. It never changes.

    workload: the workload of the template.
    number: the number of the revision.
    digest: the digest of the template, so that a revert creates no new revision.
    template: the template.
    """

    workload: str
    number: Revision
    digest: str
    template: Template


class WorkloadRevision(Object, frozen=True, kw_only=True, tag="WorkloadRevision"):
    """One revision of a workload's template.

    spec: the template of the revision.
    """

    spec: WorkloadRevisionSpec
