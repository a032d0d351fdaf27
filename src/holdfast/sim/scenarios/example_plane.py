"""The plane of a worked example: a small and fast plane of production machines.

It has two servers over one store, a controller runner, and agents with their process tables; each
example adds schedulers, nodes and users as it needs them. The invariants of the other worlds hold
in every example as well: INV1 to INV7, INV11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from holdfast.agent.agent import Agent
from holdfast.agent.node_facts import NodeFacts
from holdfast.commit.context import PlaneSettings
from holdfast.commit.record_encoding import decode
from holdfast.correct.all_controllers import core_controllers
from holdfast.correct.controller import Controller
from holdfast.correct.controller_runner import ControllerRunner
from holdfast.explain.decision_object import decision_of
from holdfast.model import keys
from holdfast.model.fence import FenceTiming
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.node import Device
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import PriorityClass, PriorityClassSpec, Quota, QuotaSpec, Tenant
from holdfast.model.machine import ArchiveRecord
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.registry import kind_of_struct
from holdfast.observe.watch_events import SERVERS
from holdfast.propose.scheduler import Scheduler
from holdfast.sim.cell import Cell, Seat
from holdfast.sim.plan import Act, Fault, Plan
from holdfast.sim.scenarios.asking import ExplanationGiven, explain_now
from holdfast.sim.scenarios.cues import Cues, Then, When
from holdfast.sim.scenarios.people import RIVAL, DrainClient, OperatorClient, RivalScheduler
from holdfast.sim.scenarios.run_log import RunLog
from holdfast.sim.scenarios.scheduler_taps import Stall, tap_scheduler
from holdfast.sim.scenarios.sentences import Sentence, SentenceChecks
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.budget_checks import DisruptionBudgets
from holdfast.sim.worlds.authority.invariants import FieldOwnership, LawfulTransitions
from holdfast.sim.worlds.authority.ledger_oracle import LedgerTotals, StoreCopy
from holdfast.sim.worlds.authority.rogues import ADMIN
from holdfast.sim.worlds.authority.scenario import create_objects
from holdfast.sim.worlds.authority.scripted_clients import SERVERS as CLIENT_SERVERS
from holdfast.sim.worlds.authority.scripted_clients import StateFact
from holdfast.sim.worlds.authority.witness import AcknowledgedWrites, FinalRecount, OperationsOnce
from holdfast.sim.worlds.end_to_end.checks import OneCopy, ReleasedAfterStop
from holdfast.sim.worlds.end_to_end.component_taps import tap_component
from holdfast.sim.worlds.end_to_end.process_table import Processes
from holdfast.sim.worlds.end_to_end.servers import SimServer
from holdfast.store.memory import Keyspace

SERVER_NAMES = ("server-1", "server-2")
OPERATOR_CELL = "patron"
RIVAL_CELL = "rival"
# A renewal every 4 s: a node is Suspect 8 s after its last heartbeat and marked after 14 s.
TIMING = FenceTiming(self_stop_after_ms=12_000, grace_ms=5_000, fence_after_ms=24_000)
SUSPECT_MS, MARK_MS = 8_000, 14_000
RESYNC_MS = 60_000
# By this time the plane is up.
READY_MS = 10_000
TENANTS = ("risk", "billing", "search", "fraud", "analytics")

Found = TypeVar("Found", bound=Object)


def platform(quotas: dict[str, dict[str, str]]) -> tuple[Object, ...]:
    """Regions, tenants and classes of the reference platform, with these quotas by tenant."""
    regions = (("us-west", "us"), ("eu-central", "eu"))
    return (
        *(
            Region(ObjectMeta(name=name), spec=RegionSpec(jurisdictions=(law,)))
            for name, law in regions
        ),
        PriorityClass(ObjectMeta(name="urgent"), spec=PriorityClassSpec(value=100, urgent=True)),
        *(Tenant(ObjectMeta(name=tenant)) for tenant in TENANTS),
        *(
            Quota(ObjectMeta(name="default", namespace=tenant), spec=QuotaSpec(hard=dict(hard)))
            for tenant, hard in quotas.items()
        ),
    )


class ExamplePlane:
    """See the module's docstring. Call `ready` last.

    With `has_invariants` False only the sentences are checked: a test that shows that a sentence
    finds a bug by itself must not have an invariant find it first.
    """

    has_invariants = True

    def __init__(
        self,
        world: World,
        quotas: dict[str, dict[str, str]] | None = None,
        controllers: Callable[[], Sequence[Controller]] = core_controllers,
    ) -> None:
        self.world = world
        # Random values of the example itself, such as delays.
        self.rng: Random = world.rng("stage")
        self.keyspace = Keyspace()
        create_objects(self.keyspace, world.seed, platform(quotas or {}))
        world.add_store(keyspace=self.keyspace)
        world.perform(StateFact, lambda _cell, effect: world.fact(effect.fact))
        world.perform(Stall, self._stall)
        self.processes = Processes(world, TIMING)
        settings = PlaneSettings(fence=TIMING)
        for name in SERVER_NAMES:
            identity = f"system:server:{name}"
            world.add(
                name, lambda seat: SimServer(seat, settings), store="store", identity=identity
            )
        world.balance(SERVERS, SERVER_NAMES)
        world.balance(CLIENT_SERVERS, SERVER_NAMES)
        team: Callable[[Seat], ControllerRunner] = lambda seat: ControllerRunner(  # noqa: E731
            controllers(), seat.rng, name=seat.name, servers=SERVER_NAMES
        )
        world.add("controllers", tap_component("", team), identity="system:controllers")
        world.add(
            OPERATOR_CELL,
            lambda seat: OperatorClient(seat, ADMIN.name),
            store="store",
            identity=ADMIN,
        )
        self.store_copy = StoreCopy()
        self.log = RunLog(self.store_copy)
        self.cues = Cues(self.log)
        self.log.marks["origin"] = world.origin_us // 1000
        # The last decision about each replica, as servers keep them.
        self._decisions: dict[str, Decision] = {}
        world.performers[ArchiveRecord] = self._keep

    # Components ----------------------------------------------------------------------------------

    def scheduler(
        self, name: str, *, scope: str = "", stall: tuple[int, Stall] | None = None
    ) -> Cell:
        """A scheduler in a cell of its own name; `stall` as in `SchedulerTap`."""
        identity = f"system:scheduler:{name}"
        make: Callable[[Seat], Scheduler] = lambda seat: Scheduler(  # noqa: E731
            name, seat.rng, scope=scope, resync_ms=RESYNC_MS
        )
        factory = tap_scheduler(name, tap_component(identity, make), stall)
        return self.world.add(name, factory, identity=identity)

    def node(
        self,
        name: str,
        *,
        region: str = "eu-central",
        zone: str = "a",
        pool: str = "general",
        cpu: str = "8",
        gpus: int = 0,
    ) -> None:
        """Add a node whose label `name` is its own name."""
        devices = tuple(
            Device(id=f"gpu-{number}", device_class="gpu", memory="40Gi") for number in range(gpus)
        )
        facts = NodeFacts(
            region=region,
            zone=f"{region}-{zone}",
            pool=pool,
            labels={"name": name},
            capacity={"cpu": cpu, "memory": "64Gi"},
            devices=devices,
        )
        identity = f"system:node:{name}"
        make: Callable[[Seat], Agent] = lambda seat: Agent(name, facts, seat.rng)  # noqa: E731
        self.world.add(name, tap_component(identity, make), identity=identity)

    def rival(self) -> None:
        self.world.add(
            RIVAL_CELL, lambda seat: RivalScheduler(seat, RIVAL), store="store", identity=RIVAL
        )

    def drainer(self) -> None:
        name = "system:controller:drain"
        self.world.add(
            "drainer", lambda seat: DrainClient(seat, name), store="store", identity=name
        )

    # Acts and faults -----------------------------------------------------------------------------

    def act(self, at_ms: int, body: dict[str, Any], who: str = OPERATOR_CELL) -> None:
        """Schedule an act of a user."""
        self.world.follow(Plan(0, 0, acts=(Act(at_ms, who, body),)))

    def fault(self, at_ms: int, kind: str, target: str, **more: Any) -> None:
        """Schedule a fault."""
        self.world.faults.schedule(Fault(at_ms, kind, target, **more))

    def cue(self, when: When, then: Then, times: int = 1) -> None:
        self.cues.add(when, then, times)

    def at(self, at_ms: int, then: Then) -> None:
        """Schedule any other action."""
        self.world.post(at_ms * 1000, lambda _number, _a, _b: then(self.world), None, None)

    def stored(self, cls: type[Found], namespace: str, name: str) -> Found:
        """An object that exists before the run begins."""
        key = keys.object_key(kind_of_struct(cls), namespace, name)
        (record,) = self.keyspace.range(key, key + "\0").records
        found: Found = decode(key, record.value)
        return found

    def explain(self, about: str, replica: Replica) -> None:
        """Explain why a replica makes no progress; the answer goes into the run log."""
        key, now_ms = keys.key_of(replica), self.world.now_us // 1000
        answer = explain_now(self.world, self.keyspace, key, TIMING, self._decisions)
        if answer is not None:
            self.world.fact(ExplanationGiven(about, now_ms, answer))

    def _keep(self, _cell: Cell, effect: ArchiveRecord) -> None:
        member = 0
        for case in effect.body.cases:
            for number, uid in enumerate(case.uids):
                self._decisions[uid] = decision_of(effect.body, case, number, member + number)
            member += len(case.uids)

    def _stall(self, cell: Cell, effect: Stall) -> None:
        world = self.world
        world.inject("stall")
        if not effect.clock_stops:
            world.pause_for(cell, effect.for_ms)
            return
        world.freeze(cell.host, clock_stops=True)
        world.post(
            world.now_us + effect.for_ms * 1000,
            lambda _number, host, _: world.thaw(host),
            cell.host,
            None,
        )

    def ready(self, sentences: Sequence[Sentence]) -> None:
        """Add the checkers, sentences before invariants: their messages say more."""
        records = tuple(self.keyspace.range("", keys.END).records)
        store_copy = self.store_copy
        store_copy.learn(records)
        world = self.world
        world.check(store_copy, self.log, SentenceChecks(self.log, sentences), self.cues)
        if not self.has_invariants:
            return
        world.check(
            LedgerTotals(store_copy),
            LawfulTransitions(store_copy),
            FieldOwnership(store_copy, status=True),
            DisruptionBudgets(store_copy),
        )
        world.check(
            OneCopy(store_copy, self.processes), ReleasedAfterStop(store_copy, self.processes)
        )
        world.check(
            AcknowledgedWrites(store_copy, records), OperationsOnce(store_copy), FinalRecount()
        )
