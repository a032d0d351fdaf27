"""Whose listener the kernel takes for connections to the address of a node."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address

import pytest

from holdfast.host.runtime.listeners import Listeners, ListeningSocket, PublishedAddress, look

MINE, OTHER = 2_000_000_001, 2_000_000_002
NODE = "192.0.2.7"


def taken(published: str, *listeners: tuple[str, int], is_here: bool = True) -> bool:
    """Whether port 80 at this address leads to someone else. `6only` takes IPv6 alone."""
    found = frozenset(
        ListeningSocket(
            ip_address(address.removeprefix("6only ")), user, address.startswith("6only")
        )
        for address, user in listeners
    )
    known = Listeners({"TCP/80": found}, (PublishedAddress(ip_address(published), is_here),))
    return known.foreign(["TCP/81", "TCP/80"], MINE) == "TCP/80"


@pytest.mark.parametrize("address", [NODE, "0.0.0.0", "::", f"::ffff:{NODE}", "::ffff:0.0.0.0"])
def test_a_listener_that_is_reached_at_the_node_s_address_is_someone_else_s(address: str) -> None:
    assert taken(NODE, (address, OTHER))
    assert not taken(NODE, (address, MINE))


@pytest.mark.parametrize("address", ["127.0.0.2", "192.0.2.8", "6only ::", "2001:db8::7"])
def test_a_listener_that_is_not_reached_there_takes_no_port(address: str) -> None:
    assert not taken(NODE, (address, OTHER))


def test_work_that_is_reached_itself_keeps_its_port_whatever_listens_beside_it() -> None:
    """The kernel takes the most exact address, then those of IPv4."""
    for mine, other in (
        (NODE, "0.0.0.0"),
        (NODE, "::"),
        ("0.0.0.0", "::"),
        ("0.0.0.0", "6only ::"),
    ):
        assert not taken(NODE, (mine, MINE), (other, OTHER))
    assert taken(NODE, ("0.0.0.0", MINE), (NODE, OTHER))
    assert taken(NODE, ("127.0.0.1", MINE), ("0.0.0.0", OTHER))
    # Sockets of UDP may share an address, and which of them gets a datagram is not known.
    assert taken(NODE, ("0.0.0.0", MINE), ("0.0.0.0", OTHER))


def test_a_port_is_opened_by_a_listener_that_is_reached_and_by_no_other() -> None:
    """Not by one of its own at another address, nor by one that others share or hide."""

    def is_open(*listeners: tuple[str, int]) -> bool:
        found = frozenset(ListeningSocket(ip_address(address), user) for address, user in listeners)
        known = Listeners({"TCP/80": found}, (PublishedAddress(ip_address(NODE)),))
        assert not known.is_own("TCP/81", MINE)
        return known.is_own("TCP/80", MINE)

    assert not is_open()
    for own in (NODE, "0.0.0.0", "::"):
        assert is_open((own, MINE))
        assert not is_open((own, OTHER))
    assert not is_open(("127.0.0.1", MINE))
    assert is_open((NODE, MINE), ("0.0.0.0", OTHER))
    assert not is_open(("0.0.0.0", MINE), (NODE, OTHER))
    assert not is_open(("0.0.0.0", MINE), ("0.0.0.0", OTHER))


def test_an_address_of_ipv6_is_no_matter_of_ipv4() -> None:
    for other, is_taken in (("::", True), ("6only ::", True), ("2001:db8::7", True)):
        assert taken("2001:db8::7", (other, OTHER)) is is_taken
    for other in ("0.0.0.0", NODE, f"::ffff:{NODE}", "2001:db8::8"):
        assert not taken("2001:db8::7", (other, OTHER))


def test_an_address_that_the_node_does_not_have_may_lead_to_any_but_the_loopback() -> None:
    """As behind a translation of addresses."""
    assert taken(NODE, ("10.0.0.5", OTHER), is_here=False)
    assert taken(NODE, ("10.0.0.4", MINE), ("10.0.0.5", OTHER), is_here=False)
    assert not taken(NODE, ("127.0.0.2", OTHER), is_here=False)
    assert not taken(NODE, ("10.0.0.5", MINE), is_here=False)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_the_kernel_reports_address_user_and_family_of_each_listener(kind: int) -> None:
    name = "TCP" if kind == socket.SOCK_STREAM else "UDP"
    wanted = [("127.0.0.3", False), ("::", True), ("::ffff:127.0.0.4", False)]
    for address, is_only in wanted:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, kind) as listener:
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, is_only)
            listener.bind((address, 0))
            if kind == socket.SOCK_STREAM:
                listener.listen()
            port = f"{name}/{listener.getsockname()[1]}"
            found = ListeningSocket(ip_address(address), os.geteuid(), is_only)
            known = look("127.0.0.1", [port])
            assert set(known.by_port) == {port}
            assert found in known.by_port[port]
            assert known.published == (PublishedAddress(ip_address("127.0.0.1")),)
        assert found not in look("127.0.0.1", [port]).by_port.get(port, ())


@pytest.mark.parametrize("count", [1, 2, 3, 10_000])
def test_only_listeners_at_the_ports_that_were_asked_for_are_reported(count: int) -> None:
    """However many that are."""
    with socket.socket() as first, socket.socket() as last, socket.socket() as other:
        sockets = sorted((first, last, other), key=_bound)
        numbers = [it.getsockname()[1] for it in sockets]
        free = (it for it in range(1, 65_536) if it not in numbers)
        ports = {f"TCP/{it}" for _, it in zip(range(count), free, strict=False)}
        wanted = {f"TCP/{it}" for it in (numbers[0], numbers[2])}
        found = look("127.0.0.1", ports | wanted).by_port
        assert wanted <= set(found) <= ports | wanted
        assert not set(look("127.0.0.1", ports).by_port) & {f"TCP/{it}" for it in numbers}


def _bound(one: socket.socket) -> int:
    one.bind(("127.0.0.5", 0))
    one.listen()
    number: int = one.getsockname()[1]
    return number


def test_a_name_and_an_address_of_elsewhere_are_looked_at_as_such() -> None:
    assert look("192.0.2.7", ()).published == (PublishedAddress(ip_address("192.0.2.7"), False),)
    assert {it.is_here for it in look(64 * "x", ()).published} == {False}
    assert ip_address("127.0.0.1") in [it.address for it in look("localhost", ()).published]


def test_a_connected_socket_of_udp_takes_what_its_peer_sends_to_another_one_s_port() -> None:
    """Sockets that share a port are a tenant's way to another one's datagrams, one client at a
    time. One's own do not hide who gets the rest.
    """

    def is_foreign(*sockets: tuple[str, int, bool]) -> bool:
        found = frozenset(
            ListeningSocket(ip_address(at), who, False, is_it) for at, who, is_it in sockets
        )
        known = Listeners({"UDP/80": found}, (PublishedAddress(ip_address(NODE)),))
        return bool(known.foreign(["UDP/80"], MINE))

    assert is_foreign(("0.0.0.0", MINE, False), (NODE, OTHER, True))
    assert is_foreign((NODE, MINE, False), (NODE, OTHER, True))
    assert is_foreign((NODE, MINE, True), ("0.0.0.0", OTHER, False))
    assert not is_foreign((NODE, MINE, True), ("0.0.0.0", MINE, False), ("127.0.0.2", OTHER, True))
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as two:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        two.connect(one.getsockname())
        one.connect(two.getsockname())
        known = look("127.0.0.1", [f"UDP/{port}"])
        own = ListeningSocket(ip_address("127.0.0.1"), os.geteuid(), is_connected=True)
        assert known.by_port[f"UDP/{port}"] == {own}
