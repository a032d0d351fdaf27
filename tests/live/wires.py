"""Connections to a server on which any bytes can be sent, and whatever comes back is read."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable

import msgspec

from tests.patience import PATIENCE_S

ANSWER_S = PATIENCE_S


class Said(msgspec.Struct):
    """An answer: its code, its head in lower case, and its body. Code 0 is none at all."""

    code: int = 0
    head: str = ""
    body: bytes = b""

    @property
    def status(self) -> dict[str, object]:
        """The Status that the body must be."""
        found = msgspec.json.decode(self.body)
        assert isinstance(found, dict), self.body
        return found


class Wires:
    """Makes connections to one port, with the identity of a TLS context."""

    def __init__(self, port: int, contexts: dict[str, ssl.SSLContext]) -> None:
        self._port, self._contexts = port, contexts

    def plain(self) -> socket.socket:
        """A connection that has not even begun its handshake."""
        made = socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def secure(self, who: str = "admin") -> ssl.SSLSocket:
        return self.wrapped(self.plain(), who)

    def wrapped(self, plain: socket.socket, who: str = "admin") -> ssl.SSLSocket:
        return self._contexts[who].wrap_socket(plain, server_hostname="127.0.0.1")

    def ask(self, wire: ssl.SSLSocket, data: bytes | Iterable[bytes]) -> Said:
        """Send it all, as far as it is taken, and read one answer."""
        try:
            for piece in (data,) if isinstance(data, bytes) else data:
                wire.sendall(piece)
        except OSError:
            # The server has answered and goes; what it said is still there to read.
            pass
        return read(wire)


def read(wire: ssl.SSLSocket, timeout_s: float = ANSWER_S) -> Said:
    """One answer with a length; an answer in chunks as far as its first ones."""
    wire.settimeout(timeout_s)
    got = b""
    while b"\r\n\r\n" not in got:
        piece = _piece(wire)
        if not piece:
            return Said(body=got)
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    text = head.decode("latin-1").lower()
    length = next(
        (int(line[15:]) for line in text.split("\r\n") if line.startswith("content-length:")), 0
    )
    while len(body) < length:
        piece = _piece(wire)
        if not piece:
            break
        body += piece
    return Said(int(text.split()[1]), text, body)


def _piece(wire: ssl.SSLSocket) -> bytes:
    try:
        return wire.recv(65_536)
    except TimeoutError:
        raise
    except OSError:
        return b""


def ends_after_s(wire: socket.socket) -> float:
    """After how many seconds the other side ends a connection on which nothing is said."""
    began = time.monotonic()
    wire.settimeout(PATIENCE_S)
    try:
        while wire.recv(4_096):
            pass
    except TimeoutError:
        raise AssertionError(f"it was still open after {PATIENCE_S} s") from None
    except OSError:
        pass
    return time.monotonic() - began
