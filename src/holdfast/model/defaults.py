"""Defaults that depend on other fields, applied once, at admission.

A plain default is declared in the struct and never written: on the wire a field at its default is
left out, so the struct cannot tell "Always" from an absent field. A default that depends on another
field is written into the object here, before validation. Each change comes with a sentence that the
server returns as a warning. Applying the defaults twice changes nothing.
"""

from __future__ import annotations

import base64

import msgspec

from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import RestartPolicy
from holdfast.model.kinds.workload import Rollout, Workload, WorkloadSpec, WorkloadType
from holdfast.model.meta import AnyObject, Object

Changes = tuple[str, ...]


def apply_defaults(obj: AnyObject) -> tuple[AnyObject, Changes]:
    """The object with its dependent defaults, and a sentence for each change."""
    changed: Object = obj
    sentences: Changes = ()
    if isinstance(obj, Workload):
        changed, sentences = _workload(obj)
    elif isinstance(obj, Secret):
        changed, sentences = _secret(obj)
    # Each function returns the kind that it receives, which the type variable cannot express.
    return changed, sentences  # type: ignore[return-value]


def _workload(obj: Workload) -> tuple[Workload, Changes]:
    spec, sentences = obj.spec, []
    restart = _restart(spec)
    if restart is not spec.template.restart:
        template = msgspec.structs.replace(spec.template, restart=restart)
        spec = msgspec.structs.replace(spec, template=template)
        sentences.append(
            f"spec.template.restart is {restart.value}, because a {spec.type.value} ends"
        )
    rollout = _rollout(spec)
    if rollout is not spec.rollout:
        spec = msgspec.structs.replace(spec, rollout=rollout)
        sentences.append("spec.rollout.maxSurge is 0, because a node has one replica at a time")
    return (msgspec.structs.replace(obj, spec=spec) if sentences else obj), tuple(sentences)


def _restart(spec: WorkloadSpec) -> RestartPolicy:
    """Work that ends cannot have the restart policy Always.

    With a failure policy the job must see each exit code, so the agent must not restart it at all.
    """
    restart = spec.template.restart
    if spec.type not in (WorkloadType.JOB, WorkloadType.CRON):
        return restart
    if restart is not RestartPolicy.ALWAYS:
        return restart
    return RestartPolicy.NEVER if spec.job.failure_policy else RestartPolicy.ON_FAILURE


def _rollout(spec: WorkloadSpec) -> Rollout:
    """A node has one replica of PerNode work, so a rollout cannot surge."""
    default = Rollout().max_surge
    if spec.type is not WorkloadType.PER_NODE or spec.rollout.max_surge != default:
        return spec.rollout
    return msgspec.structs.replace(spec.rollout, max_surge=0)


def _secret(obj: Secret) -> tuple[Secret, Changes]:
    """stringData is write-only. If both maps have a key, stringData wins, as in Kubernetes."""
    if not obj.string_data:
        return obj, ()
    moved = {key: base64.b64encode(text.encode()).decode() for key, text in obj.string_data.items()}
    changed = msgspec.structs.replace(obj, data={**obj.data, **moved}, string_data={})
    # The keys are not named: they are not validated yet, and a warning is an HTTP header.
    return changed, (f"stringData was moved into data, {len(moved)} keys",)
