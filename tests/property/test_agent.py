"""An agent among lost answers, pauses, crashes, reboots, marks and fences: what always holds.

A random story is played against the real authority. After every effect of the agent the promises
are checked on the machine's own table; at the end the faults stop, and everything must come to
rest: what is wanted runs once, and the rest is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.runtime_protocol import (
    DEADLINE_PASSED,
    Attempt,
    Clear,
    Exited,
    Extend,
    Halt,
    Launch,
    Launched,
    NotLaunched,
)
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import OnDisconnect, RestartPolicy
from holdfast.model.lifecycle import Stage, State
from holdfast.model.machine import Answered, Ask
from holdfast.model.nodes.heartbeat import Renew, Renewed
from holdfast.model.requests import JudgeNode, Move, NodeAction, ReportStage
from tests.furnished import every
from tests.plane import NODES, REPAIR, SCHEDULER, WORKLOADS, template
from tests.scale import examples
from tests.unit.agent.rig import NODE, Held, Rig

ALIVE = ("starting", "running", "stopping")
REST_MAX = 60


class Story(Rig):
    """A rig that anything may happen to, and that checks what the agent does."""

    def __init__(self, seed: int) -> None:
        super().__init__(Random(seed))
        self.sent_ms: dict[int, int] = {}
        self.allowed_ms: set[int] = set()
        self.launches = 0
        # Snapshots of the past that are still on their way down the streams.
        self.past: list[dict[str, tuple[dict[str, Any], int]]] = []

    # What must hold ------------------------------------------------------------------------------

    def feed(self, stimulus: Any) -> list[Any]:
        if isinstance(stimulus, Answered) and isinstance(stimulus.body, Renewed):
            sent_ms, renew = self.sent_ms[stimulus.call], self.renews[stimulus.call]
            if stimulus.body.acknowledges(renew):
                self.allowed_ms.add(sent_ms + stimulus.body.timing.self_stop_after_ms)
        return super().feed(stimulus)

    def start(self) -> None:
        self.allowed_ms, self.renews = set(), {}
        super().start()
        self.has_looked = False

    def look(self) -> None:
        self.has_looked = True
        super().look()

    def of(self, uid: str, *states: str) -> list[Held]:
        return [
            held
            for attempt, held in self.table.items()
            if attempt.uid == uid and held.state in states
        ]

    def _perform(self, effect: Any) -> None:
        match effect:
            case Ask(call=call, body=Renew() as renew):
                self.sent_ms[call], self.renews[call] = self.now_ms, renew
            case Ask(body=Move() | ReportStage() as said):
                known = [*self.calls.values(), *self.on_way.values()]
                same = [ask for ask in known if getattr(ask.body, "target", None)]
                assert all(ask.body.target.uid != said.target.uid for ask in same), "two at once"
                self._check_move(said)
            case Launch(attempt=attempt, deadline_ms=deadline_ms):
                self.launches += 1
                assert not self.of(attempt.uid, *ALIVE), "two attempts of one replica at once"
                earlier = [it.number for it in self.table if it.uid == attempt.uid]
                assert all(number < attempt.number for number in earlier)
                assert deadline_ms is None or deadline_ms > self.now_ms
                assert deadline_ms is None or deadline_ms in self.allowed_ms
            case Extend(deadline_ms=deadline_ms):
                assert deadline_ms in self.allowed_ms, "no acknowledged renewal allows this"
                self._check_lives()
            case Clear(uid=uid):
                assert not self.of(uid, *ALIVE)
            case Halt(attempt=attempt):
                self._check_halt(attempt.uid)
        super()._perform(effect)

    def _check_move(self, said: Move | ReportStage) -> None:
        if isinstance(said, Move) and said.to is State.RELEASED:
            assert not self.of(said.target.uid, *ALIVE), "released what may still run"

    def _check_lives(self) -> None:
        """No deadline moves for work of a life that is over."""
        assert self.agent is not None
        assert self.agent.life is not None
        replicas = {it.metadata.uid: it for it in every(self.plane, Replica)}
        for attempt, held in self.table.items():
            replica = replicas.get(attempt.uid)
            if held.deadline_ms is None or held.state not in ("starting", "running") or not replica:
                continue
            born = replica.status.binding.node_incarnation
            assert born == self.agent.life.incarnation, "work of an earlier life runs on"

    def _check_halt(self, uid: str) -> None:
        """Nothing is stopped that its node's present life should run."""
        node = self.it.get(self.it.node)
        for replica in every(self.plane, Replica):
            if replica.metadata.uid != uid:
                continue
            wanted = replica.status.state in (State.BOUND, State.RUNNING)
            is_now = replica.status.binding.node_incarnation == node.status.incarnation
            assert not (wanted and is_now and node.status.phase is NodePhase.READY), "killed work"

    # What may happen -----------------------------------------------------------------------------

    def happen(self, verb: str, pick: int) -> None:
        getattr(self, f"do_{verb}")(pick)
        self.strike()

    def mine(self) -> list[Any]:
        return [it for it in every(self.plane, Replica) if it.status.binding is not None]

    def do_bind(self, pick: int) -> None:
        policy = list(RestartPolicy)[pick % 3]
        keep = OnDisconnect.KEEP if pick % 4 == 3 else OnDisconnect.STOP
        kind = f"{policy.value.lower()}-{keep.value}"
        if kind not in self.workloads:
            made = template(cpu="500m", restart=policy, on_disconnect=keep)
            self.workloads[kind] = self.plane.workload(kind, template=made, replicas=30)
        pending = self.it.pending(self.workloads[kind])
        self.names[pending.metadata.uid] = pending.name
        self.it.ask(SCHEDULER, self.it.bind(pending))

    def do_evict(self, pick: int) -> None:
        mine = [it for it in self.mine() if it.status.state in (State.BOUND, State.RUNNING)]
        if mine:
            self.it.ask(WORKLOADS, self.it.evict(mine[pick % len(mine)]))

    def judge(self, word: NodeAction) -> Any:
        node = self.it.get(self.it.node)
        mark = self.it.mark_of()
        return self.it.ask(
            NODES, JudgeNode(NODE, node.metadata.uid, word, self.it.term(NODES), mark)
        )

    def do_mark(self, pick: int) -> None:
        self.judge(NodeAction.MARK)
        self.give_up()

    def give_up(self) -> None:
        for replica in self.mine():
            self.it.ask(NODES, self.it.to_unknown(replica, self.it.mark_of()))

    def do_clear(self, pick: int) -> None:
        self.judge(NodeAction.CLEAR)

    def do_fence(self, pick: int) -> None:
        """As late as the law demands: when the last deadline has struck and its grace is over."""
        if not self.it.mark_of():
            return
        self.give_up()
        self.plane.elapsed_ms += self.timing.fence_after_ms
        self.strike()
        for held in list(self.table.values()):
            if held.deadline_ms is not None and held.state == "stopping":
                self.exited(held.launch.name, code=0, reason=DEADLINE_PASSED)
        self.judge(NodeAction.FENCE)

    def do_repair(self, pick: int) -> None:
        for replica in self.mine():
            for to in (State.FAILED, State.RELEASED):
                now = self.it.get(replica)
                if now is not None and now.status.state is not State.RELEASED:
                    self.it.ask(REPAIR, self.it.repaired(now, to))

    def any_call(self, pick: int) -> str:
        return type(list(self.calls.values())[pick % len(self.calls)].body).__name__

    def do_answer(self, pick: int) -> None:
        if self.calls:
            self.answer(self.any_call(pick))

    def do_lose(self, pick: int) -> None:
        if self.calls:
            self.lose(self.any_call(pick))

    def do_drop(self, pick: int) -> None:
        if self.calls:
            self.drop(self.any_call(pick))

    def do_hold(self, pick: int) -> None:
        if self.calls:
            number = self.call(kind := self.any_call(pick))
            self.on_way[number] = self.calls[number]
            self.hold(kind)

    def do_deliver(self, pick: int) -> None:
        for number in list(self.late):
            del self.on_way[number]
            self.feed(Answered(number, self.late.pop(number)))

    def _off(self) -> None:
        super()._off()
        self.on_way: dict[int, Ask] = {}

    def do_snap(self, pick: int) -> None:
        """From here on the streams are behind."""
        now = self.plane.store.revision
        self.past.append({plural: (self.objects(plural), now) for plural in ("replicas", "nodes")})

    def snapshot(self, plural: str, is_list: bool) -> tuple[dict[str, Any], int]:
        # A list is linearizable; only what follows may be late.
        is_late = self.past and not is_list
        return self.past[0][plural] if is_late else super().snapshot(plural, is_list)

    def push_changes(self) -> bool:
        was_late = bool(self.past)
        is_new = super().push_changes()
        del self.past[:1]
        return is_new or was_late

    def do_echo(self, pick: int) -> None:
        """The machine says something once more that was true before."""
        said = [it for it in self.trace[-200:] if isinstance(it, Launched | NotLaunched | Exited)]
        old = [it for it in said if it.attempt not in self._latest()]
        if old and self.agent is not None:
            self.feed(old[pick % len(old)])

    def _latest(self) -> set[Attempt]:
        latest: dict[str, Attempt] = {}
        for attempt in self.table:
            known = latest.get(attempt.uid)
            latest[attempt.uid] = max(known or attempt, attempt, key=lambda it: it.number)
        return set(latest.values())

    def do_news(self, pick: int) -> None:
        if self.agent is not None:
            self.push_changes()

    def do_settle(self, pick: int) -> None:
        if self.agent is not None:
            self.settle()

    def do_wait(self, pick: int) -> None:
        self.wait((1, 100, 1_000, 10_000)[pick % 4])

    def do_freeze(self, pick: int) -> None:
        self.plane.elapsed_ms += (100, 5_000, 40_000)[pick % 3]

    def some(self, pick: int, *states: str) -> Iterator[Held]:
        """One attempt in one of these states, if there is any and a receiver for it."""
        found = [held for held in self.table.values() if held.state in states]
        if found and self.agent is not None and self.has_looked:
            yield found[pick % len(found)]

    def do_launched(self, pick: int) -> None:
        for held in self.some(pick, "starting"):
            deadline_ms = held.deadline_ms
            if deadline_ms is not None and deadline_ms <= self.now_ms:
                self.refused(held.launch.name, DEADLINE_PASSED)
            else:
                self.launched(held.launch.name)

    def do_refused(self, pick: int) -> None:
        for held in self.some(pick, "starting"):
            self.refused(held.launch.name, "NoSuchFile")

    def do_exited(self, pick: int) -> None:
        for held in self.some(pick, "running", "stopping"):
            if held.process.id:
                self.exited(held.launch.name, code=pick % 2)
            else:
                self.refused(held.launch.name, "Unwanted")

    def do_kill(self, pick: int) -> None:
        """The agent's process dies. What was about to start does not."""
        self._off()
        for held in self.table.values():
            if held.state in ("starting", "stopping") and not held.process.id:
                held.state = "ended"
                held.process = type(held.process)(reason="NeverStarted")

    def do_start(self, pick: int) -> None:
        if self.agent is None:
            self.start()

    def do_look(self, pick: int) -> None:
        if self.agent is not None and not self.has_looked:
            self.look()

    def do_reboot(self, pick: int) -> None:
        self.reboot()

    def strike(self) -> None:
        """The shims keep their deadlines, whatever the agent does."""
        for held in list(self.table.values()):
            late = held.deadline_ms is not None and held.deadline_ms <= self.now_ms
            if late and held.state == "running":
                self.exited(held.launch.name, code=0, reason=DEADLINE_PASSED)

    # Rest ----------------------------------------------------------------------------------------

    def rest(self) -> None:
        """No more faults: everything must come to where it belongs."""
        self.past.clear()
        self.do_kill(0)
        self.start()
        self.look()
        self.do_clear(0)
        for round_number in range(REST_MAX):
            for verb in ("launched", "exited_if_stopping", "repair"):
                self.happen(verb, round_number)
            self.settle()
            self.wait(10_000 if round_number % 2 else 300_000 if round_number > 40 else 500)
            self.settle()
            if self.is_at_rest():
                return
        raise AssertionError(f"never at rest: {self.unrest()}\n" + "\n".join(self.lines[-40:]))

    def do_exited_if_stopping(self, pick: int) -> None:
        for held in list(self.table.values()):
            if held.state == "stopping":
                if held.process.id:
                    self.exited(held.launch.name, code=0)
                else:
                    self.refused(held.launch.name, "Unwanted")

    def unrest(self) -> list[str]:
        """What is not as it should be."""
        wrong = []
        life = self.it.get(self.it.node).status.incarnation
        for replica in self.mine():
            status, uid = replica.status, replica.metadata.uid
            running = self.of(uid, *ALIVE)
            keeps = replica.spec.template.on_disconnect is OnDisconnect.KEEP
            if status.state is State.RUNNING and status.binding.node_incarnation == life:
                is_right = len(running) == 1 and status.stage is Stage.READY
            elif status.state is State.UNKNOWN and keeps:
                is_right = len(running) <= 1
            else:
                is_right = status.state is State.RELEASED and not running
            if not is_right:
                states = [held.state for held in running]
                wrong.append(f"{replica.name}: {status.state.value} {status.stage.value} {states}")
        return wrong

    def is_at_rest(self) -> bool:
        return not self.unrest()


