"""Checks of starts: the pause grows with each failure up to a bound, and starts are counted."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.agent.runtime_protocol import DEADLINE_PASSED, Attempt
from holdfast.agent.work import RESTART_MAX_MS, RESTART_MIN_MS, STEADY_MS
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Process, Replica
from holdfast.model.kinds.template import RestartPolicy
from holdfast.model.lifecycle import State
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.process_table import ProcessEnded, ProcessStarted
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.observers import AgentAvailability, check_every
from holdfast.sim.worlds.agents.process_table import AgentProcesses, StartRefused
from holdfast.sim.worlds.agents.secrets import KEY, NAME

# The limits as intended, bound here at import: a planted bug in the agent does not change them.
_LEAST_MS, _MOST_MS, _STEADY_US = RESTART_MIN_MS, RESTART_MAX_MS, STEADY_MS * 1000
# What a start may take besides its pause: lost messages, Secrets, a slow system.
SLACK_MS = 60_000
# For the rate error of clocks, and for rounded timers.
_NEARLY, _ROUNDING_MS = 0.999, 3


class AttemptEnd(msgspec.Struct):
    """The end of an attempt, as reported to the agent that started it."""

    host: str
    # The life of the agent, and how many attempts ended in a row in it.
    life: int
    count: int
    at_us: int


class RestartBackoff(Checker):
    """E5: the pause grows after each quick end. C7.6: it is bounded, and a start follows it."""

    invariants = ("E5", "C7.6")

    def __init__(
        self,
        world: World,
        store_copy: StoreCopy,
        table: AgentProcesses,
        availability: AgentAvailability,
    ) -> None:
        self._store_copy, self._table, self._availability = store_copy, table, availability
        self._starts: dict[str, tuple[str, int, int]] = {}
        self._ends: dict[str, AttemptEnd] = {}
        # The failures of each replica, which bound the length of its pause.
        self._failures: dict[str, int] = {}
        self._waits_us: dict[str, int] = {}
        check_every(world, 1_000, self._check)

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, ProcessStarted):
            self._check_start(world, fact)
        elif isinstance(fact, ProcessEnded):
            self._record_end(world, fact)
        elif isinstance(fact, StartRefused):
            self._failures[fact.uid] = self._failures.get(fact.uid, 0) + 1

    def _check_start(self, world: World, fact: ProcessStarted) -> None:
        life = world.cells[fact.host].life
        end = self._ends.get(fact.uid)
        self._starts[fact.uid] = (fact.host, life, world.now_us)
        if end is None or (end.host, end.life) != (fact.host, life) or not end.count:
            return
        waited_ms = (world.now_us - end.at_us) // 1000
        least_ms = min(_MOST_MS, _LEAST_MS << min(end.count - 1, 12)) // 2
        if waited_ms + _ROUNDING_MS < least_ms * _NEARLY:
            what = f"{fact.name} starts again {waited_ms} ms after its end"
            self.violated("E5", f"{what}, number {end.count} in a row")

    def _record_end(self, world: World, fact: ProcessEnded) -> None:
        self._failures[fact.uid] = self._failures.get(fact.uid, 0) + 1
        life, before = world.cells[fact.host].life, self._ends.get(fact.uid)
        host, begun_life, at_us = self._starts[fact.uid]
        if (host, begun_life) != (fact.host, life) or world.cells[fact.host].machine is None:
            # The agent that started it is gone and does not count it.
            self._ends.pop(fact.uid, None)
            return
        is_same = before is not None and (before.host, before.life) == (host, life)
        count = before.count if before is not None and is_same else 0
        if fact.why == DEADLINE_PASSED:
            # The servers were silent, which is not a failure of the work.
            self._ends.pop(fact.uid, None)
            return
        if world.now_us - at_us >= _STEADY_US:
            count = 0
        self._ends[fact.uid] = AttemptEnd(host, life, count + 1, world.now_us)

    def _check(self, world: World) -> None:
        running = {held.launch.attempt.uid for _, held in self._table.running()}
        waiting: dict[str, int] = {}
        for replica in self._store_copy.all("objects/replicas/"):
            uid = replica.metadata.uid
            if uid in running or not self._is_due(replica):
                continue
            waiting[uid] = self._waits_us.get(uid, world.now_us)
            node = replica.status.binding.node
            waited_ms = self._availability.available_ms(world, node, waiting[uid])
            pause_ms = min(_MOST_MS, _LEAST_MS << min(self._failures.get(uid, 0), 12))
            if waited_ms > pause_ms + SLACK_MS:
                self.violated("C7.6", f"{replica.name} has not been started for {waited_ms} ms")
        self._waits_us = waiting

    def _is_due(self, replica: Replica) -> bool:
        """Whether its agent must start it again."""
        status = replica.status
        if status.state is not State.RUNNING or status.cause is not None or status.binding is None:
            return False
        node = self._store_copy.now.get(f"objects/nodes/{status.binding.node}")
        sealed = self._store_copy.now.get(f"objects/secrets/{replica.namespace}/{NAME}")
        has_secret = sealed is not None and KEY in sealed.data
        return (
            node is not None
            and (has_secret or not replica.spec.template.env)
            and node.status.phase is NodePhase.READY
            and node.status.incarnation == status.binding.node_incarnation
            and replica.spec.template.restart is RestartPolicy.ALWAYS
        )


class RestartCounts(Checker):
    """M1: the numbers of attempts and restarts only grow.

    H1: work that is done, or may be tried only once, is not started again. Only work that ended
    with exit code 0 is reported as Succeeded.
    """

    invariants = ("M1", "H1")

    def __init__(self, store_copy: StoreCopy, table: AgentProcesses) -> None:
        self._store_copy, self._table = store_copy, table
        self._numbers: dict[str, int] = {}
        self._over: set[str] = set()
        self._last: dict[str, Process] = {}

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, ProcessStarted):
            if fact.number <= self._numbers.get(fact.uid, -1):
                self.violated("M1", f"{fact.name} has two attempts with number {fact.number}")
            if fact.uid in self._over:
                self.violated("H1", f"{fact.name} started again, which its restart policy forbids")
            self._numbers[fact.uid] = fact.number
        elif isinstance(fact, ProcessEnded):
            held = self._table.table(world.hosts[fact.host])[Attempt(fact.uid, fact.number)]
            self._last[fact.uid] = held.process
            policy = held.launch.template.restart
            has_finished = held.process.exit_code == 0 and not held.is_stopping
            is_done = policy is RestartPolicy.ON_FAILURE and has_finished
            if is_done or policy is RestartPolicy.NEVER:
                self._over.add(fact.uid)

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            if new is None or old is None or old.metadata.uid != new.metadata.uid:
                continue
            before, now = old.status.process.restarts, new.status.process.restarts
            if now < before:
                self.violated("M1", f"the restarts of {new.name} went from {before} back to {now}")
            if new.status.state is State.SUCCEEDED and old.status.state is not State.SUCCEEDED:
                last = self._last.get(new.metadata.uid, Process())
                if last.exit_code != 0:
                    self.violated("H1", f"{new.name} is Succeeded, but it ended as {last.reason}")
