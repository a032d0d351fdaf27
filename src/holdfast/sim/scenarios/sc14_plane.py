"""The plane of the retry storm: its components, the cost of their work, and its faults.

All components are production machines, the agents included. The simulation adds that work takes
time: a server has one processor (`Burden`), the store one queue. `sc14_meter` counts what happens,
and `sc14_retry_storm` checks the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.agent.node_facts import NodeFacts
from holdfast.commit.context import PlaneSettings
from holdfast.commit.flow.guarded_server import GuardedServer
from holdfast.commit.flow.seats import FlowControllers
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.template import Resources, Template
from holdfast.model.kinds.tenant import Quota, QuotaSpec, Tenant
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.machine import Answer, Answered, Asked, Changed, Opened, Push, Range, Txn
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.nodes.fence import FenceTiming
from holdfast.observe.retry import Budget
from holdfast.sim.cell import Factory, Seat
from holdfast.sim.plan import Fault
from holdfast.sim.planes import invariants
from holdfast.sim.planes.components import (
    add_node,
    add_scheduler,
    controllers,
    process_tables,
    servers,
    store,
)
from holdfast.sim.planes.simulated_plane import TWO_SERVERS, SimulatedPlane, build_plane
from holdfast.sim.planes.simulated_server import SimServer
from holdfast.sim.scenarios.run_log import RunLog
from holdfast.sim.scenarios.sc14_clients import TenantClient
from holdfast.sim.scenarios.sc14_meter import StormMeter, count_requests
from holdfast.sim.world import World

SERVER_NAMES = TWO_SERVERS.servers
AGENTS_PER_TENANT = 500
WORK = "fleet"
ZONES = "abc"
TIMING = FenceTiming()
RENEW_S = TIMING.renew_every_ms // 1_000

# The phases, in seconds. All agents have joined and all work runs when the first one begins.
CALM_S, SLOW_S, REFUSES_S, BACK_S, END_S = 25, 45, 70, 130, 220
JOIN_S = 12
# From here on work takes time.
BURDEN_S = 20
SLOWER = 10

# What one processor spends, in microseconds, on a plane with this many agents. With fewer agents it
# is slower in proportion, so that it is as busy.
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
    """The size of the plane. Every tenth node has work to do.

    `store_us` is what the store spends on a request at MEASURED_AT agents. It is chosen so that at
    ten times that cost the store can serve renewals and leases, but not everything else. On a
    small plane, the load that does not depend on its size, such as the leases of controllers, is a
    larger share.

    `served_min` is the share of the tenants' requests that are served before the storm. The least
    patience of flow control is a quarter of a second: 250 service times of a usual machine, and
    five of one that is fifty times slower, where a chance meeting of requests is refused at times.
    """

    agents: int
    store_us: int
    served_min: float = 0.999

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
        """Intents per second of each tenant; together a little more than the agents' renewals."""
        return 1.2 * self.agents / RENEW_S / len(self.tenants)


def _cpu_cost(size: StormSize) -> Callable[[Any, Sequence[Any]], int]:
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
    """A retry budget in proportion to the request rate of a slower client.

    Reserve and probes are absolute in the production budget: for a client that hardly sends
    requests, probes alone may be more than a tenth of them.
    """
    budget = Budget(max(1, int(Budget.RESERVE / size.slower)))
    budget.PROBE_MIN_MS = int(min(Budget.PROBE_MAX_MS, Budget.PROBE_MIN_MS * size.slower))
    return budget


def _guarded(seat: Seat, settings: PlaneSettings) -> GuardedServer:
    return GuardedServer(SimServer(seat, settings, confirms=False), FlowControllers(seat.rng))


