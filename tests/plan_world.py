"""A world for plans: an authority that decides, late copies, old snapshots and crashes.

The authority keeps the two rules that every handler of the commit keeps: a request states the
transition number that its own success changes, and an accepted operation is remembered. It does
not know in which order the steps of a plan make sense, so a plan that sends a step too early is
found.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.replica import Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta, Operation
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import (
    Accepted,
    Bind,
    Request,
    Reserve,
    StopAndReserve,
    Target,
    Term,
)
from holdfast.observe.operation_plan import AwaitProgress, AwaitShown, OperationPlan, PlanStep
from holdfast.observe.retry import RetryPolicy
from holdfast.observe.snapshot import ObjectTable, Snapshot
from tests.plane import template

AT = datetime(2030, 1, 1, tzinfo=UTC)
TERM = Term("scheduler:one", 3)
POLICY = RetryPolicy(
    tries_max=3, looks_max=None, deadline_ms=None, looks_at_once=True, repeats_undone=False
)
SPEC = ReplicaSpec(workload="web", workload_uid="w", template=template())
Objects = dict[str, Replica]


class Authority:
    """Decides the requests of plans, and counts their effects."""

    def __init__(self, states: dict[str, State]) -> None:
        self.revision = 10
        self.objects: Objects = {}
        self.effects: Counter[tuple[str, str]] = Counter()
        for name, state in states.items():
            meta = ObjectMeta(name=name, namespace="acme", uid=f"uid-{name}")
            self._put(Replica(meta, spec=SPEC, status=ReplicaStatus(state=state)))

    def _put(self, replica: Replica) -> None:
        self.revision += 1
        meta = msgspec.structs.replace(
            replica.metadata, resource_version=object_version(self.revision)
        )
        self.objects[replica.name] = msgspec.structs.replace(replica, metadata=meta)

    def move(self, name: str, state: State, operation: str = "") -> None:
        found = self.objects[name]
        # A preemption is remembered on its winner, which stays Pending with its number.
        number = found.status.transition_number + (found.status.state is not state)
        status = msgspec.structs.replace(found.status, state=state, transition_number=number)
        done = (Operation(operation, "", AT),) if operation else ()
        meta = msgspec.structs.replace(
            found.metadata, operations=(*found.metadata.operations, *done)
        )
        self._put(msgspec.structs.replace(found, metadata=meta, status=status))

    def decide(self, request: Bind | Reserve | StopAndReserve) -> Accepted | Refusal:
        target = request.target
        found = self.objects[target.name]
        if any(past.id == request.operation for past in found.metadata.operations):
            return Accepted(self.revision, replayed=True)
        if found.status.transition_number != target.number:
            return Refusal(Reason.STALE_REPLICA, "it has another transition number")
        self.effects[type(request).__name__, target.name] += 1
        to = {Bind: State.BOUND, Reserve: State.RESERVED}.get(type(request), State.PENDING)
        for victim in request.victims if isinstance(request, StopAndReserve) else ():
            self.move(victim.name, State.STOPPING)
        self.move(target.name, to, request.operation)
        return Accepted(self.revision)


def target(replica: Replica) -> Target:
    number = replica.status.transition_number
    return Target("acme", replica.name, replica.metadata.uid, number)


def named(replica: Replica, intent: str) -> str:
    return f"one/{replica.metadata.uid}/{replica.status.transition_number}/{intent}"


def binds_of(*names: str) -> Callable[[Snapshot], Sequence[Request]]:
    def requests(snapshot: Snapshot) -> Sequence[Request]:
        found = [snapshot.get("replicas", "acme", name) for name in names]
        return [
            Bind(target(it), "n", "uid-n", TERM, operation=named(it, "bind"))
            for it in found
            if it.status.state is not State.BOUND
        ]

    return requests


def _released(snapshot: Snapshot) -> AwaitProgress:
    victim = snapshot.get("replicas", "acme", "victim")
    is_over = victim is None or victim.status.state is State.RELEASED
    return AwaitProgress.MET if is_over else AwaitProgress.NOT_YET


def preemption() -> list[PlanStep]:
    def stop(snapshot: Snapshot) -> Sequence[Request]:
        winner, victim = (snapshot.get("replicas", "acme", it) for it in ("winner", "victim"))
        if victim.status.state is not State.RUNNING or winner.status.state is State.BOUND:
            return ()
        it = target(winner)
        operation = named(winner, "preempt")
        return [StopAndReserve(it, "n", "uid-n", (target(victim),), TERM, AT, operation=operation)]

    released = AwaitShown("that the victim is released", _released)
    bind = PlanStep("bind", binds_of("winner"), (released,))
    return [PlanStep("stop", stop), bind]


MEMBERS = ("a", "b", "c")


def gang() -> list[PlanStep]:
    def reserve(snapshot: Snapshot) -> Sequence[Request]:
        found = [snapshot.get("replicas", "acme", name) for name in MEMBERS]
        return [
            Reserve(target(it), "n", "uid-n", TERM, AT, operation=named(it, "reserve"))
            for it in found
            if it.status.state is State.PENDING
        ]

    return [PlanStep("reserve", reserve), PlanStep("bind", binds_of(*MEMBERS))]


class World:
    """A plan, its authority, the snapshot between them, and the copies on their way."""

    def __init__(self, make: Callable[[], list[PlanStep]], states: dict[str, State]) -> None:
        self._make = make
        self.authority = Authority(states)
        self.now_ms = 0
        # Copies that have not arrived yet: they may arrive at any time, also after a crash.
        self.late: list[Request] = []
        self.waiting: list[tuple[int, Request | Get]] = []
        self.sent: list[Request] = []
        self.restart()

    def restart(self) -> None:
        """The process starts again, with a fresh list, and answers to the old one are lost."""
        self.late += [it for _, it in self.waiting if not isinstance(it, Get)]
        self.waiting.clear()
        self._seen, self._revision = dict(self.authority.objects), self.authority.revision
        self.plan = OperationPlan(self._make(), POLICY, random.Random(1), 10**9)
        self.go_on()

    @property
    def snapshot(self) -> Snapshot:
        """Some objects, each perhaps older than the authority's, complete up to a revision."""
        return Snapshot(ObjectTable({"replicas": self._seen.values()}), self._revision)

    def go_on(self) -> None:
        for number, call in self.plan.due(self.snapshot, self.now_ms):
            self.waiting.append((number, call))
            if not isinstance(call, Get):
                self.sent.append(call)
                self.check(call)

    def check(self, request: Request) -> None:
        """A later step is never sent before its evidence is true."""
        objects = self.authority.objects
        if isinstance(request, Bind) and "victim" in objects:
            assert objects["victim"].status.state is State.RELEASED
            assert self.authority.effects["StopAndReserve", "winner"] == 1
        if isinstance(request, Bind) and "victim" not in objects:
            # Every member has its place, by now or once its own bind has arrived.
            assert all(objects[it].status.state is not State.PENDING for it in MEMBERS)

    def answer(self, index: int, fate: str) -> None:
        number, call = self.waiting.pop(index % len(self.waiting))
        self.plan.answered(number, call, self._fate(call, fate), self.now_ms)
        self.go_on()

    def _fate(self, call: Request | Get, fate: str) -> Any:
        if isinstance(call, Get):
            found = GetResult(self.authority.objects[call.name], self.authority.revision)
            return found if fate in ("yes", "refused") else Unavailable("down")
        if fate == "refused":
            return Refusal(Reason.NODE_FULL, "no room")
        if fate == "late":
            self.late.append(call)
            return OutcomeUnknown("lost")
        if fate == "down":
            return Unavailable("down")
        verdict = self.authority.decide(call)
        return verdict if fate == "yes" else OutcomeUnknown("lost")

    def arrive(self, index: int) -> None:
        if self.late:
            self.authority.decide(self.late.pop(index % len(self.late)))

    def look(self, names: Sequence[str], *, whole: bool) -> None:
        """The snapshot catches up, for some objects or for all."""
        authority = self.authority
        for name in authority.objects if whole else names:
            if name in authority.objects:
                self._seen[name] = authority.objects[name]
        if whole:
            self._revision = authority.revision
        self.go_on()

    def release(self) -> None:
        victim = self.authority.objects.get("victim")
        if victim is not None and victim.status.state is State.STOPPING:
            self.authority.move("victim", State.RELEASED)

    def settle(self) -> None:
        """No more faults: everything arrives, is seen and is answered."""
        for _ in range(60):
            if self.plan.end is not None:
                return
            while self.waiting:
                self.answer(0, "yes")
            self.arrive(0)
            self.release()
            self.now_ms += 40_000
            self.look((), whole=True)


PREEMPTION = (preemption, {"winner": State.PENDING, "victim": State.RUNNING})
GANG = (gang, dict.fromkeys(MEMBERS, State.PENDING))
