"""Which plane a command speaks to, and as whom.

`--kubeconfig` first, then KUBECONFIG, then the file that `holdfast up` writes into its data
directory: on the machine of a first try nothing has to be said. When the server that it names does
not answer, the others that are remembered are asked (`known_servers`).
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

from holdfast.host.client import Access, Client, from_kubeconfig, server_discovery
from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.transport import OPENING_S, Transport
from holdfast.host.process.files import write_private
from holdfast.model.errors import HoldfastError, Invalid, Unavailable
from holdfast.model.heartbeat import SERVERS_MAX
from holdfast.observe.retry import RetryPolicy

# The servers of a plane that a kubeconfig does not name, remembered beside it.
#
# A kubeconfig has one address. Each command that reaches a plane learns the others from the
# servers' leases now and then, so that the next one finds a server when that address is dead. Only
# addresses are kept, in a file of the user's own; a server is proven by its certificate, as always.

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


def remember(kubeconfig: Path, given: str, answer: HttpAnswer) -> None:
    """Keep what a server has said. Where nothing can be written, nothing is remembered."""
    try:
        servers = tuple(server_discovery.addresses_in(answer))
    except HoldfastError:
        # Who has a token and no certificate is not told.
        return
    with contextlib.suppress(OSError):
        write_private(_path(kubeconfig), msgspec.json.encode(_Known(given, servers)))
        os.utime(_path(kubeconfig))


DATA_VARIABLE = "HOLDFAST_DATA"
DATA = "data"
# A person waits: three tries at a server that refuses connections take less than a second.
PATIENCE = RetryPolicy(tries_max=3, looks_max=6, deadline_ms=15_000, try_ms=10_000)

# Nobody waits longer for what only a later command may need.
LEARN_S = 2.0

Command = TypeVar("Command", bound=Callable[..., Any])


def kubeconfig_option(command: Command) -> Command:
    """The option of every command that speaks to a plane."""
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help=f"Where the plane is and who you are. [else $KUBECONFIG, else "
        f"${DATA_VARIABLE}/kubeconfig, else {DATA}/kubeconfig]",
    )(command)


def located(kubeconfig: Path | None) -> Path:
    """The kubeconfig to use. Raises Invalid when there is none."""
    if kubeconfig is not None:
        return kubeconfig
    # As with kubectl it may be a list; files that are not there are passed over.
    named = [Path(it) for it in os.environ.get("KUBECONFIG", "").split(os.pathsep) if it]
    for path in named:
        if path.exists():
            return path
    if named:
        raise Invalid(f"KUBECONFIG: {named[0]} is not there; `holdfast up` prints where its own is")
    path = Path(os.environ.get(DATA_VARIABLE) or DATA) / "kubeconfig"
    if not path.exists():
        raise Invalid(
            f"which plane? There is no {path} here, KUBECONFIG is not set and --kubeconfig is not "
            "given; `holdfast up` prints where its own is"
        )
    return path


def given_access(kubeconfig: Path | None) -> Access:
    """Where and as whom, as the kubeconfig says. Raises Invalid."""
    return from_kubeconfig(located(kubeconfig))


def access(kubeconfig: Path | None) -> Access:
    """The same with the servers that are remembered behind the one that is given."""
    path, found = located(kubeconfig), given_access(kubeconfig)
    (given,) = found.servers
    return msgspec.structs.replace(found, servers=(given, *remembered(path, given)))


class FailoverTransport(Transport):
    """To the first server that takes a request in; remembers which servers there are."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig, to = located(kubeconfig), access(kubeconfig)
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
        """The answer of any server. One that took nothing in is passed over for the next."""
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
        raise Unavailable("no server is named")

    async def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        opening_s: float | None = OPENING_S,
    ) -> tuple[aiohttp.ClientResponse, str]:
        """The same of an answer that goes on."""
        for left in reversed(range(self.servers)):
            try:
                return await super().stream(path, query, headers=headers, opening_s=opening_s)
            except Unavailable:
                if not left:
                    raise
        raise Unavailable("no server is named")

    async def close(self) -> None:
        if self._has_answered and not is_fresh(self._kubeconfig, self._known_as):
            with contextlib.suppress(HoldfastError):
                answer = await super().send("GET", server_discovery.PATH, timeout_s=LEARN_S)
                remember(self._kubeconfig, self._known_as, answer)
        await super().close()


def client(kubeconfig: Path | None) -> Client:
    """A client, to be used as an async context manager. Raises Invalid."""
    to = FailoverTransport(kubeconfig)
    return Client(access(kubeconfig), policy=PATIENCE, transport=to)
