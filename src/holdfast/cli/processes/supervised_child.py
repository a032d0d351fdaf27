"""One part of a plane that `holdfast up` has started: `python -m
holdfast.cli.processes.supervised_child PARENT …`.

It runs `python -m holdfast.host …` in a process that does not outlive its parent: when `up` is
killed, the kernel ends its parts. No acknowledged write is lost by that, and work continues under
its shims, which are not children of these processes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from holdfast.host.__main__ import main as host_main
from holdfast.host.process.foreground import complain, forget_inherited

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Bind this process to its parent, then run the other arguments; returns the exit code."""
    forget_inherited()
    parent, *rest = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return complain(f"cannot bind to the parent process: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent):
        # The parent exited before prctl took effect.
        return complain("the parent process, holdfast up, has exited")
    return host_main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
