"""Ports that the agent picks are free, and not another agent's."""

from __future__ import annotations

import socket

import pytest

from holdfast.host.runtime import ports
from holdfast.host.runtime.ports import FIRST, LAST, choose, take_back
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.template import Port, Protocol


def test_fixed_ports_stay_and_others_are_picked() -> None:
    wanted = (Port(name="a", port=80), Port(name="b"), Port(name="c", protocol=Protocol.UDP))
    chosen = choose(wanted)
    try:
        assert chosen.numbers["a"] == 80
        assert all(FIRST <= chosen.numbers[name] <= LAST for name in "bc")
        assert chosen.picked_ports == (f"TCP/{chosen.numbers['b']}", f"UDP/{chosen.numbers['c']}")
        assert chosen.addresses("fd00::7")["a"] == "[fd00::7]:80"
    finally:
        chosen.release()


def test_a_picked_port_can_be_listened_on_and_is_picked_once() -> None:
    wanted = tuple(Port(name=f"p{i}") for i in range(50))
    one, two = choose(wanted), choose(wanted)
    try:
        numbers = [*one.numbers.values(), *two.numbers.values()]
        assert len(set(numbers)) == 100
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", numbers[0]))
            listener.listen()
    finally:
        one.release()
        two.release()


@pytest.mark.parametrize("kind", [Protocol.TCP, Protocol.UDP])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_that_is_in_use_in_one_family_is_not_picked(
    monkeypatch: pytest.MonkeyPatch, kind: Protocol, family: socket.AddressFamily
) -> None:
    """Work may listen in both."""
    how = socket.SOCK_STREAM if kind is Protocol.TCP else socket.SOCK_DGRAM
    with socket.socket(family, how) as taken:
        if family is socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.bind(("", 0))
        number = taken.getsockname()[1]
        monkeypatch.setattr(ports, "FIRST", number)
        monkeypatch.setattr(ports, "LAST", number)
        with pytest.raises(Unavailable):
            choose((Port(name="a", protocol=kind),))
    picked = choose((Port(name="a", protocol=kind),))
    picked.release()
    assert picked.numbers == {"a": number}


def test_the_next_agent_holds_what_the_last_one_picked() -> None:
    one = choose((Port(name="a"),))
    picked = one.picked_ports
    assert take_back(picked).picked_ports == ()
    one.release()
    two = take_back(picked)
    try:
        assert two.picked_ports == picked
    finally:
        two.release()
