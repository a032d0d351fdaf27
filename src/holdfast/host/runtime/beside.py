"""Runs a command beside running work: same namespaces, groups, user, variables and directory.

Called by `probing` for probes and pre-stops that are commands; `enter_namespaces` prepares commands
of people in the same way. The shim program runs it, in a mode of its own (shim_beside.c), so that
the command and all that it starts are gone when its time is over. The variables are read from the
work itself: no copy of possible secrets is kept, and an agent that adopted the work has them too.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from holdfast.host.runtime.attempts import WORK
from holdfast.host.runtime.cgroups import groups
from holdfast.host.runtime.containers import containers
from holdfast.host.runtime.held import HeldAttempt
from holdfast.host.runtime.starting import StartContext
from holdfast.host.runtime.surroundings import PATH_DEFAULT, user
from holdfast.host.runtime.survivors import VARIABLES_BYTES_MAX, start_of
from holdfast.model.errors import Unavailable

# The program ends its command by itself. After this time it is stuck, and the agent kills it.
SLACK_S = 5.0
ANSWER_BYTES_MAX = 4_096

_PROC = Path("/proc")
_STEPS = {
    "exec": "the command cannot be run",
    "namespace": "the work has ended",
    "directory": "the working directory cannot be entered",
}


class Prepared(msgspec.Struct, frozen=True):
    """The arguments that describe work and command to the program, and the open files with them."""

    isolation: str
    user: str
    counts: tuple[int, int]
    text: int
    work: int
    where: tuple[str, str]
    joins: tuple[int, ...]

    def words(self, verb: str, number: int, *line: int) -> tuple[str, ...]:
        """The arguments of the program's mode `verb`, with the number that the mode needs."""
        numbers = (number, *self.counts, self.text, self.work, *line)
        known = (verb, self.isolation, self.user, *map(str, numbers), *self.where)
        return (*known, *map(str, self.joins))

    @property
    def files(self) -> tuple[int, ...]:
        return (self.text, self.work, *self.joins)


async def run(
    place: StartContext, held: HeldAttempt, command: tuple[str, ...], timeout_ms: int
) -> str:
    """Run the command. Returns what went wrong; empty when it exited with 0."""
    with ExitStack() as opened:
        try:
            prepared = await asyncio.to_thread(prepare, place, held, command, opened)
        except (Unavailable, OSError) as error:
            return f"exec: {error.strerror if isinstance(error, OSError) else error}"
        child = await asyncio.create_subprocess_exec(
            str(place.program.path),
            *prepared.words("beside", timeout_ms),
            env={},
            pass_fds=prepared.files,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    try:
        async with asyncio.timeout(timeout_ms / 1000 + SLACK_S):
            text = await _answer(child)
            await child.wait()
    except TimeoutError:
        text = "timeout 0 -"
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    return _result_text(text, timeout_ms)


async def _answer(child: asyncio.subprocess.Process) -> str:
    if child.stdout is None:
        return ""
    text = b""
    while len(text) < ANSWER_BYTES_MAX:
        piece = await child.stdout.read(ANSWER_BYTES_MAX - len(text))
        if not piece:
            break
        text += piece
    return text.decode("utf-8", "replace")


def _result_text(text: str, timeout_ms: int) -> str:
    """The program's answer as a message; with the command's output if it failed."""
    line, _, wrote = text.partition("\n")
    said = f": {' '.join(wrote.split())}" if wrote.strip() else ""
    match line.split(" "):
        case ["code", "0", _]:
            return ""
        case ["code", code, _]:
            return f"exec: exit code {code}{said}"
        case ["signal", number, _]:
            return f"exec: signal {number}{said}"
        case ["timeout", *_]:
            return f"exec: timed out after {timeout_ms} ms"
        case ["failed", error, step] if error.isdigit():
            what = _STEPS.get(step, f"the command failed at step {step}")
            return f"exec: {what}: {os.strerror(int(error)).lower()}"
        case _:
            return "exec: the work ended, and the command with it"


def prepare(
    place: StartContext,
    held: HeldAttempt,
    command: tuple[str, ...],
    opened: ExitStack,
    *,
    has_terminal: bool = False,
    more: tuple[bytes, ...] = (),
) -> Prepared:
    """Open the work and everything that the command needs. Raises Unavailable or OSError.

    `more` are variables of the command in addition to those of the work.
    """
    state = held.state
    if state is None:
        raise Unavailable("the work has not started yet; try again")
    work = _open(state.work.pid, state.work.start)
    opened.callback(os.close, work)
    variables = [*_variables(state.work.pid), *more]
    choices, word, where = held.choices, "-", ("/", ".")
    folder = place.attempts.root.absolute() / held.attempt.uid / str(held.attempt.number)
    if choices.is_boxed:
        name = groups.name(held.attempt)
        command = containers.inside(
            name, command, runtime=choices.oci_runtime, has_terminal=has_terminal, more=more
        )
        variables = [b"PATH=" + PATH_DEFAULT.encode()]
    else:
        word = choices.runs_as or _word(choices.user)
        # The program follows no links: the work controls what lies below its directory.
        where = (str(folder.resolve() / WORK), choices.working_dir or ".")
    text = os.memfd_create("holdfast-command", os.MFD_CLOEXEC)
    opened.callback(os.close, text)
    strings = [*(os.fsencode(argument) for argument in command), *variables]
    with open(text, "wb", closefd=False) as file:
        file.write(b"".join(string + b"\x00" for string in strings))
    joins = opened.enter_context(place.groups.entrances(held.attempt))
    counts = (len(command), len(variables))
    return Prepared(state.isolation, word, counts, text, work, where, tuple(joins))


def _word(name: str) -> str:
    """The user argument for work of an agent that did not record the user."""
    runs_as = user(name)
    return runs_as.word() if runs_as is not None else "-"


def _open(pid: int, start: int) -> int:
    """A descriptor of exactly this process."""
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        raise Unavailable("the work has ended") from error
    if start_of(pid) != start:
        os.close(fd)
        raise Unavailable("the work has ended")
    return fd


def _variables(pid: int) -> list[bytes]:
    with open(_PROC / str(pid) / "environ", "rb") as file:
        text = file.read(VARIABLES_BYTES_MAX)
    return [pair for pair in text.split(b"\x00") if pair]
