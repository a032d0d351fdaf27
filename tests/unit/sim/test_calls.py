"""Ask and Answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.machine import Answer, Answered, Ask, Asked, Started
from holdfast.model.time import Instant
from holdfast.sim.plan import Fault
from holdfast.sim.world import World
from tests.unit.sim.machines import Seen, echo, on_start

ASK = Ask(1, "server", "hello", 1_000)


def _pair(*faults: Fault, react: Any = echo, seed: int = 0) -> tuple[World, Seen, Seen]:
    """A client that sends its request at once; faults at time zero strike before that."""
    world = World(seed)
    client, server = Seen(world, on_start(ASK)), Seen(world, react)
    world.add_host("client")
    world.add("server", server)
    for fault in faults:
        world.faults.schedule(fault)
    world.run_until(0)
    world.add("client", client, identity="user:ann")
    return world, client, server


def test_a_request_is_answered_and_names_its_sender() -> None:
    """The sender is the identity that the shell authenticated. [N6]"""
    world, client, server = _pair()
    world.run_until(5_000_000)
    assert client.of(Answered) == [Answered(1, "hello")]
    assert server.of(Asked)[0].sender == "user:ann"
    assert client.times_of(Answered)[0] < 10


@pytest.mark.parametrize("fault", ["partition", "cut"])
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_request_lost_in_a_cut_ends_as_unknown_at_the_time_out(fault: str, side: str) -> None:
    """A client cannot tell a lost request from a lost answer. [N5, N6]"""
    world, client, server = _pair(Fault(0, fault, side, "*", for_ms=10_000))
    world.run_until(5_000_000)
    (answer,) = client.of(Answered)
    assert isinstance(answer.body, OutcomeUnknown)
    assert client.times_of(Answered) == [1_000]
    answer_was_lost = (fault, side) == ("cut", "server")
    assert bool(server.of(Asked)) == answer_was_lost


def test_a_refused_connection_did_not_happen() -> None:
    """The computer is up and the machine on it is not: that is certain, and known at once. [N6]"""
    world, client, _ = _pair(Fault(0, "crash", "server", for_ms=9_000))
    world.run_until(5_000_000)
    (answer,) = client.of(Answered)
    assert isinstance(answer.body, Unavailable)
    assert client.times_of(Answered)[0] < 10


def test_a_machine_that_never_answers_is_given_up_at_the_time_out() -> None:
    """Each call has exactly one answer. [N6]"""
    world, client, _ = _pair(react=None)
    world.run_until(60_000_000)
    assert [type(answer.body) for answer in client.of(Answered)] == [OutcomeUnknown]
    assert world.cells["server"].inbound == {}


def test_an_answer_after_the_time_out_is_dropped() -> None:
    """Each call has exactly one answer, even if a second one arrives late. [N6]"""
    world, client, server = _pair(react=None)
    world.run_until(2_000_000)
    asked = server.of(Asked)[0]
    world.performers[Answer](world.cells["server"], Answer(asked.call, "late"))
    world.run_until(4_000_000)
    assert len(client.of(Answered)) == 1


def test_a_server_that_dies_with_the_request_leaves_its_outcome_unknown() -> None:
    """The connection breaks at once; the request may have taken effect. [N5, N6]"""
    world, client, _ = _pair(Fault(100, "crash", "server", for_ms=0), react=None)
    world.run_until(5_000_000)
    (answer,) = client.of(Answered)
    assert isinstance(answer.body, OutcomeUnknown)
    assert client.times_of(Answered)[0] < 110


def test_a_crashed_asker_gets_no_answers_to_its_former_calls() -> None:
    """Answers under way to a life that has ended are lost. [N6]"""
    world = World(0)

    def react(stimulus: Any, now: Instant) -> Sequence[Any]:
        first = isinstance(stimulus, Started) and len(client.seats) == 1
        return (ASK,) if first else ()

    client = Seen(world, react)
    world.add("server", Seen(world, echo))
    world.add("client", client)
    world.cells["client"].lay_fuse(1, "crash", 0)
    world.run_until(5_000_000)
    assert client.of(Answered) == []
    assert len(client.seats) == 2


def test_a_doubled_request_is_asked_twice_and_answered_once() -> None:
    """Servers must be idempotent; clients need not count answers. [N6]"""
    world, client, server = _pair(Fault(0, "duplicate", "client", "*", for_ms=10_000, amount=1_000))
    world.run_until(5_000_000)
    assert len(server.of(Asked)) == 2
    assert len(client.of(Answered)) == 1


def test_a_request_is_not_unavailable_while_a_copy_is_under_way() -> None:
    """A refused copy does not prove that the other one was refused as well. [N6]"""
    reached = 0
    for seed in range(30):
        world, client, server = _pair(
            Fault(0, "crash", "server", for_ms=150),
            Fault(0, "duplicate", "client", "*", for_ms=9_000, amount=1_000),
            Fault(0, "scatter", "client", "*", for_ms=9_000, amount=500),
            seed=seed,
        )
        world.run_until(5_000_000)
        (answer,) = client.of(Answered)
        reached += bool(server.of(Asked))
        assert not (isinstance(answer.body, Unavailable) and server.of(Asked))
    assert reached > 10


def test_a_balanced_address_reaches_all_of_its_members() -> None:
    """One name for several servers. [N6]"""
    world = World(0)
    servers = [Seen(world, echo), Seen(world, echo)]
    for number, server in enumerate(servers):
        world.add(f"s{number}", server)
    world.balance("server", ("s0", "s1"))
    client = Seen(world, on_start(*(Ask(call, "server", "x", 1_000) for call in range(50))))
    world.add("client", client)
    world.run_until(5_000_000)
    assert len(client.of(Answered)) == 50
    assert all(10 < len(server.of(Asked)) < 40 for server in servers)


def _far_apart(timeout_ms: int, *faults: Fault) -> tuple[World, Seen, Seen]:
    """A client and a server with exactly 50 ms between them."""
    world = World(0)
    world.network.set_delay("eu", "us", 50_000, 0)
    client = Seen(world, on_start(Ask(1, "server", "hello", timeout_ms)))
    server = Seen(world, echo)
    for name, region, machine in (("server", "us", server), ("client", "eu", client)):
        world.add_host(name, region=region)
        world.add(name, machine)
    for fault in faults:
        world.faults.schedule(fault)
    return world, client, server


@pytest.mark.parametrize("timeout_ms", [30, 80])
def test_a_time_out_shorter_than_the_way_is_kept_to_the_millisecond(timeout_ms: int) -> None:
    """The request or the answer is still under way by then. [N6]"""
    world, client, server = _far_apart(timeout_ms)
    world.run_until(5_000_000)
    (answer,) = client.of(Answered)
    assert isinstance(answer.body, OutcomeUnknown)
    assert client.times_of(Answered) == [timeout_ms]
    assert len(server.of(Asked)) == 1


@pytest.mark.parametrize("at_ms, arrives", [(20, False), (70, True)])
def test_a_cut_strikes_what_is_under_way(at_ms: int, arrives: bool) -> None:
    """It strikes the request, or the answer to it. [N5, N6]"""
    fault = Fault(at_ms, "partition", "client", "*", for_ms=500)
    world, client, server = _far_apart(1_000, fault)
    world.run_until(5_000_000)
    (answer,) = client.of(Answered)
    assert isinstance(answer.body, OutcomeUnknown)
    assert client.times_of(Answered) == [1_000]
    assert bool(server.of(Asked)) == arrives


def test_an_unknown_address_is_unavailable() -> None:
    """A typo is not a time-out. [N6]"""
    world = World(0)
    client = Seen(world, on_start(Ask(1, "nobody", "x", 1_000)))
    world.add("client", client)
    world.run_until(5_000_000)
    assert isinstance(client.of(Answered)[0].body, Unavailable)