class Storm:
    """Builds the plane, and schedules its faults."""

    def __init__(self, world: World, size: StormSize) -> None:
        """Its owner gives `store_copy`, `log` and `meter` to the world as checkers, in order."""
        self.world, self.size = world, size
        self.meter = StormMeter(world)
        self.parts = SimulatedPlane(world, settings=PlaneSettings(fence=TIMING))
        self.store_copy = self.parts.store_copy
        self.log = RunLog(self.store_copy)
        build_plane(
            self.parts,
            (
                store(*_objects(size)),
                process_tables(),
                servers(_guarded),
                controllers("controllers", tap=self._count),
            ),
        )
        add_scheduler(self.parts, "main", "scheduler", tap=self._count)
        self._tenants()
        self._agents()
        self._schedule_faults()
        self.store_copy.learn(invariants.first_records(self.parts))

    def _count(self, _identity: str, make: Factory) -> Factory:
        return count_requests(make, self.meter)

    def _tenants(self) -> None:
        for tenant in self.size.tenants:
            identity = Identity(name=f"program-of-{tenant}", tenants=(tenant,))

            def make(seat: Seat, tenant: str = tenant) -> TenantClient:
                budget = _budget(self.size)
                rate = self.size.tenant_rate
                return TenantClient(seat, tenant, _names(), rate, self.meter, budget)

            factory = count_requests(make, self.meter, is_tenant=True)

            def join(who: Identity = identity, factory: Factory = factory) -> None:
                self.parts.add(who.name, factory, who)

            self._at(JOIN_S, join)

    def _agents(self) -> None:
        rng = self.world.rng("joining")
        for number in range(self.size.agents):
            name = f"node-{number:04d}"
            facts = NodeFacts(
                region="eu",
                zone=f"eu-{ZONES[number % len(ZONES)]}",
                capacity={"cpu": "8", "memory": "64Gi"},
            )

            def join(name: str = name, facts: NodeFacts = facts) -> None:
                add_node(self.parts, name, facts, tap=self._count)

            # The nodes of a real plane do not join at the same time.
            self._at(1 + rng.random() * (JOIN_S - 1), join)

    # Faults --------------------------------------------------------------------------------------

    def _schedule_faults(self) -> None:
        self._at(BURDEN_S, self._work_takes_time)
        self._at(SLOW_S, lambda: self._store_takes(SLOWER))
        self._at(REFUSES_S, lambda: self._store_takes(1))
        refuses_ms = (BACK_S - REFUSES_S) * 1_000
        schedule = self.world.faults.schedule
        schedule(Fault(REFUSES_S * 1_000, "store_fail", "store", for_ms=refuses_ms, amount=1_000))
        for name in SERVER_NAMES:
            schedule(Fault(BACK_S * 1_000, "watch_expire", name))
        for second in range(BACK_S, END_S):
            self._at(second, self._record_problems)

    def _at(self, second: float, act: Callable[[], None]) -> None:
        self.world.post(int(second * 1_000_000), lambda _number, _a, _b: act(), None, None)

    def _work_takes_time(self) -> None:
        for name in SERVER_NAMES:
            self.world.cells[name].burden = _cpu_cost(self.size)
        self._store_takes(1)

    def _store_takes(self, factor: int) -> None:
        self.world.stores["store"].service_us = int(self.size.store_us * self.size.slower * factor)

    def _record_problems(self) -> None:
        """Record once a second, after the store's return, what is not as it was before."""
        meter, now_s = self.meter, self.meter.second
        missing = []
        deadline_us = self.world.now_us - (TIMING.renew_every_ms + TIMING.ack_window_ms) * 1_000
        silent = self.size.agents - sum(at > deadline_us for at in meter.acknowledged_us.values())
        if silent:
            missing.append(f"{silent} agents are not acknowledged")
        if len(meter.running) != self.size.replicas:
            missing.append(f"{len(meter.running)} of {self.size.replicas} replicas run")
        not_ready = sum(
            node.status.phase is not NodePhase.READY
            for node in self.store_copy.all("objects/nodes/")
        )
        if not_ready:
            missing.append(f"{not_ready} nodes are not Ready")
        # Intents of five seconds ago have had enough time.
        if meter.intent_success_share(now_s - 7, now_s - 5) < 0.99:
            missing.append(
                f"{meter.intent_success_share(now_s - 7, now_s - 5):.0%} of intents succeed"
            )
        if missing:
            meter.problems[now_s] = ", ".join(missing)


def _names() -> tuple[str, ...]:
    return tuple(f"wish-{number}" for number in range(20))


def _objects(size: StormSize) -> tuple[Object, ...]:
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
