"""Whatever befalls a scheduler, each of its rounds can be decided again and says the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.kinds.node import Device
from holdfast.model.kinds.placement import Affinity, Placement, Spread, Topology
from holdfast.model.kinds.template import DeviceRequest, Resources, Template, TemplateMeta
from holdfast.model.kinds.tenant import Quota, QuotaSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.selection.selectors import LabelSelector
from holdfast.propose.decision_records import OPEN_MS
from tests.scale import examples
from tests.unit.propose.recorded import Recorded
from tests.unit.propose.rig import Lost, Silence, refusal

some = st.sampled_from
SELECTOR = LabelSelector(match_labels={"app": "web"})
TEMPLATES = st.builds(
    lambda cpu, gpus, placement: Template(
        metadata=TemplateMeta(labels={"app": "web"}),
        resources=Resources(cpu=cpu),
        devices=(DeviceRequest(device_class="gpu", count=1),) * gpus,
        placement=placement,
    ),
    cpu=some(["500m", "1", "3"]),
    gpus=some([0, 0, 0, 1]),
    placement=some(
        [
            Placement(),
            Placement(),
            Placement(spread=(Spread(over=Topology.ZONE, required=True),)),
            Placement(anti_affinity=(Affinity(selector=SELECTOR, within=Topology.NODE),)),
            Placement(node_selector={"disk": "ssd"}),
        ]
    ),
)
VERDICTS = some(
    [
        None,
        None,
        Silence(),
        Silence(),
        Lost(committed=True),
        Lost(committed=False),
        refusal(Reason.NODE_FULL),
        refusal(Reason.QUOTA_EXCEEDED),
        refusal(Reason.STALE_REPLICA),
    ]
)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("come"), some([1, 2, 9]), TEMPLATES),
        st.tuples(st.just("verdicts"), st.lists(VERDICTS, max_size=6), st.none()),
        st.tuples(st.just("wait"), some([1, 300, 4_000, 70_000]), st.none()),
        st.tuples(st.just("node"), st.integers(0, 9), some(["1", "4"])),
        st.tuples(st.just("cordon"), st.integers(0, 9), some([True, False])),
        st.tuples(st.just("gone"), st.integers(0, 9), st.none()),
        st.tuples(st.just("release"), st.integers(0, 30), st.none()),
        st.tuples(st.just("quota"), some(["2", "5", "100"]), st.none()),
        st.tuples(st.just("deaf"), some([True, False]), st.none()),
    ),
    max_size=14,
)


def play(rig: Recorded, moves: list[Any]) -> None:
    """Let all that happen, in order."""
    born = 0
    for what, how, more in moves:
        match what:
            case "come":
                for _ in range(how):
                    born += 1
                    rig.replica(f"web-{born}-0", template=more)
            case "verdicts":
                rig.verdicts = list(how)
            case "wait":
                rig.pass_time(how)
            case "release":
                found = rig.objects.get("replicas", {}).get(("acme", f"web-{how}-0"))
                if found is not None and found.status.binding is not None:
                    rig.status(found, state=State.RELEASED)
            case "quota":
                spec = QuotaSpec(hard={"cpu": how})
                rig.put(Quota(ObjectMeta(name="default", namespace="acme"), spec=spec))
            case "deaf":
                rig.set_receiving(not how)
            case _:
                of_nodes(rig, what, how, more)


def of_nodes(rig: Recorded, what: str, how: int, more: Any) -> None:
    """Let that happen to a node."""
    nodes = list(rig.objects.get("nodes", {}).values())
    match what:
        case "node":
            devices = (Device(id="g0", device_class="gpu"),) if how % 3 == 0 else ()
            labels = {"disk": "ssd"} if how % 2 else {}
            zone = "abc"[how % 3]
            rig.node(f"node-{how}", cpu=more, zone=zone, devices=devices, labels=labels)
        case "cordon" if nodes:
            node = nodes[how % len(nodes)]
            rig.node(node.name, zone=node.spec.zone, cordoned=more)
        case "gone" if nodes:
            rig.remove(nodes[how % len(nodes)])


@settings(max_examples=examples(120), deadline=None)
@given(st.integers(0, 999), MOVES)
def test_each_round_decided_again_says_the_same(seed: int, moves: list[Any]) -> None:
    """From what was stored then, with what was assumed and the same lot. [M4, F8]"""
    rig = Recorded(seed=seed)
    for number in range(4):
        rig.node(f"node-{number}", cpu="4", zone="ab"[number % 2])
    rig.start()
    play(rig, moves)
    # Rounds whose answers never come are handed over without them.
    rig.pass_time(OPEN_MS + 1)
    late_ms = rig.now.wall_ms - OPEN_MS
    for decided in rig.rounds.values():
        assert decided.left_out == 0
        if all(left.sequence in rig.rounds for left in decided.assumed):
            assert rig.again(decided) == []
        else:
            assert decided.decided_ms >= late_ms, "only what is decided at the end may be open"
