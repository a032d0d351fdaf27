"""What each test costs: CPU time, its own and that of processes it waited for, and wall time.

A plugin of pytest that tests/conftest.py loads. Every process that runs tests measures them and
attaches the figures to its reports; the controller prints the slowest tests and the share of each
folder when the run ends (`--costs`, as `make test` does), and writes all of them down as lines of
JSON (`--costs-to FILE`).

The cost of a fixture of a module or a session counts towards the test that set it up or took it
down. A process that outlives its parent is waited for by no test, so its CPU time is missing here.
"""

from __future__ import annotations

import json
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF
from typing import Any

import pytest

SLOWEST = 20
# tests/unit/host says more than tests/unit, and tests/unit/host/api is more than a person reads.
FOLDER_PARTS = 3
OUTSIDE = "(collecting, importing)"
PROPERTY = "cost"
STARTED = pytest.StashKey["Moment"]()


@dataclass(frozen=True)
class Moment:
    """Both clocks at once."""

    cpu_s: float
    wall_s: float

    @classmethod
    def now(cls) -> Moment:
        used = (resource.getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN))
        return cls(sum(one.ru_utime + one.ru_stime for one in used), time.monotonic())


@dataclass(frozen=True)
class Cost:
    """What one test took, and which process ran it."""

    test: str
    cpu_s: float
    wall_s: float
    worker: str = ""

    @property
    def folder(self) -> str:
        file = self.test.partition("::")[0]
        return "/".join(file.split("/")[:-1][:FOLDER_PARTS])


class Costs:
    """The plugin of one process: measures its own tests, and hears of those of its workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.costs: list[Cost] = []
        self.outside_cpu_s = 0.0
        self.inside_cpu_s = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        item.stash[STARTED] = Moment.now()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        report: Any = yield
        if call.when == "teardown" and STARTED in item.stash:
            began, ended = item.stash[STARTED], Moment.now()
            cpu_s = ended.cpu_s - began.cpu_s
            self.inside_cpu_s += cpu_s
            report.user_properties = [(PROPERTY, [cpu_s, ended.wall_s - began.wall_s])]
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "teardown" and not hasattr(self.config, "workerinput"):
            worker = getattr(report, "worker_id", "")
            for name, value in report.user_properties:
                if name == PROPERTY:
                    self.costs.append(Cost(without_group(report.nodeid), *value, worker))

    def pytest_sessionfinish(self) -> None:
        outside_s = Moment.now().cpu_s - self.inside_cpu_s
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[PROPERTY] = outside_s
        elif not self.config.getoption("numprocesses", None):
            self.outside_cpu_s += outside_s

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.outside_cpu_s += getattr(node, "workeroutput", {}).get(PROPERTY, 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.costs:
            return
        if self.config.getoption("costs_to"):
            lines = [json.dumps(asdict(cost)) + "\n" for cost in self.costs]
            Path(self.config.getoption("costs_to")).write_text("".join(lines), encoding="utf-8")
        if self.config.getoption("costs"):
            terminalreporter.section("costs")
            for line in table(self.costs, self.outside_cpu_s):
                terminalreporter.write_line(line)


def without_group(test: str) -> str:
    """The id of a test without the group that xdist appends to it."""
    return test.rpartition("@")[0] if test.rfind("@") > test.rfind("]") else test


def slowest(costs: Iterable[Cost], count: int = SLOWEST) -> list[Cost]:
    """A test that waits holds up its process as much as one that computes."""
    return sorted(costs, key=lambda cost: (-max(cost.cpu_s, cost.wall_s), cost.test))[:count]


def shares(costs: Iterable[Cost]) -> dict[str, float]:
    """CPU seconds by folder, the greatest first."""
    found: defaultdict[str, float] = defaultdict(float)
    for cost in costs:
        found[cost.folder] += cost.cpu_s
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def table(costs: list[Cost], outside_cpu_s: float) -> Iterator[str]:
    """What a person reads at the end of a run."""
    by_folder = shares(costs)
    by_folder[OUTSIDE] = outside_cpu_s
    total_s = sum(by_folder.values())
    yield f"{'CPU s':>8} {'wall s':>8}  the slowest {min(SLOWEST, len(costs))} tests"
    for cost in slowest(costs):
        yield f"{cost.cpu_s:8.1f} {cost.wall_s:8.1f}  {cost.test}"
    yield f"{'CPU s':>8} {'share':>8}  folder"
    for folder, cpu_s in by_folder.items():
        yield f"{cpu_s:8.1f} {cpu_s / max(total_s, 1e-9):8.1%}  {folder}"
    yield f"{total_s:8.1f} {1:8.1%}  in all: {total_s / 60:.1f} CPU minutes"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("costs")
    group.addoption("--costs", action="store_true", help="print the slowest tests")
    group.addoption("--costs-to", default="", help="write what each test cost into this file")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config), "costs-of-tests")
