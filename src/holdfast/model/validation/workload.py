"""Validates workloads: parts that must be consistent, and parts that do not apply to a type.

A part that would have no effect is refused instead of ignored, because its author expects an
effect.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model.errors import Invalid
from holdfast.model.kinds.template import RestartPolicy
from holdfast.model.kinds.workload import (
    LASTING,
    Autoscale,
    Disruption,
    Gang,
    Job,
    Recovery,
    Rollout,
    RolloutStrategy,
    Workload,
    WorkloadSpec,
    WorkloadType,
)
from holdfast.model.placement import disruption
from holdfast.model.validation import names, text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.template import template
from holdfast.model.workload import cron, indexes

# A replica is named <workload>-<ordinal>-<incarnation>, both up to a million, in 63 characters.
NAME_MAX = names.NAME_MAX - len("-1000000-1000000")
# A run of a cron job is a workload named <cron>-<minutes since 1970>, with its own replicas.
CRON_NAME_MAX = NAME_MAX - len("-99999999")
CANARY_STEPS_MAX = 20
REGIONS_MAX = 64
# The record of a gang lists all members that have a place.
GANG_MEMBERS_MAX = 1_000
FAILURE_RULES_MAX = 20
EXPECTED_SECONDS_MAX = 366 * 86_400

_ENDING = (WorkloadType.JOB, WorkloadType.CRON)
_COUNTED = (WorkloadType.SERVICE, WorkloadType.JOB, WorkloadType.CRON)
_PLACED = (WorkloadType.SERVICE, WorkloadType.JOB)
_SERVICE = (WorkloadType.SERVICE,)


def workload(obj: Workload, at: FieldPath) -> None:
    """Checks the length of the name, the template, and every part against the type."""
    spec = obj.spec
    limit = CRON_NAME_MAX if spec.type is WorkloadType.CRON else NAME_MAX
    if limit < len(obj.name) <= names.NAME_MAX:
        at["metadata"]["name"].wrong(
            obj.name, f"must be at most {limit} characters, so that its replicas' names fit in 63"
        )
    at = at["spec"]
    template(at["template"], spec.template)
    _restart(at, spec)
    _replicas(at, spec)
    _job(at["job"], spec)
    _cron(at["cron"], spec)
    _rollout(at["rollout"], spec)
    for field, part, types, rule in (
        ("disruption", spec.disruption, tuple(WorkloadType), _disruption),
        ("gang", spec.gang, _COUNTED, _gang),
        ("recovery", spec.recovery, _PLACED, _recovery),
        ("autoscale", spec.autoscale, _SERVICE, _autoscale),
    ):
        _part(at[field], spec, part, types, rule)


def _part(
    at: FieldPath,
    spec: WorkloadSpec,
    part: object,
    types: tuple[WorkloadType, ...],
    rule: Callable[..., None],
) -> None:
    """Checks an optional part, which applies to some types only, by its own rule."""
    if part is None:
        return
    if spec.type not in types:
        at.wrong(None, f"must be left out for {spec.type.value}")
    rule(at, spec, part)


def _restart(at: FieldPath, spec: WorkloadSpec) -> None:
    place, restart = at["template"]["restart"], spec.template.restart
    if spec.type not in _ENDING:
        return
    if restart is RestartPolicy.ALWAYS:
        place.wrong(restart.value, f"must be OnFailure or Never for {spec.type.value}, which ends")
    elif spec.job.failure_policy and restart is not RestartPolicy.NEVER:
        # The agent would restart it in place, and the job would never see the exit code.
        place.wrong(restart.value, "must be Never where the job has a failurePolicy")


def _replicas(at: FieldPath, spec: WorkloadSpec) -> None:
    if spec.type is WorkloadType.PER_NODE and spec.replicas != 1:
        at["replicas"].wrong(
            spec.replicas, "must be left out for PerNode: each node has one replica"
        )


def _job(at: FieldPath, spec: WorkloadSpec) -> None:
    job = spec.job
    if spec.type not in _ENDING:
        if job != Job():
            at.wrong(None, f"must be left out for {spec.type.value}")
        return
    if job.deadline_seconds == 0:
        at["deadlineSeconds"].wrong(0, "must be at least 1")
    expected = job.expected_seconds
    if expected is not None and not 1 <= expected <= EXPECTED_SECONDS_MAX:
        bound = f"must be from 1 to {EXPECTED_SECONDS_MAX}, a year: leave it out if it is not known"
        at["expectedSeconds"].wrong(expected, bound)
    if not names.at_most(at["failurePolicy"], job.failure_policy, FAILURE_RULES_MAX):
        return
    named: set[int] = set()
    for index, rule in enumerate(job.failure_policy):
        codes = at["failurePolicy"][index]["exitCodes"]
        if not rule.exit_codes:
            codes.wrong((), "must have at least one item")
        for position, code in enumerate(rule.exit_codes):
            if code == 0:
                codes[position].wrong(code, "must not be 0, which is success")
            elif code in named:
                codes[position].wrong(code, "must not appear twice: the first rule decides")
            named.add(code)


def _cron(at: FieldPath, spec: WorkloadSpec) -> None:
    of = spec.cron
    if of is None:
        if spec.type is WorkloadType.CRON:
            at.wrong(None, "must be given for Cron")
        return
    if spec.type is not WorkloadType.CRON:
        at.wrong(None, f"must be left out for {spec.type.value}")
    try:
        cron.parse(of.schedule)
    except Invalid as invalid:
        at["schedule"].borrow(of.schedule, invalid.errors)
    text.time_zone(at["timeZone"], of.time_zone)


def _portion(at: FieldPath, value: int | str) -> bool:
    if disruption.is_portion(value):
        return True
    at.wrong(value, disruption.RULE)
    return False


def _rollout(at: FieldPath, spec: WorkloadSpec) -> None:
    rollout = spec.rollout
    if spec.type not in LASTING:
        if rollout != Rollout():
            at.wrong(None, f"must be left out for {spec.type.value}: it has no rollouts")
        return
    missing, surge = rollout.max_unavailable, rollout.max_surge
    good = [_portion(at["maxUnavailable"], missing), _portion(at["maxSurge"], surge)]
    if spec.type is WorkloadType.PER_NODE and all(good) and not disruption.is_nothing(surge):
        at["maxSurge"].wrong(surge, "must be 0 for PerNode: a node has one replica at a time")
    if all(good) and disruption.is_nothing(missing) and disruption.is_nothing(surge):
        at["maxUnavailable"].wrong(missing, "must not be 0 if maxSurge is 0: nothing could move")
    if rollout.strategy is RolloutStrategy.RECREATE and spec.disruption is not None:
        rule = "must not be Recreate, which stops all replicas at once, with a disruption budget"
        at["strategy"].wrong(rollout.strategy.value, rule)
    if rollout.progress_deadline_seconds == 0:
        at["progressDeadlineSeconds"].wrong(0, "must be at least 1")
    _canary(at["canary"], rollout)


def _canary(at: FieldPath, rollout: Rollout) -> None:
    steps = rollout.canary
    if (rollout.strategy is RolloutStrategy.CANARY) != bool(steps):
        at.wrong(steps, "must have steps if, and only if, the strategy is Canary")
    if not names.at_most(at, steps, CANARY_STEPS_MAX):
        return
    before: int | str | None = None
    for index, step in enumerate(steps):
        place = at[index]["portion"]
        if not _portion(place, step.portion):
            continue
        if disruption.is_nothing(step.portion):
            place.wrong(step.portion, "must be more than 0")
        elif before is not None and not _may_follow(before, step.portion):
            place.wrong(step.portion, "must be more than the step before")
        before = step.portion


def _may_follow(before: int | str, after: int | str) -> bool:
    """Numbers and percentages cannot be compared before the count is known."""
    if isinstance(before, int) != isinstance(after, int):
        return True
    first, second = (disruption.portion(value, 100, round_up=True) for value in (before, after))
    return first < second


def _disruption(at: FieldPath, _: WorkloadSpec, budget: Disruption) -> None:
    given = [
        (field, value)
        for field, value in (
            ("maxUnavailable", budget.max_unavailable),
            ("minAvailable", budget.min_available),
        )
        if value is not None
    ]
    if len(given) != 1:
        at.wrong(
            None, f"must have exactly one of maxUnavailable and minAvailable, has {len(given)}"
        )
    for field, value in given:
        _portion(at[field], value)


def _gang(at: FieldPath, spec: WorkloadSpec, gang: Gang) -> None:
    bounds: dict[str, int | None] = {"replicas": spec.replicas}
    if spec.type in _ENDING:
        # A parallelism of 0 pauses the job, and a paused gang is valid.
        bounds |= {"completions": spec.job.completions, "parallelism": spec.job.parallelism or None}
    for what, bound in bounds.items():
        if bound is not None and gang.min_available > bound:
            at["minAvailable"].wrong(
                gang.min_available, f"must be at most {what}, which is {bound}: it could not start"
            )
    members = min(bound for bound in bounds.values() if bound is not None)
    if members > GANG_MEMBERS_MAX:
        at["minAvailable"].wrong(
            gang.min_available,
            f"must be that of at most {GANG_MEMBERS_MAX} members at once, here are {members}: "
            "split the work, or state a smaller parallelism",
        )
    if not gang.timeout_seconds:
        rule = "must be at least 1: places that are held for no time are given back at once"
        at["timeoutSeconds"].wrong(gang.timeout_seconds, rule)
    if gang.within:
        names.key(at["within"], gang.within)
    elif not gang.within_required:
        at["withinRequired"].wrong(None, "must be left out without within")
    if spec.rollout.strategy is RolloutStrategy.CANARY:
        at.wrong(None, "must be left out with strategy Canary: all members change together")
    if spec.type is WorkloadType.SERVICE and spec.disruption is not None:
        at.wrong(
            None,
            "must be left out for a Service with a disruption budget: a rollout stops all members",
        )


def _recovery(at: FieldPath, spec: WorkloadSpec, recovery: Recovery) -> None:
    names.names(at["regions"], recovery.regions, REGIONS_MAX)
    if not recovery.eligible:
        for field, given in (("regions", recovery.regions), ("reserve", recovery.reserve)):
            if given:
                at[field].wrong(given, "must be left out if eligible is false")
    elif recovery.reserve and not recovery.regions:
        at["regions"].wrong(None, "must be given if reserve is true: capacity is reserved there")
    if recovery.within_seconds == 0:
        at["withinSeconds"].wrong(0, "must be at least 1")
    most = spec.replicas if spec.autoscale is None else spec.autoscale.max
    if recovery.replicas is not None and recovery.replicas > most:
        at["replicas"].wrong(
            recovery.replicas, f"must be at most the number of replicas, which is {most}"
        )


def _autoscale(at: FieldPath, _: WorkloadSpec, autoscale: Autoscale) -> None:
    if autoscale.max == 0:
        at["max"].wrong(0, "must be at least 1")
    if autoscale.min > autoscale.max:
        at["min"].wrong(autoscale.min, f"must be at most max, which is {autoscale.max}")
    names.key(at["metric"], autoscale.metric)


def workload_status(obj: Workload, at: FieldPath) -> None:
    """Checks the targets of a rollout and the account of a job: they parse and are consistent."""
    at = at["status"]
    updated = obj.status.rollout.updated
    try:
        indexes.parse(updated)
    except Invalid:
        at["rollout"]["updated"].wrong(updated[:40], indexes.RULE)
    job, at = obj.status.job, at["job"]
    try:
        completed = indexes.parse(job.completed_indexes)
    except Invalid:
        at["completedIndexes"].wrong(job.completed_indexes[:40], indexes.RULE)
        return
    if len(completed) != job.succeeded:
        at["succeeded"].wrong(job.succeeded, f"must be {len(completed)}, as completedIndexes say")
    for index, count in job.failures.items():
        if count < 1 or not indexes.is_index(index):
            at["failures"].entry(index).wrong(count, "must be counts of failures by index")


def _implied(old: WorkloadSpec, new: WorkloadSpec) -> tuple[int, int]:
    """The implied completions of two versions, if none are stated."""
    stated = old.job.completions is not None or new.job.completions is not None
    return (0, 0) if stated else (old.replicas, new.replicas)


def workload_update(old: Workload, new: Workload, at: FieldPath) -> None:
    """A job is one piece of work: its template and its completions never change."""
    done, still = old.status.job.completed_indexes, new.status.job.completed_indexes
    if done != still and not indexes.is_within(done, still):
        at["status"]["job"]["completedIndexes"].wrong(still[:40], "must not lose any index")
    if (old.spec.gang is None) != (new.spec.gang is None):
        rule = "cannot be added or removed: replicas know whether they are members; create another"
        at["spec"]["gang"].wrong(None, rule)
    if new.spec.type is not WorkloadType.JOB:
        return
    for path, before, after in (
        ("template", old.spec.template, new.spec.template),
        ("job.completions", old.spec.job.completions, new.spec.job.completions),
        ("replicas", *_implied(old.spec, new.spec)),
        ("job.indexed", old.spec.job.indexed, new.spec.job.indexed),
    ):
        if before != after:
            at["spec"][path].wrong(None, "cannot be changed once the Job exists; create a new Job")
