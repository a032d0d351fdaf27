"""The process table of the agents world: full disks, paused shims, and behaviours of work."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agent.runtime_protocol import (
    Attempt,
    Check,
    Exited,
    Extend,
    Halt,
    Launch,
    Launched,
    NotLaunched,
    Probed,
    RunProbe,
)
from holdfast.model.kinds.template import ExecAction, Template
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.time import Instant
from holdfast.sim.cell import Seat, SimulatedMachine
from holdfast.sim.plan import Fault, Prompted
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.process_table import DISK_FULL, OVERDUE_MS, AgentProcesses

ATTEMPT = Attempt("u1", 0)


class OrderedMachine:
    """A machine that performs given effects and records its stimuli, with the clock reading."""

    def __init__(self, seat: Seat) -> None:
        self.received: list[tuple[int, Any]] = []

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        if isinstance(stimulus, Prompted):
            effects = stimulus.body(now.monotonic_ms)
            return effects if isinstance(effects, list) else [effects]
        self.received.append((now.monotonic_ms, stimulus))
        return []


class Bench:
    """One node and a machine that sends orders to its shims."""

    def __init__(self) -> None:
        self.world = World(1)
        self.table = AgentProcesses(self.world, FenceTiming())
        self.cell = self.world.add("n1", OrderedMachine)
        self.world.run_until(1)

    def tell(self, effects: Any) -> None:
        """Perform what `effects` returns for the node's current clock reading."""
        self.world.hand(self.cell, Prompted(effects))

    def launch(self, *manner: str, within_ms: int | None = 60_000, grace_ms: int = 1_000) -> None:
        def effects(now_ms: int) -> Launch:
            template = Template(command=("work", *manner))
            until_ms = None if within_ms is None else now_ms + within_ms
            return Launch(ATTEMPT, "ns", "w-0", template, 1, until_ms, grace_ms)

        self.tell(effects)

    def strike(self, kind: str, for_ms: int) -> None:
        at_ms = self.world.now_us // 1000
        self.world.faults.schedule(Fault(at_ms, kind, "n1", for_ms=for_ms))

    def after(self, ms: int) -> None:
        self.world.run_until(self.world.now_us + ms * 1000)

    def received(self, kind: type[Any]) -> Any:
        """The one stimulus of a kind."""
        machine: SimulatedMachine | None = self.cell.machine
        assert isinstance(machine, OrderedMachine)
        (found,) = [it for _, it in machine.received if isinstance(it, kind)]
        return found

    @property
    def runs(self) -> bool:
        return bool(self.table.running())


def test_a_full_disk_refuses_a_start_and_leaves_nothing_behind() -> None:
    """The same attempt may be tried again."""
    bench = Bench()
    bench.strike("disk_full", 1_000)
    bench.after(10)
    bench.launch("steady", "0")
    bench.after(100)
    assert bench.received(NotLaunched).process.reason == DISK_FULL
    assert bench.table.table(bench.cell.host) == {}


def test_work_of_a_paused_shim_may_outlive_its_deadline_and_is_counted_separately() -> None:
    """A shim that resumes finds the deadline passed, and later renewals do not count. [INV2]"""
    bench = Bench()
    bench.launch("hangs", "0", within_ms=10_000)
    bench.after(5_000)
    bench.strike("shim_pause", 10_000)
    bench.after(1_000)
    bench.tell(lambda now_ms: Extend(now_ms + 60_000))
    bench.after(6_500)
    ((_, held),) = bench.table.running()
    assert held.was_frozen
    bench.after(5_000)
    assert bench.received(Exited).process.reason == "DeadlinePassed"


def test_a_renewal_that_a_shim_finds_when_it_resumes_in_time_counts() -> None:
    """[INV2]"""
    bench = Bench()
    bench.launch("steady", "0", within_ms=20_000)
    bench.after(5_000)
    bench.strike("shim_pause", 5_000)
    bench.after(1_000)
    bench.tell(lambda now_ms: Extend(now_ms + 60_000))
    bench.after(30_000)
    ((_, held),) = bench.table.running()
    assert not held.was_frozen


def test_a_shim_that_does_not_stop_its_work_is_ended_with_it() -> None:
    """[INV2]"""
    bench = Bench()
    bench.launch("steady", "0")
    bench.after(5_000)
    bench.strike("shim_pause", 60_000)
    bench.after(10)
    bench.tell(lambda now_ms: Halt(ATTEMPT, 1_000))
    bench.after(1_000 + OVERDUE_MS - 50)
    assert bench.runs
    bench.after(100)
    assert bench.received(Exited).process.reason == "ShimDied"


def test_a_stop_that_comes_before_the_start_is_done_ends_what_was_started() -> None:
    """It is reported as started and ended, in this order. [H1]"""
    bench = Bench()
    bench.launch("hangs", "0")
    bench.tell(lambda now_ms: Halt(ATTEMPT, 500))
    bench.after(10_000)
    assert bench.received(Launched).process.id
    assert bench.received(Exited).process.reason == "Stopped"


def test_an_attempt_that_was_started_before_is_reported_as_it_is() -> None:
    """A report that it does not run could lead to a second copy. [INV2]"""
    bench = Bench()
    bench.launch("crashes", "2000")
    bench.after(10_000)
    assert bench.cell.machine is not None
    bench.cell.machine.received.clear()  # type: ignore[attr-defined]
    bench.launch("crashes", "2000")
    bench.after(10_000)
    assert bench.received(Launched).attempt == ATTEMPT
    assert bench.received(Exited).process.exit_code == 1
    assert not bench.runs


@pytest.mark.parametrize(
    "manner, after_ms, code, signal, is_oom",
    [
        (("crashes", "2000"), 9_000, 1, None, False),
        (("finishes", "2000"), 9_000, 0, None, False),
        (("eats", "2000"), 9_000, None, 9, True),
    ],
)
def test_work_ends_by_its_manner(
    manner: tuple[str, ...], after_ms: int, code: int | None, signal: int | None, is_oom: bool
) -> None:
    """[N6]"""
    bench = Bench()
    bench.launch(*manner)
    bench.after(after_ms)
    process = bench.received(Exited).process
    assert (process.exit_code, process.signal, process.oom_killed) == (code, signal, is_oom)


@pytest.mark.parametrize(
    "manner, kind, is_ok",
    [
        (("steady", "0"), Check.LIVENESS, True),
        (("sickens", "1000"), Check.LIVENESS, False),
        (("sickens", "1000"), Check.READINESS, True),
        (("sulks", "1000"), Check.READINESS, False),
        (("sulks", "1000"), Check.LIVENESS, True),
        (("slow", "60000"), Check.STARTUP, False),
        (("stuck", "0"), Check.STARTUP, False),
        (("steady", "0"), Check.PRE_STOP, True),
        (("hangs", "0"), Check.PRE_STOP, False),
    ],
)
def test_work_answers_by_its_manner(manner: tuple[str, ...], kind: Check, is_ok: bool) -> None:
    """[N6]"""
    bench = Bench()
    bench.launch(*manner)
    bench.after(8_000)
    bench.tell(lambda now_ms: RunProbe(ATTEMPT, kind, ExecAction(("ask",)), 2_000))
    bench.after(3_000)
    assert bench.received(Probed).ok is is_ok
