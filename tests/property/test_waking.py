"""Waiting work gets its turn as soon as it fits, whatever else waits."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.model.kinds.tenant import Quota, QuotaSpec, Tenant
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.propose.queue.scheduling_queue import BACKOFF_MIN_MS
from tests.plane import template
from tests.scale import examples
from tests.unit.propose.rig import Rig

TENANTS = ("acme", "kin")
CLASSES = ("default", "batch")
# What each tenant may use of cores: of its own, and what it may borrow of its cohort's.
NOMINAL, BORROWING = 6, 3
NODE_CPU = 7

# Come: tenant, cores, priority, class, how many. Go: the place in the list of what runs.
# Grow: another node.
COMES = st.tuples(
    st.just("come"),
    st.sampled_from(TENANTS),
    st.integers(1, 6),
    st.integers(0, 1),
    st.sampled_from(CLASSES),
    st.integers(1, 6),
)
GOES = st.tuples(st.just("go"), st.integers(0, 30))
GROWS = st.tuples(st.just("grow"))


def cores(replica: Any) -> int:
    return int(replica.spec.template.resources.cpu)


def plane(seed: int) -> Rig:
    """Two tenants of one cohort; what one has left the other may borrow."""
    rig = Rig(seed)
    for tenant in TENANTS:
        rig.put(Tenant(ObjectMeta(name=tenant)))
        spec = QuotaSpec(
            cohort="both",
            hard={"cpu": str(NOMINAL)},
            borrowing={"cpu": str(BORROWING)},
            priority_classes={"batch": {"cpu": "4"}},
        )
        rig.put(Quota(ObjectMeta(name="default", namespace=tenant), spec=spec))
    rig.node("node-0", cpu=str(NODE_CPU))
    rig.node("node-1", cpu=str(NODE_CPU))
    rig.start()
    return rig


def charged(rig: Rig) -> list[Any]:
    held = rig.objects.get("replicas", {}).values()
    return [it for it in held if it.status.binding is not None and it.status.state is State.BOUND]


def fits(rig: Rig, replica: Any) -> bool:
    """Counted by hand: a node, the tenant, the cohort and the class have room for it."""
    need, there = cores(replica), charged(rig)
    tenant, of = replica.metadata.namespace, replica.spec.template.priority_class

    def used(*, by: str = "", within: str = "", on: str = "") -> int:
        return sum(
            cores(it)
            for it in there
            if (not by or it.metadata.namespace == by)
            and (not within or it.spec.template.priority_class == within)
            and (not on or it.status.binding.node == on)
        )

    nodes = [name for _, name in rig.objects["nodes"]]
    return (
        any(used(on=node) + need <= NODE_CPU for node in nodes)
        and used(by=tenant) + need <= NOMINAL + BORROWING
        and used() + need <= NOMINAL * len(TENANTS)
        and (of != "batch" or used(by=tenant, within="batch") + need <= 4)
    )


# A replica that found its place assumed by a bind in flight, and paused until that was settled.
IN_QUESTION = [
    ("come", "acme", 1, 0, "default", 1),
    ("go", 0),
    ("come", "acme", 2, 0, "default", 5),
    ("come", "kin", 4, 0, "default", 1),
    ("go", 0),
    ("go", 0),
]


@settings(max_examples=examples(150), deadline=None)
@example(0, IN_QUESTION)
@given(st.integers(0, 9), st.lists(st.one_of(COMES, GOES, GROWS), min_size=4, max_size=40))
def test_work_that_fits_never_waits(seed: int, acts: list[Any]) -> None:
    """After each event: whatever still waits has no room, counted by hand. No resync passes, only
    the shortest pause, in which binds in flight are settled.
    [C7.1, D2, E1, V2]"""
    rig = plane(seed)
    for number, act in enumerate(acts):
        match act:
            case ("come", tenant, cpu, priority, of, count):
                asked = msgspec.structs.replace(template(cpu=str(cpu)), priority_class=of)
                for index in range(count):
                    rig.replica(f"w{number}-{index}-0", tenant, priority, template=asked)
            case ("go", place):
                there = charged(rig)
                if there:
                    rig.status(there[place % len(there)], state=State.RELEASED)
            case _:
                rig.node(f"more-{number}", cpu=str(NODE_CPU))
        rig.pass_time(BACKOFF_MIN_MS)
        waiting = [it for it in rig.objects.get("replicas", {}).values() if not it.status.binding]
        overlooked = [it.name for it in waiting if fits(rig, it)]
        assert not overlooked, (act, overlooked, [it.name for it in waiting])
