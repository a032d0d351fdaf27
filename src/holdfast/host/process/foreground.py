"""Lets a part of the plane live in the foreground until a signal or a failure.

SIGTERM and SIGINT stop it in order, also where its parent had them ignored or blocked; a second one
ends it at once, which loses nothing that was acknowledged. SIGHUP stays as it was found, for
`nohup`. It ends with 0 after a stop, with 1 and a sentence when it could not go on. Every entry
point of a process calls this, with a server or a component.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection
from typing import Protocol

# Signals as a process of ours relies on them, whatever its parent did with them.
#
# A shell that starts something in the background, `nohup`, and many a job runner leave signals
# ignored or blocked, and both are inherited by every process below. A part that ignores SIGTERM is
# never stopped in order; one that ignores SIGCHLD never learns how its children ended. So each
# entry point calls this first, and `python -m holdfast.cli.supervised_child` does for the parts of
# `holdfast up`. Work starts under a shim, which does the same for itself and for the work.

# Python ignores these itself, to get an error instead; `subprocess` gives them back to children.
_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)


def forget_inherited(keep: Collection[signal.Signals] = ()) -> None:
    """Ignore and block nothing any more, except what is to be kept as it is. Main thread only."""
    for number in signal.valid_signals() - {*_PYTHON_IGNORES, *keep}:
        if signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def is_ignored(number: signal.Signals) -> bool:
    """Whether the parent asked for that, as `nohup` does with SIGHUP."""
    return signal.getsignal(number) is signal.SIG_IGN


AT_ONCE = 130
# Objects of ours are trees that go with their last reference. Looking for circles after every few
# hundred new ones, as Python does unless told otherwise, takes a busy part a twentieth of its time.
GARBAGE_AFTER = 50_000


class ForegroundProcess(Protocol):
    """A server or a component."""

    async def start(self) -> None: ...

    async def wait(self) -> str:
        """Until it cannot go on: the sentence that says why."""
        ...

    async def stop(self) -> None: ...


def say(text: str) -> None:
    """A sentence for whoever started the process."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(text: str) -> int:
    """The sentence of a failure; its exit code."""
    sys.stderr.write(f"holdfast: {text}\n")
    sys.stderr.flush()
    return 1


async def until_signal(living: ForegroundProcess, greet: Callable[[], None]) -> int:
    """Start it, greet, and run until a signal or a failure; the exit code."""
    gc.set_threshold(GARBAGE_AFTER, *gc.get_threshold()[1:])
    forget_inherited(keep=(signal.SIGHUP,))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(AT_ONCE)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    starting = asyncio.create_task(living.start())
    signalled = asyncio.create_task(stopping.wait())
    await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return 0
    starting.result()
    greet()
    failed = asyncio.create_task(living.wait())
    await asyncio.wait([failed, signalled], return_when=asyncio.FIRST_COMPLETED)
    sentence = failed.result() if failed.done() else ""
    failed.cancel()
    signalled.cancel()
    await living.stop()
    if sentence:
        return complain(sentence)
    say("Stopped.")
    return 0
