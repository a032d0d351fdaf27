"""The settings of a server, and the messages for wrong ones."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from holdfast.host.__main__ import parser, settings_of
from holdfast.host.server.settings import ListenAddress, ServerSettings
from holdfast.model.errors import Invalid


@pytest.mark.parametrize(
    "text, host, port, url",
    [
        ("127.0.0.1:6443", "127.0.0.1", 6443, "https://127.0.0.1:6443"),
        ("[::1]:1", "::1", 1, "https://[::1]:1"),
        ("0.0.0.0:80", "0.0.0.0", 80, "https://127.0.0.1:80"),
        ("box.example:443", "box.example", 443, "https://box.example:443"),
    ],
)
def test_an_address_is_read_and_has_a_form_for_clients(
    text: str, host: str, port: int, url: str
) -> None:
    listen = ListenAddress.parse(text)
    assert (listen.host, listen.port) == (host, port)
    assert listen.url(port) == url


@pytest.mark.parametrize("text", ["6443", ":6443", "host:", "host:port", "host:70000", ""])
def test_what_is_no_address_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(Invalid, match="use HOST:PORT"):
        ListenAddress.parse(text)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--store", "postgres://x"], "must be sqlite:PATH"),
        (["--name", "Has Spaces"], "is not a name for a server"),
        (["--advertise", "http://x:1"], "use https://"),
        (["--token-life-max", "367d"], "--token-life-max.*must be from 3s to 366d"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_in_a_sentence(
    arguments: list[str], sentence: str
) -> None:
    settings = settings_of(parser().parse_args(["serve", *arguments]))
    with pytest.raises(Invalid, match=sentence):
        settings.check()


def test_a_certificate_bears_every_name_that_clients_may_use(tmp_path: Path) -> None:
    settings = ServerSettings(
        data=tmp_path,
        listen=ListenAddress("10.1.2.3", 1),
        advertise="https://plane.example:6443",
        names=("other.example",),
    )
    names = settings.certificate_names
    wanted = {"localhost", "127.0.0.1", "10.1.2.3", "plane.example", "other.example"}
    assert wanted <= set(names)
    everywhere = ServerSettings(data=tmp_path, listen=ListenAddress("0.0.0.0", 1))
    assert "0.0.0.0" not in everywhere.certificate_names


@pytest.mark.parametrize(
    "advertise, host",
    [
        ("https://plane.example:6443", "plane.example"),
        ("https://plane.example", "plane.example"),
        ("https://[fd00::1]:6443/", "fd00::1"),
    ],
)
def test_the_host_that_is_advertised_is_in_the_certificate(advertise: str, host: str) -> None:
    settings = ServerSettings(data=Path("data"), name="one", advertise=advertise)
    settings.check()
    assert {host, "one.server.holdfast.internal"} <= set(settings.certificate_names)


@pytest.mark.parametrize(
    "advertise",
    [
        "plane:1",
        "http://plane:1",
        "https://",
        "https://a:0",
        "https://a:x",
        "https://u@a",
        "https://a/b",
    ],
)
def test_an_unusable_advertised_address_is_refused(advertise: str) -> None:
    """The lease would carry it to every other server."""
    with pytest.raises(Invalid, match="--advertise"):
        ServerSettings(data=Path("data"), name="one", advertise=advertise).check()


@pytest.mark.parametrize("name", ["a..b", "a.", ".a", "-a", "a" * 64, "A", "a_b"])
def test_a_name_that_no_certificate_can_carry_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="is not a name for a server"):
        ServerSettings(data=Path("data"), name=name).check()


def test_a_server_on_all_addresses_announces_its_own_name() -> None:
    """127.0.0.1 is another computer for each of them."""
    everywhere = ListenAddress.parse("0.0.0.0:6443").url_for_others(6443)
    assert everywhere == f"https://{socket.gethostname()}:6443"
    assert ListenAddress.parse("10.0.0.1:6443").url_for_others(6443) == "https://10.0.0.1:6443"
