"""A controller runner with controller:rollout on a real authority, and work that may be broken.

Agents start what is bound, and it becomes ready unless its template says that it never does. After
every step the rig notes how many replicas are ready, so that a test can say how few there were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.correct.controller import Controller
from holdfast.correct.rollout.controller import RolloutController
from holdfast.correct.workload.controller import WorkloadController
from holdfast.correct.workload.replica_creation import revision_of
from holdfast.model.access import identity as who
from holdfast.model.kinds.replica import Process, Replica
from holdfast.model.kinds.template import EnvVar, Template
from holdfast.model.kinds.workload import (
    CanaryStep,
    Rollout,
    RolloutStatus,
    RolloutStrategy,
    Workload,
)
from holdfast.model.lifecycle import Stage, State
from holdfast.model.placement.disruption import is_available
from holdfast.model.requests import Move, ReportStage, Update
from tests.plane import template
from tests.unit.correct.controller_rig import ADMIN, Rig, accepted, target

TURN_MS = 1_000
BROKEN = "BROKEN"


def version(number: int, broken: str = "") -> Template:
    """A template of its own; one that is broken is never ready."""
    env = (EnvVar("VERSION", str(number)), *((EnvVar(BROKEN, broken),) if broken else ()))
    return template(cpu="100m", memory="16Mi", env=env)


def rolling(missing: int | str = 1, surge: int | str = 0, **more: Any) -> Rollout:
    more = {"progress_deadline_seconds": 60, **more}
    return Rollout(max_unavailable=missing, max_surge=surge, **more)


def canary(*steps: CanaryStep, **more: Any) -> Rollout:
    return rolling(strategy=RolloutStrategy.CANARY, canary=steps, **more)


class RolloutRig(Rig):
    """See the module's docstring."""

    def __init__(self, *nodes: str) -> None:
        # The fewest that were ready since the last count began.
        self.fewest = 0
        super().__init__()
        self.plane.tenant()
        for name in nodes or ("node-a", "node-b"):
            self.plane.node(name)

    def start(self, controllers: Iterable[Controller] | None = None) -> None:
        mine = (WorkloadController(), RolloutController())
        super().start(controllers if controllers is not None else mine)

    # What people want ----------------------------------------------------------------------------

    def build(self, replicas: int, rollout: Rollout, **spec: Any) -> None:
        """A service of the first version, wholly ready."""
        self.plane.workload(replicas=replicas, template=version(1), rollout=rollout, **spec)
        self.ship(12)
        assert self.status.phase == "Idle", self.status

    def want(self, **changes: Any) -> None:
        """Change the spec."""
        workload = self.workload
        rollout = changes.pop("rollout", {})
        if isinstance(rollout, dict):
            rollout = msgspec.structs.replace(workload.spec.rollout, **rollout)
        spec = msgspec.structs.replace(workload.spec, rollout=rollout, **changes)
        accepted(self.plane.ask(ADMIN, Update(msgspec.structs.replace(workload, spec=spec))))

    # What there is -------------------------------------------------------------------------------

    @property
    def workload(self) -> Workload:
        found: Workload = self.get("workloads", "web", "acme")
        return found

    @property
    def status(self) -> RolloutStatus:
        return self.workload.status.rollout

    @property
    def ready(self) -> int:
        return sum(map(is_available, self.all("replicas")))

    def versions(self, *states: State) -> dict[int, str]:
        """The version at each place, of replicas in these states; all that are not released."""
        found = {}
        for it in self.all("replicas"):
            wanted = it.status.state in states if states else it.status.state is not State.RELEASED
            if wanted:
                found[it.spec.ordinal] = it.spec.template.env[0].value
        return found

    # Time ----------------------------------------------------------------------------------------

    def ship(self, turns: int = 30, ms: int = TURN_MS) -> None:
        """Let this many turns pass; note the fewest that were ready at any moment."""
        self.fewest = self.ready
        for _ in range(turns):
            self.run(ms)
            self.fewest = min(self.fewest, self.ready)
            self.bind_all()
            self.agents()

    def until(self, versions: dict[int, str], turns: int = 60) -> None:
        """Until these run at these places."""
        for _ in range(turns):
            if self.versions(State.RUNNING) == versions:
                return
            self.ship(1)
        raise AssertionError((self.versions(), self.status))

    def agents(self) -> None:
        for replica in self.all("replicas"):
            binding = replica.status.binding
            if binding is None or binding.node in self.silent:
                continue
            agent, life = who.agent(binding.node), binding.node_incarnation
            state = replica.status.state
            if state is State.BOUND:
                moved = Move(target(replica), State.RUNNING, incarnation=life, process=Process())
                replica = accepted(self.plane.ask(agent, moved))
                if not any(it.name == BROKEN for it in replica.spec.template.env):
                    self.gets(replica, Stage.READY)
            elif state in (State.STOPPING, State.FAILED, State.SUCCEEDED):
                gone = Move(target(replica), State.RELEASED, "Stopped", incarnation=life)
                accepted(self.plane.ask(agent, gone))

    def gets(self, replica: Replica, stage: Stage) -> None:
        """Its agent says how far it has come."""
        binding = replica.status.binding
        assert binding is not None
        agent = who.agent(binding.node)
        report = ReportStage(target(replica), stage, binding.node_incarnation)
        accepted(self.plane.ask(agent, report))

    def restarts(self, replica: Replica) -> None:
        """It ended by itself, and is started again in place."""
        binding = replica.status.binding
        assert binding is not None
        again = Move(
            target(replica), State.RUNNING, incarnation=binding.node_incarnation, process=Process()
        )
        replica = accepted(self.plane.ask(who.agent(binding.node), again))
        self.gets(replica, Stage.READY)

    def replica(self, place: int) -> Replica:
        """The newest replica at a place."""
        mine = [it for it in self.all("replicas") if it.spec.ordinal == place]
        return max(mine, key=lambda it: it.spec.incarnation)


def name_of(number: int, broken: str = "") -> str:
    return revision_of(version(number, broken))


def all_of(number: int, count: int) -> dict[int, str]:
    """One version at this many ordinals."""
    return dict.fromkeys(range(count), str(number))
