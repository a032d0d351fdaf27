"""Exit codes and sentences: what a script and a person get when a command fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.cli.exit_codes import TRACE_VARIABLE, ExitCode, UsageError, code_of, plain, run
from holdfast.model.errors import (
    Conflict,
    Forbidden,
    HoldfastError,
    Invalid,
    Missing,
    OutcomeUnknown,
    Unavailable,
)


@pytest.mark.parametrize(
    "error, code",
    [
        (Conflict("c"), ExitCode.FAILED),
        (Forbidden("f"), ExitCode.FAILED),
        (Missing("m"), ExitCode.FAILED),
        (Invalid("i"), ExitCode.FAILED),
        (UsageError("u"), ExitCode.USAGE),
        (Unavailable("away"), ExitCode.UNREACHABLE),
        (OutcomeUnknown("lost"), ExitCode.UNKNOWN),
    ],
)
def test_exit_codes_show_what_may_be_repeated_blindly(error: HoldfastError, code: ExitCode) -> None:
    """[E5]"""
    assert code_of(error) is code


def failing(error: BaseException) -> Callable[[], int]:
    async def command() -> int:
        raise error

    return lambda: run(command())


def test_a_lost_answer_is_never_reported_as_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """[E5, N1.1]"""
    assert failing(OutcomeUnknown("no answer in time"))() == ExitCode.UNKNOWN
    assert capsys.readouterr().err == (
        "holdfast: no answer in time; it may have succeeded: check before you try again\n"
    )


def test_a_bug_is_one_sentence_and_a_traceback_only_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TRACE_VARIABLE, raising=False)
    assert failing(ZeroDivisionError("by zero"))() == ExitCode.FAILED
    said = capsys.readouterr().err
    assert "this is a bug in Holdfast: ZeroDivisionError: by zero" in said
    assert said.count("\n") == 1
    monkeypatch.setenv(TRACE_VARIABLE, "1")
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError("by zero"))()


def test_an_interrupted_command_says_nothing() -> None:
    assert failing(KeyboardInterrupt())() == ExitCode.INTERRUPTED


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(FileNotFoundError(2, "No such file or directory", "a.yaml"))() == ExitCode.FAILED
    assert capsys.readouterr().err == "holdfast: a.yaml: No such file or directory\n"


def test_what_others_wrote_cannot_command_the_terminal() -> None:
    assert plain("a\x1b[31mred\x07\u202e\n") == "a\ufffd[31mred\ufffd\ufffd\n"
