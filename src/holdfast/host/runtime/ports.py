"""Finds free ports for work that lets the agent pick.

A number is asked for in two places. A socket that is bound to it shows whether anybody listens
there now. A name shows whether another agent of this machine has just given it away to work that
does not listen yet; the name is held until the work has ended, and is gone by itself with an agent
that died. Agents that are root lock files for it, which no work can reach: a tenant that held all
names would keep everybody else from starting. Others, whose work has their own user anyway, use
the network namespace's table of abstract sockets.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol as Typed

from holdfast.host.process.files import PRIVATE_FILE, private_directory
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.template import Port, Protocol

# Below the range from which the kernel takes the near ends of connections.
FIRST, LAST = 20_000, 32_767
TRIES_MAX = 512
FOLDER = Path("/run/holdfast/ports")

_KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}


class Closeable(Typed):
    """What holds a name until it is closed."""

    def close(self) -> None: ...


class Ports:
    """The ports of one attempt, and the names that hold those that were picked."""

    def __init__(self, numbers: dict[str, int], names: Mapping[str, Closeable]) -> None:
        self.numbers = numbers
        self._names = dict(names)

    @property
    def picked(self) -> tuple[str, ...]:
        """Those that are held by a name, such as TCP/20001."""
        return tuple(self._names)

    def addresses(self, host: str) -> dict[str, str]:
        """Where each can be reached."""
        shown = f"[{host}]" if ":" in host else host
        return {name: f"{shown}:{port}" for name, port in self.numbers.items()}

    def release(self) -> None:
        """Let others pick them."""
        for name in self._names.values():
            name.close()
        self._names.clear()


def _hold(key: str) -> Closeable | None:
    """The name of a port such as TCP/20001, unless somebody has it."""
    return _lock(key) if os.geteuid() == 0 else _name(key)


def _lock(key: str) -> Closeable | None:
    private_directory(FOLDER)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.fdopen(os.open(FOLDER / key.replace("/", "-"), flags, PRIVATE_FILE), "rb+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _name(key: str) -> Closeable | None:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\x00holdfast-port/{key}")
    except OSError as error:
        name.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return name


def _is_free(kind: Protocol, number: int) -> bool:
    """Work may listen in either family, or in both at once."""
    return all(_can_bind(it, kind, number) for it in (socket.AF_INET, socket.AF_INET6))


def _can_bind(family: socket.AddressFamily, kind: Protocol, number: int) -> bool:
    try:
        with socket.socket(family, _KINDS[kind]) as probe:
            if family is socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(("", number))
    except OSError as error:
        # Nobody listens in a family that the machine does not have.
        return error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
    return True


def _pick(kind: Protocol) -> tuple[int, str, Closeable]:
    # Any start will do; one at random seldom meets what others look at just now.
    start = random.randrange(FIRST, LAST + 1)
    for offset in range(TRIES_MAX):
        number = FIRST + (start - FIRST + offset) % (LAST + 1 - FIRST)
        key = f"{kind.value}/{number}"
        held = _hold(key)
        if held is None:
            continue
        if _is_free(kind, number):
            return number, key, held
        held.close()
    raise Unavailable(f"no free {kind.value} port was found in {TRIES_MAX} tries from {start}")


def choose(wanted: Sequence[Port]) -> Ports:
    """Fixed ports as they are, and a free one for each 0."""
    numbers: dict[str, int] = {}
    names: dict[str, Closeable] = {}
    try:
        for port in wanted:
            if port.port:
                numbers[port.name] = port.port
            else:
                number, key, name = _pick(port.protocol)
                numbers[port.name], names[key] = number, name
    except (Unavailable, OSError):
        Ports(numbers, names).release()
        raise
    return Ports(numbers, names)


def take_back(picked: Sequence[str]) -> Ports:
    """Hold what an earlier agent picked for work that still runs. A name that is taken is left: the
    work has the port, and whoever took its name finds it busy.
    """
    held = {key: _hold(key) for key in picked}
    return Ports({}, {key: name for key, name in held.items() if name is not None})
