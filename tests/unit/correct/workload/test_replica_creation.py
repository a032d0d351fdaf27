"""Births while a template is rolled out: a place gets what it takes, and what waits makes way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.correct.controller import ReconcilePlan
from holdfast.correct.workload.controller import WorkloadController
from holdfast.correct.workload.endings import ENDINGS_ANNOTATION
from holdfast.correct.workload.replica_creation import revision_of
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import EnvVar, Template
from holdfast.model.kinds.workload import (
    RolloutStatus,
    Workload,
    WorkloadRevision,
    WorkloadRevisionSpec,
)
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import Object
from holdfast.model.requests import Create, Evict, Move
from holdfast.observe.cache import ObjectChange
from tests.unit.correct.views import (
    AGENT,
    NOW,
    TEMPLATE,
    TERM,
    meta,
    record,
    replica,
    view,
    workload,
)

NEW_TEMPLATE = msgspec.structs.replace(TEMPLATE, env=(EnvVar("VERSION", "2"),))
OLD, NEW = revision_of(TEMPLATE), revision_of(NEW_TEMPLATE)


def service(replicas: int, updated: str, **rollout: Any) -> Workload:
    """It wants the new template; so far these places take it."""
    wanted = workload(replicas, template=NEW_TEMPLATE)
    targets = RolloutStatus(current=NEW, stable=OLD, updated=updated, **rollout)
    status = msgspec.structs.replace(wanted.status, rollout=targets)
    return msgspec.structs.replace(wanted, status=status)


def revision(template: Template, number: int) -> WorkloadRevision:
    digest = revision_of(template)
    spec = WorkloadRevisionSpec("web", number, digest, template)
    return WorkloadRevision(meta(f"web-{digest}", "acme"), spec=spec)


def of(name: str, it: Replica) -> Replica:
    return msgspec.structs.replace(it, spec=msgspec.structs.replace(it.spec, revision=name))


def plan(*objects: Object) -> ReconcilePlan:
    return WorkloadController().reconcile(view(*objects), ("acme", "web/0"), TERM, NOW)


def born(made: ReconcilePlan) -> dict[str, tuple[str, Template]]:
    creates = [it.object for it in made.requests if isinstance(it, Create)]
    return {it.name: (it.spec.revision, it.spec.template) for it in creates}


def test_each_ordinal_is_created_with_the_template_of_the_revision_that_it_takes() -> None:
    """Those of the surge take the new one."""
    made = plan(service(2, "1", surge=1), revision(TEMPLATE, 1), revision(NEW_TEMPLATE, 2))
    assert born(made) == {
        "web-0-0": (OLD, TEMPLATE),
        "web-1-0": (NEW, NEW_TEMPLATE),
        "web-2-0": (NEW, NEW_TEMPLATE),
    }


def test_an_ordinal_waits_for_a_template_that_the_snapshot_lacks() -> None:
    """Nothing else is put there in its stead. [C3]"""
    made = plan(service(2, "1"))
    assert list(born(made)) == ["web-1-0"]
    assert made.wake_after_ms == 1_000


def test_nothing_is_created_while_creation_is_held_back() -> None:
    """Recreate waits for the last of the old ones."""
    assert plan(service(2, "0-1", held=True), revision(NEW_TEMPLATE, 2)).requests == ()


@pytest.mark.parametrize("state", [State.PENDING, State.RESERVED])
def test_what_waits_with_another_revision_is_released(state: State) -> None:
    """What has a place on a node already is not ours to stop."""
    waits, runs = of(OLD, replica(state, 0)), of(OLD, replica(State.RUNNING, 1))
    made = plan(service(2, "0-1"), revision(NEW_TEMPLATE, 2), waits, runs)
    assert [(type(it), it.target.name, it.to, it.reason) for it in made.requests] == [
        (Move, "web-0-0", State.RELEASED, Cause.ROLLOUT.value)
    ]
    assert not any(isinstance(it, Evict) for it in made.requests)


def test_another_revision_starts_afresh_after_a_crash() -> None:
    """Its predecessor's pause and endings are not its own."""
    ended = record(State.FAILED, AGENT, 0, State.RUNNING)
    notes = {ENDINGS_ANNOTATION: "6"}
    crashed = of(OLD, replica(State.RELEASED, 0, transitions=(ended,), annotations=notes))
    made = plan(service(1, "0"), revision(NEW_TEMPLATE, 2), crashed)
    assert list(born(made)) == ["web-0-1"]
    assert made.requests[-1].object.metadata.annotations == {}
    same = plan(service(1, ""), revision(TEMPLATE, 1), crashed)
    assert (born(same), same.wake_after_ms) == ({}, 64_000)


def test_places_that_a_rollout_begins_are_looked_at_and_no_others() -> None:
    """Of thousands of places most rest."""
    controller, before = WorkloadController(), service(600, "0")
    objects = [of(OLD, replica(State.RUNNING, it)) for it in range(600)]
    snapshot = view(before, *objects)
    for key in controller.all_keys(snapshot):
        controller.reconcile(snapshot, key, TERM, NOW)
    after = service(600, "0,300")
    keys = list(controller.keys_of(ObjectChange("workloads", before, after), snapshot))
    assert keys == [("acme", "web"), ("acme", "web/1")]
