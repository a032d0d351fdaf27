"""Certificates: which ones are trusted, and that no private file is readable by others."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from holdfast.host.pki.certificates import (
    CLIENT,
    LEAF_LIFE,
    RENEW_FROM,
    CertificateAuthority,
    Purpose,
)
from holdfast.host.pki.kubeconfig import kubeconfig
from holdfast.model.errors import Invalid

SERVER = Purpose(("localhost", "127.0.0.1"))


def test_the_authority_is_made_once_and_found_again(tmp_path: Path) -> None:
    first, again = (
        CertificateAuthority.open(tmp_path / "pki"),
        CertificateAuthority.open(tmp_path / "pki"),
    )
    assert first.pem == again.pem
    for file in ("ca.crt", "ca.key"):
        assert stat.S_IMODE((tmp_path / "pki" / file).stat().st_mode) == 0o600


def test_half_an_authority_is_refused_and_left_alone(tmp_path: Path) -> None:
    CertificateAuthority.open(tmp_path)
    key = (tmp_path / "ca.key").read_bytes()
    (tmp_path / "ca.crt").write_text("not a certificate")
    with pytest.raises(Invalid, match="restore both"):
        CertificateAuthority.open(tmp_path)
    assert (tmp_path / "ca.key").read_bytes() == key


def test_a_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    CertificateAuthority.open(tmp_path / "one")
    CertificateAuthority.open(tmp_path / "two")
    (tmp_path / "one" / "ca.key").write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    with pytest.raises(Invalid, match="is not the key of"):
        CertificateAuthority.open(tmp_path / "one")


def test_a_client_certificate_says_who_and_in_which_groups(tmp_path: Path) -> None:
    issued = CertificateAuthority.open(tmp_path).issue("ada", CLIENT, ("tenant:risk", "auditors"))
    found = x509.load_pem_x509_certificate(issued.certificate)
    assert found.subject.rfc4514_string() == "CN=ada,O=auditors,O=tenant:risk"
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert usage[0] == x509.ExtendedKeyUsageOID.CLIENT_AUTH
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "PRIVATE" not in repr(issued)


def test_a_kept_certificate_is_renewed_when_old_foreign_or_under_other_names(
    tmp_path: Path,
) -> None:
    authority = CertificateAuthority.open(tmp_path)
    certificate, _ = authority.keep(tmp_path, "server", "server", SERVER)
    first = certificate.read_bytes()
    authority.keep(tmp_path, "server", "server", SERVER)
    assert certificate.read_bytes() == first
    authority.keep(tmp_path, "server", "server", Purpose((*SERVER.server_names, "plane.test")))
    second = certificate.read_bytes()
    assert second != first
    past = datetime.now(UTC) - RENEW_FROM * LEAF_LIFE - timedelta(days=1)
    certificate.write_bytes(authority.issue("server", SERVER, now=past).certificate)
    authority.keep(tmp_path, "server", "server", SERVER)
    assert certificate.read_bytes() not in (first, second)


def test_client_and_server_believe_each_other_through_the_authority(tmp_path: Path) -> None:
    """The handshake is a real one, in memory."""
    authority = CertificateAuthority.open(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.keep(tmp_path, "server", "server", SERVER))
    server.load_verify_locations(cadata=authority.pem.decode())
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cadata=authority.pem.decode())
    client.load_cert_chain(*authority.keep(tmp_path, "ada", "ada", CLIENT, ("tenant:risk",)))
    peer = _handshake(server, client)
    subject = dict(pair for part in peer["subject"] for pair in part)
    assert subject == {"commonName": "ada", "organizationName": "tenant:risk"}


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, object]:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    two = server.wrap_bio(to_server, to_client, server_side=True)
    done = [False, False]
    for _ in range(10):
        for index, side in enumerate((one, two)):
            try:
                side.do_handshake()
                done[index] = True
            except ssl.SSLWantReadError:
                continue
        if all(done):
            break
    peer = two.getpeercert()
    assert peer is not None
    return dict(peer)


def test_a_kubeconfig_holds_all_that_a_client_needs(tmp_path: Path) -> None:
    import base64
    import json

    authority = CertificateAuthority.open(tmp_path)
    issued = authority.issue("admin", CLIENT, ("system:masters",))
    text = kubeconfig("https://127.0.0.1:6443", authority.pem, issued, user="admin")
    document = json.loads(text)
    user = document["users"][0]["user"]
    assert base64.b64decode(user["client-certificate-data"]) == issued.certificate
    assert document["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
