"""An agent between a real authority and a machine that does what a test says.

Requests go to the authority of tests/plane.py, so that every shape of request is judged by the real
rules. Launches and halts wait in a table until the test says what became of them. Everything that
the agent does is recorded as text, for the golden scripts and for failures.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.node_facts import NodeFacts
from holdfast.agent.runtime_protocol import (
    Attempt,
    Check,
    Clear,
    Exited,
    Extend,
    Halt,
    Inventory,
    Item,
    Launch,
    Launched,
    LookAround,
    NotLaunched,
    PortsOpened,
    Probed,
    RunProbe,
)
from holdfast.commit.record_encoding import decode, with_version
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.replica import Process, Replica
from holdfast.model.machine import Answered, Ask, Leave, Open, Pushed, Rng, Started, Wake, Woken
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import Renew, Renewed
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.requests import Accepted, Move, RegisterNode, ReportStage
from holdfast.model.time import Instant
from holdfast.observe.watch_events import Departed, Follow, Present, Reached
from tests.furnished import Furnished
from tests.plane import START_WALL_MS, template

NODE = "node-a"
FACTS = NodeFacts(
    region="eu-west",
    zone="eu-west-a",
    capacity={"cpu": 8, "memory": "32Gi"},
    agent_version="1",
    address="10.0.0.1:7000",
)
SETTLE_MAX = 60


class Half:
    """Randomness that is none, so that pauses can be read off."""

    def random(self) -> float:
        return 0.5


class Held:
    """One attempt on the machine."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.state = "starting"
        self.process = Process()
        self.unopened: tuple[str, ...] = ()
        self.deadline_ms = launch.deadline_ms


