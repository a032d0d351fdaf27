"""The user of this world: an operator who creates every type of work and changes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.model.errors import invariant
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.template import EnvVar, Resources, RestartPolicy, Template
from holdfast.model.kinds.workload import (
    Concurrency,
    Cron,
    Disruption,
    FailureAction,
    FailureRule,
    Job,
    Rollout,
    Workload,
    WorkloadSpec,
    WorkloadType,
)
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Create, Patch, Update
from holdfast.model.time import Instant
from holdfast.sim.worlds.all_controllers.process_table import piece
from holdfast.sim.worlds.authority.scripted_clients import ObjectSnapshot
from holdfast.sim.worlds.end_to_end.people import RestingOperator

# The exit code by which a job fails as a whole.
FATAL = 7


class AllControllersOperator(RestingOperator):
    """The operator uncordons all nodes and suspends the cron jobs after the faults."""

    # The revision of the operator's last write.
    _own = 0

    def on_answer(self, request: Any, answer: Any) -> None:
        is_invalid = isinstance(answer, Refusal) and answer.reason is Reason.INVALID
        # A patch may find its object gone, and would have to say all of a new one.
        is_nonsense = is_invalid and not isinstance(request, Patch)
        invariant(not is_nonsense, f"the script sends an invalid request: {answer}")
        if isinstance(answer, Refusal) and answer.reason is Reason.STALE_OBJECT:
            # Another client wrote first: the operator reads again and repeats the act.
            return
        if isinstance(answer, Accepted):
            self._own = max(self._own, answer.revision)
        super().on_answer(request, answer)

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        # However stale the operator's view may be, it includes the operator's own writes.
        if snapshot.revision >= self._own:
            yield from super().next_requests(snapshot, now)

    def _request(self, snapshot: ObjectSnapshot, act: dict[str, Any]) -> Any:
        match act["do"]:
            case "make":
                return Create(workload_of(act))
            case "change" | "scale" | "parallelism" | "rest-crons" | "wake-cron":
                return _change(snapshot, act)
            case "open":
                return _open_next_node(snapshot)
        return super()._request(snapshot, act)


def _change(snapshot: ObjectSnapshot, act: dict[str, Any]) -> Update | None:
    """Change one of the workloads to which the act applies."""
    kinds = _MEANT[act["do"]]
    found = [it for it in snapshot.all(Workload) if it.spec.type in kinds]
    if act["do"] == "rest-crons":
        found = [it for it in found if it.spec.cron is not None and not it.spec.cron.suspend]
    found = [it for it in found if not it.metadata.owner_references]
    if not found:
        return None
    workload = found[act["some"] % len(found)]
    spec = workload.spec
    match act["do"]:
        case "change":
            env = (EnvVar(name="EDITION", value=str(act["edition"])),)
            template = msgspec.structs.replace(spec.template, env=env)
            spec = msgspec.structs.replace(spec, template=template)
        case "scale":
            spec = msgspec.structs.replace(spec, replicas=act["replicas"])
        case "parallelism":
            job = msgspec.structs.replace(spec.job, parallelism=act["count"])
            spec = msgspec.structs.replace(spec, job=job)
        case _:
            is_rest = act["do"] == "rest-crons"
            cron = msgspec.structs.replace(spec.cron or Cron("* * * * *"), suspend=is_rest)
            spec = msgspec.structs.replace(spec, cron=cron)
    return Update(msgspec.structs.replace(workload, spec=spec))


_MEANT = {
    "change": (WorkloadType.SERVICE, WorkloadType.PER_NODE),
    "scale": (WorkloadType.SERVICE,),
    "parallelism": (WorkloadType.JOB,),
    "rest-crons": (WorkloadType.CRON,),
    "wake-cron": (WorkloadType.CRON,),
}


def _open_next_node(snapshot: ObjectSnapshot) -> Update | None:
    """Remove cordon, drain and taints from the next node that has any, or return None."""
    for node in snapshot.all(Node):
        spec = node.spec
        if spec.cordoned or spec.drain is not None or spec.taints:
            spec = msgspec.structs.replace(spec, cordoned=False, drain=None, taints=())
            return Update(msgspec.structs.replace(node, spec=spec))
    return None


def workload_of(act: dict[str, Any]) -> Workload:
    """The workload that an act describes, with defaults for what it does not say."""
    kind = WorkloadType(act["type"])
    ends = kind in (WorkloadType.JOB, WorkloadType.CRON)
    template = Template(
        command=piece(act.get("ms", 5_000), act.get("code", 1), act.get("times", 0))
        if ends
        else ("work",),
        resources=Resources(cpu=act.get("cpu", "500m"), memory="256Mi"),
        grace_seconds=act.get("grace", 2),
        restart=RestartPolicy(act.get("restart", "Never" if ends else "Always")),
    )
    budget = act.get("budget")
    spec = WorkloadSpec(
        type=kind,
        template=template,
        replicas=act.get("replicas", 1),
        job=_job(act) if ends else Job(),
        cron=_cron(act) if kind is WorkloadType.CRON else None,
        rollout=_rollout(act) if not ends else Rollout(),
        disruption=Disruption(max_unavailable=budget) if budget is not None else None,
    )
    return Workload(ObjectMeta(name=act["name"], namespace=act["tenant"]), spec=spec)


def _rollout(act: dict[str, Any]) -> Rollout:
    return Rollout(max_unavailable=act.get("unavailable", 1), max_surge=act.get("surge", 0))


def _job(act: dict[str, Any]) -> Job:
    rules = (FailureRule((FATAL,), FailureAction.FAIL_JOB),) if act.get("rules") else ()
    return Job(
        completions=act.get("completions"),
        parallelism=act.get("parallelism"),
        indexed=True,
        retries=act.get("retries", 6),
        failure_policy=rules,
        deadline_seconds=act.get("deadline"),
        ttl_seconds_after_finished=act.get("ttl"),
    )


def _cron(act: dict[str, Any]) -> Cron:
    concurrency = Concurrency(act.get("concurrency", "Forbid"))
    return Cron(act.get("schedule", "* * * * *"), concurrency=concurrency, history=act["history"])
