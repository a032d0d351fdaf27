"""Signals as a process of ours relies on them, whatever its parent did with them.

A shell that starts something in the background, `nohup`, and many a job runner leave signals
ignored or blocked, and both are inherited by every process below. A part that ignores SIGTERM is
never stopped in order; one that ignores SIGCHLD never learns how its children ended. So each entry
point calls this first, and `python -m holdfast.cli.child` does for the parts of `holdfast up`. Work
starts under a shim, which does the same for itself and for the work.
"""

from __future__ import annotations

import signal
from collections.abc import Collection

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
