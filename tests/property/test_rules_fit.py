"""What fits a node, against brute force: each answer is compared with one found by trying all."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, permutations, product

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.template import Template
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
    suits,
    take_allocation,
    withdraw_promise,
)
from holdfast.model.placement.matching import MatchRequest, match
from holdfast.model.quantity import MILLI, exact, units_per_one
from holdfast.model.quota.ledger import (
    Amounts,
    DeviceSlot,
    NodeGate,
    NodeLedger,
    allocatable_of,
    mirror_node,
)
from holdfast.model.refusal import Reason, Refusal
from tests.scale import examples
from tests.strategies import (
    device_demands,
    device_ledgers,
    nodes,
    templates,
)


def ways(ledger: NodeLedger, requests: tuple[DeviceDemand, ...]) -> Iterator[frozenset[str]]:
    """Every set of devices that answers all requests, found by trying all of them."""
    if not requests:
        yield frozenset()
        return
    first, rest = requests[0], requests[1:]
    fitting = [n for n, s in ledger.devices.items() if suits(s, first) and s.free() >= first.milli]
    for chosen in combinations(fitting, first.count):
        if first.same_numa and len({ledger.devices[n].numa for n in chosen}) > 1:
            continue
        slots = {n: s for n, s in ledger.devices.items() if n not in chosen}
        for others in ways(msgspec.structs.replace(ledger, devices=slots), rest):
            yield others | set(chosen)


def is_whole(ledger: NodeLedger) -> bool:
    """Nothing beyond what is there, so that a whole device has one owner: INV4 and INV1 hold."""
    return all(
        units <= ledger.allocatable.get(resource, 0) for resource, units in ledger.used.items()
    ) and all(
        sum(slot.owners.values()) <= MILLI and all(milli > 0 for milli in slot.owners.values())
        for slot in ledger.devices.values()
    )


@settings(max_examples=examples(200))
@given(ledger=device_ledgers, wanted=device_demands(), data=st.data())
def test_devices_are_found_exactly_when_there_are_any(
    ledger: NodeLedger, wanted: Demand, data: st.DataObject
) -> None:
    """No request takes what only another can use, nothing is invented, and the commit accepts the
    choice however its devices are listed. A refusal tells a taken device, for which one may wait,
    from a missing one, for which no caller should. [C4, C6.1, D4, INV1]"""
    found = choose_devices(ledger, wanted)
    answers = set(ways(ledger, wanted.devices))
    if isinstance(found, Refusal):
        assert not answers
        possible = any(ways(_vacant(ledger), wanted.devices))
        assert found.reason is (Reason.DEVICE_TAKEN if possible else Reason.DEVICE_MISSING)
    else:
        assert frozenset(share.device for share in found) in answers
        assert judge_devices(ledger, wanted, data.draw(st.permutations(found))) is None


def _vacant(ledger: NodeLedger) -> NodeLedger:
    """The same devices, as far as the node still lists them, with no work on them."""
    slots = {
        name: msgspec.structs.replace(slot, owners={})
        for name, slot in ledger.devices.items()
        if not slot.absent
    }
    return msgspec.structs.replace(ledger, devices=slots)


@settings(max_examples=examples(200))
@given(ledger=device_ledgers, wanted=device_demands(), data=st.data())
def test_a_proposal_is_accepted_exactly_when_it_answers_the_demand(
    ledger: NodeLedger, wanted: Demand, data: st.DataObject
) -> None:
    """It is judged, never trusted: too many, too few, one twice, another's. [C4, INV1]"""
    sizes = st.sampled_from([MILLI, *(r.milli for r in wanted.devices)])
    pick = st.builds(
        DeviceShare,
        device=st.sampled_from([*ledger.devices, "none"]),
        device_class=st.just("gpu"),
        milli=sizes,
    )
    # A right answer, or one that is right but for a device or two.
    found = choose_devices(ledger, wanted)
    start = [] if isinstance(found, Refusal) else list(found)
    dropped, added = data.draw(st.sampled_from(((0, 0), (1, 1), (1, 1), (0, 1), (1, 0), (2, 2))))
    extra = data.draw(st.lists(pick, min_size=added, max_size=added))
    proposed = [*extra, *start[dropped:]][:5]
    right = any(
        _serves(ledger, wanted.devices, ordered) for ordered in permutations(proposed)
    ) and len({share.device for share in proposed}) == len(proposed)
    assert (judge_devices(ledger, wanted, proposed) is None) is right