class Rig:
    """See the module's docstring."""

    def __init__(
        self, rng: Rng | None = None, timing: FenceTiming | None = None, installation: str = ""
    ) -> None:
        self.it = Furnished()
        self.plane = self.it.plane
        self.rng = rng if rng is not None else Half()
        self.facts = msgspec.structs.replace(FACTS, installation=installation)
        self.timing = timing if timing is not None else FenceTiming()
        self.names: dict[str, str] = {}
        self.table: dict[Attempt, Held] = {}
        self.boot, self.boot_ms, self.pids = "boot-1", 0, 0
        self.lines: list[str] = []
        # Everything the agent did and received, in order, for properties over the whole trace.
        self.trace: list[Any] = []
        self.workloads: dict[str, Any] = {}
        self._off()

    def _off(self) -> None:
        self.agent: Agent | None = None
        self.calls: dict[int, Ask] = {}
        self.late: dict[int, Any] = {}
        self.streams: dict[int, tuple[Follow, dict[str, Any] | None]] = {}
        self.wakes: dict[str, int] = {}

    # Time and stimuli ----------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.plane.elapsed_ms - self.boot_ms

    def feed(self, stimulus: Any) -> list[Any]:
        assert self.agent is not None
        self.trace.append(stimulus)
        now = Instant(self.now_ms, START_WALL_MS + self.plane.elapsed_ms)
        effects = self.agent.step(stimulus, now)
        for effect in effects:
            self.trace.append(effect)
            self._perform(effect)
        return effects

    def _perform(self, effect: Any) -> None:
        match effect:
            case Ask(call=call):
                self.calls[call] = effect
            case Open(stream=stream, body=body):
                self.streams[stream] = (body, {} if body.since is not None else None)
            case Leave(stream=stream):
                del self.streams[stream]
            case Wake(name=name, at_ms=at_ms):
                self.wakes[name] = at_ms
                return
            case _:
                self._on_machine(effect)
        text = self.told(effect)
        if text:
            self.lines.append(f"{self.now_ms:>8} {text}")

    def _on_machine(self, effect: Any) -> None:
        match effect:
            case Launch(attempt=attempt):
                assert attempt not in self.table, f"{attempt} was launched twice"
                self.table[attempt] = Held(effect)
            case Extend(deadline_ms=deadline_ms):
                for held in self.table.values():
                    if held.deadline_ms is not None and held.state in ("starting", "running"):
                        held.deadline_ms = max(held.deadline_ms, deadline_ms)
            case Halt(attempt=attempt):
                held = self.table[attempt]
                held.state = "stopping" if held.state != "ended" else held.state
            case Clear(uid=uid):
                for attempt in [it for it in self.table if it.uid == uid]:
                    assert self.table[attempt].state == "ended", "cleared what runs"
                    del self.table[attempt]

    def wait(self, ms: int) -> None:
        """Let time pass and deliver the wake-ups that fall due, each at its moment."""
        end_ms = self.now_ms + ms
        for _ in range(10_000):
            due = [(at_ms, name) for name, at_ms in self.wakes.items() if at_ms <= end_ms]
            if not due:
                break
            at_ms, name = min(due)
            del self.wakes[name]
            self.plane.elapsed_ms = max(self.plane.elapsed_ms, at_ms + self.boot_ms)
            self.feed(Woken(name))
        self.plane.elapsed_ms = max(self.plane.elapsed_ms, end_ms + self.boot_ms)

    # The machine ---------------------------------------------------------------------------------

    def start(self) -> None:
        """A new process of the agent; nothing is left of the one before."""
        self._off()
        self.agent = Agent(NODE, self.facts, self.rng)
        self.feed(Started({}, self.boot))

    def stop(self) -> None:
        """The agent's process ends; it takes a while until the next one starts."""
        self._off()
        self.plane.elapsed_ms += 1_000

    def reboot(self) -> None:
        """The machine reboots: no process survives, and its clock begins again."""
        self._off()
        self.boot = f"boot-{int(self.boot.removeprefix('boot-')) + 1}"
        self.boot_ms = self.plane.elapsed_ms
        for held in self.table.values():
            if held.state != "ended":
                held.state = "ended"
                held.process = msgspec.structs.replace(held.process, reason="Rebooted")

    def look(self) -> None:
        """Tell the agent what is there."""
        latest: dict[str, Held] = {}
        for attempt, held in self.table.items():
            known = latest.get(attempt.uid)
            if known is None or known.launch.attempt.number < attempt.number:
                latest[attempt.uid] = held
        self.feed(
            Inventory(
                tuple(
                    Item(
                        held.launch.attempt,
                        held.process,
                        held.state in ("running", "stopping"),
                        held.launch.namespace,
                        held.launch.name,
                        unopened=held.unopened,
                    )
                    for held in latest.values()
                )
            )
        )

    def held(self, name: str, *states: str) -> Held:
        """The latest attempt of a replica that is in one of these states."""
        found = [
            held
            for held in self.table.values()
            if held.launch.name == name and held.state in states
        ]
        assert found, f"nothing of {name} is {' or '.join(states)}: {self.lines[-5:]}"
        return found[-1]

    def launched(self, name: str, **addresses: str) -> None:
        """It runs, and has opened none of these ports."""
        held = self.held(name, "starting", "stopping")
        self.pids += 1
        held.process = Process(id=f"{self.pids}@{self.boot}", addresses=addresses)
        held.unopened = tuple(addresses)
        if held.state == "starting":
            held.state = "running"
        self.feed(Launched(held.launch.attempt, held.process, held.unopened))

    def opened(self, name: str, *ports: str) -> None:
        held = self.held(name, "running", "stopping")
        held.unopened = tuple(it for it in held.unopened if it not in ports)
        if self.agent is not None:
            self.feed(PortsOpened(held.launch.attempt, held.unopened))

    def refused(self, name: str, reason: str) -> None:
        held = self.held(name, "starting", "stopping")
        held.state, held.process = "ended", Process(reason=reason)
        self.feed(NotLaunched(held.launch.attempt, held.process))

    def exited(
        self, name: str, code: int | None = 0, signal: int | None = None, reason: str = ""
    ) -> None:
        held = self.held(name, "running", "stopping")
        held.state = "ended"
        held.process = msgspec.structs.replace(
            held.process, exit_code=None if signal else code, signal=signal, reason=reason
        )
        if self.agent is not None:
            self.feed(Exited(held.launch.attempt, held.process))

    def probed(self, name: str, kind: str, ok: bool = True, message: str = "") -> None:
        held = self.held(name, "running", "stopping", "ended")
        self.feed(Probed(held.launch.attempt, Check(kind), ok, message))

    # The servers ---------------------------------------------------------------------------------

    def objects(self, plural: str) -> dict[str, Any]:
        """What the agent may see of a kind, by key."""
        prefix = f"{keys.OBJECTS}{plural}/"
        found: dict[str, Any] = {}
        for record in self.plane.store.range(prefix, keys.after_prefix(prefix)).records:
            obj = with_version(decode(record.key, record.value), record.modified)
            if isinstance(obj, Replica):
                self.names[obj.metadata.uid] = obj.name
                if obj.status.binding is None or obj.status.binding.node != NODE:
                    continue
            elif obj.name != NODE:
                continue
            found[record.key] = obj
        return found

    def snapshot(self, plural: str, is_list: bool) -> tuple[dict[str, Any], int]:
        """What a stream tells now: all objects, as of a revision."""
        return self.objects(plural), self.plane.store.revision

    def push_changes(self) -> bool:
        """Tell every stream what is new; whether anything was."""
        is_new = False
        for stream, (follow, known) in list(self.streams.items()):
            now, revision = self.snapshot(follow.plural, known is None)
            changes: list[Any] = [
                Present(obj, int(obj.metadata.resource_version) // 2)
                for key, obj in now.items()
                if known is None or known.get(key) != obj
            ]
            changes.sort(key=lambda it: it.revision)
            changes += [Departed(known[key], revision) for key in known or () if key not in now]
            if known is not None and not changes:
                continue
            self.streams[stream] = (follow, now)
            is_new = True
            self.feed(Pushed(stream, (*changes, Reached(revision, known is None))))
        return is_new

    def call(self, kind: str) -> int:
        """The oldest request of a kind that waits for its answer."""
        for number, ask in self.calls.items():
            if kind in ("", type(ask.body).__name__):
                return number
        raise AssertionError(f"no {kind} is on its way: {self.lines[-5:]}")

    def verdict(self, body: Any) -> Any:
        """What the servers make of a request."""
        match body:
            case Get():
                key = f"{keys.OBJECTS}{body.plural}/" + (
                    f"{body.namespace}/{body.name}" if body.namespace else body.name
                )
                record = self.plane.store.get(key)
                obj = record and with_version(decode(key, record.value), record.modified)
                return GetResult(obj, self.plane.store.revision)
            case Renew(node=name):
                status = self.it.get(self.it.node).status
                mark = status.mark.number if status.mark is not None else 0
                uid = self.it.get(self.it.node).metadata.uid
                return Renewed(name, uid, status.incarnation, status.phase, mark, self.timing)
        return self.it.ask(who.agent(NODE), body)

    def answer(self, kind: str = "") -> Any:
        """Perform the oldest request of a kind and tell the agent."""
        number = self.call(kind)
        verdict = self.verdict(self.calls.pop(number).body)
        self.feed(Answered(number, verdict))
        return verdict

    def hold(self, kind: str) -> None:
        """Perform it now, and let the answer be on its way until `deliver`."""
        number = self.call(kind)
        self.late[number] = self.verdict(self.calls.pop(number).body)

    def deliver(self) -> None:
        for number in list(self.late):
            self.feed(Answered(number, self.late.pop(number)))

    def lose(self, kind: str) -> None:
        """Perform it, but let the answer be lost."""
        number = self.call(kind)
        self.verdict(self.calls.pop(number).body)
        self.feed(Answered(number, OutcomeUnknown("no answer in time")))

    def drop(self, kind: str) -> None:
        """Let the request be lost."""
        number = self.call(kind)
        del self.calls[number]
        self.feed(Answered(number, Unavailable("no server")))

    def settle(self) -> None:
        """Answer all requests and push all changes until it is quiet."""
        for _ in range(SETTLE_MAX):
            is_busy = self.push_changes()
            while self.calls:
                self.answer()
                is_busy = True
            if not is_busy:
                return
        raise AssertionError(f"it never comes to rest: {self.lines[-20:]}")

    def up(self) -> None:
        """A started agent that knows everything and is acknowledged."""
        self.start()
        self.look()
        self.settle()

    # Work ----------------------------------------------------------------------------------------

    def bound(self, kind: str = "svc", **more: Any) -> Any:
        """One more replica on our node, of a workload with this template."""
        if kind not in self.workloads:
            made = template(**more)
            self.workloads[kind] = self.plane.workload(kind, template=made, replicas=20)
        replica = self.it.bound(self.workloads[kind])
        self.names[replica.metadata.uid] = replica.name
        return replica

    def state(self, replica: Any) -> Any:
        return self.it.get(replica).status

    # As text -------------------------------------------------------------------------------------

    def told(self, effect: Any) -> str:
        """An effect as text; empty for effects that scripts do not show."""
        match effect:
            case LookAround():
                return "look around"
            case Open(body=body):
                return f"follow {body.plural} where {body.fields}"
            case Launch(attempt=attempt, deadline_ms=deadline_ms, grace_ms=grace_ms):
                return f"launch {self._at(attempt)} until {deadline_ms}, grace {grace_ms}"
            case Extend(deadline_ms=deadline_ms):
                return f"extend until {deadline_ms}"
            case Halt(attempt=attempt, grace_ms=grace_ms):
                return f"halt {self._at(attempt)} within {grace_ms}"
            case RunProbe(attempt=attempt, kind=kind, timeout_ms=timeout_ms):
                return f"probe {self._at(attempt)} {kind.value} within {timeout_ms}"
            case Clear(uid=uid):
                return f"clear {self.names.get(uid, uid)}"
            case Ask(body=body):
                return f"ask {self._asked(body)}"
        return ""

    def _at(self, attempt: Attempt) -> str:
        return f"{self.names.get(attempt.uid, attempt.uid)}#{attempt.number}"

    def _asked(self, body: Any) -> str:
        match body:
            case Get(plural=plural, name=name):
                return f"get {plural} {name}"
            case Renew(incarnation=incarnation):
                return f"renew life {incarnation}"
            case RegisterNode(running=running):
                names = [self.names.get(uid, uid) for uid in running]
                return f"register, running: {', '.join(names) or 'nothing'}"
            case Move(target=target, to=to, process=process):
                how = f"{body.reason}; {body.evidence}; life {body.incarnation}"
                count = f"; restarts {process.restarts}" if process is not None else ""
                return f"move {target.name}@{target.number} to {to.value} ({how}{count})"
            case ReportStage(target=target, stage=stage, process=process):
                pid = process.id if process is not None else ""
                why = f", {process.reason}" if process is not None and process.reason else ""
                return f"report {target.name}@{target.number} {stage.value} (process {pid}{why})"
        return type(body).__name__


def verdict_text(verdict: Any) -> str:
    """A verdict as text, for scripts."""
    if isinstance(verdict, Accepted):
        return "accepted before" if verdict.replayed else "accepted"
    return type(verdict).__name__
