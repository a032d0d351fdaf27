"""Which plane a command talks to, and under which identity.

`--kubeconfig` comes first, then what the environment names (`host/client/server_access`). When the
server in the kubeconfig does not answer, the command tries the other servers that earlier commands
have remembered.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from holdfast.host.client import Access, AsyncClient, from_kubeconfig, known_servers
from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.server_access import DATA, DATA_VARIABLE, find_kubeconfig
from holdfast.host.client.transport import Transport
from holdfast.host.process.files import write_private
from holdfast.model.errors import HoldfastError
from holdfast.model.nodes.heartbeat import SERVERS_MAX
from holdfast.observe.retry import RetryPolicy

# The servers of a plane that a kubeconfig does not name, remembered beside it.
#
# A kubeconfig has one address. Commands that reach a plane read the other addresses from the
# servers' leases now and then, so that the next command finds a server when that address is dead.
# Only addresses are kept, in a file of the user; certificates still authenticate each server.

# Servers come and go rarely. A list that is older than this is read again.
FRESH_S = 600.0
BYTES_MAX = 64 * 1024


class _Known(msgspec.Struct, frozen=True):
    """The servers of the plane that has a server at the address `given`."""

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


def remembered_servers(kubeconfig: Path, given: str) -> tuple[str, ...]:
    """The other known servers of the plane that has a server at this address."""
    found = _read(kubeconfig, given).servers[:SERVERS_MAX]
    return tuple(it for it in found if it.startswith("https://") and it != given)


def is_fresh(kubeconfig: Path, given: str) -> bool:
    """Whether the remembered servers were read recently."""
    try:
        age_s = time.time() - _path(kubeconfig).stat().st_mtime
    except OSError:
        return False
    return 0 <= age_s <= FRESH_S and bool(_read(kubeconfig, given).servers)


def remember(kubeconfig: Path, given: str, answer: HttpAnswer) -> None:
    """Store the addresses in a server's answer. Does nothing where the file cannot be written."""
    try:
        servers = tuple(known_servers.addresses_in(answer))
    except HoldfastError:
        # Servers show the addresses to holders of a certificate only, not to holders of a token.
        return
    with contextlib.suppress(OSError):
        write_private(_path(kubeconfig), msgspec.json.encode(_Known(given, servers)))
        os.utime(_path(kubeconfig))


# A user waits: three tries at a server that refuses connections take less than a second.
PATIENCE = RetryPolicy(tries_max=3, looks_max=6, deadline_ms=15_000, try_ms=10_000)

# Only a later command may need the addresses, so that no user waits longer for them.
LEARN_S = 2.0

AGENT = "holdfast-cli"

Command = TypeVar("Command", bound=Callable[..., Any])


def kubeconfig_option(command: Command) -> Command:
    """The option of every command that talks to a plane."""
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help=f"The plane's address and your credentials. [else $KUBECONFIG, else "
        f"${DATA_VARIABLE}/kubeconfig, else {DATA}/kubeconfig]",
    )(command)


def kubeconfig_path(kubeconfig: Path | None) -> Path:
    """The kubeconfig to use. Raises Invalid when there is none."""
    return kubeconfig if kubeconfig is not None else find_kubeconfig()


def given_access(kubeconfig: Path | None) -> Access:
    """Address and credentials, as the kubeconfig states them. Raises Invalid."""
    return from_kubeconfig(kubeconfig_path(kubeconfig))


def access(kubeconfig: Path | None) -> Access:
    """The access of the kubeconfig, with the remembered servers after the given one."""
    path, found = kubeconfig_path(kubeconfig), given_access(kubeconfig)
    (given,) = found.servers
    return msgspec.structs.replace(found, servers=(given, *remembered_servers(path, given)))


@contextlib.asynccontextmanager
async def client(kubeconfig: Path | None) -> AsyncIterator[AsyncClient]:
    """A client of any server of the plane. Remembers which servers exist. Raises Invalid."""
    path, to = kubeconfig_path(kubeconfig), access(kubeconfig)
    async with AsyncClient(to, policy=PATIENCE, agent=AGENT) as found:
        try:
            yield found
        finally:
            if found.transport.has_answered and not is_fresh(path, to.servers[0]):
                await _learn(found.transport, path, to.servers[0])


@contextlib.asynccontextmanager
async def transport(kubeconfig: Path | None) -> AsyncIterator[Transport]:
    """The transport of such a client, for requests that are tried once."""
    async with client(kubeconfig) as found:
        yield found.transport


async def _learn(to: Transport, kubeconfig: Path, given: str) -> None:
    with contextlib.suppress(HoldfastError):
        answer = await to.send("GET", known_servers.PATH, timeout_s=LEARN_S)
        remember(kubeconfig, given, answer)
