"""Which user owns each listening socket of this machine, from the kernel.

Called by `supervisor` and `probing`. All processes of a node share its ports, and nothing prevents
one tenant from listening where another's work was about to. But the kernel knows the user of each
socket, and each tenant has its own: so work whose published address leads to another user's
listener is not probed, and is ended. A listener at another address of the same port does not count:
otherwise a tenant could use one to end another's work at will.

The kernel is asked by sock_diag(7). /proc/net does not say which sockets accept IPv6 only, and its
tables of all connections take a hundred times as long to read.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address

import msgspec

# The socket states that are listed for each protocol: those in which others reach the socket. A
# connected UDP socket takes what its peer sends, before those that are not connected.
_CONNECTED, _UNCONNECTED, _LISTENING = 1, 7, 10
_STATES = {
    socket.IPPROTO_TCP: ("TCP", 1 << _LISTENING),
    socket.IPPROTO_UDP: ("UDP", 1 << _UNCONNECTED | 1 << _CONNECTED),
}
_SOCK_DIAG, _BY_FAMILY, _ROOT_AND_MATCH = 4, 20, 0x301
_ERROR, _DONE = 2, 3
_TIMEOUT_S, _READ_BYTES = 10.0, 65_536
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
# A socket's family and state, its port and address, and its user; attributes follow.
_SOCKET = struct.Struct("=BB2x2s2x16s40xI4x")
_ATTRIBUTE, _V6_ONLY, _FILTER = struct.Struct("=HH"), 11, 1
# One instruction of a filter; its jump is a number of 16 bits.
_STEP, _GO, _IF_PORT, _FILTER_PORTS_MAX = struct.Struct("=BBH"), 1, 11, 4096

Address = IPv4Address | IPv6Address


class ListeningSocket(msgspec.Struct, frozen=True):
    """A socket that others can reach, or only its peer if `is_connected`.

    is_v6_only: whether it is known not to accept IPv4.
    """

    address: Address
    user: int
    is_v6_only: bool = False
    is_connected: bool = False


class PublishedAddress(msgspec.Struct, frozen=True):
    """An address at which the work of a node is reached.

    is_here: whether the node has it. One that is translated on the way may arrive at any address.
    """

    address: Address
    is_here: bool = True

    def precedence(self, of: ListeningSocket) -> int:
        """The kernel chooses the listener with the highest rank; 0 is never reached."""
        mapped = _unmapped(of.address)
        if mapped.version != self.address.version:
            # A listener for all IPv6 addresses may accept IPv4 as well, with the lowest rank.
            return 1 if of.address == IPv6Address(0) and not of.is_v6_only else 0
        if mapped.is_unspecified:
            return 2
        is_reached = mapped == self.address if self.is_here else not mapped.is_loopback
        return 3 if is_reached else 0


class Listeners(msgspec.Struct, frozen=True):
    """Listeners by a port such as TCP/20001, as they are reached from elsewhere."""

    by_port: Mapping[str, frozenset[ListeningSocket]]
    published: tuple[PublishedAddress, ...]

    def foreign(self, ports: Iterable[str], user: int) -> str:
        """The first of these ports that leads to another user's listener; empty without one."""
        return next((port for port in ports if self._reached(port) - {user}), "")

    def is_own(self, port: str, user: int) -> bool:
        """Whether this port leads to a listener of this user, and to no other user's."""
        return self._reached(port) == {user}

    def _reached(self, port: str) -> set[int]:
        """The users whose listeners are reached at a port. For TCP the kernel allows only one."""
        found: set[int] = set()
        listeners = self.by_port.get(port, frozenset())
        for published in self.published:
            ranks = {it: published.precedence(it) for it in listeners}
            best = max((rank for it, rank in ranks.items() if not it.is_connected), default=0)
            reached = (
                it for it, rank in ranks.items() if rank and (it.is_connected or rank == best)
            )
            found.update(it.user for it in reached)
        return found


