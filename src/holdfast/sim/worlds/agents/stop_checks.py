"""Checks of stops: work is stopped for the right reason, with its grace period, and in time."""

from __future__ import annotations

from typing import Any

from holdfast.agent.runtime_protocol import DEADLINE_PASSED, Attempt
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.nodes.fence import FenceTiming
from holdfast.sim.cell import Host
from holdfast.sim.check import Checker
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.process_table import KILL_MS, HeldProcess, ProcessEnded
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.behaviours import PRE_STOP_MS, BehaviourKind
from holdfast.sim.worlds.agents.observers import CHECK_MS, AgentAvailability, check_every
from holdfast.sim.worlds.agents.process_table import AgentProcesses, StopOrdered

_GONE = (NodePhase.FENCED, NodePhase.LOST)
_LIVES = (State.BOUND, State.RUNNING, State.UNKNOWN)
# Unhealthy work is stopped within this time: a few failed probes, and lost messages.
ILL_MS = 45_000
# How late a running agent may be.
_LATE_MS = 500


def replica_of(store_copy: StoreCopy, held: HeldProcess) -> Replica | None:
    """The replica of a process, if it still exists."""
    launch = held.launch
    found = store_copy.now.get(f"objects/replicas/{launch.namespace}/{launch.name}")
    return found if found is not None and found.metadata.uid == launch.attempt.uid else None


def is_of_current_incarnation(store_copy: StoreCopy, replica: Replica, node: str) -> bool:
    """Whether a replica is bound to the current incarnation of a node."""
    binding, known = replica.status.binding, store_copy.now.get(f"objects/nodes/{node}")
    if binding is None or known is None or known.status.phase in _GONE:
        return False
    here = (known.name, known.metadata.uid, known.status.incarnation)
    return here == (binding.node, binding.node_uid, binding.node_incarnation)


class StopReasons(Checker):
    """H4: single failures of a probe, or a failing readiness probe, stop no work.

    H3: work whose liveness probe fails is restarted.
    """

    invariants = ("H3", "H4")

    def __init__(
        self,
        world: World,
        store_copy: StoreCopy,
        table: AgentProcesses,
        availability: AgentAvailability,
    ) -> None:
        self._store_copy, self._table, self._availability = store_copy, table, availability
        check_every(world, 1_000, self._check)

    def on_fact(self, world: World, fact: Any) -> None:
        if not isinstance(fact, StopOrdered):
            return
        held = self._table.table(world.hosts[fact.host]).get(Attempt(fact.uid, fact.number))
        if held is None or not held.is_running or held.is_stopping:
            return
        replica = replica_of(self._store_copy, held)
        if replica is None or replica.status.cause is not None:
            return
        is_wanted = replica.status.state in _LIVES
        is_here = is_of_current_incarnation(self._store_copy, replica, fact.host)
        if is_wanted and is_here and not self._is_ill(held):
            kind = self._table.behaviour(held).kind.value
            self.violated(
                "H4", f"{held.launch.name} ({kind}) is wanted and healthy, but is stopped"
            )

    def _is_ill(self, held: HeldProcess) -> bool:
        ill_at_ms = self._table.behaviour(held).ill_at_ms()
        return ill_at_ms is not None and self._table.age_ms(held) >= ill_at_ms

    def _check(self, world: World) -> None:
        for host, held in self._table.running():
            ill_at_ms = self._table.behaviour(held).ill_at_ms()
            if ill_at_ms is None or held.is_stopping:
                continue
            ill_us = self._table.began_us[held.launch.attempt] + ill_at_ms * 1000
            ill_ms = self._availability.available_ms(world, host.own_name, ill_us)
            if ill_ms > ILL_MS:
                self.violated("H3", f"{held.launch.name} has been unhealthy for {ill_ms} ms")


