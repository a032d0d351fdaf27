"""The permissions that the requests of components require."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.model.access.rights import Permission
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import (
    Bind,
    BindTogether,
    Create,
    Evict,
    Move,
    PromisedPlace,
    ReportStage,
    StopAndReserve,
    Target,
    Term,
)
from tests.plane import template

ONE, TWO = Target("acme", "one", "u", 1), Target("globex", "two", "u", 1)
TERM = Term("scheduler:one", 1)


def bind(target: Target) -> Bind:
    return Bind(target, "node-a", "u", TERM)


def test_each_of_several_needs_a_permission_of_its_own() -> None:
    """So that no client binds or stops in a namespace by way of another."""
    assert BindTogether((bind(ONE), bind(TWO))).permissions() == (
        Permission("create", "replicas", "binding", "acme", "one"),
        Permission("create", "replicas", "binding", "globex", "two"),
    )
    until = datetime(2027, 1, 1, tzinfo=UTC)
    way = StopAndReserve(ONE, "node-a", "u", (TWO, ONE), TERM, until)
    assert way.permissions() == (
        Permission("create", "replicas", "reservation", "acme", "one"),
        Permission("create", "replicas", "eviction", "globex", "two"),
        Permission("create", "replicas", "eviction", "acme", "one"),
    )
    gang = StopAndReserve(
        ONE, "node-a", "u", (), TERM, until, members=(PromisedPlace(TWO, "node-b", "u"),)
    )
    assert gang.permissions() == (
        Permission("create", "replicas", "reservation", "acme", "one"),
        Permission("create", "replicas", "reservation", "globex", "two"),
    )


def test_a_request_about_a_replica_names_it() -> None:
    for request, verb, part in (
        (bind(ONE), "create", "binding"),
        (Evict(ONE, Cause.DRAIN), "create", "eviction"),
        (Move(ONE, State.RUNNING), "update", "state"),
        (ReportStage(ONE, Stage.READY), "update", "stage"),
    ):
        assert request.permissions() == (Permission(verb, "replicas", part, "acme", "one"),)


def test_what_names_its_verb_itself_is_judged_elsewhere() -> None:
    meta = ObjectMeta(name="web", namespace="acme")
    made = Create(Workload(meta, spec=WorkloadSpec(template=template())))
    assert made.permissions() == ()
