"""Finds free ports for work that lets the agent choose.

Two checks show whether a number is free. Binding a socket to it shows whether a process listens
there now. A lock shows whether another agent of this machine has just given the number to work that
does not listen yet; it is held until the work has ended, and vanishes with an agent that dies.
Agents that are root lock files, which no work can reach: a tenant that held all names could prevent
all others from starting. Other agents, whose work has their own user anyway, bind abstract sockets
in the network namespace.
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

# Below the range from which the kernel takes local ports of outgoing connections.
FIRST, LAST = 20_000, 32_767
TRIES_MAX = 512
FOLDER = Path("/run/holdfast/ports")

_KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}


class Closeable(Typed):
    """Holds a port's name until it is closed."""

    def close(self) -> None: ...


class Ports:
    """The ports of one attempt, and the locks on those that the agent picked."""

    def __init__(self, numbers: dict[str, int], names: Mapping[str, Closeable]) -> None:
        self.numbers = numbers
        self._names = dict(names)

    @property
    def picked_ports(self) -> tuple[str, ...]:
        """The ports that the agent picked and holds, such as TCP/20001."""
        return tuple(self._names)

    def addresses(self, host: str) -> dict[str, str]:
        """The address of each port."""
        shown = f"[{host}]" if ":" in host else host
        return {name: f"{shown}:{port}" for name, port in self.numbers.items()}

    def release(self) -> None:
        """Let other agents pick them."""
        for name in self._names.values():
            name.close()
        self._names.clear()


def _hold(key: str) -> Closeable | None:
    """Hold the name of a port such as TCP/20001; None if another agent has it."""
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
    """Whether the port is free in both families: work may listen in either, or in both."""
    return all(_can_bind(it, kind, number) for it in (socket.AF_INET, socket.AF_INET6))


def _can_bind(family: socket.AddressFamily, kind: Protocol, number: int) -> bool:
    try:
        with socket.socket(family, _KINDS[kind]) as probe:
            if family is socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(("", number))
    except OSError as error:
        # A family that the machine does not have has no listeners.
        return error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
    return True


def _pick(kind: Protocol) -> tuple[int, str, Closeable]:
    # Any start will do; a random one seldom meets the ports that other agents are trying.
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
    raise Unavailable(
        f"no free {kind.value} port in {TRIES_MAX} tries from {start}: the range {FIRST}-{LAST} is "
        "nearly used up"
    )


def choose(wanted: Sequence[Port]) -> Ports:
    """The fixed ports unchanged, and a free one for each 0."""
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
    """Hold what an earlier agent picked for work that still runs. A name that another agent has is
    left to it: the work has the port, and that agent finds it busy.
    """
    held = {key: _hold(key) for key in picked}
    return Ports({}, {key: name for key, name in held.items() if name is not None})