def _serves(
    ledger: NodeLedger, requests: tuple[DeviceDemand, ...], shares: tuple[DeviceShare, ...]
) -> bool:
    """Whether the shares, in this very order, are what the requests ask for."""
    rest = list(shares)
    for request in requests:
        mine, rest = rest[: request.count], rest[request.count :]
        slots = [ledger.devices.get(share.device) for share in mine]
        if len(mine) < request.count or any(share.milli != request.milli for share in mine):
            return False
        if not all(s and suits(s, request) and s.free() >= request.milli for s in slots):
            return False
        if request.same_numa and len({s.numa for s in slots if s}) > 1:
            return False
    return not rest


@given(ledger=device_ledgers, wanted=device_demands(), data=st.data())
def test_the_choice_depends_on_the_ledger_alone(
    ledger: NodeLedger, wanted: Demand, data: st.DataObject
) -> None:
    """Two servers that hold equal ledgers decide alike, in whatever order the entries lie. [N6]"""
    entries = data.draw(st.permutations(list(ledger.devices.items())))
    same = msgspec.structs.replace(ledger, devices=dict(entries))
    assert choose_devices(same, wanted) == choose_devices(ledger, wanted)


@given(node=nodes(), wanted=st.lists(templates, max_size=8), data=st.data())
def test_no_history_of_claims_takes_more_than_there_is(
    node: Node, wanted: list[Template], data: st.DataObject
) -> None:
    """Whatever is taken and given back, capacity, devices and ports are never exceeded, the ledger
    is the sum of what is held, and an emptied ledger equals a new one. [C6.1, C6.5, INV1, INV4]"""
    new = ledger = mirror_node(node, None)
    held: dict[str, Allocation] = {}
    for number, template in enumerate(wanted):
        got = claim(ledger, demand_of(template))
        if isinstance(got, Refusal):
            _check_refusal(ledger, demand_of(template))
        else:
            held[f"r{number}"] = got
            ledger = take_allocation(ledger, got, f"r{number}")
        if held and data.draw(st.booleans(), label="give one back"):
            owner = data.draw(st.sampled_from(sorted(held)))
            ledger = return_allocation(ledger, held.pop(owner), owner)
        assert is_whole(ledger)
        assert _added_up(new, held) == ledger
    for owner in data.draw(st.permutations(sorted(held))):
        ledger = return_allocation(ledger, held[owner], owner)
    assert ledger == new


def _added_up(new: NodeLedger, held: dict[str, Allocation]) -> NodeLedger:
    """What a checker finds when it adds up the proofs of all charges."""
    used: Amounts = {}
    owners: dict[str, Amounts] = {name: {} for name in new.devices}
    for owner, got in held.items():
        for share in got.devices:
            owners[share.device][owner] = share.milli
        classes = {share.device_class for share in got.devices}
        for resource, units in got.charge.items():
            if resource not in classes:
                used[resource] = used.get(resource, 0) + units
    return msgspec.structs.replace(
        new,
        used=used,
        devices={
            name: msgspec.structs.replace(slot, owners=owners[name])
            for name, slot in new.devices.items()
        },
        ports={port: owner for owner, got in held.items() for port in got.ports},
    )


def _check_refusal(ledger: NodeLedger, wanted: Demand) -> None:
    """A refused claim really does not fit."""
    classes = {request.device_class for request in wanted.devices}
    plain = all(
        ledger.used.get(r, 0) + units <= ledger.allocatable.get(r, 0)
        for r, units in wanted.amounts.items()
        if r not in classes
    )
    free_ports = not set(wanted.ports) & set(ledger.ports)
    assert not (plain and free_ports and any(ways(ledger, wanted.devices)))


