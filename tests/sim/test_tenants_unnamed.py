"""No name and no uid of one tenant's work ever stands in anything of another's.

All controllers, a scheduler and agents share six nodes between two tenants, whose workloads have
names that are found again wherever they are written: in why something waits and what came closest,
in transitions with their evidence, in conditions, events, endpoints and decisions.
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
from holdfast.sim.run import attempt, find
from holdfast.sim.world import World
from holdfast.sim.worlds.all_controllers.scenario import build, script
from holdfast.sim.worlds.authority.people import TENANTS

SEEDS = range(2)
UNNAMED = "UNNAMED"
# There is not room for all of it here, on purpose, so that not all is well in the end.
UNPROMISED = ("V1", "V2", "V4")
CANARIES = dict(zip(TENANTS, ("quartz", "zebra"), strict=True))
# What has to be seen over the seeds, or nothing is proven.
DEMANDED = ("replicas", "workloads", "events", "endpoints", "decisions", "waits", "stopped")


class Unnamed(Checker):
    """Looks at every version of every object of a tenant, and at every decision about its work."""

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
            self.look(namespace, f"{plural} {rest[0]}", text)

    def on_record(self, decided: Any) -> None:
        """What a scheduler hands over to be kept, as people read it."""
        member = 0
        for case in decided.cases:
            for number in range(len(case.replicas)):
                decision = decision_of(decided, case, number, member)
                self.look(case.namespace, decision.name, wire.encode(decision).decode())
                self.seen["decisions"] += 1
                member += 1

    def look(self, namespace: str, what: str, text: str) -> None:
        for tenant, canary in CANARIES.items():
            if tenant != namespace and canary in text:
                self.violated(UNNAMED, f"{what} of {namespace} names work of {tenant}: {text}")
        for uid, tenant in self._uids.items():
            if tenant != namespace and uid in text:
                self.violated(UNNAMED, f"{what} of {namespace} has a uid of {tenant}: {text}")


def renamed(rng: Random) -> Sequence[Act]:
    """What people do in this world, with workloads that are known by their names."""
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

        def built(world: World, checker: Unnamed = checker) -> None:
            world.performers[ArchiveRecord] = lambda cell, effect: checker.on_record(effect.body)
            build(world)
            world.check(checker)

        scenario = msgspec.structs.replace(
            find("holdfast.sim.worlds.all_controllers.scenario:SCENARIO"),
            build=built,
            script=renamed,
        )
        broken = attempt(scenario, World(seed))
        assert broken is None or broken.invariant in UNPROMISED, (seed, broken)
        found += checker.seen
    return found


@pytest.mark.timeout(600)
def test_nothing_of_a_tenant_names_anything_of_another(seen: Counter[str]) -> None:
    assert [what for what in DEMANDED if not seen[what]] == []


def test_a_name_that_slips_through_is_noticed() -> None:
    checker = Unnamed()
    checker.look("bob", "replicas zebra-w1-0-0", "makes way for zebra-w2-0-0")
    with pytest.raises(Exception, match=UNNAMED):
        checker.look("bob", "replicas zebra-w1-0-0", "makes way for quartz-w2-0-0")
