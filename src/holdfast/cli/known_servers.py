"""The servers of a plane that a kubeconfig does not name, remembered beside it.

A kubeconfig has one address. Each command that reaches a plane learns the others from the servers'
leases now and then, so that the next one finds a server when that address is dead. Only addresses
are kept, in a file of the user's own; a server is proven by its certificate, as always.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from holdfast.host import discovering
from holdfast.host.client.answers import Answer
from holdfast.host.files import write_private
from holdfast.model.errors import HoldfastError
from holdfast.model.heartbeat import SERVERS_MAX

# Servers come and go rarely. A list that is older is asked for again.
FRESH_S = 600.0
BYTES_MAX = 64 * 1024


class _Known(msgspec.Struct, frozen=True):
    """The servers that were found at an address."""

    given: str
    servers: tuple[str, ...] = ()


def _path(kubeconfig: Path) -> Path:
    return kubeconfig.with_name(f"{kubeconfig.name}.servers")


def _read(kubeconfig: Path, given: str) -> _Known:
    path = _path(kubeconfig)
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        if path.stat().st_size <= BYTES_MAX:
            found = msgspec.json.decode(path.read_bytes(), type=_Known)
            if found.given == given:
                return found
    return _Known(given)


def remembered(kubeconfig: Path, given: str) -> tuple[str, ...]:
    """The other servers of the plane with this address, as far as they are known."""
    found = _read(kubeconfig, given).servers[:SERVERS_MAX]
    return tuple(it for it in found if it.startswith("https://") and it != given)


def is_fresh(kubeconfig: Path, given: str) -> bool:
    """Whether they were asked for lately."""
    try:
        age_s = time.time() - _path(kubeconfig).stat().st_mtime
    except OSError:
        return False
    return 0 <= age_s <= FRESH_S and bool(_read(kubeconfig, given).servers)


def remember(kubeconfig: Path, given: str, answer: Answer) -> None:
    """Keep what a server has said. Where nothing can be written, nothing is remembered."""
    try:
        servers = tuple(discovering.addresses(answer))
    except HoldfastError:
        # Who has a token and no certificate is not told.
        return
    with contextlib.suppress(OSError):
        write_private(_path(kubeconfig), msgspec.json.encode(_Known(given, servers)))
        os.utime(_path(kubeconfig))
