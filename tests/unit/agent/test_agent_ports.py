"""Which addresses an agent publishes of work that shares the ports of its node with others."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agent.runtime_protocol import OPENING_MS, RunProbe
from holdfast.agent.work import UNOPENED_COMPLAINT_MS
from holdfast.model.kinds.template import Port, Probes, TcpAction
from holdfast.model.kinds.template import Probe as ProbeSpec
from holdfast.model.lifecycle import Stage, State
from holdfast.model.requests import Move, ReportStage
from tests.unit.agent.rig import Rig
from tests.unit.agent.running_work import asked, made, started

ADDRESSES = {"http": "10.0.0.1:20001", "rpc": "10.0.0.1:20002"}
PORTS = (Port("http"), Port("rpc"))


def begun(rig: Rig, **more: Any) -> Any:
    """A replica that runs and listens nowhere yet."""
    replica = rig.bound(ports=PORTS, **more)
    rig.settle()
    rig.launched(replica.name, **ADDRESSES)
    rig.settle()
    return replica


def told(rig: Rig) -> set[str]:
    """The names of all ports of which the servers were ever told an address."""
    said = [*asked(rig, Move), *asked(rig, ReportStage)]
    return {name for it in said if it.process is not None for name in it.process.addresses}


def published(rig: Rig, replica: Any) -> tuple[Stage, list[str]]:
    status = rig.state(replica)
    return status.stage, sorted(status.process.addresses)


def test_no_address_is_reported_before_the_work_listens_there() -> None:
    """And it is not ready before it listens everywhere. [A6]"""
    rig = started()
    replica = begun(rig)
    rig.wait(1_000)
    rig.opened(replica.name, "http")
    rig.settle()
    assert published(rig, replica) == (Stage.STARTING, [])
    assert told(rig) == set()
    rig.opened(replica.name, "rpc")
    rig.settle()
    assert published(rig, replica) == (Stage.READY, ["http", "rpc"])
    # It costs no more reports than work without ports.
    assert len(asked(rig, ReportStage)) == 1


def test_work_that_opens_no_listener_says_so_and_is_ready_without_that_address() -> None:
    """It may have a port that it never uses; a later listener is published."""
    rig = started()
    replica = begun(rig)
    rig.opened(replica.name, "rpc")
    rig.wait(UNOPENED_COMPLAINT_MS)
    rig.settle()
    assert rig.state(replica).stage is Stage.STARTING
    assert rig.state(replica).process.reason == "NotReady: port http has no listener yet"
    rig.wait(OPENING_MS - UNOPENED_COMPLAINT_MS)
    rig.settle()
    assert published(rig, replica) == (Stage.READY, ["rpc"])
    assert rig.state(replica).process.reason == ""
    rig.wait(60_000)
    rig.settle()
    count = len(asked(rig, ReportStage))
    rig.opened(replica.name, "http")
    rig.settle()
    assert published(rig, replica) == (Stage.READY, ["http", "rpc"])
    assert len(asked(rig, ReportStage)) == count + 1


def test_a_probe_asks_a_port_that_is_not_published_yet() -> None:
    """Both have to come true before it is ready, in any order. [A6]"""
    rig = started()
    probes = Probes(readiness=ProbeSpec(tcp=TcpAction(port="http"), period_seconds=1))
    replica = begun(rig, probes=probes)
    assert [it.action for it in made(rig, RunProbe)] == [TcpAction(port=20001)]
    rig.probed(replica.name, "readiness")
    rig.settle()
    assert published(rig, replica) == (Stage.STARTING, [])
    rig.opened(replica.name, "http", "rpc")
    rig.settle()
    assert published(rig, replica) == (Stage.READY, ["http", "rpc"])


@pytest.mark.parametrize("opened", [("http", "rpc"), ("http",), ()])
def test_what_an_agent_has_published_its_next_life_does_not_take_back(
    opened: tuple[str, ...],
) -> None:
    """Nor is work unready for a port that it never opened. [C7.4]"""
    rig = started()
    replica = begun(rig)
    rig.opened(replica.name, *opened)
    rig.wait(OPENING_MS)
    rig.settle()
    assert published(rig, replica) == (Stage.READY, sorted(opened))
    rig.stop()
    rig.trace.clear()
    rig.up()
    rig.wait(2 * OPENING_MS)
    rig.settle()
    assert asked(rig, ReportStage) == asked(rig, Move) == []
    assert published(rig, replica) == (Stage.READY, sorted(opened))


def test_a_listener_that_the_next_agent_does_not_find_is_not_published_any_more() -> None:
    """Another tenant might take its port by now."""
    rig = started()
    replica = begun(rig)
    rig.opened(replica.name, "http", "rpc")
    rig.settle()
    rig.stop()
    rig.held(replica.name, "running").unopened = ("rpc",)
    rig.up()
    assert published(rig, replica) == (Stage.READY, ["http"])
    rig.opened(replica.name, "rpc")
    rig.settle()
    assert published(rig, replica) == (Stage.READY, ["http", "rpc"])


def test_the_next_attempt_has_opened_nothing() -> None:
    rig = started()
    replica = begun(rig)
    rig.opened(replica.name, "http", "rpc")
    rig.settle()
    rig.exited(replica.name, 1)
    rig.settle()
    rig.wait(1_000)
    rig.trace.clear()
    rig.launched(replica.name, **ADDRESSES)
    rig.settle()
    assert (published(rig, replica)[0], told(rig)) == (Stage.STARTING, set())
    rig.opened(replica.name, "http", "rpc")
    rig.settle()
    assert published(rig, replica) == (Stage.READY, ["http", "rpc"])


@pytest.mark.parametrize("kind", ["Move", "ReportStage"])
def test_a_port_that_opens_while_an_answer_is_lost_is_published_all_the_same(kind: str) -> None:
    """The repetition says more than what was accepted: it is refused, and then read. [N1.1]"""
    rig = started()
    replica = rig.bound(ports=PORTS)
    rig.settle()
    rig.launched(replica.name, **ADDRESSES)
    if kind == "ReportStage":
        rig.settle()
        rig.wait(UNOPENED_COMPLAINT_MS)
    rig.lose(kind)
    rig.opened(replica.name, "http", "rpc")
    rig.wait(1_000)
    rig.settle()
    rig.wait(1_000)
    rig.settle()
    assert rig.state(replica).state is State.RUNNING
    assert published(rig, replica) == (Stage.READY, ["http", "rpc"])
