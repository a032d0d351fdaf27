"""TLS handshakes under way: bounded in all and for each address.

A handshake costs a signature and memory before the client is authenticated, and lasts as long as
its client likes, up to `--tls-timeout`. So connections are accepted here, where their address is
known before the handshake begins. At a cap the oldest of an address makes way for the newest: a
handshake that is meant to succeed is over within moments, so the oldest is the least likely to be
one. Work on a node has the address of the node's agent, and must not be able to keep the agent out
by holding all places. `HttpSite` in `connections` listens with this.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

import msgspec

from holdfast.host.api.flow.anonymous_limits import network_of
from holdfast.host.server.client_timeouts import ClientTimeouts

# Clients that reconnect after a server was lost finish their handshakes within moments of each
# other; what takes longer is slow, or an attack.
UNDER_WAY_MAX = 1_024
# Clients that share an address, behind a load balancer or on one machine, begin at once as well.
OF_ADDRESS_MAX = 512
# While an address has more than half of its places, a handshake of it may take no longer than this.
CROWDED_S = 2.0
# How long accepting pauses when this process has no descriptor left.
EXHAUSTED_PAUSE_S = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger(__name__)


class Ticket(msgspec.Struct, eq=False):
    """One handshake under way: its client's address, and how to cancel it."""

    address: str
    cancel: Callable[[], object] = lambda: None


# Called with the address of a client and why its certificate was refused.
OnRefused = Callable[[str, str], None]


class Handshakes:
    """The handshakes under way, by address, the oldest first."""

    def __init__(
        self,
        most: int = UNDER_WAY_MAX,
        of_address: int = OF_ADDRESS_MAX,
        on_refused: OnRefused | None = None,
    ) -> None:
        self._most, self._of_address = most, of_address
        self.on_refused = on_refused
        self._by_address: dict[str, dict[Ticket, None]] = {}
        self.under_way = 0
        # How many were ended because of the caps.
        self.displaced = 0

    def begin(self, address: str) -> Ticket:
        """Count one more of this address until `end`; at a cap the oldest makes way."""
        if len(self._by_address.get(address, ())) >= self._of_address:
            self._displace(address)
        elif self.under_way >= self._most:
            # The address with the most gives one up: others can always begin.
            self._displace(max(self._by_address, key=lambda it: len(self._by_address[it])))
        ticket = Ticket(address)
        self._by_address.setdefault(address, {})[ticket] = None
        self.under_way += 1
        return ticket

    def is_crowded(self, address: str) -> bool:
        """Whether this address uses more than half of its cap."""
        return len(self._by_address.get(address, ())) > self._of_address // 2

    def end(self, ticket: Ticket) -> None:
        """Count a handshake no longer, successful or not."""
        held = self._by_address.get(ticket.address, {})
        if ticket not in held:
            return
        del held[ticket]
        self.under_way -= 1
        if not held:
            del self._by_address[ticket.address]

    def _displace(self, address: str) -> None:
        oldest = next(iter(self._by_address[address]))
        self.end(oldest)
        self.displaced += 1
        oldest.cancel()


class Accepting:
    """Accepts the connections of one listening socket, and sees each through its handshake."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext,
        patience: ClientTimeouts,
        goodbye_s: float,
        backlog: int,
        handshakes: Handshakes,
    ) -> None:
        self._socket, self._factory, self._tls = listening, factory, tls
        self._tls_s, self._goodbye_s = patience.tls_s, goodbye_s
        self._backlog, self._handshakes = backlog, handshakes
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._socket.listen(self._backlog)
        self._loop.add_reader(self._socket, self._accept)

    def stop(self) -> None:
        """Accept nothing more, and end the handshakes that are under way."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for task in self._tasks:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(self._backlog):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                _log.error("no connection can be accepted: %s", error)
                self._loop.remove_reader(self._socket)
                self._pause = self._loop.call_later(EXHAUSTED_PAUSE_S, self._resume)
                return
            ticket = self._handshakes.begin(network_of(address[0]))
            task = self._loop.create_task(self._shake_hands(connection, ticket, address[0]))
            ticket.cancel = task.cancel
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, connection, ticket))

    def _ended(self, connection: socket.socket, ticket: Ticket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._handshakes.end(ticket)
        if task.cancelled():
            # One that was ended before it began has no transport that would close it.
            connection.close()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    async def _shake_hands(self, connection: socket.socket, ticket: Ticket, source: str) -> None:
        crowded = self._handshakes.is_crowded(ticket.address)
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(
                self._factory,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=min(self._tls_s, CROWDED_S) if crowded else self._tls_s,
                ssl_shutdown_timeout=self._goodbye_s,
            )
        except ssl.SSLCertVerificationError as error:
            # The client's certificate is not valid here: of another authority, or expired.
            if self._handshakes.on_refused is not None:
                self._handshakes.on_refused(source, error.verify_message)
        except OSError:
            # A client's mistake or delay has ended its connection; it is not worth a log line. TLS
            # errors are subclasses of OSError.
            return