@given(node=nodes())
def test_what_may_be_set_aside_is_never_more_than_is_there(node: Node) -> None:
    """Capacity less what the system keeps, times the overcommit, never rounded up. [D6, INV4]"""
    for resource, units in allocatable_of(node).items():
        if resource not in node.spec.capacity:
            continue
        there = exact(node.spec.capacity[resource]) - exact(node.spec.reserved.get(resource, 0))
        most = max(Fraction(0), there) * node.spec.overcommit.get(resource, 100) / 100
        assert 0 <= Fraction(units, units_per_one(resource)) <= most


@given(before=nodes(), after=nodes(), wanted=st.lists(templates, min_size=1, max_size=4))
def test_a_changed_node_keeps_its_owners_and_places_nothing_on_what_is_gone(
    before: Node, after: Node, wanted: list[Template]
) -> None:
    """An owner is charged until it gives back, also when its device vanished. [C6.5, INV1]"""
    ledger = mirror_node(before, None)
    held: dict[str, Allocation] = {}
    for number, template in enumerate(wanted):
        got = claim(ledger, demand_of(template))
        if not isinstance(got, Refusal):
            held[f"r{number}"] = got
            ledger = take_allocation(ledger, got, f"r{number}")
    changed = mirror_node(after, ledger)
    assert (changed.used, changed.ports) == (ledger.used, ledger.ports)
    assert changed.allocatable == allocatable_of(after)
    for template in wanted:
        got = claim(changed, demand_of(template))
        listed = {device.id for device in after.spec.devices}
        assert isinstance(got, Refusal) or {s.device for s in got.devices} <= listed
    for owner, got in held.items():
        changed = return_allocation(changed, got, owner)
    assert mirror_node(after, changed) == mirror_node(after, None)


BUSY = NodeLedger(
    gate=NodeGate(uid="node-uid"),
    allocatable={"cpu": 4},
    devices={name: DeviceSlot("gpu") for name in ("g0", "g1")},
)
SHAPES = (
    Demand({"cpu": 1}),
    Demand({"cpu": 3}),
    Demand({"cpu": 1}, ports=("TCP/80",)),
    Demand({"gpu": 1000}, devices=(DeviceDemand("gpu", 1, 1000),)),
    Demand({"cpu": 2, "gpu": 500}, devices=(DeviceDemand("gpu", 1, 500),)),
)


@settings(max_examples=examples(200))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("place", "place", "preempt", "preempt", "gone", "bind")),
            st.sampled_from(SHAPES),
            st.integers(0, 7),
        ),
        min_size=4,
        max_size=14,
    )
)
def test_a_promised_place_is_there_when_its_victims_are_gone(
    steps: list[tuple[str, Demand, int]],
) -> None:
    """Between a preemption's stop and its bind no other work gets the place. [C6.8, G4, INV4]"""
    ledger = BUSY
    held: dict[str, Allocation] = {}
    stopping: dict[str, Allocation] = {}
    promises: dict[str, tuple[Demand, Allocation]] = {}
    for number, (what, demand, pick) in enumerate(steps):
        got = claim(ledger, demand)
        if what == "place" and not isinstance(got, Refusal):
            held[f"r{number}"] = got
            ledger = take_allocation(ledger, got, f"r{number}")
        elif what == "preempt":
            victims = [who for bit, who in enumerate(sorted(held)) if pick >> bit & 1]
            vacated = ledger
            for victim in victims:
                vacated = return_allocation(vacated, held[victim], victim)
            place = claim(vacated, demand)
            if isinstance(place, Refusal):
                continue
            for victim in victims:
                stopping[victim] = held.pop(victim)
                ledger = begin_departure(ledger, stopping[victim])
            promises[f"p{number}"] = (demand, place)
            ledger = promise_allocation(ledger, place, f"p{number}")
        elif what == "gone" and stopping:
            ledger = _gone(ledger, stopping, sorted(stopping)[pick % len(stopping)])
        elif what == "bind" and promises:
            mine = sorted(promises)[pick % len(promises)]
            demand, place = promises[mine]
            if claim(ledger, demand, place.devices, mine) == place:
                del promises[mine]
                held[mine] = place
                ledger = take_allocation(withdraw_promise(ledger, mine), place, mine)
        _check_promises(ledger, dict(stopping), promises)


