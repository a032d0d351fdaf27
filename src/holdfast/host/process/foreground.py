"""Runs a process of the plane in the foreground until a signal or a failure.

SIGTERM and SIGINT stop it in order, even if its parent ignored or blocked them; a second signal
ends it at once, which loses nothing that was acknowledged. SIGHUP stays as inherited, for `nohup`.
The exit code is 0 after a stop, and 1 with a message when the process cannot go on. Every entry
point calls this, with a server or a component.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection
from typing import Protocol

# Sets signals to what our processes rely on, whatever the parent did with them.
#
# A shell that starts a background job, `nohup`, and many job runners leave signals ignored or
# blocked, and all child processes inherit that. A process that ignores SIGTERM is never stopped in
# order; one that ignores SIGCHLD never learns how its children ended. So each entry point calls
# this first, and `python -m holdfast.cli.processes.supervised_child` does for the processes of
# `holdfast up`. Work starts under a shim, which does the same for itself and for the work.

# Python itself ignores these to get an error instead; `subprocess` restores them for children.
_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)


def forget_inherited(keep: Collection[signal.Signals] = ()) -> None:
    """Reset ignored and blocked signals, except those to keep. Main thread only."""
    for number in signal.valid_signals() - {*_PYTHON_IGNORES, *keep}:
        if signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def is_ignored(number: signal.Signals) -> bool:
    """Return whether the parent ignored this signal, as `nohup` does with SIGHUP."""
    return signal.getsignal(number) is signal.SIG_IGN


AT_ONCE = 130
# Our objects are trees that are freed with their last reference. Python's default of searching for
# cycles after every few hundred new objects takes a busy process a twentieth of its time.
GARBAGE_AFTER = 50_000
# The store's thread gives the interpreter lock away at every call into the store, and gets it back
# from a busy event loop only after this time. With Python's 5 ms a write to an idle server took 50
# to 66 ms at p99, with this 10; at 60 % of the peak the median fell from 84 to 25 ms.
SWITCH_AFTER_S = 0.0002


class ForegroundProcess(Protocol):
    """A server or a component."""

    async def start(self) -> None: ...

    async def wait(self) -> str:
        """Wait until it cannot go on. Return the message that says why."""
        ...

    async def stop(self) -> None: ...


def say(text: str) -> None:
    """Print a message for the operator."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(text: str) -> int:
    """Print an error message. Return the exit code."""
    sys.stderr.write(f"holdfast: {text}\n")
    sys.stderr.flush()
    return 1


async def until_signal(living: ForegroundProcess, greet: Callable[[], None]) -> int:
    """Start it, greet, and run until a signal or a failure. Return the exit code."""
    gc.set_threshold(GARBAGE_AFTER, *gc.get_threshold()[1:])
    sys.setswitchinterval(SWITCH_AFTER_S)
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
