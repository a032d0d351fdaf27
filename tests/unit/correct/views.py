"""Views of a plane, made by hand: the objects that a test names, in a real cache."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_NODE,
    BY_WORKLOAD,
)
from holdfast.correct.drain import BY_CLAIM
from holdfast.correct.endpoints import BY_SERVICE
from holdfast.correct.jobs.cron import BY_CRON
from holdfast.correct.quota import BY_COHORT, BY_LENDER, BY_TENANT, RESERVED_BY_TENANT
from holdfast.correct.workload.each_node import BY_TYPE
from holdfast.correct.workload.ordinals import BY_ORDINAL, BY_RANGE
from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.kinds.node import Mark, Node, NodePhase, NodeSpec, NodeStatus
from holdfast.model.kinds.replica import (
    Binding,
    Replica,
    ReplicaSpec,
    ReplicaStatus,
    TransitionRecord,
)
from holdfast.model.kinds.template import Resources, Template
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.machine import Open, Pushed, Started
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.registry import kind_of
from holdfast.model.requests import Term
from holdfast.model.time import Instant, timestamp
from holdfast.observe.cache import Cache
from holdfast.observe.snapshot import Snapshot
from holdfast.observe.watch_events import Follow, Present, Reached

WALL_MS = 1_800_000_000_000
NOW = Instant(1_000_000, WALL_MS)
TERM = Term("controller:test", 3)
AGENT = "system:node:node-a"
PLURALS = (
    "workloads",
    "replicas",
    "nodes",
    "reservations",
    "tenants",
    "regions",
    "endpoints",
    "workloadrevisions",
    "events",
    "overrides",
    "quotas",
)
TEMPLATE = Template(command=("sleep", "60"), resources=Resources(cpu="1"))


def later(ms: int) -> Instant:
    return Instant(NOW.monotonic_ms + ms, NOW.wall_ms + ms)


def at(ms: int = 0) -> datetime:
    return timestamp(WALL_MS) + timedelta(milliseconds=ms)


def view(*objects: Object, now: Instant = NOW, told: int = 1_000) -> Snapshot:
    """A snapshot of these objects, whole up to a revision."""
    cache = Cache([Follow(it) for it in PLURALS], random.Random(1), resync_ms=60_000)
    for index in (
        BY_CLAIM,
        BY_NODE,
        BY_ORDINAL,
        BY_RANGE,
        BY_WORKLOAD,
        BY_CRON,
        BY_TYPE,
        BY_SERVICE,
        BY_COHORT,
        BY_TENANT,
        BY_LENDER,
        RESERVED_BY_TENANT,
    ):
        cache.index(index)
    for effect in cache.step(Started({}), now).effects:
        if isinstance(effect, Open):
            mine = [it for it in objects if kind_of(it).plural == effect.body.plural]
            changes = [Present(it, int(it.metadata.resource_version) // 2) for it in mine]
            cache.step(Pushed(effect.stream, (*changes, Reached(told, ends_list=True))), now)
    return Snapshot(cache, cache.revision, cache.age_ms(now))


def meta(name: str, namespace: str = "", revision: int = 7, **more: Any) -> ObjectMeta:
    version = object_version(revision)
    more = {"uid": f"uid-{name}", "generation": 1, **more}
    return ObjectMeta(name=name, namespace=namespace, resource_version=version, **more)


def workload(replicas: int = 1, *, dying: bool = False, **spec: Any) -> Workload:
    finalizers = ("example.com/mine", "holdfast.dev/replicas")
    gone = at() if dying else None
    metadata = meta("web", "acme", finalizers=finalizers, deletion_timestamp=gone)
    spec = {"template": TEMPLATE, "replicas": replicas, **spec}
    return Workload(metadata, spec=WorkloadSpec(**spec))


def record(to: State, by: str, ms: int = 0, source: State | None = None) -> TransitionRecord:
    return TransitionRecord(to=to, by=by, at=at(ms), from_state=source, reason="exit 1")


def replica(
    state: State = State.RUNNING,
    ordinal: int = 0,
    incarnation: int = 0,
    *,
    node: str = "node-a",
    transitions: tuple[TransitionRecord, ...] = (),
    annotations: dict[str, str] | None = None,
    dying: bool = False,
    template: Template = TEMPLATE,
    **status: Any,
) -> Replica:
    """A replica of `web`; one that has a place is bound to a node in its first life."""
    name = f"web-{ordinal}-{incarnation}"
    spec = ReplicaSpec(
        workload="web",
        workload_uid="uid-web",
        ordinal=ordinal,
        incarnation=incarnation,
        template=template,
    )
    has_place = state not in (State.PENDING, State.RESERVED)
    binding = Binding(node=node, node_uid=f"uid-{node}", node_incarnation=1, at=at())
    status = {
        "state": state,
        "transition_number": 4,
        "binding": binding if has_place else None,
        "cause": Cause.SCALE_DOWN if state is State.STOPPING else None,
        "stage": Stage.READY if state is State.RUNNING else Stage.ADMITTED,
        "transitions": transitions,
        **status,
    }
    metadata = meta(
        name, "acme", annotations=annotations or {}, deletion_timestamp=at() if dying else None
    )
    return Replica(metadata, spec=spec, status=ReplicaStatus(**status))


def node(
    name: str = "node-a",
    phase: NodePhase = NodePhase.READY,
    *,
    zone: str = "a",
    mark: int = 0,
    incarnation: int = 1,
    agent: str = "1.0",
) -> Node:
    made = Mark(number=mark, at=at()) if mark else None
    life = {"incarnation": incarnation, "agent_version": agent} if agent else {}
    status = NodeStatus(phase=phase, mark=made, marks=mark, **life)
    return Node(meta(name), spec=NodeSpec(region="eu", zone=zone), status=status)


def replaced(obj: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(obj, **changes)