class GracefulStops(Checker):
    """G4: the pre-stop hook runs before a stop, and the grace period is granted once."""

    invariants = ("G4",)

    def __init__(
        self, store_copy: StoreCopy, table: AgentProcesses, availability: AgentAvailability
    ) -> None:
        self._store_copy, self._table, self._availability = store_copy, table, availability
        # When each attempt was first ordered to stop and in which life of the agent, and when its
        # pre-stop hook was started.
        self._ordered: dict[Attempt, tuple[int, int]] = {}
        self._pre_stops: dict[Attempt, tuple[int, StopOrdered]] = {}
        # When it must have ended, whichever life of the agent ordered that.
        self._stop_by_us: dict[Attempt, int] = {}

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, StopOrdered):
            attempt, life = Attempt(fact.uid, fact.number), world.cells[fact.host].life
            held = self._table.table(world.hosts[fact.host]).get(attempt)
            if held is None or not held.is_running:
                return
            if fact.is_pre_stop:
                self._pre_stops[attempt] = (world.now_us, fact)
            else:
                by_us = world.now_us + fact.within_ms * 1000
                self._stop_by_us[attempt] = min(by_us, self._stop_by_us.get(attempt, by_us))
                if not held.is_stopping:
                    self._check_pre_stop(world, fact, held)
            if self._ordered.get(attempt, (life, 0))[0] == life:
                self._ordered.setdefault(attempt, (life, world.now_us))
            else:
                self._ordered[attempt] = (life, world.now_us)
        elif isinstance(fact, ProcessEnded):
            self._check_end(world, fact)

    def _check_pre_stop(self, world: World, fact: StopOrdered, held: HeldProcess) -> None:
        replica, attempt = replica_of(self._store_copy, held), held.launch.attempt
        began_us = self._table.began_us[attempt]
        if replica is None or not held.launch.template.pre_stop or not fact.within_ms:
            return
        is_asked = replica.status.state is State.STOPPING
        is_here = is_of_current_incarnation(self._store_copy, replica, fact.host)
        if not (is_asked and is_here and self._availability.was_awake(fact.host, began_us)):
            return
        at_us, pre_stop = self._pre_stops.get(attempt, (0, None))
        name = held.launch.name
        if pre_stop is None:
            self.violated("G4", f"{name} is stopped and its pre-stop hook has not run")
        takes_ms = (
            PRE_STOP_MS if self._table.behaviour(held).kind is not BehaviourKind.HANGS else 1 << 30
        )
        ran_ms = (world.now_us - at_us) // 1000
        if ran_ms + CHECK_MS < min(takes_ms, pre_stop.within_ms):
            self.violated("G4", f"{name} is stopped {ran_ms} ms into its pre-stop hook")

    def _check_end(self, world: World, fact: ProcessEnded) -> None:
        attempt = Attempt(fact.uid, fact.number)
        life, ordered_us = self._ordered.get(attempt, (0, 0))
        held = self._table.table(world.hosts[fact.host])[attempt]
        self._check_deadline(world, fact, held)
        if life != world.cells[fact.host].life or not held.is_stopping or held.was_frozen:
            return
        was_awake = self._availability.was_awake(fact.host, ordered_us)
        if not was_awake or self._availability.was_stalled(fact.host, ordered_us):
            return
        grace_ms = held.launch.template.grace_seconds * 1000
        took_ms = (world.now_us - ordered_us) // 1000
        if took_ms > grace_ms + KILL_MS[1] + _LATE_MS:
            self.violated("G4", f"{held.launch.name} took {took_ms} ms to stop, of {grace_ms}")

    def _check_deadline(self, world: World, fact: ProcessEnded, held: HeldProcess) -> None:
        """Nothing cancels or delays a stop, not even another stop."""
        by_us = self._stop_by_us.get(held.launch.attempt)
        if by_us is None or held.was_frozen or self._availability.was_stalled(fact.host, by_us):
            return
        late_ms = (world.now_us - by_us) // 1000
        if late_ms > KILL_MS[1] + _LATE_MS:
            self.violated("G4", f"{held.launch.name} ended {late_ms} ms too late")


class StopDeadlines(Checker):
    """INV2: `stop` work has ended by deadline + grace + kill, counted from the last renewal that
    was acknowledged. H8: `keep` work runs on until a server orders otherwise.
    """

    invariants = ("INV2", "H8")

    def __init__(
        self,
        world: World,
        table: AgentProcesses,
        availability: AgentAvailability,
        timing: FenceTiming,
    ) -> None:
        self._table, self._availability = table, availability
        grace_ms = timing.grace_ms + timing.kill_bound_ms
        self._lasts_ms = timing.self_stop_after_ms + grace_ms + 1
        check_every(world, CHECK_MS, self._check)

    def on_fact(self, world: World, fact: Any) -> None:
        if not isinstance(fact, ProcessEnded):
            return
        host = world.hosts[fact.host]
        held = self._table.table(host)[Attempt(fact.uid, fact.number)]
        if held.launch.template.on_disconnect == "keep":
            if fact.why == DEADLINE_PASSED:
                self.violated("H8", f"a deadline ended {held.launch.name}, which is `keep` work")
        elif fact.why != "Rebooted":
            self._check_lasting(world, host, held)

    def _check(self, world: World) -> None:
        for host, held in self._table.running():
            if held.launch.template.on_disconnect != "keep" and not host.frozen:
                self._check_lasting(world, host, held)

    def _check_lasting(self, world: World, host: Host, held: HeldProcess) -> None:
        boot, sent_ms = self._availability.sent_ms.get(host.own_name, ("", 0))
        now_ms = host.clock.instant(world.now_us).monotonic_ms
        if held.was_frozen or boot != host.boot or now_ms <= sent_ms + self._lasts_ms:
            return
        late_ms = now_ms - sent_ms
        what = f"{held.launch.name} runs on {host.own_name} {late_ms} ms after the last renewal"
        self.violated("INV2", f"{what} that was acknowledged")
