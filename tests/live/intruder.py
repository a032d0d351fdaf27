"""What a hostile tenant's process tries on its node; run by the node as that tenant's work.

It gets everything that it could only guess: paths, process ids, names. It prints one line of JSON
that says of each attempt what came of it: "no: " and why, or whatever it got. It needs nothing but
the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

PTRACE_ATTACH = 16


def read(path: str) -> str:
    with open(path, "rb") as file:
        return repr(file.read(200))


def listed(path: str) -> str:
    return " ".join(sorted(os.listdir(path)))


def write(path: str) -> str:
    with open(path, "r+b") as file:
        file.write(b"intruder\n")
    return "written"


def connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
    return "connected"


def send_signal(pid: int) -> str:
    os.kill(pid, signal.SIGCONT)
    return "signalled"


def trace(pid: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_ATTACH, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    return "traced"


def uncover(folder: str, path: str) -> str:
    """In a user namespace any process may unmount, but not what was mounted outside."""
    script = 'while umount "$0"; do :; done; cat "$1"'
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script, folder, path], capture_output=True, check=False
    )
    if done.returncode:
        raise OSError(0, done.stderr.decode().strip())
    return repr(done.stdout)


def climb() -> str:
    """The parents of the working directory, as far as they can be seen."""
    return " ".join(f"{'../' * depth}:{listed('../' * depth)}" for depth in (1, 2, 3))


def tried(what: Callable[..., str], *arguments: Any) -> str:
    try:
        return what(*arguments)
    except OSError as error:
        return f"no: {error.strerror}"


def main() -> None:
    known = json.loads(sys.argv[1])
    found = {f"read {path}": tried(read, path) for path in known["files"]}
    found |= {f"list {path}": tried(listed, path) for path in known["folders"]}
    found |= {f"write {path}": tried(write, path) for path in known["files"]}
    found |= {f"connect {path}": tried(connect, path) for path in known["sockets"]}
    for pid in known["pids"]:
        found[f"environ {pid}"] = tried(read, f"/proc/{pid}/environ")
        found[f"memory {pid}"] = tried(read, f"/proc/{pid}/mem")
        found[f"root {pid}"] = tried(listed, f"/proc/{pid}/root/")
        found[f"files {pid}"] = tried(listed, f"/proc/{pid}/fd")
        found[f"trace {pid}"] = tried(trace, pid)
        found[f"signal {pid}"] = tried(send_signal, pid)
    for folder in known["folders"]:
        found[f"uncover {folder}"] = tried(uncover, folder, known["files"][0])
    with open("/proc/self/status") as file:
        status = dict(line.split(":\t", 1) for line in file.read().splitlines())
    rights = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    told = {name: status[name].split() for name in (*rights, "NoNewPrivs")}
    print(json.dumps({"rights": told, "found": found, "above": tried(climb)}), flush=True)


if __name__ == "__main__":
    main()
