"""Each waiting replica of the all-controllers world has an explanation: who acts next, by when."""

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
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.run import find, play
from holdfast.sim.scenarios.asking import explain_now
from holdfast.sim.world import World
from holdfast.sim.worlds.all_controllers.scenario import TIMING
from tests.sim.all_controllers.planting import WHOLE
from tests.sim.findings import everything_happened

# A seed in which replicas wait in most ways.
SEED = 4
# What must have been explained in that run.
DEMANDED = (
    StuckReason.NOTHING,
    StuckReason.NOT_TRIED,
    StuckReason.BIND_OPEN,
    StuckReason.UNSEEN,
    StuckReason.UNTOLD,
    StuckReason.STARTING,
    StuckReason.UNPROPAGATED,
    StuckReason.NOT_READY,
    StuckReason.UNLISTED,
    StuckReason.SILENT,
    StuckReason.FENCE,
    StuckReason.STOPPING,
    StuckReason.RELEASE,
)
SWEEP_EVERY_MS = 20_000
# This long after the faults all components can meet their deadlines, and a deadline may be missed
# by this much.
CALM_AFTER_MS, LATE_MS = 60_000, 20_000
# Actors that a replica may wait for although they do not change its state: they judge its node,
# count it, list it, or have to change something first.
_OTHER_ACTORS = (Actor.NODES, Actor.STATUS, Actor.ENDPOINTS, Actor.OPERATOR, Actor.USER)


class ExplainsReplicas(Checker):
    """Asks for an explanation of each replica that changed, and of all of them now and then."""

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
    """What an answer lacks, or ""."""
    say = answer.finding
    if say.why is StuckReason.NOTHING:
        return "" if not say.owner else f"{say.owner} is to act, and there is nothing to do"
    owner = Actor.AGENT.value if say.owner.startswith(NODE_PREFIX) else say.owner
    moves = [actor for row in next_moves(answer.state) for actor in row.actors]
    if owner not in (*moves, *_OTHER_ACTORS):
        return f"{owner} cannot act on it"
    if say.deadline is None and not say.no_deadline:
        return "there is no deadline, and no reason for that"
    if not say.message or not answer.signs[0].revision:
        return "there is no message or no evidence"
    return ""


def _play_with_explanations(seed: int) -> ExplainsReplicas:
    scenario, checker = find(WHOLE), ExplainsReplicas()

    def build(world: World) -> None:
        scenario.build(world)
        world.check(checker)

    play(msgspec.structs.replace(scenario, build=build), World(seed))
    return checker


def test_every_replica_in_any_state_has_a_next_actor_and_a_deadline() -> None:
    """Or a reason why there is none; and after the faults deadlines are kept. [M1, M2, M3]"""
    seen = _play_with_explanations(SEED).answers
    print(sorted(seen.items()))
    everything_happened(DEMANDED, seen)


def test_an_explanation_that_names_the_wrong_actor_is_found() -> None:
    """A check that cannot fail is a defect. [N6]"""
    mistake = rewrite(
        "holdfast.explain.on_node:diagnose_ending", "agent(node.name).name", "Actor.SCHEDULER.value"
    )
    undo = mistake()
    try:
        with pytest.raises(Violation, match="scheduler cannot act on it"):
            _play_with_explanations(SEED)
    finally:
        undo()
