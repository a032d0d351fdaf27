"""How a command ends: with a code that scripts can rely on and, if it failed, with a sentence.

Every command runs inside `run`. A person never sees a traceback: what goes wrong on purpose is a
HoldfastError with a sentence of its own, and a bug says that it is one and how to see more of it.
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
    """What the exit codes mean. They never change."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    UNKNOWN = 4
    INTERRUPTED = 130


class UsageError(Invalid):
    """The command line is wrong, whatever the plane would say."""


@contextmanager
def judged_as_usage() -> Iterator[None]:
    """What is Invalid in here was so on the command line."""
    try:
        yield
    except Invalid as error:
        raise UsageError(error.message, error.errors) from error


CODES_TEXT = """\
Exit codes: 0 it is done; 1 it was refused or has failed; 2 the command line is wrong;
3 no server answers, nothing was done; 4 the answer was lost, it may have been done;
130 interrupted."""


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
    """What to tell a person about an error."""
    if isinstance(error, OutcomeUnknown):
        return f"{error.message}; it may have been done all the same: look before trying again"
    return error.message


def warn(text: str) -> None:
    """A sentence that is not part of the output."""
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()


def complain(text: str, code: ExitCode = ExitCode.FAILED) -> ExitCode:
    """The sentence of a failure; its exit code."""
    warn(f"holdfast: {text}")
    return code


def complain_of_bug(bug: Exception) -> ExitCode:
    """The sentence of a failure that nobody meant to happen; where it was only on request."""
    if os.environ.get(TRACE_VARIABLE):
        raise bug
    return complain(
        f"this is a bug in Holdfast: {type(bug).__name__}: {bug} ({TRACE_VARIABLE}=1 shows where)"
    )


def plain(text: str, keep: str = "\n\t") -> str:
    """The text without what could command a terminal: not only its reader has written it."""
    return "".join(
        it if it.isprintable() or it in keep else "\N{REPLACEMENT CHARACTER}" for it in text
    )


def run(command: Coroutine[Any, Any, int]) -> int:
    """Run a command to its end; the exit code."""
    try:
        return asyncio.run(command)
    except HoldfastError as error:
        return complain(sentence_of(error), code_of(error))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain once more at its own end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except OSError as error:
        return complain(f"{error.filename or 'the system'}: {error.strerror or error}")
    except Exception as bug:  # noqa: BLE001 - whatever it is, it is said and ends the process
        return complain_of_bug(bug)
