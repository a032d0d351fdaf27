"""What shims write is read back, and incomplete records are not."""

from __future__ import annotations

import errno

import msgspec
import pytest

from holdfast.agent.runtime_protocol import DEADLINE_PASSED
from holdfast.host.runtime.shim_records import (
    Exit,
    ProcessIdentity,
    ShimState,
    ended_process,
    exit_text,
    parse_exit,
    parse_state,
    running_process,
)

EXIT = Exit("Stopped", 1, -1, 15, 0, "b00t", ProcessIdentity(41, 99), 1_000, 2_000)
STATE = "boot b00t\nshim 40/98\nwork 41/99\nisolation session\nstarted_ms 1000\nend\n"


def test_an_exit_is_read_as_it_was_written() -> None:
    assert parse_exit(exit_text(EXIT)) == EXIT


def test_a_state_is_read() -> None:
    state = ShimState("b00t", ProcessIdentity(40, 98), ProcessIdentity(41, 99), "session", 1_000)
    assert parse_state(STATE) == state


@pytest.mark.parametrize(
    "text",
    [
        "",
        "end\n",
        STATE.removesuffix("end\n"),
        STATE.replace("41/99", "41"),
        STATE.replace("41/99", "-41/99"),
        STATE.replace("41/99", "41/99/7"),
        STATE.replace("1000", "1e3"),
        STATE.replace("1000", "9" * 40),
        STATE.replace("isolation", "isolations"),
    ],
)
def test_what_is_not_a_whole_state_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        parse_state(text)


def test_a_running_process_is_named_by_boot_pid_and_start_time() -> None:
    """[H1]"""
    process = running_process(parse_state(STATE), {"cpu": "none"}, {"http": "h:1"})
    assert process.id == "b00t/41/99"
    assert process.limits == {"cpu": "none", "isolation": "session"}
    assert process.addresses == {"http": "h:1"}


@pytest.mark.parametrize(
    "exit_, code, signal, reason",
    [
        (EXIT, None, 15, "Stopped"),
        (msgspec.structs.replace(EXIT, code=0, signal=0), 0, None, "Stopped"),
        (Exit(DEADLINE_PASSED, step="deadline", error=errno.ETIME), None, None, DEADLINE_PASSED),
        (
            Exit("NotStarted", step="exec", error=errno.ENOENT),
            None,
            None,
            "NotStarted: the command cannot be run: no such file or directory",
        ),
        (
            Exit("NotStarted", step="directory", error=errno.EACCES),
            None,
            None,
            "NotStarted: its working directory cannot be entered: permission denied",
        ),
    ],
)
def test_an_end_is_shown_as_it_was(
    exit_: Exit, code: int | None, signal: int | None, reason: str
) -> None:
    """[H1]"""
    process = ended_process(exit_)
    assert (process.exit_code, process.signal, process.reason) == (code, signal, reason)
