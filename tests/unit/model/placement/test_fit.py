"""What fits a node, by example: demands, refusals with their reasons, devices, promises."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.model.kinds.node import PortShare
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.template import DeviceRequest, Port, Protocol, Resources, Template
from holdfast.model.placement.fit import (
    Allocation,
    Demand,
    DeviceDemand,
    begin_departure,
    choose_devices,
    claim,
    demand_of,
    finish_departure,
    judge_devices,
    judge_held,
    promise_allocation,
    return_allocation,
    shortage,
    take_allocation,
    withdraw_promise,
)
from holdfast.model.quantity import MILLI
from holdfast.model.quota.ledger import DeviceSlot, NodeGate, NodeLedger
from holdfast.model.refusal import Reason, Refusal

GATE = NodeGate(uid="n")


def gpus(**slots: DeviceSlot) -> NodeLedger:
    """A node with nothing but devices."""
    return NodeLedger(gate=GATE, allocatable={"replicas": 110}, devices=slots)


def gpu(model: str = "A", numa: int = 0, memory: int = 0, **owners: int) -> DeviceSlot:
    return DeviceSlot(device_class="gpu", model=model, numa=numa, memory=memory, owners=owners)


def wants(*requests: DeviceDemand) -> Demand:
    return Demand(amounts={"replicas": 1, "gpu": sum(r.total for r in requests)}, devices=requests)


def whole(count: int = 1, *models: str, same_numa: bool = False) -> DeviceDemand:
    return DeviceDemand("gpu", count, MILLI, models=models, same_numa=same_numa)


def share(milli: int) -> DeviceDemand:
    return DeviceDemand("gpu", 1, milli)


def chosen(ledger: NodeLedger, wanted: Demand) -> list[str] | Reason:
    found = choose_devices(ledger, wanted)
    return found.reason if isinstance(found, Refusal) else [s.device for s in found]


def refused(outcome: Allocation | Refusal | None) -> Refusal:
    assert isinstance(outcome, Refusal)
    return outcome


def test_a_demand_is_rounded_up_and_counts_devices_like_any_resource() -> None:
    """Whole devices, a share, and fixed ports only; what is not asked for is no entry. [A3]"""
    template = Template(
        resources=Resources(cpu="1.0001", memory="1.5Gi"),
        devices=(
            DeviceRequest("gpu", count=2, models=("A",), memory="16Gi", same_numa=True),
            DeviceRequest("gpu", share="250m"),
            DeviceRequest("npu"),
        ),
        ports=(
            Port("web", 80),
            Port("any"),
            Port("dns", 53, Protocol.UDP),
        ),
    )
    demand = demand_of(template)
    assert demand.amounts == {
        "replicas": 1,
        "cpu": 1001,
        "memory": 3 << 29,
        "gpu": 2250,
        "npu": 1000,
    }
    assert demand.devices == (
        DeviceDemand("gpu", 2, 1000, models=("A",), memory=16 << 30, same_numa=True),
        DeviceDemand("gpu", 1, 250),
        DeviceDemand("npu", 1, 1000),
    )
    assert demand.ports == ("TCP/80", "UDP/53")
    assert demand_of(Template()).amounts == {"replicas": 1}


def test_the_last_unit_fits_and_one_more_does_not() -> None:
    """The refusal names the resource, what is needed and what is free. [E3, F2, INV4]"""
    ledger = NodeLedger(gate=GATE, allocatable={"cpu": 2000}, used={"cpu": 500})
    assert isinstance(claim(ledger, Demand({"cpu": 1500})), Allocation)
    refusal = refused(claim(ledger, Demand({"cpu": 1501})))
    assert refusal.reason is Reason.NODE_FULL
    assert refusal.details == {"resource": "cpu", "needed": "1501m", "free": "1500m"}
    assert refused(claim(ledger, Demand({"memory": 1}))).details["free"] == "0"


def test_a_node_that_shrank_refuses_more_but_not_nothing() -> None:
    """Free is never shown as less than nothing."""
    ledger = NodeLedger(gate=GATE, allocatable={"cpu": 100}, used={"cpu": 500})
    assert refused(claim(ledger, Demand({"cpu": 1}))).details["free"] == "0"
    assert isinstance(claim(ledger, Demand({"cpu": 0})), Allocation)


def test_a_fixed_port_has_one_owner() -> None:
    """The same number on another protocol is another port. [C6.1]"""
    ledger = take_allocation(NodeLedger(gate=GATE), Allocation({}, ports=("TCP/80",)), "a")
    refusal = refused(shortage(ledger, Demand({}, ports=("TCP/80",))))
    assert (refusal.reason, refusal.details["owner"]) == (Reason.PORT_TAKEN, "a")
    assert shortage(ledger, Demand({}, ports=("TCP/80",)), holder="a") is not None
    assert shortage(ledger, Demand({}, ports=("UDP/80",))) is None
    assert return_allocation(ledger, Allocation({}, ports=("TCP/80",)), "a").ports == {}


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_a_fixed_port_belongs_to_one_of_the_nodes_that_share_a_network(of: int) -> None:
    """Whatever runs on the others; it cannot be had twice on one machine. [C6.1, F2]"""
    ledgers = [NodeLedger(gate=GATE, port_share=PortShare(index=i, of=of)) for i in range(of)]
    for port in ("TCP/1", "UDP/80", "TCP/8080", "TCP/65535"):
        answers = [shortage(ledger, Demand({}, ports=(port,))) for ledger in ledgers]
        refusals = [refused(it) for it in answers if it is not None]
        assert len(refusals) == of - 1
        assert all(it.reason is Reason.PORT_NOT_OFFERED for it in refusals)
        assert all(it.details["port"] == port and "port 0" in it.message for it in refusals)


def test_the_last_gpu_is_given_once() -> None:
    """The second claim on the ledger that the first one wrote is refused. [C6.1, INV1, N1.7]"""
    ledger = gpus(g0=gpu())
    first = claim(ledger, wants(whole()))
    assert isinstance(first, Allocation)
    ledger = take_allocation(ledger, first, "a")
    assert ledger.devices["g0"].owners == {"a": 1000}
    assert refused(claim(ledger, wants(whole()))).reason is Reason.DEVICE_TAKEN
    assert refused(claim(ledger, wants(share(1)))).reason is Reason.DEVICE_TAKEN
    stale = refused(claim(ledger, wants(whole()), first.devices))
    assert (stale.reason, stale.details) == (
        Reason.DEVICE_TAKEN,
        {"device": "g0", "owner": "a"},
    )


def test_devices_are_owned_one_by_one_and_not_summed_on_the_node() -> None:
    """A quota counts the charge; a node would count it twice."""
    ledger = take_allocation(
        gpus(g0=gpu()),
        Allocation({"replicas": 1, "gpu": 1000}, (DeviceShare("g0", "gpu", 1000),)),
        "a",
    )
    assert ledger.used == {"replicas": 1}


def test_whole_devices_go_by_name_and_a_share_to_the_fullest() -> None:
    """So that work for whole devices still finds some. [F3]"""
    ledger = gpus(g2=gpu(), g1=gpu(x=500), g0=gpu(x=250), g3=gpu())
    assert chosen(ledger, wants(whole(2))) == ["g2", "g3"]
    assert chosen(ledger, wants(share(500))) == ["g1"]
    assert chosen(ledger, wants(share(750))) == ["g0"]
    assert chosen(ledger, wants(share(500), share(500))) == ["g1", "g0"]


def test_a_request_for_any_model_leaves_the_only_one_of_its_model_to_the_other() -> None:
    """Served greedily the second request would find no A although the node has one. [D4]"""
    ledger = gpus(g0=gpu("A"), g1=gpu("B"))
    assert chosen(ledger, wants(whole(), whole(1, "A"))) == ["g1", "g0"]
    assert judge_devices(ledger, wants(whole(), whole(1, "A")), _shares("g0", "g1")) is None


def test_devices_that_belong_together_hang_on_one_numa_node() -> None:
    """Two free devices on different NUMA nodes do not fit, though none is in use. [B6, D4]"""
    scattered = gpus(g0=gpu(numa=0), g1=gpu(numa=1))
    assert chosen(scattered, wants(whole(2))) == ["g0", "g1"]
    assert chosen(scattered, wants(whole(2, same_numa=True))) is Reason.DEVICE_MISSING
    near = gpus(g0=gpu(numa=0), g1=gpu(numa=1), g2=gpu(numa=1))
    assert chosen(near, wants(whole(2, same_numa=True))) == ["g1", "g2"]
    taken_ = gpus(g0=gpu(numa=0), g1=gpu(numa=1), g2=gpu(numa=1, x=1))
    assert chosen(taken_, wants(whole(2, same_numa=True))) is Reason.DEVICE_TAKEN


@pytest.mark.parametrize(
    "request_, reason, message",
    [
        (whole(), Reason.DEVICE_TAKEN, "needs 1 gpu, they are in use"),
        (share(600), Reason.DEVICE_TAKEN, "needs 600m of a gpu, they are in use"),
        (share(1001), Reason.DEVICE_MISSING, "needs 1001m of a gpu, the node has 0 suitable"),
        (whole(3), Reason.DEVICE_MISSING, "needs 3 gpu, the node has 2 suitable"),
        (whole(1, "C"), Reason.DEVICE_MISSING, "needs 1 gpu, the node has 0 suitable"),
        (
            DeviceDemand("gpu", 1, MILLI, memory=17),
            Reason.DEVICE_MISSING,
            "needs 1 gpu, the node has 0 suitable",
        ),
        (
            DeviceDemand("npu", 1, MILLI),
            Reason.DEVICE_MISSING,
            "needs 1 npu, the node has 0 suitable",
        ),
    ],
)
def test_a_refused_device_says_whether_waiting_helps(
    request_: DeviceDemand, reason: Reason, message: str
) -> None:
    """Taken may pass, missing will not. [E3, F2]"""
    ledger = gpus(g0=gpu(memory=16, x=500), g1=gpu(memory=16, x=500))
    refusal = choose_devices(ledger, wants(request_))
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.message) == (reason, message)


def test_requests_that_cannot_be_met_together_say_so() -> None:
    """Each alone could be; the message does not blame others."""
    refusal = choose_devices(gpus(g0=gpu()), wants(whole(), share(500)))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.DEVICE_MISSING
    assert "cannot satisfy all requests together" in refusal.message


@pytest.mark.parametrize(
    "requests, owners, message",
    [
        ((whole(1, "C"), share(500)), {}, "needs 1 gpu, the node has 0 suitable"),
        ((share(500), whole(1, "C")), {}, "needs 1 gpu, the node has 0 suitable"),
        ((share(500), whole()), {"x": 250}, "needs 1 gpu, they are in use"),
        ((whole(), share(500)), {"x": 250}, "needs 1 gpu, they are in use"),
        ((share(500), share(800)), {"x": 250}, "needs 800m of a gpu, they are in use"),
    ],
)
def test_a_refusal_names_the_first_request_that_cannot_be_met(
    requests: tuple[DeviceDemand, ...], owners: dict[str, int], message: str
) -> None:
    """Otherwise a user would change the wrong one. [F2]"""
    refusal = choose_devices(gpus(g0=gpu(**owners), g1=gpu(**owners)), wants(*requests))
    assert isinstance(refusal, Refusal)
    assert refusal.message == message


def _shares(*names: str, milli: int = MILLI) -> tuple[DeviceShare, ...]:
    return tuple(DeviceShare(name, "gpu", milli) for name in names)


@pytest.mark.parametrize(
    "proposed, reason",
    [
        (_shares("g0", "g0"), Reason.DEVICE_TAKEN),
        (_shares("g0"), Reason.DEVICE_MISSING),
        (_shares("g0", "g1", "g3"), Reason.DEVICE_MISSING),
        (_shares("g0", "g1", "g4"), Reason.DEVICE_MISSING),
        (_shares("g0", "none"), Reason.DEVICE_MISSING),
        (_shares("g0", "g1", milli=500), Reason.DEVICE_MISSING),
        (_shares("g0", "g2"), Reason.DEVICE_TAKEN),
        (_shares("g0", "g3"), Reason.DEVICE_MISSING),
        ((DeviceShare("g0", "gpu", MILLI), DeviceShare("g1", "npu", MILLI)), Reason.DEVICE_MISSING),
        ((), Reason.DEVICE_MISSING),
    ],
)
def test_a_proposal_that_does_not_answer_the_demand_is_refused(
    proposed: tuple[DeviceShare, ...], reason: Reason
) -> None:
    """Twice, too few, too many, unknown, a part, taken, wrong model, wrong class, none. [C4]"""
    ledger = gpus(g0=gpu(), g1=gpu(), g2=gpu(x=1), g3=gpu("B"), g4=gpu())
    refusal = judge_devices(ledger, wants(whole(2, "A")), proposed)
    assert refusal is not None
    assert refusal.reason is reason
    assert judge_devices(ledger, wants(whole(2, "A")), _shares("g1", "g0")) is None
    wrong = judge_devices(ledger, wants(whole(2, "A")), _shares("g0", "g3"))
    assert wrong is not None
    assert wrong.details == {"device": "g3"}


@pytest.mark.parametrize(
    "requests, proposed",
    [
        ((whole(1, "A"), whole(1, "B")), _shares("g0", "g1")),
        ((whole(1, "B"), whole(1, "A")), _shares("g2", "g3")),
        ((whole(2, same_numa=True),), _shares("g0", "g1")),
        ((whole(2, "A"), whole(1)), _shares("g0", "g2", "g3")),
    ],
)
def test_devices_that_suit_one_by_one_must_also_serve_together(
    requests: tuple[DeviceDemand, ...], proposed: tuple[DeviceShare, ...]
) -> None:
    """Each answers some request, yet one request goes without. [C4, D4]"""
    ledger = gpus(g0=gpu(), g1=gpu(numa=1), g2=gpu("B"), g3=gpu("B", numa=1))
    refusal = judge_devices(ledger, wants(*requests), proposed)
    assert refusal is not None
    assert refusal.reason is Reason.DEVICE_MISSING


def test_no_work_is_placed_on_a_device_that_its_node_no_longer_lists() -> None:
    """Its last owner is charged until it stops; the free rest is no device any more. [C6.5]"""
    ledger = gpus(g0=msgspec.structs.replace(gpu(x=500), absent=True))
    assert chosen(ledger, wants(share(500))) is Reason.DEVICE_MISSING
    assert judge_devices(ledger, wants(share(500)), _shares("g0", milli=500)) is not None
    assert (
        return_allocation(ledger, Allocation({}, _shares("g0", milli=500)), "x")
        .devices["g0"]
        .owners
        == {}
    )


GPU = Allocation({"gpu": 1000}, (DeviceShare("g0", "gpu", 1000),))


@pytest.mark.parametrize(
    "ledger, held",
    [
        (gpus(g0=gpu(x=1)), GPU),
        (gpus(), GPU),
        (NodeLedger(gate=GATE, ports={"TCP/80": "x"}), Allocation({}, ports=("TCP/80",))),
        (NodeLedger(gate=GATE, ports={"TCP/80": "a"}), Allocation({}, ports=("TCP/80",))),
        (NodeLedger(gate=GATE), Allocation({"cpu": -1})),
        (NodeLedger(gate=GATE), Allocation({"cpu": 1, "memory": -1})),
    ],
)
def test_taking_what_is_not_free_is_our_own_bug(ledger: NodeLedger, held: Allocation) -> None:
    """A decision that skipped the rules stops here instead of giving a second owner. [INV1]"""
    with pytest.raises(InvariantBroken):
        take_allocation(ledger, held, "a")


@pytest.mark.parametrize(
    "ledger, held",
    [
        (gpus(g0=gpu(x=1000)), GPU),
        (gpus(g0=gpu(a=500)), GPU),
        (gpus(), GPU),
        (NodeLedger(gate=GATE, ports={"TCP/80": "x"}), Allocation({}, ports=("TCP/80",))),
        (NodeLedger(gate=GATE), Allocation({}, ports=("TCP/80",))),
        (NodeLedger(gate=GATE, used={"cpu": 1}), Allocation({"cpu": 2})),
        (NodeLedger(gate=GATE), Allocation({"cpu": 1})),
    ],
)
def test_giving_back_what_was_never_taken_is_our_own_bug(
    ledger: NodeLedger, held: Allocation
) -> None:
    """A second release of the same charge cannot free what another holds. [C6.5]"""
    with pytest.raises(InvariantBroken):
        return_allocation(ledger, held, "a")


def test_a_promised_share_is_kept_for_its_reservation() -> None:
    """While the victim leaves and after it is gone, others get only what is beyond. [C6.8, G4]"""
    place = Allocation({"cpu": 300}, ports=("TCP/80",))
    victim = Allocation({"cpu": 400}, ports=("TCP/80",))
    ledger = NodeLedger(gate=GATE, allocatable={"cpu": 500})
    ledger = take_allocation(ledger, victim, "victim")
    ledger = promise_allocation(begin_departure(ledger, victim), place, "p")
    assert (ledger.free("cpu"), ledger.free("cpu", "p")) == (100, 100)
    gone = finish_departure(return_allocation(ledger, victim, "victim"), victim)
    assert (gone.free("cpu"), gone.free("cpu", "p")) == (200, 500)
    wanted = Demand({"cpu": 300}, ports=("TCP/80",))
    assert refused(claim(gone, wanted)).reason is Reason.NODE_FULL
    port = Demand({"cpu": 1}, ports=("TCP/80",))
    assert refused(claim(gone, port)).reason is Reason.PORT_TAKEN
    assert refused(claim(gone, port, holder="q")).reason is Reason.PORT_TAKEN
    assert claim(gone, wanted, holder="p") == place
    kept = take_allocation(withdraw_promise(gone, "p"), place, "replica")
    assert (kept.used, kept.promised, kept.leaving) == ({"cpu": 300}, {}, {})
    assert withdraw_promise(gone, "p").free("cpu") == 500


def test_what_is_leaving_is_not_free_yet() -> None:
    """A promise beyond what leaves eats into what is free; a smaller one lends nothing. [INV4]"""
    ledger = NodeLedger(gate=GATE, allocatable={"cpu": 10}, used={"cpu": 8}, leaving={"cpu": 4})
    assert ledger.free("cpu") == 2
    assert promise_allocation(ledger, Allocation({"cpu": 3}), "p").free("cpu") == 2
    assert promise_allocation(ledger, Allocation({"cpu": 5}), "p").free("cpu") == 1
    assert promise_allocation(ledger, Allocation({"cpu": 5}), "p").free("cpu", "p") == 2


def test_a_promised_device_is_free_for_its_reservation_only() -> None:
    """Also when its owner is gone; and it cannot be promised twice. [C6.1, G4]"""
    ledger = promise_allocation(gpus(g0=gpu(victim=1000)), GPU, "p")
    assert chosen(ledger, wants(whole())) is Reason.DEVICE_TAKEN
    free = return_allocation(ledger, GPU, "victim")
    assert chosen(free, wants(whole())) is Reason.DEVICE_TAKEN
    assert choose_devices(free, wants(whole()), "p") == GPU.devices
    assert promise_allocation(free, GPU, "p") == promise_allocation(
        promise_allocation(withdraw_promise(free, "p"), GPU, "p"), GPU, "p"
    )
    for broken in (
        lambda: promise_allocation(free, GPU, "q"),
        lambda: promise_allocation(gpus(), GPU, "q"),
        lambda: promise_allocation(
            promise_allocation(gpus(), Allocation({}, ports=("TCP/80",)), "p"),
            Allocation({}, ports=("TCP/80",)),
            "q",
        ),
        lambda: finish_departure(free, Allocation({"cpu": 1})),
    ):
        with pytest.raises(InvariantBroken):
            broken()


@pytest.mark.parametrize(
    "held, reason",
    [
        (Allocation({"gpu": 1}, _shares("g0")), Reason.NOT_ALLOWED),
        (Allocation({}, _shares("g0")), Reason.NOT_ALLOWED),
        (Allocation({"cpu": -1}), Reason.NOT_ALLOWED),
        (Allocation({"gpu": 0}, _shares("g0", milli=0)), Reason.NOT_ALLOWED),
        (Allocation({"gpu": 1200}, _shares("g0", "g0", milli=600)), Reason.DEVICE_TAKEN),
        (Allocation({"gpu": 1000}, _shares("g1")), Reason.DEVICE_TAKEN),
        (Allocation({"gpu": 1000}, _shares("none")), Reason.DEVICE_MISSING),
        (Allocation({"npu": 1000}, (DeviceShare("g0", "npu", 1000),)), Reason.DEVICE_MISSING),
        (Allocation({"replicas": 111}), Reason.NODE_FULL),
        (Allocation({"gpu": 1000}), Reason.NODE_FULL),
    ],
)
def test_a_stated_charge_must_cover_its_devices(held: Allocation, reason: Reason) -> None:
    """Who states a charge himself cannot have devices for less quota than they are. [C6.6]"""
    ledger = gpus(g0=gpu(), g1=gpu(x=1))
    refusal = judge_held(ledger, held)
    assert refusal is not None
    assert refusal.reason is reason
    sound = Allocation({"gpu": 1, "replicas": 1, "cpu": 0}, _shares("g0", milli=1))
    assert judge_held(ledger, sound) is None
