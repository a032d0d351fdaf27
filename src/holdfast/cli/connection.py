"""Which plane a command talks to, and under which identity.

`--kubeconfig` comes first, then KUBECONFIG, then the file that `holdfast up` writes into its data
directory, so that a first try needs no setting. When the server in the kubeconfig does not answer,
the command tries the other servers that earlier commands have remembered.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import click
import msgspec

from holdfast.host.client import Access, Client, from_kubeconfig, known_servers
from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.transport import OPENING_S, Transport
from holdfast.host.process.files import write_private
from holdfast.model.errors import HoldfastError, Invalid, Unavailable
from holdfast.model.heartbeat import SERVERS_MAX
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


DATA_VARIABLE = "HOLDFAST_DATA"
DATA = "data"
# A user waits: three tries at a server that refuses connections take less than a second.
PATIENCE = RetryPolicy(tries_max=3, looks_max=6, deadline_ms=15_000, try_ms=10_000)

# Only a later command may need the addresses, so that no user waits longer for them.
LEARN_S = 2.0

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
    if kubeconfig is not None:
        return kubeconfig
    # As with kubectl it may be a list; missing files are skipped.
    named = [Path(it) for it in os.environ.get("KUBECONFIG", "").split(os.pathsep) if it]
    for path in named:
        if path.exists():
            return path
    if named:
        raise Invalid(
            f"KUBECONFIG: {named[0]} does not exist; `holdfast up` prints the path of its own"
        )
    path = Path(os.environ.get(DATA_VARIABLE) or DATA) / "kubeconfig"
    if not path.exists():
        raise Invalid(
            f"no kubeconfig: {path} does not exist, KUBECONFIG is not set and --kubeconfig is not "
            "given; `holdfast up` prints the path of its own"
        )
    return path


def given_access(kubeconfig: Path | None) -> Access:
    """Address and credentials, as the kubeconfig states them. Raises Invalid."""
    return from_kubeconfig(kubeconfig_path(kubeconfig))


def access(kubeconfig: Path | None) -> Access:
    """The access of the kubeconfig, with the remembered servers after the given one."""
    path, found = kubeconfig_path(kubeconfig), given_access(kubeconfig)
    (given,) = found.servers
    return msgspec.structs.replace(found, servers=(given, *remembered_servers(path, given)))


class FailoverTransport(Transport):
    """Sends each request to the first server that accepts it; remembers which servers exist."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig, to = kubeconfig_path(kubeconfig), access(kubeconfig)
        self._known_as = to.servers[0]
        self._has_answered = False
        super().__init__(to, agent="holdfast-cli")

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> HttpAnswer:
        """The answer of any server. A server that did not take the request is skipped."""
        for left in reversed(range(self.servers)):
            try:
                answer = await super().send(
                    method, path, query=query, body=body, headers=headers, timeout_s=timeout_s
                )
            except Unavailable:
                if not left:
                    raise
                continue
            self._has_answered = True
            return answer
        raise Unavailable("the kubeconfig names no server")

    async def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        opening_s: float | None = OPENING_S,
    ) -> tuple[aiohttp.ClientResponse, str]:
        """Open a streamed answer of any server."""
        for left in reversed(range(self.servers)):
            try:
                return await super().stream(path, query, headers=headers, opening_s=opening_s)
            except Unavailable:
                if not left:
                    raise
        raise Unavailable("the kubeconfig names no server")

    async def close(self) -> None:
        if self._has_answered and not is_fresh(self._kubeconfig, self._known_as):
            with contextlib.suppress(HoldfastError):
                answer = await super().send("GET", known_servers.PATH, timeout_s=LEARN_S)
                remember(self._kubeconfig, self._known_as, answer)
        await super().close()


def client(kubeconfig: Path | None) -> Client:
    """A client to use as an async context manager. Raises Invalid."""
    to = FailoverTransport(kubeconfig)
    return Client(access(kubeconfig), policy=PATIENCE, transport=to)