def look(host: str, ports: Collection[str]) -> Listeners:
    """The listeners at these ports of this machine, whose work is reached at `host`.

    Raises OSError where the kernel cannot list them.
    """
    found: defaultdict[str, set[ListeningSocket]] = defaultdict(set)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        for protocol, (name, states) in _STATES.items():
            wanted = sorted(int(it.partition("/")[2]) for it in ports if it.startswith(name))
            for family in (socket.AF_INET, socket.AF_INET6) if wanted else ():
                request = _REQUEST.pack(family, protocol, 0, states)
                for at in range(0, len(wanted), _FILTER_PORTS_MAX):
                    text = request + _filter(wanted[at : at + _FILTER_PORTS_MAX])
                    size = _HEADER.size + len(text)
                    kernel.send(_HEADER.pack(size, _BY_FAMILY, _ROOT_AND_MATCH, 1, 0) + text)
                    for body in _answers(kernel):
                        number, listener = _listener(body)
                        found[f"{name}/{number}"].add(listener)
    by_port = {port: frozenset(listeners) for port, listeners in found.items()}
    return Listeners(by_port, _published(host))


def can_look() -> bool:
    """Whether the kernel can list listeners with their users."""
    try:
        look("127.0.0.1", ("TCP/1", "UDP/1"))
    except OSError:
        return False
    return True


def _filter(ports: Sequence[int]) -> bytes:
    """A filter for these ports only: a tenant may have opened thousands of others.

    It is bytecode of inet_diag. Each instruction has a jump for true and one for false. A socket
    for which the program stops exactly at its end is listed; one that jumps beyond it is not.
    """
    steps = []
    for left in range(len(ports), 0, -1):
        otherwise = 3 * _STEP.size if left > 1 else 4 * _STEP.size
        port = ports[len(ports) - left]
        steps.append(_STEP.pack(_IF_PORT, 2 * _STEP.size, otherwise) + _STEP.pack(0, 0, port))
        steps.append(_STEP.pack(_GO, _STEP.size, (3 * left - 2) * _STEP.size))
    text = b"".join(steps)
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(text), _FILTER) + text


def _answers(kernel: socket.socket) -> Iterator[bytes]:
    while True:
        text = kernel.recv(_READ_BYTES)
        while text:
            size, kind, *_ = _HEADER.unpack_from(text)
            body, text = text[_HEADER.size : size], text[size:]
            if kind == _DONE:
                return
            if kind == _ERROR:
                (code,) = struct.unpack_from("=i", body)
                raise OSError(-code, f"sock_diag: {os.strerror(-code).lower()}")
            yield body


def _listener(body: bytes) -> tuple[int, ListeningSocket]:
    family, state, port, address, user = _SOCKET.unpack_from(body)
    raw = address if family == socket.AF_INET6 else address[:4]
    is_v6_only = _attribute(body[_SOCKET.size :], _V6_ONLY) == b"\1"
    listener = ListeningSocket(ip_address(raw), user, is_v6_only, state == _CONNECTED)
    return int.from_bytes(port), listener


def _attribute(text: bytes, wanted: int) -> bytes:
    while len(text) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(text)
        if kind == wanted:
            return text[_ATTRIBUTE.size : size]
        # Each attribute begins at a multiple of four.
        text = text[max(_ATTRIBUTE.size, size + 3 & ~3) :]
    return b""


def _unmapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped if mapped is not None else address


def _published(host: str) -> tuple[PublishedAddress, ...]:
    try:
        addresses = _resolved(host)
    except (OSError, UnicodeError):
        # Clients can resolve the name, and this node cannot.
        return PublishedAddress(IPv4Address(0), False), PublishedAddress(IPv6Address(0), False)
    return tuple(PublishedAddress(it, _is_here(it)) for it in addresses)


@cache
def _resolved(host: str) -> tuple[Address, ...]:
    found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    texts = dict.fromkeys(str(it[4][0]).partition("%")[0] for it in found)
    return tuple(_unmapped(ip_address(text)) for text in texts)


def _is_here(address: Address) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True
