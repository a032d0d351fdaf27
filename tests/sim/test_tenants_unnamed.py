"""No object of one tenant ever contains a name or a uid of another tenant's work.

All controllers, a scheduler and agents share six nodes between two tenants, whose workloads have
unique names that are easy to find wherever they are written: in pending reasons and near misses, in
transitions with their evidence, in conditions, events, endpoints and decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.explain.decision_object import decision_of
from holdfast.model.encoding import wire
from holdfast.model.machine import ArchiveRecord
from holdfast.sim.check import Checker, Commit
from holdfast.sim.plan import Act
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.run import attempt
from holdfast.sim.world import World
from holdfast.sim.worlds.all_controllers.scenario import SCENARIO, script
from tests.sim.findings import everything_happened

SEEDS = range(2)
UNNAMED = "UNNAMED"
# Capacity is too small for all of it, on purpose, so the desired state is not reached in the end.
UNPROMISED = ("V1", "V2", "V4")
CANARIES = dict(zip(TENANTS, ("quartz", "zebra"), strict=True))
# What must be seen over the seeds.
DEMANDED = ("replicas", "workloads", "events", "endpoints", "decisions", "waits", "stopped")


class Unnamed(Checker):
    """Checks every version of every object of a tenant, and every decision about its work."""

    invariants = (UNNAMED,)

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._uids: dict[str, str] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for change in commit.changes:
            room, plural, namespace, *rest = f"{change.key}///".split("/")
            if room != "objects" or namespace not in TENANTS or change.value is None:
                continue
            text = change.value.decode()
            body = msgspec.json.decode(change.value)
            self._uids[body["metadata"]["uid"]] = namespace
            self.seen[plural] += 1
            status = body.get("status", {})
            self.seen["waits"] += int("pending" in status)
            self.seen["stopped"] += int("cause" in status)
            self.check_text(namespace, f"{plural} {rest[0]}", text)

    def on_record(self, decided: Any) -> None:
        """Check the decisions that a scheduler archives, in the form that users read."""
        member = 0
        for case in decided.cases:
            for number in range(len(case.replicas)):
                decision = decision_of(decided, case, number, member)
                self.check_text(case.namespace, decision.name, wire.encode(decision).decode())
                self.seen["decisions"] += 1
                member += 1

    def check_text(self, namespace: str, what: str, text: str) -> None:
        for tenant, canary in CANARIES.items():
            if tenant != namespace and canary in text:
                self.violated(UNNAMED, f"{what} of {namespace} names work of {tenant}: {text}")
        for uid, tenant in self._uids.items():
            if tenant != namespace and uid in text:
                self.violated(UNNAMED, f"{what} of {namespace} has a uid of {tenant}: {text}")


def script_with_canaries(rng: Random) -> Sequence[Act]:
    """The script of this world, with a unique name for each tenant's workloads."""
    acts = []
    for act in script(rng):
        body = act.body
        if body.get("do") == "make":
            body = {**body, "name": f"{CANARIES[body['tenant']]}-{body['name']}", "cpu": "3"}
        acts.append(msgspec.structs.replace(act, body=body))
    return acts


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in SEEDS:
        checker = Unnamed()

        def build_checked(world: World, checker: Unnamed = checker) -> None:
            world.performers[ArchiveRecord] = lambda cell, effect: checker.on_record(effect.body)
            SCENARIO.build(world)
            world.check(checker)

        scenario = msgspec.structs.replace(
            SCENARIO,
            build=build_checked,
            script=script_with_canaries,
        )
        broken = attempt(scenario, World(seed))
        assert broken is None or broken.invariant in UNPROMISED, (seed, broken)
        found += checker.seen
    return found


@pytest.mark.timeout(600)
def test_no_object_of_a_tenant_names_work_of_another(seen: Counter[str]) -> None:
    everything_happened(DEMANDED, seen)


def test_a_leaked_name_is_noticed() -> None:
    checker = Unnamed()
    checker.check_text("bob", "replicas zebra-w1-0-0", "makes way for zebra-w2-0-0")
    with pytest.raises(Exception, match=UNNAMED):
        checker.check_text("bob", "replicas zebra-w1-0-0", "makes way for quartz-w2-0-0")
