"""The plane of a worked example: a small and fast plane of production machines.

It has two servers over one store, a controller runner, and agents with their process tables; each
example adds schedulers, nodes and users as it needs them. The invariants of the other worlds hold
in every example as well: INV1 to INV7, INV11.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from holdfast.agent.node_facts import NodeFacts
from holdfast.commit.context import PlaneSettings
from holdfast.commit.record_encoding import decode
from holdfast.explain.decision_object import decision_of
from holdfast.model import keys
from holdfast.model.errors import unreachable
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.node import Device
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import PriorityClass, PriorityClassSpec, Quota, QuotaSpec, Tenant
from holdfast.model.machine import ArchiveRecord
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.registry import kind_of_struct
from holdfast.propose.decision_rounds import DecisionRound
from holdfast.sim.cell import Cell
from holdfast.sim.plan import Act, Fault, Plan
from holdfast.sim.planes import invariants
from holdfast.sim.planes.components import (
    add_node,
    add_scheduler,
    controllers,
    person,
    process_tables,
    servers,
    store,
)
from holdfast.sim.planes.scheduler_taps import Stall
from holdfast.sim.planes.simulated_plane import TWO_SERVERS, SimulatedPlane, build_plane
from holdfast.sim.scenarios.asking import ExplanationGiven, explain_now
from holdfast.sim.scenarios.cues import Cues, Then, When
from holdfast.sim.scenarios.people import RIVAL, DrainClient, OperatorClient, RivalScheduler
from holdfast.sim.scenarios.run_log import RunLog
from holdfast.sim.scenarios.sentences import Sentence, SentenceChecks
from holdfast.sim.world import World

SERVER_NAMES = TWO_SERVERS.servers
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

    def __init__(self, world: World, quotas: dict[str, dict[str, str]] | None = None) -> None:
        self.world = world
        # Random values of the example itself, such as delays.
        self.rng: Random = world.rng("stage")
        self.parts = SimulatedPlane(world, settings=PlaneSettings(fence=TIMING))
        self.keyspace, self.store_copy = self.parts.keyspace, self.parts.store_copy
        world.perform(Stall, self._stall)
        build_plane(
            self.parts,
            (
                store(*platform(quotas or {})),
                process_tables(),
                servers(),
                controllers("controllers"),
                person(OPERATOR_CELL, OperatorClient),
            ),
        )
        self.processes = self.parts.processes
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
        return add_scheduler(
            self.parts, name, name, is_observed=True, stall=stall, scope=scope, resync_ms=RESYNC_MS
        )

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
        add_node(self.parts, name, facts)

    def rival(self) -> None:
        person(RIVAL_CELL, RivalScheduler, RIVAL)(self.parts)

    def drainer(self) -> None:
        person("drainer", DrainClient, "system:controller:drain")(self.parts)

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
        made = effect.body
        if not isinstance(made, DecisionRound):
            unreachable(f"an archive of decisions was sent {made!r}")
        member = 0
        for case in made.cases:
            for number, uid in enumerate(case.uids):
                self._decisions[uid] = decision_of(made, case, number, member + number)
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
        invariants.copied(self.parts)
        self.world.check(self.log, SentenceChecks(self.log, sentences), self.cues)
        if self.has_invariants:
            build_plane(
                self.parts, (invariants.commits, invariants.processes, invariants.acknowledgements)
            )
