"""A server's certificates are renewed under it, by its own authority and no other."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.host import trust_upkeep
from holdfast.host.certificates import Authority, Purpose, moment
from holdfast.host.settings import Settings
from holdfast.host.trust import Trust, establish
from holdfast.model.errors import Invalid

LIFE = timedelta(days=30)


def aged(settings: Settings) -> Trust:
    """What a server has whose own certificate is past the middle of its life."""
    trust = establish(settings)
    certificate, key = trust.server
    names = Purpose(settings.certificate_names)
    past = datetime.now(UTC) - 0.6 * LIFE
    issued = trust.authorities.signer.issue("system:server:one", names, life=LIFE, now=past)
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    return trust


def renewed(settings: Settings, trust: Trust) -> datetime:
    return trust_upkeep._due(trust_upkeep._renewed(settings, trust))


def test_what_is_past_its_middle_is_renewed_and_what_is_not_stays(tmp_path: Path) -> None:
    """[K1]"""
    settings = Settings(data=tmp_path, name="one", certificate_life=LIFE)
    trust = aged(settings)
    old = trust.server[0].read_bytes()
    peer = trust.peer[0].read_bytes()
    due = renewed(settings, trust)
    assert trust.server[0].read_bytes() != old
    assert trust.peer[0].read_bytes() == peer
    assert datetime.now(UTC) < due <= moment(peer, 0.5)


def test_another_authority_in_the_directory_issues_nothing_to_a_server_that_runs(
    tmp_path: Path,
) -> None:
    """Whoever connects trusts the first one. [K1, B5]"""
    settings = Settings(data=tmp_path, name="one", certificate_life=LIFE)
    trust = aged(settings)
    old = trust.server[0].read_bytes()
    other = Authority.open(tmp_path / "other")
    for name in ("ca.crt", "ca.key"):
        content = (tmp_path / "other" / name).read_bytes()
        (settings.pki_directory / name).write_bytes(content)
    assert other.pem != trust.authorities.pem
    with pytest.raises(Invalid, match="another authority"):
        renewed(settings, trust)
    assert trust.server[0].read_bytes() == old
    # One that was taken away is not made anew either.
    for name in ("ca.crt", "ca.key"):
        (settings.pki_directory / name).unlink()
    with pytest.raises(Invalid, match="cannot be used"):
        renewed(settings, trust)
    assert not (settings.pki_directory / "ca.key").exists()


def test_a_handshake_after_the_renewal_shows_the_new_certificate(tmp_path: Path) -> None:
    """The same TLS as before, so that the socket need not be opened anew. [K1]"""
    settings = Settings(data=tmp_path, name="one", certificate_life=LIFE)
    trust = aged(settings)
    server, peer = trust.context(), trust.peer_context()
    before = shown(server, trust)
    trust_upkeep._use(trust_upkeep._renewed(settings, trust), server, peer)
    after = shown(server, trust)
    assert after != before
    assert after == ssl.PEM_cert_to_DER_cert(trust.server[0].read_text())


def shown(server: ssl.SSLContext, trust: Trust) -> bytes:
    """What a client sees that connects now."""
    client = ssl.create_default_context(cadata=trust.authorities.pem.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    two = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for side in (one, two):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = one.getpeercert(binary_form=True)
    assert found is not None
    return found
