"""The user of this plane: it owns work of every behaviour and also replaces Secrets."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import (
    ExecAction,
    OnDisconnect,
    PreStop,
    Probes,
    Resources,
    RestartPolicy,
    Template,
)
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import Create, Update
from holdfast.sim.plan import Act
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.randomness import between, pick
from holdfast.sim.worlds.agents.behaviours import PROBES, BehaviourKind
from holdfast.sim.worlds.agents.secrets import ENV, FILES, NAME, secret
from holdfast.sim.worlds.authority.scripted_clients import ObjectSnapshot
from holdfast.sim.worlds.end_to_end.people import RestingOperator

FAULTS_MS = 120_000
WORKLOADS = 6
# The range of the age at which each kind changes its behaviour.
_AGES_MS = {
    BehaviourKind.CRASHES: (100, 3_000),
    BehaviourKind.FINISHES: (1_000, 20_000),
    BehaviourKind.EATS: (500, 6_000),
    BehaviourKind.SLOW: (4_000, 15_000),
    BehaviourKind.SULKS: (3_000, 20_000),
    BehaviourKind.SICKENS: (4_000, 30_000),
}


class WorkloadOwner(RestingOperator):
    """Creates workloads by their behaviour; the other acts are the operator's."""

    def _request(self, snapshot: ObjectSnapshot, act: dict[str, Any]) -> Any:
        match act["do"]:
            case "create":
                return Create(workload_of(act))
            case "replace":
                found = snapshot.get(Secret, act["tenant"], NAME)
                if found is None:
                    return None
                data = secret(act["tenant"], act["edition"], has_key=act["whole"]).data
                return Update(msgspec.structs.replace(found, data=data))
        return super()._request(snapshot, act)


def script(rng: Random) -> Sequence[Act]:
    """Work of many behaviours at once, and a user that keeps changing it."""
    acts = [Act(500 + 200 * i, "operator", service(rng, i)) for i in range(WORKLOADS)]
    acts += [
        Act(between(rng, 5_000, FAULTS_MS - 10_000), "operator", _act(rng))
        for _ in range(between(rng, 4, 10))
    ]
    for edition in range(1, 1 + between(rng, 1, 4)):
        acts += _replacement(rng, edition)
    return sorted(acts, key=lambda act: act.at_ms)


def stopping_script(rng: Random) -> Sequence[Act]:
    """Work that hangs and has a long grace period, and a user that keeps stopping it."""
    hangs = {
        "behaviour": [BehaviourKind.HANGS.value, 0],
        "policy": "Always",
        "grace": 20,
        "replicas": 2,
    }
    own = {**hangs, "keep": False, "pre_stop": False}
    acts = [Act(500 + 200 * i, "operator", {**service(rng, i), **own}) for i in range(3)]
    acts += [
        Act(between(rng, 5_000, FAULTS_MS), "operator", {"do": "kill", "some": between(rng, 0, 99)})
        for _ in range(between(rng, 8, 16))
    ]
    return sorted(acts, key=lambda act: act.at_ms)


def _act(rng: Random) -> dict[str, Any]:
    some = between(rng, 0, 99)
    return pick(
        rng,
        (
            {"do": "scale", "some": some, "replicas": between(rng, 0, 3)},
            {"do": "kill", "some": some},
            {"do": "kill", "some": some},
            {"do": "delete", "some": some | 1},
        ),
    )


def _replacement(rng: Random, edition: int) -> list[Act]:
    """A Secret gets another value. Sometimes it first lacks the key that work needs."""
    at_ms, tenant = between(rng, 5_000, FAULTS_MS - 30_000), pick(rng, TENANTS)
    body = {"do": "replace", "tenant": tenant, "edition": edition, "whole": True}
    acts = [Act(at_ms + between(rng, 3_000, 20_000), "operator", body)]
    if between(rng, 0, 1):
        acts.append(Act(at_ms, "operator", {**body, "whole": False}))
    return acts


def service(rng: Random, number: int) -> dict[str, Any]:
    """The act that creates a service of some behaviour."""
    kind = pick(rng, tuple(BehaviourKind))
    policies = ("Always", "OnFailure", "Never") if kind in _ENDING else ("Always",)
    return {
        "do": "create",
        "name": f"w{number}",
        "tenant": pick(rng, TENANTS),
        "replicas": between(rng, 1, 2),
        "behaviour": [kind.value, between(rng, *_AGES_MS.get(kind, (0, 0)))],
        "policy": pick(rng, policies),
        "keep": pick(rng, (False, False, True)),
        "grace": pick(rng, (1, 4, 20)),
        "pre_stop": pick(rng, (False, True)),
        "sealed": pick(rng, (False, True)),
    }


_ENDING = (BehaviourKind.FINISHES, BehaviourKind.EATS, BehaviourKind.CRASHES)


def workload_of(act: dict[str, Any]) -> Workload:
    """The workload that an act describes."""
    kind, at_ms = act["behaviour"]
    template = Template(
        command=("work", kind, str(at_ms)),
        env=ENV if act["sealed"] else (),
        files=FILES if act["sealed"] else (),
        resources=Resources(cpu="250m", memory="256Mi"),
        probes=PROBES.get(BehaviourKind(kind), Probes()),
        pre_stop=PreStop(exec=ExecAction(("farewell",))) if act["pre_stop"] else None,
        grace_seconds=act["grace"],
        restart=RestartPolicy(act["policy"]),
        on_disconnect=OnDisconnect.KEEP if act["keep"] else OnDisconnect.STOP,
    )
    spec = WorkloadSpec(replicas=act["replicas"], template=template)
    return Workload(ObjectMeta(name=act["name"], namespace=act["tenant"]), spec=spec)