def _check_promises(
    ledger: NodeLedger,
    stopping: dict[str, Allocation],
    promises: dict[str, tuple[Demand, Allocation]],
) -> None:
    """Once all victims are gone, every promise can be kept, and then nothing of them is left."""
    assert is_whole(ledger)
    for victim in sorted(stopping):
        ledger = _gone(ledger, stopping, victim)
    assert ledger.leaving == {}
    for reservation, (demand, place) in promises.items():
        assert claim(ledger, demand, place.devices, reservation) == place
        ledger = take_allocation(withdraw_promise(ledger, reservation), place, reservation)
        assert is_whole(ledger)
    assert (ledger.promised, ledger.promised_ports) == ({}, {})
    assert not any(slot.promised for slot in ledger.devices.values())


def _gone(ledger: NodeLedger, stopping: dict[str, Allocation], victim: str) -> NodeLedger:
    held = stopping.pop(victim)
    return finish_departure(return_allocation(ledger, held, victim), held)


@given(node=nodes(), template=templates, data=st.data())
def test_a_stated_charge_is_taken_only_if_it_is_sound_and_free(
    node: Node, template: Template, data: st.DataObject
) -> None:
    """What is held ahead is charged in full; no caller sets its own charge. [C6.6, INV1, INV4]"""
    ledger = mirror_node(node, None)
    shares = (
        tuple(
            DeviceShare(device=name, device_class=slot.device_class, milli=milli)
            for name, slot in data.draw(
                st.lists(st.sampled_from([*ledger.devices.items()]), max_size=3)
            )
            for milli in (data.draw(st.sampled_from((-1, 0, 300, MILLI, 2000))),)
        )
        if ledger.devices
        else ()
    )
    charge = dict(demand_of(template).amounts)
    for share in shares:
        charge[share.device_class] = charge.get(share.device_class, 0) + share.milli
    charge |= data.draw(st.dictionaries(st.sampled_from(("cpu", "gpu")), st.integers(-1, 1)))
    held = Allocation(charge=charge, devices=shares, ports=demand_of(template).ports)
    if judge_held(ledger, held) is not None:
        return
    after = take_allocation(ledger, held, "r")
    assert is_whole(after)
    owned: Amounts = {}
    for share in shares:
        owned[share.device_class] = owned.get(share.device_class, 0) + share.milli
    assert all(held.charge[device_class] == milli for device_class, milli in owned.items())
    assert return_allocation(after, held, "r") == ledger


@given(
    wishes=st.lists(
        st.builds(
            MatchRequest,
            count=st.integers(1, 3),
            candidates=st.lists(st.sampled_from("abcdef"), unique=True).map(tuple),
            together=st.booleans(),
        ),
        max_size=4,
    ),
    groups=st.fixed_dictionaries({name: st.integers(0, 2) for name in "abcdef"}),
)
def test_wishes_are_met_exactly_when_they_can_be(
    wishes: list[MatchRequest], groups: dict[str, int]
) -> None:
    """Passing on what was given reaches every answer that trying all of them finds."""
    given_ = match(wishes, groups)
    options = [
        [
            chosen
            for chosen in combinations(wish.candidates, wish.count)
            if not wish.together or len({groups[name] for name in chosen}) == 1
        ]
        for wish in wishes
    ]
    possible = any(
        len({name for chosen in way for name in chosen}) == sum(w.count for w in wishes)
        for way in product(*options)
    )
    assert (given_ is not None) is possible
    if given_ is not None:
        assert all(chosen in option for chosen, option in zip(given_, options, strict=True))
        assert len({n for chosen in given_ for n in chosen}) == sum(w.count for w in wishes)
