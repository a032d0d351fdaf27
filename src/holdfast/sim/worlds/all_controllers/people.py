"""Who wants all this: somebody who makes every type of work and changes his mind."""

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
    """The operator of this world. After the faults he opens all nodes and lets cron jobs rest."""

    # The revision of the last thing that he did.
    _own = 0

    def on_answer(self, request: Any, answer: Any) -> None:
        is_invalid = isinstance(answer, Refusal) and answer.reason is Reason.INVALID
        # A patch may find its object gone, and would have to say all of a new one.
        is_nonsense = is_invalid and not isinstance(request, Patch)
        invariant(not is_nonsense, f"the script asks for what nobody may want: {answer}")
        if isinstance(answer, Refusal) and answer.reason is Reason.STALE_OBJECT:
            # Somebody else was faster: he looks, and wants it all the same.
            return
        if isinstance(answer, Accepted):
            self._own = max(self._own, answer.revision)
        super().on_answer(request, answer)

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        # However old what he sees may be, what he did himself is in it.
        if snapshot.revision >= self._own:
            yield from super().next_requests(snapshot, now)

    def _request(self, snapshot: ObjectSnapshot, act: dict[str, Any]) -> Any:
        match act["do"]:
            case "make":
                return Create(workload_of(act))
            case "change" | "scale" | "parallelism" | "rest-crons" | "wake-cron":
                return _changed(snapshot, act)
            case "open":
                return _opened(snapshot)
        return super()._request(snapshot, act)


def _changed(snapshot: ObjectSnapshot, act: dict[str, Any]) -> Update | None:
    """Something else is wanted of one of those that this can be wanted of."""
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


def _opened(snapshot: ObjectSnapshot) -> Update | None:
    """Open the next node that is shut, or do nothing more."""
    for node in snapshot.all(Node):
        spec = node.spec
        if spec.cordoned or spec.drain is not None or spec.taints:
            spec = msgspec.structs.replace(spec, cordoned=False, drain=None, taints=())
            return Update(msgspec.structs.replace(node, spec=spec))
    return None


def workload_of(act: dict[str, Any]) -> Workload:
    """The workload that an act describes; what it does not say is as usual."""
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
