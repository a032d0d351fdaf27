"""What controllers remember is declared, ends with a term, and is rebuilt by a resync."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.correct.all_controllers import all_controllers
from holdfast.correct.controller import Controller
from holdfast.correct.events.controller import EventCounts
from holdfast.correct.events.event_recorder import event_of
from holdfast.correct.remembered import Notes, Remembered, keys_of, names_of, uids_of
from holdfast.correct.workload.controller import WorkloadController
from holdfast.correct.workload.replica_creation import ReplicaCreation
from holdfast.model.lifecycle import State
from holdfast.model.requests import AcquireLease
from tests.plane import WORKLOADS, accepted
from tests.unit.correct.controller_rig import Rig
from tests.unit.correct.views import TERM, at, node, replica, view, workload

_MUTABLE = (dict, list, set, bytearray)


def _own_parts(owner: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object of this room, and those of its parts, except what is declared."""
    for name, value in vars(owner).items():
        yield f"{type(owner).__name__}.{name}", value
        is_ours = type(value).__module__.startswith("holdfast.correct.")
        if is_ours and hasattr(value, "__dict__") and not isinstance(value, Remembered):
            yield from _own_parts(value)


def _assigned_later(owner: type[Any]) -> list[str]:
    """The attributes of `self` that methods other than `__init__` assign."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    functions = [it for it in ast.walk(tree) if isinstance(it, ast.FunctionDef)]
    return [
        f"{owner.__name__}.{function.name} assigns self.{target.attr}"
        for function in functions
        if function.name != "__init__"
        for target in ast.walk(function)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store | ast.Del)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    ]


def undeclared(controller: Controller) -> list[str]:
    """The state of a controller that a new term or a resync would not reach."""
    found = []
    declared = {id(it) for it in controller.remembers}
    for name, value in _own_parts(controller):
        if isinstance(value, Remembered):
            found += [] if id(value) in declared else [f"{name} is not in `remembers`"]
        elif isinstance(value, _MUTABLE):
            found.append(f"{name} is a {type(value).__name__}")
    parts = [it for _, it in _own_parts(controller) if hasattr(it, "__dict__")]
    kinds = {type(it) for it in (controller, *parts) if not isinstance(it, Remembered)}
    ours = [it for it in kinds if it.__module__.startswith(("holdfast.correct.", __name__))]
    return [*found, *(what for kind in ours for what in _assigned_later(kind))]


class _Forgetful(WorkloadController):
    """A controller with state that no runner knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}
        self.late = Notes[str, int]()
        self.looks = 0

    def flow_of(self, key: tuple[str, str]) -> tuple[str, str]:
        self.looks += 1
        return super().flow_of(key)


@pytest.mark.parametrize("controller", all_controllers(), ids=lambda it: it.name)
def test_a_controller_has_no_state_that_it_does_not_declare(controller: Controller) -> None:
    """Every container is a memory, every memory is declared, and nothing else changes. [E1]"""
    assert undeclared(controller) == []


def test_undeclared_state_is_found() -> None:
    """A dictionary, a memory that is not listed, and a number that a method counts."""
    assert undeclared(_Forgetful()) == [
        "_Forgetful.seen is a dict",
        "_Forgetful.late is not in `remembers`",
        "_Forgetful.flow_of assigns self.looks",
    ]


def test_incarnations_are_learned_again_from_the_replicas_there_are() -> None:
    """And those of workloads that are gone are forgotten."""
    creation, wanted = ReplicaCreation(), workload(1)
    creation.resync(view(wanted, replica(State.RELEASED, 0, incarnation=4)))
    assert creation.create(wanted, 0, TERM).object.name == "web-0-5"
    creation.resync(view(wanted))
    assert creation.create(wanted, 0, TERM).object.name == "web-0-5"
    creation.resync(view())
    assert creation.create(wanted, 0, TERM).object.name == "web-0-0"


def test_a_resync_counts_events_again() -> None:
    """A count that missed a removal would stop the recording of events for ever."""
    counts = EventCounts()
    event = event_of(workload(1), "test", "Reason", "text", at(), warns=False)
    counts.add(event, 7)
    counts.resync(view())
    assert counts.of("acme") == 0


def test_notes_keep_what_is_still_there() -> None:
    """By uid, by key, by name, or nothing."""
    snapshot = view(workload(1), node("node-a"))
    uid = workload(1).metadata.uid
    for notes, kept in (
        (Notes[Any, int](uids_of("workloads")), uid),
        (Notes[Any, int](keys_of("workloads")), ("acme", "web")),
        (Notes[Any, int](names_of("nodes")), "node-a"),
    ):
        notes.update({kept: 1, "gone": 2})
        notes.resync(snapshot)
        assert dict(notes) == {kept: 1}
        notes.begin_term()
        assert not notes
    fresh: Notes[str, int] = Notes()
    fresh["a"] = 1
    fresh.resync(snapshot)
    assert not fresh


class _Diary(Remembered):
    """Writes down what the runner tells it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin_term(self) -> None:
        self.lines.append("term")

    def resync(self, view: Any) -> None:
        self.lines.append("resync")


def test_the_runner_begins_each_term_and_each_resync_with_the_memories() -> None:
    """A term that another process interrupted begins like the first one. [K2, E1]"""
    controller, diary = WorkloadController(), _Diary()
    controller.remembers = (*controller.remembers, diary)
    rig = Rig([controller])
    rig.run(10_000)
    assert diary.lines == ["term", "resync"]
    rig.run(120_000)
    assert diary.lines[:2] == ["term", "resync"]
    resyncs = len(diary.lines)
    assert 2 < resyncs <= 5
    assert set(diary.lines[1:]) == {"resync"}
    lease = rig.get("leases", "controller-workload").spec
    taken = AcquireLease(lease.scope, 15_000, lease.epoch, lease.renewals, instance="another")
    accepted(rig.plane.ask(WORKLOADS, taken))
    rig.run(40_000)
    assert diary.lines[resyncs : resyncs + 2] == ["term", "resync"]