# Much that belongs to a plain day, and a little of everything that should not be.
WEIGHTS = {
    "settle": 8,
    "answer": 8,
    "news": 6,
    "wait": 8,
    "launched": 8,
    "exited": 5,
    "bind": 4,
    "start": 6,
    "look": 6,
    "clear": 3,
    "repair": 3,
    "evict": 2,
    "deliver": 4,
    "lose": 3,
    "drop": 2,
    "hold": 3,
    "snap": 3,
    "echo": 2,
    "refused": 2,
    "freeze": 2,
    "mark": 2,
    "kill": 1,
    "reboot": 1,
    "fence": 1,
}
VERBS = tuple(verb for verb, weight in WEIGHTS.items() for _ in range(weight))
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(VERBS), st.integers(min_value=0, max_value=11)), max_size=60
)


@settings(max_examples=examples(150))
@given(HAPPENINGS, st.integers(min_value=0, max_value=1_000))
def test_whatever_happens_nothing_runs_twice_and_all_comes_to_rest(
    happenings: list[tuple[str, int]], seed: int
) -> None:
    """Never two attempts at once, no start past a deadline, no deadline but of an acknowledged
    sending, no proof of stop before the stop; and afterwards what is wanted runs.
    [C6.4, C7.3, C7.5, H5, N1.1]"""
    story = Story(seed)
    for ordinal in range(2):
        story.do_bind(ordinal * 3)
    story.up()
    for verb, pick in happenings:
        story.happen(verb, pick)
    story.rest()
    assert story.launches >= 1
