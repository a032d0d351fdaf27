"""What all tests share: how hypothesis searches, which tests are live, what has no proof yet, and
that no secret is left where it does not belong.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
from _pytest.nodes import Node
from hypothesis import HealthCheck, settings

from holdfast.host.process.foreground import forget_inherited
from holdfast.host.runtime import run_as
from tests import canaries, old_groups, scale
from tools import requirements

pytest_plugins = ["tests.costs"]

TESTS = Path(__file__).parent
LEAKS = pytest.StashKey[list[str]]()

# On a busy machine an example may take long for no fault of its own; the test's own time-out judges
# instead. The printed blob replays a failure that another machine found.
settings.register_profile(
    "default",
    max_examples=scale.examples(100),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("default"), max_examples=100)
settings.register_profile("long", settings.get_profile("default"), max_examples=5_000)
settings.load_profile(os.environ.get("HOLDFAST_HYPOTHESIS", scale.scaled("default", "ci")))
old_groups.set_apart()
# aiohttp reads all certificates that the machine trusts whenever it is imported, which takes a
# quarter of the time that a command needs to start. No test trusts one of them.
os.environ.setdefault("SSL_CERT_FILE", os.devnull)
# A shell that runs the tests in the background may ignore signals; their processes must not.
forget_inherited()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where a test lies says whether it is live, so that no test lacks the mark; long ones are
    left for the long run.
    """
    for item in items:
        if item.path.is_relative_to(TESTS / "live"):
            item.add_marker(pytest.mark.live)
    if not scale.IS_LONG:
        left = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left)
    if hasattr(config, "workerinput"):
        _interleave(items)


def _interleave(items: list[pytest.Item]) -> None:
    """Let live tests, which mostly wait, and simulations, which compute all the time, begin by
    turns, so that no processor is idle; all others follow.
    """
    places: list[tuple[float, pytest.Item]] = []
    for room in ("live", "sim"):
        inside = [item for item in items if item.path.is_relative_to(TESTS / room)]
        places += [(number / len(inside), item) for number, item in enumerate(inside)]
    first = [item for _, item in sorted(places, key=lambda place: place[0])]
    chosen = {item.nodeid for item in first}
    items[:] = [*first, *(item for item in items if item.nodeid not in chosen)]


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run where xdist cannot keep groups of tests together, as it does by a private name
    of pytest: what a group sets up would be set up in every process without notice.
    """
    groups = config.getoption("dist", "no") == "loadgroup"
    if groups and "_nodeid" not in Node.__slots__:
        raise pytest.UsageError(
            f"pytest {pytest.__version__} and pytest-xdist do not fit together: "
            "groups of tests would be spread over all processes; install what constraints.txt says"
        )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let all processes of this session note the secrets that must not be found anywhere."""
    if not hasattr(session.config, "workerinput"):
        os.environ[canaries.VARIABLE] = str(_temporary(session) / canaries.PLANTED)
        # The machine's own table never loses a row; agents of tests must not fill it up.
        os.environ[run_as.TABLE_VARIABLE] = str(_temporary(session) / "machine" / "run-as")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave no control groups of agents that were killed long ago, and no secret in any file."""
    old_groups.remove()
    if hasattr(session.config, "workerinput") or not session.testscollected:
        return
    folder = _temporary(session)
    secrets = canaries.planted(folder / canaries.PLANTED)
    session.config.stash[LEAKS] = found = list(canaries.leaks(folder, secrets))
    if found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _temporary(session: pytest.Session) -> Path:
    """Below which all tests of a session, in whatever process, have their directories."""
    return session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which requirements no test proves, after a run that included the test of that page."""
    ran = {
        report.nodeid.partition("::")[0]
        for reports in terminalreporter.stats.values()
        for report in reports
        if hasattr(report, "nodeid")
    }
    leaks = terminalreporter.config.stash.get(LEAKS, [])
    if leaks:
        terminalreporter.section("secrets where they do not belong", red=True)
        for line in leaks[:100]:
            terminalreporter.write_line(line)
    if any(path.endswith("test_requirements.py") for path in ran):
        terminalreporter.section("requirements")
        for line in requirements.summary().splitlines():
            terminalreporter.write_line(textwrap.fill(line, 100))
