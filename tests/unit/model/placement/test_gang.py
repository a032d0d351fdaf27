"""Gangs: how many members are needed, spare, or left; their ports and variables."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.kinds.replica import Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.kinds.template import Port, Protocol, Template
from holdfast.model.kinds.workload import (
    Gang,
    JobStatus,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
    WorkloadType,
)
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.fit import Allocation
from holdfast.model.placement.gang import (
    PORTS_FIRST,
    is_broken,
    is_formed,
    left_running,
    member_variables,
    members_needed,
    spare_members,
    with_member_ports,
    with_numbers,
)
from holdfast.model.quota.ledger import NodeGate, NodeLedger
from holdfast.model.refusal import Refusal
from holdfast.model.time import timestamp

TEMPLATE = Template(ports=(Port(name="rdzv"), Port(name="up-d", port=0, protocol=Protocol.UDP)))


def workload(done: str = "", **spec: Any) -> Workload:
    status = WorkloadStatus(job=JobStatus(completed_indexes=done))
    return Workload(
        ObjectMeta(name="ring", namespace="acme", uid="u"),
        spec=WorkloadSpec(template=TEMPLATE, **{"replicas": 8, **spec}),
        status=status,
    )


def members(*states: State) -> list[Replica]:
    spec = ReplicaSpec("ring", "u", TEMPLATE, gang="ring")
    return [
        Replica(ObjectMeta(name=f"ring-{n}-0"), spec=spec, status=ReplicaStatus(state=state))
        for n, state in enumerate(states)
    ]


def record(*claims: Claim, phase: ReservationPhase = ReservationPhase.CONSUMED) -> Reservation:
    spec = ReservationSpec(
        ReservationOwner("Workload", "ring", "u"), Intent.GANG, timestamp(0), min_available=2
    )
    return Reservation(
        ObjectMeta(name="ring-gang", namespace="acme"),
        spec=spec,
        status=ReservationStatus(phase=phase, claims=claims),
    )


@pytest.mark.parametrize(
    "made, needed",
    [
        (workload(), 0),
        (workload(gang=Gang(min_available=5)), 5),
        (workload(gang=Gang(min_available=5), type=WorkloadType.JOB), 5),
        (workload("0-4", gang=Gang(min_available=5), type=WorkloadType.JOB), 3),
        (workload("0-7", gang=Gang(min_available=5), type=WorkloadType.JOB), 1),
    ],
)
def test_as_many_are_needed_as_are_left_to_do(made: Workload, needed: int) -> None:
    """[G5]"""
    assert members_needed(made) == needed


def test_members_beyond_the_minimum_are_spare() -> None:
    """[G5]"""
    four = tuple(Claim("n", f"ring-{n}-0") for n in range(4))
    assert spare_members(record(*four), 2) == 2
    assert spare_members(record(*four), 3) == 2, "raised since it started"
    assert spare_members(record(*four), 1) == 3, "lowered since it started"
    assert spare_members(record(four[0]), 2) == -1
    states = (State.BOUND, State.RUNNING, State.UNKNOWN, State.RESERVED)
    assert left_running(members(*states, State.STOPPING, State.PENDING, State.SUCCEEDED)) == 4


def test_a_gang_is_formed_by_its_own_committed_record_only() -> None:
    """[G5]"""
    assert is_formed(record(), "u")
    assert not is_formed(record(), "earlier")
    assert not is_formed(None, "u")
    for phase in (ReservationPhase.HELD, ReservationPhase.RELEASED):
        assert not is_formed(record(phase=phase), "u")


def test_fewer_than_either_minimum_break_a_gang() -> None:
    """[G5]"""
    one = record(Claim(replica="ring-0-0"))
    assert is_broken(one, 2)
    assert not is_broken(one, 1)
    assert is_broken(one, 8)


def test_members_are_listed_in_the_order_of_their_indexes() -> None:
    ports = ("TCP/15001", "UDP/15002")
    made = record(
        Claim("n2", "ring-10-0", "10.0.0.2", ports=ports),
        Claim("n1", "ring-2-3", "fd00::1", ports=ports),
    )
    assert member_variables(made, TEMPLATE) == {
        "HOLDFAST_GANG_SIZE": "2",
        "HOLDFAST_MEMBERS": "ring-2-3,ring-10-0",
        "HOLDFAST_MEMBERS_RDZV": "[fd00::1]:15001,10.0.0.2:15001",
        "HOLDFAST_MEMBERS_UP_D": "[fd00::1]:15002,10.0.0.2:15002",
    }
    unnamed = record(Claim("n2", "ring-10-0", ports=ports))
    assert member_variables(unnamed, TEMPLATE) == {"HOLDFAST_GANG_SIZE": "1"}


def test_ports_that_are_free_are_chosen_and_no_number_twice() -> None:
    key = f"TCP/{PORTS_FIRST}"
    ledger = NodeLedger(gate=NodeGate(uid="n"), ports={key: "other"})
    twice = Template(ports=(Port(name="a"), Port(name="b"), Port(name="c", port=80)))
    held = with_member_ports(ledger, twice, Allocation({}, ports=("TCP/80",)), 0)
    assert not isinstance(held, Refusal)
    assert held.ports == (f"TCP/{PORTS_FIRST + 1}", f"TCP/{PORTS_FIRST + 2}", "TCP/80")
    assert [it.port for it in with_numbers(twice, held.ports).ports] == [15_001, 15_002, 80]
    assert with_numbers(twice, ()) is twice
