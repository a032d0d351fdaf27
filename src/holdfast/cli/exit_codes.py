"""How a command ends: an exit code that scripts can rely on, and a message if the command failed.

Every command runs inside `run`. Users never see a traceback: an expected failure is a HoldfastError
with its own message, and an unexpected one is reported as a bug, with a hint how to see more of it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from holdfast.model.errors import HoldfastError, Invalid, OutcomeUnknown, Unavailable

TRACE_VARIABLE = "HOLDFAST_TRACEBACK"


class ExitCode(IntEnum):
    """The exit codes of all commands. Their meaning never changes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    UNKNOWN = 4
    INTERRUPTED = 130


class UsageError(Invalid):
    """The command line is wrong; no server was asked."""


@contextmanager
def invalid_as_usage_error() -> Iterator[None]:
    """Turn Invalid into UsageError: what is parsed in this context came from the command line."""
    try:
        yield
    except Invalid as error:
        raise UsageError(error.message, error.errors) from error


CODES_TEXT = """\
Exit codes: 0 success; 1 refused or failed; 2 invalid command line; 3 no server answers, nothing
was done; 4 outcome unknown, the answer was lost; 130 interrupted."""


def code_of(error: HoldfastError) -> ExitCode:
    """The exit code for an error."""
    match error:
        case UsageError():
            return ExitCode.USAGE
        case Unavailable():
            return ExitCode.UNREACHABLE
        case OutcomeUnknown():
            return ExitCode.UNKNOWN
        case _:
            return ExitCode.FAILED


def sentence_of(error: HoldfastError) -> str:
    """The message to show for an error."""
    if isinstance(error, OutcomeUnknown):
        return f"{error.message}; it may have succeeded: check before you try again"
    return error.message


def warn(text: str) -> None:
    """Write a message to standard error; it is not part of the output."""
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()


def complain(text: str, code: ExitCode = ExitCode.FAILED) -> ExitCode:
    """Write the message of a failure and return its exit code."""
    warn(f"holdfast: {text}")
    return code


def complain_of_bug(bug: Exception) -> ExitCode:
    """Report an unexpected failure. The traceback is shown only on request."""
    if os.environ.get(TRACE_VARIABLE):
        raise bug
    return complain(
        f"this is a bug in Holdfast: {type(bug).__name__}: {bug} "
        f"(set {TRACE_VARIABLE}=1 to see the traceback)"
    )


def plain(text: str, keep: str = "\n\t") -> str:
    """The text without terminal control characters: others than its reader may have written it."""
    return "".join(
        it if it.isprintable() or it in keep else "\N{REPLACEMENT CHARACTER}" for it in text
    )


def run(command: Coroutine[Any, Any, int]) -> int:
    """Run a command to its end and return its exit code."""
    try:
        return asyncio.run(command)
    except HoldfastError as error:
        return complain(sentence_of(error), code_of(error))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it. Python would report that again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except OSError as error:
        return complain(f"{error.filename or 'the system'}: {error.strerror or error}")
    except Exception as bug:  # noqa: BLE001 - every failure is reported and ends the process
        return complain_of_bug(bug)
