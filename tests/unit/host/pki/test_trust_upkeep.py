"""A server's certificates are renewed under it, by its own authority and no other."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.client.server_access import Access
from holdfast.host.pki import trust_upkeep
from holdfast.host.pki.ca_keys import key_file
from holdfast.host.pki.certificates import CertificateAuthority, IssuedCertificate, Purpose, moment
from holdfast.host.pki.first_trust import ServerTls, Trust, establish
from holdfast.host.pki.trust_bundle import (
    TrustBundle,
    begin_rotation,
    certificates,
    common_name,
    decode_bundle,
    finish_rotation,
    issuer_of,
    sign_bundle,
    switch_servers,
    switch_signer,
)
from holdfast.host.pki.trust_upkeep import Outdated, TrustUpkeep, publish_bundle, stored_bundle
from holdfast.host.process.files import write_private
from holdfast.host.server.settings import ServerSettings
from holdfast.model.errors import Invalid, Unavailable
from holdfast.store.memory import MemoryStore
from tests.patience import PATIENCE_S

LIFE = timedelta(days=30)


def aged(settings: ServerSettings) -> Trust:
    """Return the trust of a server whose own certificate is past the middle of its life."""
    trust = establish(settings)
    certificate, key = trust.server
    names = Purpose(settings.certificate_names)
    past = datetime.now(UTC) - 0.6 * LIFE
    issued = trust.authorities.signer.issue("system:server:one", names, life=LIFE, now=past)
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    return trust


def renewed(settings: ServerSettings, trust: Trust) -> datetime:
    return trust_upkeep.renewal_due(trust_upkeep.renew_trust(settings, trust))


def test_what_is_past_its_middle_is_renewed_and_what_is_not_stays(tmp_path: Path) -> None:
    settings = ServerSettings(data=tmp_path, name="one", certificate_life=LIFE)
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
    """Clients trust the first one."""
    settings = ServerSettings(data=tmp_path, name="one", certificate_life=LIFE)
    trust = aged(settings)
    old = trust.server[0].read_bytes()
    other = CertificateAuthority.open(tmp_path / "other")
    for name in ("ca.crt", "ca.key"):
        content = (tmp_path / "other" / name).read_bytes()
        (settings.pki_directory / name).write_bytes(content)
    assert other.pem != trust.authorities.pem
    with pytest.raises(Invalid, match="another certificate authority"):
        renewed(settings, trust)
    assert trust.server[0].read_bytes() == old
    # One that was removed is not made again either.
    for name in ("ca.crt", "ca.key"):
        (settings.pki_directory / name).unlink()
    with pytest.raises(Invalid, match="cannot be used"):
        renewed(settings, trust)
    assert not (settings.pki_directory / "ca.key").exists()


def test_a_handshake_after_the_renewal_shows_the_new_certificate(tmp_path: Path) -> None:
    """The same TLS as before, so that the socket need not be opened again."""
    settings = ServerSettings(data=tmp_path, name="one", certificate_life=LIFE)
    trust = aged(settings)
    server = ServerTls(trust)
    before = shown(server.context, trust)
    server.take(trust_upkeep.renew_trust(settings, trust).context())
    after = shown(server.context, trust)
    assert after != before
    assert after == ssl.PEM_cert_to_DER_cert(trust.server[0].read_text())


def shown(server: ssl.SSLContext, trust: Trust, client: IssuedCertificate | None = None) -> bytes:
    """Connect, with or without a certificate. Return what the client sees. Raises SSLError."""
    given = client or IssuedCertificate(b"", b"")
    access = Access(
        servers=("https://localhost",),
        ca=trust.authorities.pem,
        certificate=given.certificate,
        key=given.key,
    )
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = access.context().wrap_bio(to_client, to_server, server_hostname="localhost")
    two = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for side in (one, two):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    found = one.getpeercert(binary_form=True)
    assert found is not None
    return found


class Server:
    """One server's trust over a store, without a socket."""

    def __init__(self, settings: ServerSettings, store: MemoryStore) -> None:
        self.settings, self.trust = settings, establish(settings)
        self.tls, self.applied = ServerTls(self.trust), 0
        self.ended = list[str]()
        self.upkeep = TrustUpkeep(settings, self.trust, store, self._apply, self.ended.append)

    async def _apply(self, fresh: Trust) -> None:
        self.trust, self.applied = fresh, self.applied + 1
        self.tls.take(fresh.context())

    @property
    def bundle(self) -> TrustBundle:
        return self.upkeep.authorities.bundle


