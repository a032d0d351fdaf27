"""Hollow nodes: they register, renew, and run at once whatever is bound to them. Work that states
a duration succeeds after it.

One machine stands for one node, as an agent does, without processes: it only reports starts and
stops. It is level-triggered and repeats requests under the same ids, so faults cost it time only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.agent.node_facts import NodeFacts, as_seen
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Process, Replica
from holdfast.model.lifecycle import Stage, State
from holdfast.model.machine import Answered, Ask, Rng, Started, Wake, Woken
from holdfast.model.nodes.heartbeat import Renew, Renewed
from holdfast.model.requests import Accepted, Move, RegisterNode, ReportStage, Target
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache
from holdfast.observe.inflight import Inflight
from holdfast.observe.watch_events import Follow

ROUND_MS = 4_000
# At most this many requests are in flight.
ASKS_MAX = 32
RESYNC_MS = 60_000
_WAKE = "node"
# A controller reports work that is ready as Serving; to report it Ready again would never end.
_READY = (Stage.READY, Stage.SERVING)


class HollowNode:
    """See the module's docstring."""

    def __init__(self, name: str, facts: NodeFacts, rng: Rng) -> None:
        self._name, self._facts, self._rng = name, facts, rng
        self._cache = Cache(
            [Follow("nodes", fields=f"metadata.name={name}"), _mine(name)], rng, resync_ms=RESYNC_MS
        )
        self._asks: Inflight[str] = Inflight(ASKS_MAX)
        self._asking: set[str] = set()
        # What was not accepted is requested again in the next round, not at once.
        self._declined: set[str] = set()
        # When work that states its duration was first seen running, by uid.
        self._began_ms: dict[str, int] = {}
        self._boot = ""
        self._is_over = True

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        update = self._cache.step(stimulus, now)
        effects: list[Any] = update.effects
        match stimulus:
            case Started(boot=boot):
                self._boot = boot
                effects += self._round(now)
            case Woken(name=name) if name == _WAKE:
                effects += self._round(now)
            case Answered():
                self._answered(stimulus)
                effects += self._work(now)
        if update.changes:
            effects += self._work(now)
        return effects

    def _node(self) -> Node | None:
        node: Node | None = self._cache.get("nodes", "", self._name)
        return node

    def _round(self, now: Instant) -> list[Any]:
        at_ms = now.monotonic_ms + ROUND_MS + int(self._rng.random() * ROUND_MS / 4)
        node = self._node()
        self._declined.clear()
        effects: list[Any] = [Wake(_WAKE, at_ms)]
        if node is None or self._is_over:
            register = RegisterNode(as_seen(self._facts.node(self._name, self._boot), node))
            effects += self._ask("register", register, now)
        else:
            uid, life = node.metadata.uid, node.status.incarnation
            effects += self._ask("renew", Renew(self._name, uid, life), now)
        return effects + self._work(now)

    def _ask(self, what: str, request: Any, now: Instant) -> list[Ask]:
        if what in self._asking or what in self._declined or not self._asks.room:
            return []
        self._asking.add(what)
        return [self._asks.ask(request, what, now.monotonic_ms)]

    def _answered(self, stimulus: Answered) -> None:
        sent = self._asks.answered(stimulus.call)
        if sent is None:
            return
        self._asking.discard(sent.about)
        if not isinstance(stimulus.body, Accepted):
            self._declined.add(sent.about)
        match sent.request, stimulus.body:
            case RegisterNode(), Accepted():
                self._is_over = False
            case Renew(), Renewed(phase=phase):
                # Fenced: nothing of the old incarnation runs any more, and a new one begins.
                self._is_over = phase in (NodePhase.FENCED, NodePhase.LOST)

    def _work(self, now: Instant) -> list[Ask]:
        node = self._node()
        if node is None or self._is_over or not self._cache.is_ready:
            return []
        effects: list[Ask] = []
        for replica in self._cache.all("replicas"):
            for request in self._next(replica, node.status.incarnation, now):
                effects += self._ask(replica.metadata.uid, request, now)
        return effects

    def _next(self, replica: Replica, life: int, now: Instant) -> Iterator[Any]:
        """What to report of one replica of this incarnation."""
        status, binding = replica.status, replica.status.binding
        if binding is None or binding.node_incarnation != life:
            return
        number = status.transition_number
        target = Target(replica.namespace, replica.name, replica.metadata.uid, number)
        match status.state:
            case State.UNKNOWN if status.cause is not None:
                yield self._move(target, State.STOPPING, "Stopping", life, status.process)
            case State.BOUND | State.UNKNOWN:
                process = Process(id=f"{self._boot}/{replica.metadata.uid}")
                yield self._move(target, State.RUNNING, "Started", life, process)
            case State.RUNNING if status.stage not in _READY:
                version = replica.metadata.resource_version
                yield ReportStage(target, Stage.READY, life, version=version)
            case State.RUNNING if self._is_done(replica, now):
                yield self._move(target, State.SUCCEEDED, "Completed", life, status.process)
            case State.STOPPING | State.FAILED | State.SUCCEEDED:
                yield self._move(target, State.RELEASED, "Stopped", life, status.process)

    def _is_done(self, replica: Replica, now: Instant) -> bool:
        """Whether it has run for as long as it states."""
        lasts_s = replica.spec.expected_seconds
        if lasts_s is None:
            return False
        began_ms = self._began_ms.setdefault(replica.metadata.uid, now.monotonic_ms)
        return now.monotonic_ms - began_ms >= lasts_s * 1_000

    def _move(self, target: Target, to: State, why: str, life: int, process: Process) -> Move:
        operation = f"system:node:{self._name}/{target.uid}/{target.number}/{to.value}"
        return Move(
            target,
            to,
            why,
            "hollow",
            incarnation=life,
            process=process,
            operation=operation,
        )


def _mine(name: str) -> Follow:
    return Follow("replicas", fields=f"status.binding.node={name}")
