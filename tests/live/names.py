"""Names of hosts that only some processes know, each with addresses of its own.

A hook in each process resolves them, so that neither root nor a name server is needed. On Linux the
whole of 127.0.0.0/8 is there to listen at.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path

from tests.free_ports import free_ports
from tests.live.part import ROOT

_HOOK = """
import socket
_resolve = socket.getaddrinfo
def _hooked(host, *more, **named):
    if host != {name!r}:
        return _resolve(host, *more, **named)
    return [it for address in {addresses!r} for it in _resolve(address, *more, **named)]
socket.getaddrinfo = _hooked
"""


def knowing(folder: Path, name: str, *addresses: str) -> str:
    """The PYTHONPATH of a process that knows the name by these addresses, in their order."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(_HOOK.format(name=name, addresses=addresses))
    return f"{folder}:{ROOT / 'src'}"


def port_at(hosts: Sequence[str]) -> int:
    """A port that is free at each of these addresses."""
    while True:
        (port,) = free_ports(1)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for host in hosts:
                stack.enter_context(socket.create_server((host, port)))
            return port
