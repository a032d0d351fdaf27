"""What a first start creates, and what later ones leave unchanged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from cryptography import x509

from holdfast.host.pki.certificates import BACKDATE, LEAF_LIFE, CertificateAuthority, Purpose
from holdfast.host.pki.first_trust import establish, write_kubeconfig
from holdfast.host.server.settings import SERVER_LIFE, ServerSettings

URL = "https://127.0.0.1:6443"


def test_a_second_start_finds_everything_as_the_first_left_it(tmp_path: Path) -> None:
    settings = ServerSettings(data=tmp_path / "data", name="one")
    path = write_kubeconfig(settings, establish(settings), URL)
    before = {file: file.stat().st_mtime_ns for file in (path, *(path.parent / "pki").iterdir())}
    write_kubeconfig(settings, establish(settings), URL)
    after = {file: file.stat().st_mtime_ns for file in (path, *(path.parent / "pki").iterdir())}
    assert after == before


def test_servers_that_share_a_directory_and_start_together_have_one_authority(
    tmp_path: Path,
) -> None:
    servers = [
        ServerSettings(data=tmp_path / name, name=name, pki=tmp_path / "pki")
        for name in ("a", "b", "c")
    ]
    with ThreadPoolExecutor(3) as threads:
        trusts = list(threads.map(establish, servers))
    assert len({trust.authorities.pem for trust in trusts}) == 1
    assert len({trust.server for trust in trusts}) == 3
    assert len({trust.admin.certificate for trust in trusts}) == 1


def life_of(certificate: bytes) -> timedelta:
    found = x509.load_pem_x509_certificate(certificate)
    return found.not_valid_after_utc - found.not_valid_before_utc


def test_a_servers_own_certificates_are_short_lived(tmp_path: Path) -> None:
    """It renews them while it runs, so that a stolen one is soon worthless."""
    settings = ServerSettings(data=tmp_path, name="one")
    # A start of an earlier version has left one for a year.
    purpose, directory = Purpose(server_names=settings.certificate_names), settings.pki_directory
    authority = CertificateAuthority.open(directory)
    authority.keep(directory, "server", "system:server:one", purpose, life=LEAF_LIFE)
    trust = establish(settings)
    for file in (trust.server[0], trust.peer[0]):
        assert life_of(file.read_bytes()) <= SERVER_LIFE + BACKDATE
    assert life_of(trust.admin.certificate) > SERVER_LIFE + BACKDATE
    shorter = ServerSettings(data=tmp_path, name="one", certificate_life=timedelta(hours=1))
    assert life_of(establish(shorter).server[0].read_bytes()) <= timedelta(hours=1) + BACKDATE
