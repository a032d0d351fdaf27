"""A process is killed only if it is the very one that was named."""

from __future__ import annotations

import os
import subprocess

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime.shim_records import ProcessIdentity, ShimState
from holdfast.host.runtime.survivors import end, kill, start_of
from tests.patience import PATIENCE_S


def test_a_process_with_another_start_time_is_left_alone() -> None:
    """[INV2]"""
    with subprocess.Popen(["sleep", "60"]) as child:
        start = start_of(child.pid)
        assert start is not None
        assert kill(ProcessIdentity(child.pid, start + 1), 100)
        assert child.poll() is None
        assert kill(ProcessIdentity(child.pid, start), 5_000)
        assert child.wait(PATIENCE_S) == -9
    assert kill(ProcessIdentity(child.pid, start), 100)


def test_a_name_with_parentheses_hides_no_start_time() -> None:
    start = start_of(os.getpid())
    with subprocess.Popen(["sh", "-c", "echo ') R 1 (' > /proc/$$/comm; echo; sleep 60"],
                          stdout=subprocess.PIPE) as child:  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        assert start is not None
        assert (start_of(child.pid) or 0) >= start
        child.kill()


def test_no_pid_is_no_process() -> None:
    assert start_of(2**22 + 1) is None
    for pid in (0, -1, 2**22 + 1):
        assert kill(ProcessIdentity(pid, 0), 0)


def test_without_a_namespace_the_mark_finds_what_is_left() -> None:
    """[INV2]"""
    mark = {"HOLDFAST_ATTEMPT": "left-over/3", "PATH": os.environ["PATH"]}
    state = ShimState("b", ProcessIdentity(0, 0), ProcessIdentity(0, 0), "session", 0)
    with subprocess.Popen(["sleep", "60"], env=mark, start_new_session=True) as child:
        other = {**mark, "HOLDFAST_ATTEMPT": "left-over/33"}
        with subprocess.Popen(["sleep", "60"], env=other) as spared:
            assert end(Attempt("left-over", 3), state)
            assert child.wait(PATIENCE_S) == -9
            assert spared.poll() is None
            spared.kill()
