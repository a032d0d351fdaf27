"""The plane of the retry storm: who is there, what their work costs, and what befalls them.

Everybody on it is a machine that ships, the agents included. What is added is that work takes time:
a server has one processor (`Burden`), the store one queue. `sc14_retry_storm` judges what became of
it, by what `sc14_meter` counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.node_facts import NodeFacts
from holdfast.commit.context import PlaneSettings
from holdfast.commit.flow.guarded_server import GuardedServer
from holdfast.commit.flow.seats import FlowControllers
from holdfast.correct.all_controllers import core_controllers
from holdfast.correct.controller_runner import ControllerRunner
from holdfast.model import keys
from holdfast.model.access.identity import Identity
from holdfast.model.fence import FenceTiming
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.template import Resources, Template
from holdfast.model.kinds.tenant import Quota, QuotaSpec, Tenant
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.machine import Answer, Answered, Asked, Changed, Opened, Push, Range, Txn
from holdfast.model.meta import Object, ObjectMeta
from holdfast.observe.retry import Budget
from holdfast.observe.watch_events import SERVERS
from holdfast.propose.scheduler import Scheduler
from holdfast.sim.cell import Seat
from holdfast.sim.plan import Fault
from holdfast.sim.scenarios.run_log import RunLog
from holdfast.sim.scenarios.sc14_clients import TenantClient
from holdfast.sim.scenarios.sc14_meter import CountedMachine, StormMeter, count_requests
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.ledger_oracle import StoreCopy
from holdfast.sim.worlds.authority.scenario import create_objects
from holdfast.sim.worlds.authority.scripted_clients import StateFact
from holdfast.sim.worlds.end_to_end.process_table import Processes
from holdfast.sim.worlds.end_to_end.servers import SimServer
from holdfast.store.memory import Keyspace

SERVER_NAMES = ("server-1", "server-2")
AGENTS_PER_TENANT = 500
WORK = "fleet"
ZONES = "abc"
TIMING = FenceTiming()
RENEW_S = TIMING.renew_every_ms // 1_000

# The course of it, in seconds. All have joined and all work runs when the first part begins.
CALM_S, SLOW_S, REFUSES_S, BACK_S, END_S = 25, 45, 70, 130, 220
JOIN_S = 12
# From here on work takes time.
BURDEN_S = 20
SLOWER = 10

# What one processor spends, in microseconds, on a plane with so many agents. On fewer it is as much
# slower, so that it is as busy.
MEASURED_AT = 5_000
COSTS_US: dict[type, int] = {
    Asked: 120,
    Answered: 60,
    Changed: 200,
    Opened: 300,
    Answer: 100,
    Range: 150,
    Push: 40,
}
WRITE_US, TXN_US = 200, 300


class StormSize(msgspec.Struct, frozen=True):
    """How large a plane it is. Every tenth node has work to do.

    `store_us` is what the store spends on a request at MEASURED_AT agents: so much that ten times
    that is enough for renewals and leases, and too much for everything else. Of a small plane what
    does not depend on its size, such as the leases of controllers, takes a larger part.
    """

    agents: int
    store_us: int

    @property
    def slower(self) -> float:
        return MEASURED_AT / self.agents

    @property
    def replicas(self) -> int:
        return self.agents // 10

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(f"tenant-{n}" for n in range(max(2, self.agents // AGENTS_PER_TENANT)))

    @property
    def tenant_rate(self) -> float:
        """What each tenant wants a second; together a little more than the agents."""
        return 1.2 * self.agents / RENEW_S / len(self.tenants)


def _burden(size: StormSize) -> Callable[[Any, Sequence[Any]], int]:
    def burden(stimulus: Any, effects: Sequence[Any]) -> int:
        cost_us = COSTS_US.get(type(stimulus), 0)
        for effect in effects:
            if type(effect) is Txn:
                cost_us += TXN_US + WRITE_US * len(effect.transaction.writes)
            else:
                cost_us += COSTS_US.get(type(effect), 0)
        return int(cost_us * size.slower)

    return burden


def _budget(size: StormSize) -> Budget:
    """A client that asks so much less often has so much less in reserve, and probes more rarely.

    Both are absolute in the budget that ships: of a client that hardly asks, probes alone may be
    more than a tenth.
    """
    budget = Budget(max(1, int(Budget.RESERVE / size.slower)))
    budget.PROBE_MIN_MS = int(min(Budget.PROBE_MAX_MS, Budget.PROBE_MIN_MS * size.slower))
    return budget


class Storm:
    """Builds the plane, and plans what happens to it."""

    def __init__(self, world: World, size: StormSize) -> None:
        """Its owner gives `books`, `story` and `meter` to the world as checkers, in this order."""
        self.world, self.size = world, size
        self.meter = StormMeter(world)
        self.store_copy = StoreCopy()
        self.log = RunLog(self.store_copy)
        self.keyspace = Keyspace()
        create_objects(self.keyspace, world.seed, _furniture(size))
        world.add_store(keyspace=self.keyspace)
        world.perform(StateFact, lambda _cell, effect: world.fact(effect.fact))
        self.processes = Processes(world, TIMING)
        self._servers()
        self._components()
        self._tenants()
        self._agents()
        self._course()
        self.store_copy.learn(tuple(self.keyspace.range("", keys.END).records))

    def _servers(self) -> None:
        settings = PlaneSettings(fence=TIMING)

        def make(seat: Seat) -> GuardedServer:
            return GuardedServer(
                SimServer(seat, settings, confirms=False), FlowControllers(seat.rng)
            )

        for name in SERVER_NAMES:
            self.world.add(name, make, store="store", identity=f"system:server:{name}")
        self.world.balance(SERVERS, SERVER_NAMES)

    def _components(self) -> None:
        def team(seat: Seat) -> ControllerRunner:
            return ControllerRunner(
                core_controllers(), seat.rng, name=seat.name, servers=SERVER_NAMES
            )

        def scheduler(seat: Seat) -> Scheduler:
            return Scheduler("main", seat.rng)

        world, meter = self.world, self.meter
        world.add("controllers", count_requests(team, meter), identity="system:controllers")
        world.add("scheduler", count_requests(scheduler, meter), identity="system:scheduler:main")

    def _tenants(self) -> None:
        for tenant in self.size.tenants:
            identity = Identity(name=f"program-of-{tenant}", tenants=(tenant,))

            def make(seat: Seat, tenant: str = tenant) -> TenantClient:
                budget = _budget(self.size)
                rate = self.size.tenant_rate
                return TenantClient(seat, tenant, _names(), rate, self.meter, budget)

            factory = count_requests(make, self.meter, is_tenant=True)
            self._later(JOIN_S, identity.name, factory, identity)

    def _agents(self) -> None:
        rng = self.world.rng("joining")
        for number in range(self.size.agents):
            name = f"node-{number:04d}"
            facts = NodeFacts(
                region="eu",
                zone=f"eu-{ZONES[number % len(ZONES)]}",
                capacity={"cpu": "8", "memory": "64Gi"},
            )

            def make(seat: Seat, name: str = name, facts: NodeFacts = facts) -> Agent:
                return Agent(name, facts, seat.rng)

            # Nodes of a real plane were not switched on together.
            at_s = 1 + rng.random() * (JOIN_S - 1)
            self._later(at_s, name, count_requests(make, self.meter), f"system:node:{name}")

    def _later(
        self,
        at_s: float,
        name: str,
        factory: Callable[[Seat], CountedMachine],
        identity: str | Identity,
    ) -> None:
        def add(_number: int, _a: None, _b: None) -> None:
            self.world.add(name, factory, identity=identity)

        self.world.post(int(at_s * 1_000_000), add, None, None)

    # What happens --------------------------------------------------------------------------------

    def _course(self) -> None:
        self._at(BURDEN_S, self._work_takes_time)
        self._at(SLOW_S, lambda: self._store_takes(SLOWER))
        self._at(REFUSES_S, lambda: self._store_takes(1))
        refuses_ms = (BACK_S - REFUSES_S) * 1_000
        schedule = self.world.faults.schedule
        schedule(Fault(REFUSES_S * 1_000, "store_fail", "store", for_ms=refuses_ms, amount=1_000))
        for name in SERVER_NAMES:
            schedule(Fault(BACK_S * 1_000, "watch_expire", name))
        for second in range(BACK_S, END_S):
            self._at(second, self._look)

    def _at(self, second: int, act: Callable[[], None]) -> None:
        self.world.post(second * 1_000_000, lambda _number, _a, _b: act(), None, None)

    def _work_takes_time(self) -> None:
        for name in SERVER_NAMES:
            self.world.cells[name].burden = _burden(self.size)
        self._store_takes(1)

    def _store_takes(self, factor: int) -> None:
        self.world.stores["store"].service_us = int(self.size.store_us * self.size.slower * factor)

    def _look(self) -> None:
        """Once a second after the store's return: what is not as it was."""
        meter, now_s = self.meter, self.meter.second
        missing = []
        deadline_us = self.world.now_us - (TIMING.renew_every_ms + TIMING.ack_window_ms) * 1_000
        silent = self.size.agents - sum(at > deadline_us for at in meter.acknowledged_us.values())
        if silent:
            missing.append(f"{silent} agents are not acknowledged")
        if len(meter.running) != self.size.replicas:
            missing.append(f"{len(meter.running)} of {self.size.replicas} replicas run")
        doubted = sum(
            node.status.phase is not NodePhase.READY
            for node in self.store_copy.all("objects/nodes/")
        )
        if doubted:
            missing.append(f"{doubted} nodes are not Ready")
        # Of the wishes of five seconds ago, which have had their time.
        if meter.wish_share(now_s - 7, now_s - 5) < 0.99:
            missing.append(f"{meter.wish_share(now_s - 7, now_s - 5):.0%} of wishes are fulfilled")
        if missing:
            meter.unwell[now_s] = ", ".join(missing)


def _names() -> tuple[str, ...]:
    return tuple(f"wish-{number}" for number in range(20))


def _furniture(size: StormSize) -> tuple[Object, ...]:
    template = Template(
        command=("work",), resources=Resources(cpu="1", memory="1Gi"), grace_seconds=1
    )
    fleet = WorkloadSpec(replicas=size.replicas, template=template)
    still = WorkloadSpec(replicas=0, template=template)
    return (
        Region(ObjectMeta(name="eu"), spec=RegionSpec(jurisdictions=("eu",))),
        *(Tenant(ObjectMeta(name=tenant)) for tenant in size.tenants),
        *(
            Quota(ObjectMeta(name="default", namespace=it), spec=QuotaSpec(hard={"cpu": "10000"}))
            for it in size.tenants
        ),
        Workload(ObjectMeta(name=WORK, namespace=size.tenants[0]), spec=fleet),
        *(
            Workload(ObjectMeta(name=name, namespace=tenant), spec=still)
            for tenant in size.tenants
            for name in _names()
        ),
    )
