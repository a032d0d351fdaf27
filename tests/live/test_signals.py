"""Real processes whose parent ignores and blocks signals: work, and the tests.

`holdfast up` and its parts are in test_up.py, which always has such a parent.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import Exited
from holdfast.model.kinds.template import Template
from tests.ignoring import below, ignoring, kept_from
from tests.patience import STORY_S
from tests.workshop import play, workshop

ROOT = Path(__file__).resolve().parents[2]
CTRL_C = "test_a_watch_shows_changes_waits_for_a_server_and_ends_with_ctrl_c"
WATCH = f"tests/live/test_cli.py::{CTRL_C}"
SHOW = "import json, sys; print(json.dumps(open('/proc/self/status').read())); sys.exit(7)"


@pytest.mark.parametrize("isolation", [None, "session"])
def test_work_ignores_and_blocks_nothing(tmp_path: Path, isolation: str | None) -> None:
    """Whatever the agent was started by; and how the work ended is known."""

    async def story() -> None:
        async with workshop(tmp_path / "replicas", isolation) as one:
            with ignoring():
                attempt = await one.launched(Template(command=(sys.executable, "-c", SHOW)))
                process = (await one.heard(Exited, attempt)).process
            assert process.exit_code == 7
            assert kept_from(json.loads(one.output(attempt))) == set()

    play(story())


def test_the_tests_pass_in_a_run_that_inherited_signals_as_ignored() -> None:
    """`get -w` is interrupted by a test, and ends."""
    command = below(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", WATCH)
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=STORY_S)
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout
