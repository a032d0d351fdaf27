"""What must hold where work really runs. The process table decides, not status."""

from __future__ import annotations

from typing import Any

from holdfast.agent.runtime_protocol import Attempt
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import STAGES, Stage, State
from holdfast.sim.check import Checker
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.process_table import Processes, ProcessStarted
from holdfast.sim.world import World

_MAY_WAIT = (State.PENDING, State.RESERVED)


class OneCopy(Checker):
    """INV2: of work that must not run twice, at most one copy runs, whatever components believe.

    A copy is one ordinal of one workload: another replica with the same ordinal, or another attempt
    of the same replica, is a second copy. Work on a machine that was frozen as a whole may resume
    after its deadline. This is a known limit, and such overlaps are counted separately.
    """

    invariants = ("INV2",)

    def __init__(self, store_copy: StoreCopy, processes: Processes) -> None:
        self._store_copy, self.processes = store_copy, processes
        self.starts = 0
        self.overlaps_after_freeze = 0
        # The workload and ordinal of each replica that ever ran; its object may be gone earlier.
        self._places: dict[str, tuple[str, int]] = {}

    def on_fact(self, world: World, fact: Any) -> None:
        if not isinstance(fact, ProcessStarted):
            return
        self.starts += 1
        replica = self._replica(fact)
        if replica is not None:
            self._places[fact.uid] = (replica.spec.workload_uid, replica.spec.ordinal)
        place = self._places.get(fact.uid)
        if self._is_dated(world, fact):
            self.overlaps_after_freeze += replica is None
            return
        if place is None:
            self.violated("INV2", f"{fact.name} started on {fact.host}, and no such replica exists")
        if not fact.exclusive:
            return
        if replica is None or replica.status.state is State.RELEASED:
            self.violated("INV2", f"{fact.name} started on {fact.host} after its release")
        for host, held in self.processes.running():
            attempt = held.launch.attempt
            same = (attempt.uid, attempt.number) == (fact.uid, fact.number)
            if (same and host.own_name == fact.host) or self._places.get(attempt.uid) != place:
                continue
            if held.was_frozen:
                self.overlaps_after_freeze += 1
                continue
            what = f"{fact.name} attempt {fact.number} started on {fact.host}"
            other = f"{held.launch.name} attempt {attempt.number} runs on {host.own_name}"
            self.violated("INV2", f"{what} while {other}")

    def _is_dated(self, world: World, fact: ProcessStarted) -> bool:
        """Whether its deadline came from a clock that had stopped in between."""
        table = self.processes.table(world.hosts[fact.host])
        return table[Attempt(fact.uid, fact.number)].was_frozen

    def _replica(self, fact: ProcessStarted) -> Replica | None:
        found = self._store_copy.now.get(f"objects/replicas/{fact.namespace}/{fact.name}")
        return found if found is not None and found.metadata.uid == fact.uid else None


class ReleasedAfterStop(Checker):
    """A replica is Released only when nothing of it runs: the proof of its stop was true.

    A replica is Running only after its process has started: status follows the action.
    """

    invariants = ("INV2",)

    def __init__(self, store_copy: StoreCopy, processes: Processes) -> None:
        self._store_copy, self._processes = store_copy, processes
        self._started: set[str] = set()

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, ProcessStarted):
            self._started.add(fact.uid)

    def on_commit(self, world: World, commit: Any) -> None:
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            if new is None:
                continue
            state = new.status.state
            before = old.status.state if old is not None else None
            is_new = state is State.RUNNING and before is not State.RUNNING
            if is_new and new.metadata.uid not in self._started:
                self.violated("INV2", f"{new.name} is Running and was never started")
            if state is State.RELEASED and before is not State.RELEASED:
                self._check_stopped(new)

    def _check_stopped(self, replica: Replica) -> None:
        for host, held in self._processes.running():
            if held.launch.attempt.uid == replica.metadata.uid and not held.was_frozen:
                self.violated("INV2", f"{replica.name} is Released and runs on {host.own_name}")


class DesiredWork:
    """V1 and V3: desired work runs and is ready, or says why it waits; and nothing else runs."""

    def __init__(self, store_copy: StoreCopy, processes: Processes) -> None:
        self._store_copy, self._processes = store_copy, processes
        # The last verdict and the versions it was computed from: a long calm asks every second.
        self._as_of = (-1, -1)
        self._verdict: str | None = None

    def missing(self, world: World) -> str | None:
        """What differs from the desired state, as a sentence."""
        as_of = (self._store_copy.version, self._processes.changes)
        if as_of != self._as_of:
            self._as_of, self._verdict = as_of, self._judge()
        return self._verdict

    def _judge(self) -> str | None:
        replicas = self._store_copy.all("objects/replicas/")
        by_workload: dict[str, list[Replica]] = {}
        for replica in replicas:
            by_workload.setdefault(replica.spec.workload_uid, []).append(replica)
        for workload in self._store_copy.all("objects/workloads/"):
            if workload.metadata.deletion_timestamp is not None:
                return f"{workload.name} is still being deleted"
            found = [r for r in by_workload.get(workload.metadata.uid, []) if occupies_ordinal(r)]
            if len(found) != workload.spec.replicas:
                return f"{workload.name} has {len(found)} of {workload.spec.replicas}"
        for replica in replicas:
            wrong = self._wrong(replica)
            if wrong is not None:
                return wrong
        return self._surplus(replicas)

    def _wrong(self, replica: Replica) -> str | None:
        state = replica.status.state
        if state in _MAY_WAIT:
            return None
        if state is not State.RUNNING:
            return f"{replica.name} is {state.value}"
        if STAGES.index(replica.status.stage) < STAGES.index(Stage.READY):
            return f"{replica.name} is running and {replica.status.stage.value}"
        return None

    def _surplus(self, replicas: list[Replica]) -> str | None:
        """Each running replica has one process, on its node; no process is without one."""
        wanted = {
            r.metadata.uid: r.status.binding.node
            for r in replicas
            if r.status.state is State.RUNNING and r.status.binding is not None
        }
        for host, held in self._processes.running():
            uid = held.launch.attempt.uid
            if wanted.pop(uid, None) != host.own_name:
                return f"{held.launch.name} runs on {host.own_name}, where it should not"
        if wanted:
            return f"no process runs for {sorted(wanted)}"
        return None

    def silent(self, world: World) -> str | None:
        """V3: a replica that waits says why."""
        for replica in self._store_copy.all("objects/replicas/"):
            if replica.status.state is State.PENDING and replica.status.pending is None:
                return f"{replica.name} is pending and its status gives no reason"
        return None

    def untrusted(self, world: World) -> str | None:
        """Every registered node is Ready again."""
        for node in self._store_copy.all("objects/nodes/"):
            if node.status.phase is not NodePhase.READY:
                return f"node {node.name} is {node.status.phase.value}"
        return None


def occupies_ordinal(replica: Replica) -> bool:
    """Whether a replica occupies its ordinal, so that no other replica may be created for it."""
    keeps = replica.spec.template.on_disconnect is OnDisconnect.KEEP
    gone = (State.RELEASED,) if not keeps else (State.RELEASED, State.FAILED)
    return replica.status.state not in gone
