"""A plane on which tenants compete, in virtual time: a whole scheduler, and work that ends.

Tests and benchmarks state what each tenant does every second; this plays the servers and the nodes.
The figures come from `model/quota/fairness.py`, as the pulses of a scheduler do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model.kinds.schedulerpolicy import (
    FairnessRules,
    PolicyStage,
    SchedulerPolicy,
    SchedulerPolicySpec,
)
from holdfast.model.kinds.tenant import Quota, QuotaSpec, Tenant
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.quota.fairness import Standing
from holdfast.model.time import timestamp
from holdfast.observe.cache import Key
from tests.unit.propose.rig import Rig

TICK_MS = 1_000


class Waited(msgspec.Struct):
    """How long the replicas of a tenant waited, those that still wait included."""

    longest_ms: int = 0
    placed: int = 0


class ContendedPlane:
    """See the module's docstring. `scripts` are called every second, by tenant."""

    def __init__(self, nodes: int, cpu: int, rules: FairnessRules, seed: int = 1) -> None:
        self.rig = Rig(seed)
        for number in range(nodes):
            self.rig.node(f"node-{number}", cpu=str(cpu), replicas="1000")
        spec = SchedulerPolicySpec(stage=PolicyStage.ACTIVE, fairness=rules)
        self.policy = self.rig.put(SchedulerPolicy(ObjectMeta(name="p"), spec=spec))
        self.scripts: dict[str, Callable[[], None]] = {}
        self.waited: dict[str, Waited] = {}
        self._numbers = 0
        self._lives: dict[Key, int] = {}
        self._since: dict[Key, int] = {}
        self._ends: list[tuple[int, Key]] = []
        self.rig.start()

    def tenant(self, name: str, script: Callable[[], None], **quota: Any) -> None:
        self.rig.put(Tenant(ObjectMeta(name=name)))
        if quota:
            meta = ObjectMeta(name="default", namespace=name)
            self.rig.put(Quota(meta, spec=QuotaSpec(**quota)))
        self.scripts[name], self.waited[name] = script, Waited()

    def set_rules(self, rules: FairnessRules) -> None:
        spec = msgspec.structs.replace(self.policy.spec, fairness=rules)
        self.policy = self.rig.put(msgspec.structs.replace(self.policy, spec=spec))

    def submit(self, tenant: str, cpu: str, life_ms: int) -> Key:
        """A replica that ends this long after it was placed."""
        self._numbers += 1
        key = tenant, f"x-{self._numbers}-0"
        self._lives[key], self._since[key] = life_ms, self.rig.now_ms
        self.rig.replica(key[1], tenant=tenant, cpu=cpu)
        self._notice_binds()
        return key

    def withdraw(self, key: Key) -> None:
        """Delete a replica, whatever it does."""
        found = self.rig.get(key[1], key[0])
        if found is not None:
            self.rig.remove(found)
        self._since.pop(key, None)
        self._lives.pop(key, None)

    def waiting(self, tenant: str) -> list[Key]:
        return [key for key in self._since if key[0] == tenant]

    def keep_waiting(self, tenant: str, count: int, cpu: str, life_ms: int) -> None:
        """Submit until as many wait."""
        for _ in range(count - len(self.waiting(tenant))):
            self.submit(tenant, cpu, life_ms)

    def run(self, ms: int) -> None:
        end_ms = self.rig.now_ms + ms
        while self.rig.now_ms < end_ms:
            for script in self.scripts.values():
                script()
            self._pass(min(end_ms, self.rig.now_ms + TICK_MS))
            for (tenant, _), since_ms in self._since.items():
                it = self.waited[tenant]
                it.longest_ms = max(it.longest_ms, self.rig.now_ms - since_ms)

    def standings(self) -> dict[str, Standing]:
        return self.rig.scheduler.shares.standings()[0]

    def _pass(self, until_ms: int) -> None:
        while self._ends and self._ends[0][0] <= until_ms:
            at_ms, key = heapq.heappop(self._ends)
            self.rig.pass_time(max(0, at_ms - self.rig.now_ms))
            self._notice_binds()
            found = self.rig.get(key[1], key[0])
            if found is not None:
                self.rig.status(found, state=State.RELEASED)
                self.rig.remove(self.rig.get(key[1], key[0]))
            self._notice_binds()
        self.rig.pass_time(until_ms - self.rig.now_ms)
        self._notice_binds()

    def _notice_binds(self) -> None:
        """Let what was bound end in time, and record how long it waited."""
        said = self.rig.said
        for bind in self.rig.binds if said else ():
            key = bind.target.namespace, bind.target.name
            since_ms = self._since.pop(key, None)
            if since_ms is None:
                continue
            it = self.waited[key[0]]
            it.placed += 1
            it.longest_ms = max(it.longest_ms, self.rig.now_ms - since_ms)
            heapq.heappush(self._ends, (self.rig.now_ms + self._lives.pop(key), key))
            found = self.rig.get(key[1], key[0])
            binding = msgspec.structs.replace(
                found.status.binding, at=timestamp(self.rig.now.wall_ms)
            )
            self.rig.status(found, binding=binding)
        said.clear()
