"""Ports that the agent picks are free, and nobody else's."""

from __future__ import annotations

import socket

from holdfast.host.runtime.ports import FIRST, LAST, choose, take_back
from holdfast.model.kinds.template import Port, Protocol


def test_fixed_ports_stay_and_others_are_picked() -> None:
    wanted = (Port(name="a", port=80), Port(name="b"), Port(name="c", protocol=Protocol.UDP))
    chosen = choose(wanted)
    try:
        assert chosen.numbers["a"] == 80
        assert all(FIRST <= chosen.numbers[name] <= LAST for name in "bc")
        assert chosen.picked == (f"TCP/{chosen.numbers['b']}", f"UDP/{chosen.numbers['c']}")
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


def test_the_next_agent_holds_what_the_last_one_picked() -> None:
    one = choose((Port(name="a"),))
    picked = one.picked
    assert take_back(picked).picked == ()
    one.release()
    two = take_back(picked)
    try:
        assert two.picked == picked
    finally:
        two.release()
