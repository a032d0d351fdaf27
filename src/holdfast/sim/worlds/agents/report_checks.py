"""Checks of what agents report and leave: status, addresses, Secrets, leftover files."""

from __future__ import annotations

from typing import Any

from holdfast.agent.runtime_protocol import Attempt
from holdfast.model.lifecycle import STAGES, Stage, State
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.process_table import HeldProcess, ProcessStarted
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.process_table import AgentProcesses, SecretExposed
from holdfast.sim.worlds.agents.secrets import KEY, NAME, contains_secret
from holdfast.sim.worlds.agents.stop_checks import replica_of

# Without faults, the status shows a state that has lasted this long.
REPORTED_WITHIN_MS = 20_000
# The leftovers of a replica are removed within this time after the replica is gone.
REMOVED_WITHIN_MS = 45_000
_SECRETS = "objects/secrets/"
_READY = STAGES[STAGES.index(Stage.READY) :]


class ReportedStatus:
    """C7.3, A4: a returning agent reports what runs, in which attempt, and whether it is ready.

    I5: it removes everything of replicas that are gone.
    """

    def __init__(self, store_copy: StoreCopy, table: AgentProcesses) -> None:
        self._store_copy, self._table = store_copy, table
        self._gone_us: dict[str, int] = {}

    def mismatch(self, world: World) -> str | None:
        """The first difference between the status and the processes."""
        for host, held in self._table.running():
            age_ms = self._table.age_ms(held)
            if age_ms < REPORTED_WITHIN_MS or held.is_stopping:
                continue
            replica, name = replica_of(self._store_copy, held), held.launch.name
            binding = replica.status.binding if replica is not None else None
            if replica is None or binding is None or binding.node != host.own_name:
                return f"{name} runs on {host.own_name} but is not reported there"
            status = replica.status
            if status.state in (State.RUNNING, State.UNKNOWN):
                if status.state is State.UNKNOWN or status.process.id != held.process.id:
                    return f"{name} runs on {host.own_name} but is reported as {status.state.value}"
                wrong = self._readiness(held, age_ms, status.stage)
                if wrong:
                    return f"{name} is reported as {status.stage.value} but is {wrong}"
                is_open = held.process.addresses.keys() - set(held.unopened)
                if status.stage in _READY and status.process.addresses.keys() != is_open:
                    return f"{name} listens at {sorted(is_open)} but is reported otherwise"
        return None

    def _readiness(self, held: HeldProcess, age_ms: int, stage: Stage) -> str:
        """The true readiness, if it has lasted for a while and the status differs."""
        behaviour = self._table.behaviour(held)
        is_ready = behaviour.is_ready(age_ms)
        if behaviour.is_ready(age_ms - REPORTED_WITHIN_MS) is not is_ready:
            return ""
        is_reported = stage in _READY
        if is_reported is is_ready:
            return ""
        return "ready" if is_ready else "not ready"

    def leftover(self, world: World) -> str | None:
        """The first process record that no agent removed in time."""
        gone: dict[str, int] = {}
        for host in world.hosts.values():
            for held in self._table.table(host).values():
                uid = held.launch.attempt.uid
                if replica_of(self._store_copy, held) is not None:
                    continue
                gone[uid] = self._gone_us.get(uid, world.now_us)
                if world.now_us - gone[uid] > REMOVED_WITHIN_MS * 1000:
                    return f"{host.own_name} still has files of {held.launch.name}"
        self._gone_us = gone
        return None


class PublishedAddresses(Checker):
    """H1: no address is published before the work listens there: another tenant's work might."""

    invariants = ("H1",)

    def __init__(self, store_copy: StoreCopy, table: AgentProcesses) -> None:
        self._store_copy, self._table = store_copy, table

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, _, new in self._store_copy.changed("objects/replicas/"):
            if new is None or new.status.binding is None or not new.status.process.addresses:
                continue
            process = new.status.process
            for held in self._table.table(world.hosts[new.status.binding.node]).values():
                early = process.addresses.keys() & set(held.unopened)
                if held.is_running and held.process.id == process.id and early:
                    self.violated("H1", f"{new.name} does not listen at {sorted(early)} yet")


class SecretConfinement(Checker):
    """B5: only the work that refers to a Secret gets its value, and gets the current one."""

    invariants = ("B5",)

    def __init__(self, store_copy: StoreCopy, table: AgentProcesses) -> None:
        self._store_copy, self._table = store_copy, table
        # Past values of each tenant's Secret, and until when each was the current one.
        self._until_us: dict[str, dict[str, int]] = {}
        self._begun_us: dict[str, int] = {}

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, SecretExposed):
            self.violated("B5", f"a Secret is exposed in {fact.where}")
        if isinstance(fact, ProcessStarted):
            held = self._table.table(world.hosts[fact.host])[Attempt(fact.uid, fact.number)]
            value = held.launch.secrets.values.get(f"{NAME}/{KEY}")
            if value is not None:
                self._check_value(world, fact, value)
            self._begun_us[fact.uid] = world.now_us

    def _check_value(self, world: World, fact: ProcessStarted, value: str) -> None:
        present = self._store_copy.now.get(f"{_SECRETS}{fact.namespace}/{NAME}")
        if present is not None and present.data.get(KEY) == value:
            return
        until_us = self._until_us.get(fact.namespace, {}).get(value)
        if until_us is None or until_us < self._begun_us.get(fact.uid, 0):
            self.violated("B5", f"{fact.name} started with a Secret that had been replaced")

    def on_commit(self, world: World, commit: Commit) -> None:
        for change in commit.changes:
            is_secret = change.key.startswith(_SECRETS)
            if not is_secret and change.value is not None and contains_secret(change.value):
                self.violated("B5", f"a Secret is exposed in {change.key}")
        for _, old, _new in self._store_copy.changed(_SECRETS):
            if old is not None and KEY in old.data:
                editions = self._until_us.setdefault(old.metadata.namespace, {})
                editions[old.data[KEY]] = world.now_us
