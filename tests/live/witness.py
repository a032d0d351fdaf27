"""Work that bears witness: it answers http, and writes down that it lives, for a checker to read.

Every process of a place (one ordinal of one workload) appends a beat to one file, every 25 ms under
a lock, so the file has one order. `overlaps` reads it: once a second process of a place has begun,
no earlier one may beat again. That is what `stop` work promises, on all machines together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

BEAT_MS = 25
# A process that ignores SIGTERM ends only by force: the worst that a deadline can meet.
STUBBORN = "stubborn"

_PROGRAM = f"""
import fcntl, os, select, signal, socket, sys, time
witness, manner = sys.argv[1:3]
if manner == {STUBBORN!r}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
place = os.environ["HOLDFAST_REPLICA"].rpartition("-")[0]
token, node = os.environ["HOLDFAST_TOKEN"], os.environ["HOLDFAST_NODE"]
me = " ".join([place, token, os.urandom(6).hex(), node])
book = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
def beat():
    fcntl.flock(book, fcntl.LOCK_EX)
    os.write(book, (me + " %d\\n" % (time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)).encode())
    fcntl.flock(book, fcntl.LOCK_UN)
beat()
door = socket.create_server(("127.0.0.1", int(os.environ["PORT_HTTP"])))
answer = b"HTTP/1.0 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(me), me.encode())
due = time.monotonic()
while True:
    left = due - time.monotonic()
    if left <= 0:
        beat()
        due = time.monotonic() + {BEAT_MS / 1_000}
    elif select.select([door], [], [], left)[0]:
        caller = door.accept()[0]
        caller.settimeout(1)
        try:
            caller.recv(65536)
            caller.sendall(answer)
        except OSError:
            pass
        caller.close()
"""


class Beat(msgspec.Struct, frozen=True):
    """One process of a place says that it lives. `token` is that of its binding."""

    place: str
    token: int
    process: str
    node: str
    at_ms: int


def template(witness: Path, manner: str = "") -> dict[str, Any]:
    """A template of such work. It imports little, so that its start costs little."""
    return {
        "command": [sys.executable, "-I", "-S", "-c", _PROGRAM, str(witness), manner],
        "ports": [{"name": "http"}],
        "resources": {"cpu": "600m", "memory": "16Mi"},
        "graceSeconds": 1,
    }


def beats(witness: Path) -> list[Beat]:
    """All beats in the order in which they happened. The last line may be cut short by a kill."""
    text = witness.read_text() if witness.exists() else ""
    lines = [line.split(" ") for line in text[: text.rfind("\n") + 1].splitlines()]
    return [
        Beat(place, int(token), process, node, int(at)) for place, token, process, node, at in lines
    ]


def overlaps(seen: Iterable[Beat]) -> list[str]:
    """Each beat of a process that another one of its place had followed already, and each process
    with an older token than one before it.
    """
    last: dict[str, Beat] = {}
    over: dict[str, set[str]] = {}
    found = []
    for beat in seen:
        before = last.get(beat.place)
        gone = over.setdefault(beat.place, set())
        if beat.process in gone:
            found.append(f"{beat} came after {before}")
        elif before is not None and before.process != beat.process:
            gone.add(before.process)
            if beat.token < before.token:
                found.append(f"{beat} has an older token than {before}")
        last[beat.place] = beat
    return found


def processes(seen: Iterable[Beat], place: str) -> list[Beat]:
    """The first beat of each process of a place, in order."""
    first: dict[str, Beat] = {}
    for beat in seen:
        if beat.place == place:
            first.setdefault(beat.process, beat)
    return list(first.values())
