"""The configuration: what cannot work is refused with all its faults, and no secret is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.model.errors import Invalid
from holdfast.store.etcd import EtcdConfig


def test_every_fault_is_named_at_once() -> None:
    config = EtcdConfig(
        endpoints=("ftp://a:1", "b", "https://c:2"),
        prefix="holdfast",
        cert_file="cert.pem",
        user="root",
    )
    with pytest.raises(Invalid) as caught:
        config.check()
    assert [error.path for error in caught.value.errors] == [
        "endpoints[0]",
        "endpoints[1]",
        "endpoints",
        "prefix",
        "cert_file",
        "user",
    ]


@pytest.mark.parametrize(
    "endpoint, target, tls",
    [
        ("10.0.0.1:2379", "10.0.0.1:2379", False),
        ("http://etcd.local:2379/", "etcd.local:2379", False),
        ("https://[::1]:2379", "[::1]:2379", True),
    ],
)
def test_endpoints_are_written_as_people_do(endpoint: str, target: str, tls: bool) -> None:
    config = EtcdConfig(endpoints=(endpoint,))
    config.check()
    assert config.targets() == (target,)
    assert config.tls is tls


def test_no_endpoint_is_no_configuration() -> None:
    with pytest.raises(Invalid):
        EtcdConfig(endpoints=()).check()


def test_the_password_is_never_printed() -> None:
    """Configurations end up in logs and errors."""
    config = EtcdConfig(endpoints=("a:1",), user="root", password="hunter2")
    assert "hunter2" not in repr(config)
    assert "hunter2" not in str(config)


def test_an_unreadable_certificate_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"nothing-here"):
        EtcdConfig(endpoints=("a:1",), ca_file=str(tmp_path / "nothing-here")).certificates()
