"""A controller runner on a real authority: the rig plays the shell, the servers' streams, the
scheduler and the agents, and spoils answers as a test says.

Time moves from wake-up to wake-up. The real rules decide every write, so a request that the
authority would not accept cannot pass here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.commit.record_encoding import decode, with_version
from holdfast.correct.all_controllers import all_controllers
from holdfast.correct.controller import Controller
from holdfast.correct.controller_runner import ControllerRunner
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Process, Replica
from holdfast.model.lifecycle import Stage, State
from holdfast.model.machine import Answered, Ask, Leave, Open, Pushed, Started, Wake, Woken
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.registry import kind_of_plural
from holdfast.model.requests import AcquireLease, Move, RegisterNode, RenewLease, ReportStage, Term
from holdfast.observe.watch_events import Departed, Present, Reached
from tests.plane import ADMIN, NODES, REPAIR, SCHEDULER, WORKLOADS, Plane, accepted, bind, target

TURNS_MAX = 20_000
SETTLE_MS = 4_000
BOOKMARK_EVERY_MS = 15_000

# What becomes of one request: done and answered, done and lost, lost on the way, or refused by a
# server that is down. A function of the rig may say so for each.
DONE, LOST_AFTER, LOST_BEFORE, DOWN = "done", "lost-after", "lost-before", "down"
Fate = Callable[[Ask], str]


def is_lease(body: Any) -> bool:
    return isinstance(body, AcquireLease | RenewLease) or (
        isinstance(body, Get) and body.plural == "leases"
    )


def is_write(body: Any) -> bool:
    return not is_lease(body) and not isinstance(body, HeartbeatQuery | Get)


class Crash(Exception):
    """The process dies here."""


class Rig:
    """See the module's docstring."""

    def __init__(
        self,
        controllers: Iterable[Controller] | None = None,
        *,
        servers: tuple[str, ...] = ("s1",),
        timing: FenceTiming | None = None,
    ) -> None:
        self.plane = Plane()
        self.timing = timing if timing is not None else FenceTiming()
        self.servers = servers
        self.silent: set[str] = set()
        self.deaf: set[str] = set()
        # Servers whose answer to a question is still on its way, and all questions so far.
        self.mute: set[str] = set()
        self.questions: list[str] = []
        # When each server started to listen, and its last heartbeats.
        self.listening_ms = dict.fromkeys(servers, 0)
        self.fate: Fate = lambda ask: DONE
        # Every write that was sent, and how many came of one step at most.
        self.sent: list[Ask] = []
        self.most_at_once = 0
        self.crash_after: int | None = None
        self.leases_are_down = False
        # Kinds whose streams bring nothing, not even a sign of life.
        self.untold: set[str] = set()
        # Kinds whose streams bring bookmarks, but no changes.
        self.lossy: set[str] = set()
        self.bind_term: Term | None = None
        self.controllers: tuple[Controller, ...] = ()
        some = tuple(controllers) if controllers is not None else None
        self._only: tuple[type[Any], ...] = tuple(type(it) for it in some or ())
        self.start(some)

    # The shell -----------------------------------------------------------------------------------

    def start(self, controllers: Iterable[Controller] | None = None) -> None:
        """Start the controllers again: what the last process remembered is gone."""
        if controllers is None:
            # The same ones as before, new.
            kinds = self._only
            controllers = (kind() for kind in kinds) if kinds else all_controllers()
        self.controllers = tuple(controllers)
        self.runner = ControllerRunner(self.controllers, random.Random(7), servers=self.servers)
        self.wakes: dict[str, int] = {}
        self.streams: dict[int, tuple[str, int]] = {}
        self.inbox: list[Any] = [Started({})]
        self.bookmark_ms = self.now_ms + BOOKMARK_EVERY_MS

    @property
    def now_ms(self) -> int:
        return self.plane.elapsed_ms

    def controller(self, name: str) -> Any:
        return next(it for it in self.controllers if it.name == name)

    def run(self, for_ms: int = SETTLE_MS) -> None:
        """Let so much time pass."""
        end_ms = self.now_ms + for_ms
        for _ in range(TURNS_MAX):
            self._tell()
            while self.inbox:
                try:
                    self._step(self.inbox.pop(0))
                except Crash:
                    self.start()
                self._tell()
            due_ms = min([*self.wakes.values(), self.bookmark_ms])
            if due_ms > end_ms:
                self.plane.elapsed_ms = max(self.now_ms, end_ms)
                return
            self.plane.elapsed_ms = max(self.now_ms, due_ms)
            self._bookmark()
            for name in [it for it, at_ms in self.wakes.items() if at_ms <= self.now_ms]:
                del self.wakes[name]
                self.inbox.append(Woken(name))
        raise AssertionError("the controllers never come to rest")

    def _step(self, stimulus: Any) -> None:
        effects = self.runner.step(stimulus, self.plane.now)
        writes = [it for it in effects if isinstance(it, Ask) and is_write(it.body)]
        self.most_at_once = max(self.most_at_once, len(writes))
        for effect in effects:
            self.perform(effect)

    def perform(self, effect: Any) -> None:
        match effect:
            case Wake(name=name, at_ms=at_ms):
                self.wakes[name] = at_ms
            case Open(stream=stream, body=follow):
                self.open_stream(stream, follow.plural, follow.since)
            case Leave(stream=stream):
                self.streams.pop(stream, None)
            case Ask():
                self._ask(effect)
            case _:
                raise AssertionError(effect)

    # The servers ---------------------------------------------------------------------------------

    def open_stream(self, stream: int, plural: str, since: int | None) -> None:
        revision = self.plane.store.revision
        self.streams[stream] = (plural, revision if since is None else since)
        if since is None:
            present = [Present(it, _revision(it)) for it in self.all(plural)]
            self.inbox.append(Pushed(stream, (*present, Reached(revision, ends_list=True))))

    def all(self, plural: str) -> list[Any]:
        """All objects of a kind, as the store has them."""
        prefix = keys.kind_prefix(kind_of_plural(plural))
        page = self.plane.store.range(prefix, keys.after_prefix(prefix))
        return [with_version(decode(it.key, it.value), it.modified) for it in page.records]

    def get(self, plural: str, name: str, namespace: str = "") -> Any:
        return next(
            (it for it in self.all(plural) if (it.name, it.namespace) == (name, namespace)), None
        )

    def _tell(self) -> None:
        """Push what has changed down all streams."""
        for stream, (plural, after) in list(self.streams.items()):
            if plural in self.untold:
                continue
            prefix = keys.kind_prefix(kind_of_plural(plural))
            batch = self.plane.store.changes(prefix, after=after)
            changed: list[Any] = []
            for change in batch.changes:
                if change.value is not None:
                    obj = decode(change.key, change.value)
                    changed.append(Present(with_version(obj, change.revision), change.revision))
                else:
                    last = self._last_of(change.key, change.revision)
                    changed.append(Departed(with_version(last, change.revision), change.revision))
            self.streams[stream] = (plural, batch.revision)
            if changed and plural not in self.lossy:
                self.inbox.append(Pushed(stream, tuple(changed)))

    def _last_of(self, key: str, revision: int) -> Any:
        """The object as it was before the revision at which it went."""
        page = self.plane.store.range(key, f"{key}\0", at=revision - 1)
        return decode(key, page.records[0].value)

    def _bookmark(self) -> None:
        if self.now_ms < self.bookmark_ms:
            return
        self.bookmark_ms = self.now_ms + BOOKMARK_EVERY_MS
        for stream, (plural, revision) in self.streams.items():
            if plural not in self.untold:
                self.inbox.append(Pushed(stream, (Reached(revision),)))

    def _ask(self, ask: Ask) -> None:
        identity = Identity(name=ask.sender)
        match ask.body:
            case HeartbeatQuery():
                self.questions.append(ask.to)
                if ask.to not in self.mute:
                    self.inbox.append(Answered(ask.call, self._heard(ask.to)))
                return
            case Get() as get if not (self.leases_are_down and is_lease(get)):
                found = GetResult(
                    self.get(get.plural, get.name, get.namespace), self.plane.store.revision
                )
                self.inbox.append(Answered(ask.call, found))
                return
        if is_lease(ask.body):
            down = Unavailable("the server is down")
            answer = down if self.leases_are_down else self.plane.ask(identity, ask.body)
            self.inbox.append(Answered(ask.call, answer))
            return
        self.sent.append(ask)
        fate = self.fate(ask)
        if fate == DOWN:
            answer = Unavailable("the server is down")
        else:
            done = self.plane.ask(identity, ask.body) if fate != LOST_BEFORE else None
            answer = done if fate == DONE else OutcomeUnknown("the answer was lost")
        if self.crash_after == len(self.sent):
            self.crash_after = None
            raise Crash
        self.inbox.append(Answered(ask.call, answer))

    def _heard(self, server: str) -> Any:
        if server in self.deaf:
            return Unavailable("no way there")
        nodes = [it.name for it in self.all("nodes") if it.name not in self.silent]
        listening_ms = self.now_ms - self.listening_ms[server]
        ages_ms = dict.fromkeys(nodes, 0)
        return HeartbeatReport(server, listening_ms, ages_ms, self.timing, heard=len(nodes))

    # The others ----------------------------------------------------------------------------------

    def bind_all(self) -> None:
        """A scheduler that binds what waits to the nodes in turn."""
        if self.bind_term is None:
            self.bind_term = self.plane.term(SCHEDULER)
        nodes = [
            it
            for it in self.all("nodes")
            if it.status.phase.value == "Ready" and it.spec.drain is None
        ]
        waiting = [
            it
            for it in self.all("replicas")
            if it.status.state is State.PENDING and it.metadata.deletion_timestamp is None
        ]
        for at, replica in enumerate(waiting):
            node = nodes[at % len(nodes)]
            accepted(self.plane.ask(SCHEDULER, bind(replica, node, self.bind_term)))

    def agents(self) -> None:
        """Agents that start what is bound and stop what is to stop, while heartbeats arrive."""
        for replica in self.all("replicas"):
            binding = replica.status.binding
            if binding is None or binding.node in self.silent:
                continue
            agent = who.agent(binding.node)
            life = binding.node_incarnation
            if replica.status.state is State.BOUND:
                running = Move(target(replica), State.RUNNING, incarnation=life, process=Process())
                replica = accepted(self.plane.ask(agent, running))
                ready = ReportStage(target(replica), Stage.READY, life)
                accepted(self.plane.ask(agent, ready))
            elif replica.status.state in (State.STOPPING, State.FAILED, State.SUCCEEDED):
                gone = Move(target(replica), State.RELEASED, "Stopped", incarnation=life)
                accepted(self.plane.ask(agent, gone))

    def turn(self, times: int = 4) -> None:
        """Controllers, scheduler and agents, one after the other, until all is done."""
        for _ in range(times):
            self.run()
            self.bind_all()
            self.agents()
        self.run()

    def ends(self, replica: Replica, state: State = State.FAILED, reason: str = "exit 1") -> None:
        """The agent says that a replica ended by itself, and that it has stopped."""
        binding = replica.status.binding
        assert binding is not None
        agent, life = who.agent(binding.node), binding.node_incarnation
        ended = accepted(
            self.plane.ask(agent, Move(target(replica), state, reason, incarnation=life))
        )
        accepted(
            self.plane.ask(agent, Move(target(ended), State.RELEASED, "Stopped", incarnation=life))
        )

    def register(self, name: str) -> Node:
        """The agent of a node presents itself again."""
        known = self.get("nodes", name)
        return accepted(self.plane.ask(who.agent(name), RegisterNode(known)))

    def states(self) -> dict[str, str]:
        return {it.name: it.status.state.value for it in self.all("replicas")}

    def phase(self, node: str) -> str:
        return self.get("nodes", node).status.phase.value

    def writes(self) -> list[str]:
        """What was sent since the last call, in short."""
        sent, self.sent = self.sent, []
        return [type(ask.body).__name__ for ask in sent]


def _revision(obj: Any) -> int:
    return int(obj.metadata.resource_version) // 2


__all__ = [
    "ADMIN",
    "DONE",
    "DOWN",
    "LOST_AFTER",
    "LOST_BEFORE",
    "NODES",
    "REPAIR",
    "SCHEDULER",
    "WORKLOADS",
    "Rig",
    "accepted",
    "target",
]