class Rotated:
    """Two servers over one store with their own directories, and the steps of a rotation."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()
        self.one = Server(ServerSettings(data=folder / "one", name="one"), self.store)
        other = folder / "two" / "pki"
        other.mkdir(parents=True, mode=0o700)
        (folder / "two").chmod(0o700)
        for name in ("ca.crt", "ca.key"):
            write_private(other / name, (folder / "one" / "pki" / name).read_bytes())
        self.two = Server(ServerSettings(data=folder / "two", name="two"), self.store)
        self.old = self.one.trust.authorities.signer
        self.new, self.pem = CertificateAuthority.new()

    def give_key(self, server: Server) -> None:
        path = server.settings.pki_directory / key_file(self.new.fingerprint)
        write_private(path, self.pem.key)

    async def write(self, bundle: TrustBundle, *signers: CertificateAuthority) -> None:
        _, revision = await stored_bundle(self.store)
        assert await publish_bundle(self.store, sign_bundle(bundle, signers), revision)

    async def look(self) -> None:
        for server in (self.one, self.two):
            await server.upkeep.look()


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE_S))


def test_servers_follow_each_step_in_the_store_and_show_what_it_says(tmp_path: Path) -> None:
    """Without a restart; a certificate of the old authority is refused at the end, and not
    before."""

    async def story() -> None:
        it = Rotated(tmp_path)
        old = it.old.issue("ann")
        both, step = (it.old, it.new), begin_rotation(it.one.bundle, it.new.pem)
        it.give_key(it.one)
        await it.write(step, *both)
        await it.look()
        assert it.one.bundle == it.two.bundle == step
        # The second server gets the key of the next authority while it runs.
        assert len(it.two.upkeep.authorities.held) == 1
        it.give_key(it.two)
        await it.look()
        assert len(it.two.upkeep.authorities.held) == 2
        for change in (switch_signer, switch_servers):
            step = change(step)
            await it.write(step, *both)
            await it.look()
            for server in (it.one, it.two):
                shown(server.tls.context, server.trust, old)
                assert issuer_of(server.trust.admin.certificate) == name_of(it.new)
                expected = it.new if change is switch_servers else it.old
                assert issuer_of(server.trust.server[0].read_bytes()) == name_of(expected)
        step = finish_rotation(step)
        await it.write(step, it.new)
        await it.look()
        for server in (it.one, it.two):
            shown(server.tls.context, server.trust, it.new.issue("ann"))
            with pytest.raises(ssl.SSLError):
                shown(server.tls.context, server.trust, old)
            # The next start finds the same.
            assert establish(server.settings).authorities.bundle == step

    play(story())


def name_of(authority: CertificateAuthority) -> str:
    return common_name(certificates(authority.pem)[0].subject)


def test_a_bundle_in_the_store_that_no_trusted_authority_has_signed_changes_nothing(
    tmp_path: Path,
) -> None:
    """Write access to the store adds no authority. [B5]"""

    async def story() -> None:
        it = Rotated(tmp_path)
        before = it.one.bundle
        await it.write(begin_rotation(before, it.new.pem), it.new)
        with pytest.raises(Invalid, match="not signed by a certificate authority trusted here"):
            await it.one.upkeep.look()
        assert (it.one.bundle, it.one.applied) == (before, 0)
        assert not (it.one.settings.pki_directory / "ca.bundle").exists()

    play(story())


def test_a_store_that_was_restored_from_before_brings_no_authority_back(tmp_path: Path) -> None:
    """The servers have the newer bundle beside their keys, and write it again. [B5]"""

    async def story() -> None:
        it = Rotated(tmp_path)
        it.give_key(it.one)
        step = begin_rotation(it.one.bundle, it.new.pem)
        await it.write(step, it.old, it.new)
        await it.one.upkeep.look()
        earlier, _ = await stored_bundle(it.store)
        both = (it.old, it.new)
        for change, signers in (
            (switch_signer, both),
            (switch_servers, both),
            (finish_rotation, (it.new,)),
        ):
            step = change(step)
            await it.write(step, *signers)
            await it.one.upkeep.look()
        _, revision = await stored_bundle(it.store)
        assert await publish_bundle(it.store, earlier, revision)
        await it.one.upkeep.look()
        assert it.one.bundle == step
        assert decode_bundle((await stored_bundle(it.store))[0]) == step

    play(story())


@pytest.mark.parametrize("missed", ["all", "key"])
def test_a_server_that_cannot_follow_the_end_of_an_authority_stops(
    tmp_path: Path, missed: str
) -> None:
    """One that was suspended meanwhile, or lacks the new key: it would continue to accept
    certificates of the authority that was removed. [B5]"""

    async def story() -> None:
        it = Rotated(tmp_path)
        both, step = (it.old, it.new), begin_rotation(it.one.bundle, it.new.pem)
        it.give_key(it.one)
        for change in (lambda step: step, switch_signer, switch_servers):
            step = change(step)
            await it.write(step, *both)
            await it.one.upkeep.look()
            if missed == "key" and change not in (switch_signer, switch_servers):
                await it.two.upkeep.look()
        await it.write(finish_rotation(step), it.new)
        with pytest.raises(Outdated):
            await it.two.upkeep.look()
        await it.two.upkeep.run()
        (sentence,) = it.two.ended
        assert "ca.key" in sentence
        assert not it.one.ended

    play(story())


def test_a_server_that_only_waits_for_the_next_key_goes_on(tmp_path: Path) -> None:
    """No authority that it trusts was removed."""

    async def story() -> None:
        it = Rotated(tmp_path)
        it.give_key(it.one)
        step = switch_signer(begin_rotation(it.one.bundle, it.new.pem))
        await it.write(step, it.old, it.new)
        with pytest.raises(Unavailable, match="has no key of the certificate authority"):
            await it.two.upkeep.look()
        it.give_key(it.two)
        await it.two.upkeep.look()
        assert it.two.bundle == step

    play(story())
