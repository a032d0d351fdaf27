"""One part of a plane that `holdfast up` has started: `python -m holdfast.cli.supervised_child
PARENT …`.

It is `python -m holdfast.host …` that does not outlive its parent: when `up` is killed with no time
to say anything, the kernel ends its parts. Nothing that was acknowledged is lost by that, and work
runs on under its shims, which are nobody's children any more.
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
    """Bind this process to its parent, then be what the rest says; the exit code."""
    forget_inherited()
    parent, *rest = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return complain(f"it cannot be bound to its parent: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent):
        # It was gone before the kernel was told.
        return complain("holdfast up is gone")
    return host_main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
