"""Whoever waits in the world of all controllers has an answer: who moves next, and by when."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.explain.answer import Explanation, StuckReason
from holdfast.model import keys
from holdfast.model.access.identity import NODE_PREFIX
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Actor, next_moves
from holdfast.sim.check import Checker, Commit, Violation
from holdfast.sim.mutants import rewrite
from holdfast.sim.run import find, play
from holdfast.sim.scenarios.asking import explain_now
from holdfast.sim.world import World
from holdfast.sim.worlds.all_controllers.scenario import TIMING
from holdfast.sim.worlds.authority.ledger_oracle import StoreCopy
from tests.sim.all_controllers.planting import WHOLE

# One of those in which replicas wait in most ways.
SEED = 4
SWEEP_EVERY_MS = 20_000
# So long after the faults everybody can keep what he promises, and so late a promise may be kept.
CALM_AFTER_MS, LATE_MS = 60_000, 20_000
# Who may be waited for without moving the replica itself: whoever judges its node, counts it, lists
# it, or has to change something first.
_BESIDE = (Actor.NODES, Actor.STATUS, Actor.ENDPOINTS, Actor.OPERATOR, Actor.USER)


class Curious(Checker):
    """Asks about each replica when it has changed, and about all of them now and then."""

    def __init__(self) -> None:
        self.answers: dict[str, int] = {}
        self._asked_ms = self._calm_ms = 0

    def on_commit(self, world: World, commit: Commit) -> None:
        now_ms = world.now_us // 1000
        store_copy = world.checker(StoreCopy)
        changed = [new for _, _, new in store_copy.changed("objects/replicas/") if new is not None]
        if now_ms - self._asked_ms >= SWEEP_EVERY_MS:
            self._asked_ms, changed = now_ms, store_copy.all("objects/replicas/")
        for replica in changed:
            self._ask(world, replica)

    def on_calm(self, world: World) -> None:
        self._calm_ms = world.now_us // 1000

    def _ask(self, world: World, replica: Replica) -> None:
        keyspace = world.stores["store"].keyspace
        answer = explain_now(world, keyspace, keys.key_of(replica), TIMING, {})
        if answer is None:
            return
        why = answer.finding.why.value
        self.answers[why] = self.answers.get(why, 0) + 1
        wrong = _wrong(answer)
        is_calm = self._calm_ms and world.now_us // 1000 > self._calm_ms + CALM_AFTER_MS
        if is_calm and answer.late_ms > LATE_MS:
            wrong = f"it is {answer.late_ms} ms late"
        if wrong:
            self.violated("EXPLAINED", f"{replica.name}: {wrong}: {answer}")


def _wrong(answer: Explanation) -> str:
    """What an answer owes and does not have."""
    say = answer.finding
    if say.why is StuckReason.NOTHING:
        return "" if not say.owner else "somebody is to move, and nothing is to be done"
    owner = Actor.AGENT.value if say.owner.startswith(NODE_PREFIX) else say.owner
    moves = [actor for row in next_moves(answer.state) for actor in row.actors]
    if owner not in (*moves, *_BESIDE):
        return f"{owner} cannot move it"
    if say.deadline is None and not say.no_deadline:
        return "there is no deadline, and nothing says why"
    if not say.message or not answer.signs[0].revision:
        return "it does not say on what it rests"
    return ""


def _played(seed: int) -> Curious:
    scenario, curious = find(WHOLE), Curious()

    def build(world: World) -> None:
        scenario.build(world)
        world.check(curious)

    play(msgspec.structs.replace(scenario, build=build), World(seed))
    return curious


def test_every_replica_in_any_state_has_somebody_who_moves_next_and_a_deadline() -> None:
    """Or it is said why there is none; and when all is well, deadlines are kept. [M1, M2, M3]"""
    seen = _played(SEED).answers
    print(sorted(seen.items()))
    assert len(seen) >= 12


def test_an_answer_that_names_the_wrong_one_is_found() -> None:
    """A check that cannot fail is a defect. [N6]"""
    mistake = rewrite(
        "holdfast.explain.on_node:diagnose_ending", "agent(node.name).name", "Actor.SCHEDULER.value"
    )
    undo = mistake()
    try:
        with pytest.raises(Violation, match="scheduler cannot move it"):
            _played(SEED)
    finally:
        undo()
