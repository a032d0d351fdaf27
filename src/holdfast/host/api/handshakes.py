"""TLS handshakes under way: so many in all and so many of one address, and no more.

A handshake costs a signature and memory before anybody has said who they are, and lasts as long as
its client likes, up to `--tls-timeout`. So connections are accepted here, where their address is
known before the handshake begins; beyond the caps they are closed at once, which costs next to
nothing. `Site` in `connections` listens with this.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from holdfast.host.api.early import network_of
from holdfast.host.patience import Patience

# A crowd that comes back after a server was lost finishes its handshakes within moments of each
# other; what stays under way for longer is slow, or means harm.
UNDER_WAY_MAX = 1_024
# Clients that share an address, behind a load balancer or on one machine, begin at once as well.
OF_ADDRESS_MAX = 512
# So long nothing is accepted when this process has no descriptor left.
EXHAUSTED_PAUSE_S = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger(__name__)


class Handshakes:
    """Counts those that are under way, by address."""

    def __init__(self, most: int = UNDER_WAY_MAX, of_address: int = OF_ADDRESS_MAX) -> None:
        self._most, self._of_address = most, of_address
        self._by_address: dict[str, int] = {}
        self.under_way = 0
        # How many connections were closed because of the caps.
        self.refused = 0

    def begin(self, address: str) -> bool:
        """Whether one more of this address may begin; if so, it counts until `end`."""
        count = self._by_address.get(address, 0)
        if self.under_way >= self._most or count >= self._of_address:
            self.refused += 1
            return False
        self.under_way += 1
        self._by_address[address] = count + 1
        return True

    def end(self, address: str) -> None:
        """One of this address is over, well or not."""
        self.under_way -= 1
        left = self._by_address[address] - 1
        if left:
            self._by_address[address] = left
        else:
            del self._by_address[address]


class Accepting:
    """Accepts the connections of one listening socket, and sees each through its handshake."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext,
        patience: Patience,
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
            counted_for = network_of(address[0])
            if self._handshakes.begin(counted_for):
                task = self._loop.create_task(self._shake_hands(connection, counted_for))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                connection.close()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    async def _shake_hands(self, connection: socket.socket, address: str) -> None:
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(
                self._factory,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._tls_s,
                ssl_shutdown_timeout=self._goodbye_s,
            )
        except OSError:
            # What a client does wrong, or too late, has ended its connection and is no news. Errors
            # of TLS are errors of the system, too.
            return
        finally:
            self._handshakes.end(address)
