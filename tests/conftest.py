"""What all tests share: how hypothesis searches, which tests are live, what has no proof yet."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
from _pytest.nodes import Node
from hypothesis import HealthCheck, settings

from tests import old_groups
from tools import requirements

TESTS = Path(__file__).parent

# On a busy machine an example may take long for no fault of its own; the test's own time-out judges
# instead. The printed blob replays a failure that another machine found.
settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("HOLDFAST_HYPOTHESIS", "default"))
old_groups.set_apart()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where a test lies says whether it is live, so that nobody forgets the mark."""
    for item in items:
        if item.path.is_relative_to(TESTS / "live"):
            item.add_marker(pytest.mark.live)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run where xdist cannot keep groups of tests together, as it does by a private name
    of pytest: what a group sets up would be set up in every process, and nobody would notice.
    """
    groups = config.getoption("dist", "no") == "loadgroup"
    if groups and "_nodeid" not in Node.__slots__:
        raise pytest.UsageError(
            f"pytest {pytest.__version__} and pytest-xdist do not fit together: "
            "groups of tests would be spread over all processes; install what constraints.txt says"
        )


def pytest_sessionfinish() -> None:
    """Leave no control groups of agents that were killed long ago."""
    old_groups.remove()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which requirements no test proves, after a run that included the test of that page."""
    ran = {
        report.nodeid.partition("::")[0]
        for reports in terminalreporter.stats.values()
        for report in reports
        if hasattr(report, "nodeid")
    }
    if any(path.endswith("test_requirements.py") for path in ran):
        terminalreporter.section("requirements")
        for line in requirements.summary().splitlines():
            terminalreporter.write_line(textwrap.fill(line, 100))
