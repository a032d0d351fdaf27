"""Jobs, whatever happens to them: every index succeeds once, and never too many run at a time.

The controllers are real, and so is the authority; scheduler, agents and people do what hypothesis
draws, answers are lost before and after they took effect, and the controllers' process dies.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.access import identity as who
from holdfast.model.kinds.replica import Process, Replica
from holdfast.model.kinds.template import RestartPolicy
from holdfast.model.kinds.workload import Job, WorkloadType
from holdfast.model.lifecycle import Cause, State
from holdfast.model.requests import Evict, Move, Remove
from holdfast.model.workload.indexes import parse
from holdfast.model.workload.jobs import finished_condition
from tests.plane import template
from tests.scale import examples
from tests.unit.correct.controller_rig import (
    ADMIN,
    DONE,
    DOWN,
    LOST_AFTER,
    LOST_BEFORE,
    Rig,
    accepted,
    target,
)

COMPLETIONS, PARALLELISM, RETRIES = 5, 2, 50
TURNS_MAX = 60

doings = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([10, 300, 3_000, 30_000])),
    st.tuples(st.sampled_from(["go on", "stop", "die"]), st.just(0)),
    st.tuples(st.sampled_from(["succeed", "fail", "evict", "delete"]), st.integers(0, 3)),
    st.tuples(st.sampled_from([LOST_AFTER, LOST_BEFORE, DOWN]), st.integers(1, 4)),
)


class Story:
    """One job, and what is seen of it after every step."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.rig.plane.tenant()
        self.rig.plane.node("node-a")
        made = template(restart=RestartPolicy.NEVER)
        job = Job(completions=COMPLETIONS, parallelism=PARALLELISM, retries=RETRIES)
        self.rig.plane.workload(type=WorkloadType.JOB, job=job, template=made)
        self.successes: dict[str, int] = {}
        self.spoilt: list[str] = []
        self.rig.fate = lambda ask: self.spoilt.pop() if self.spoilt else DONE

    @property
    def job(self) -> Any:
        return self.rig.get("workloads", "web", "acme")

    def some(self, number: int, *states: State) -> Replica | None:
        found = [it for it in self.rig.all("replicas") if it.status.state in states]
        return found[number % len(found)] if found else None

    def do(self, what: str, number: int) -> None:
        match what:
            case "wait":
                self.rig.run(number)
            case "go on":
                self.rig.run(300)
                self.rig.bind_all()
                self._agent(State.BOUND, State.RUNNING)
            case "stop":
                self._agent(State.STOPPING, State.RELEASED)
                self._agent(State.FAILED, State.RELEASED)
                self._agent(State.SUCCEEDED, State.RELEASED)
            case "die":
                self.rig.start()
            case "succeed" | "fail":
                self._ends(number, State.SUCCEEDED if what == "succeed" else State.FAILED)
            case "evict":
                one = self.some(number, State.RUNNING, State.BOUND)
                if one is not None:
                    evict = Evict(target(one), Cause.USER_DELETE)
                    accepted(self.rig.plane.ask(ADMIN, evict))
            case "delete":
                one = self.some(number, *State)
                if one is not None:
                    accepted(self.rig.plane.ask(ADMIN, Remove("replicas", "acme", one.name)))
            case _:
                self.spoilt = [what] * number
        self.check()

    def _agent(self, source: State, to: State) -> None:
        """The agent says of all that are in one state that they are in the next."""
        for one in self.rig.all("replicas"):
            binding = one.status.binding
            if one.status.state is source and binding is not None:
                move = Move(target(one), to, "", incarnation=binding.node_incarnation)
                accepted(self.rig.plane.ask(who.agent("node-a"), move))

    def _ends(self, number: int, to: State) -> None:
        one = self.some(number, State.RUNNING)
        if one is None or one.status.binding is None:
            return
        process = Process(exit_code=0 if to is State.SUCCEEDED else 1)
        life = one.status.binding.node_incarnation
        ended = Move(target(one), to, "Exited", incarnation=life, process=process)
        accepted(self.rig.plane.ask(who.agent("node-a"), ended))
        if to is State.SUCCEEDED:
            self.successes[one.metadata.uid] = one.spec.ordinal

    def check(self) -> None:
        """What must hold at any moment."""
        alive = [it for it in self.rig.all("replicas") if it.status.state is not State.RELEASED]
        assert len(alive) <= PARALLELISM
        places = Counter(it.spec.ordinal for it in alive)
        assert not places or max(places.values()) == 1
        done = Counter(self.successes.values())
        assert not done or max(done.values()) == 1
        assert len(alive) + len(done) - sum(it.spec.ordinal in done for it in alive) <= COMPLETIONS
        account = parse(self.job.status.job.completed_indexes)
        assert all(index in done for index in range(COMPLETIONS) if index in account)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(doings, max_size=40))
def test_every_index_of_a_job_succeeds_exactly_once(story: list[tuple[str, int]]) -> None:
    """For any order of ends, births, deletions, crashes and lost answers. [E5, I1, C6.4, N1.1]"""
    told = Story()
    for what, number in story:
        told.do("go on", 0)
        told.do(what, number)
    told.spoilt = []
    for _ in range(TURNS_MAX):
        if finished_condition(told.job) is not None:
            break
        for what in ("wait", "go on", "succeed", "succeed", "stop"):
            told.do(what, 10_000 if what == "wait" else 0)
    said = finished_condition(told.job)
    assert said is not None
    assert said.type == "Complete"
    assert sorted(told.successes.values()) == list(range(COMPLETIONS))
