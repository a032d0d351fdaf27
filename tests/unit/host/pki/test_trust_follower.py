"""A component accepts the authorities of its plane while it runs, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from aiohttp import web

from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.paths import TRUST_HEADER
from holdfast.host.client.server_access import Access
from holdfast.host.pki.ca_keys import BUNDLE, CERTIFICATES, CertificateAuthorities
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.component_credentials import HURRY_S, CertificateRenewal
from holdfast.host.pki.trust_bundle import (
    SHORT,
    TrustBundle,
    begin_rotation,
    issuer_of,
    names,
    sign_bundle,
    switch_signer,
)
from holdfast.host.pki.trust_follower import TrustFollower, load_bundle
from holdfast.host.process.files import write_private
from holdfast.model.access.identity import Identity
from tests.puppet import play
from tests.unit.host.client.scripted import Scripted

ME = Identity(name="admin")


class Plane:
    """A server that sends a bundle, and a component with its own directory."""

    def __init__(self, folder: Path) -> None:
        self.text, self.heard, self.changes = b"", list[str](), 0
        self.server = Scripted(folder / "server", self._told)
        self.pki = folder / "component"
        self.pki.mkdir()
        authorities = CertificateAuthorities.open(folder / "server" / "pki")
        self.old, (self.new, _) = authorities.signer, CertificateAuthority.new()
        self.first, self.both = authorities.bundle, begin_rotation(authorities.bundle, self.new.pem)
        write_private(self.pki / CERTIFICATES, self.old.pem)
        self.renewed_by = self.new

    def _told(self, request: web.BaseRequest) -> web.StreamResponse:
        self.heard.append(request.headers.get(TRUST_HEADER, ""))
        return web.Response(body=self.text)

    async def renew(self, name: str, before: Access) -> Access:
        made = self.renewed_by.issue(name)
        return msgspec.structs.replace(before, certificate=made.certificate, key=made.key)

    def start(self) -> None:
        """Start the component again."""
        access = self.server.client_access()
        self.remote = ApiClient({ME.name: access})
        self.rotation = CertificateRenewal(
            {ME.name: access}, self.renew, self.remote.take, Random(7)
        )
        self.trust = TrustFollower(self.remote, ME, self.rotation, self.pki, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def follow(self, bundle: TrustBundle, *signers: CertificateAuthority) -> bool:
        self.text = sign_bundle(bundle, signers)
        return await self.trust.follow(bundle.generation)


def story(folder: Path, told: Callable[[Plane], object]) -> None:
    async def played() -> None:
        plane = Plane(folder)
        async with plane.server:
            plane.start()
            try:
                await told(plane)  # type: ignore[misc]
            finally:
                await plane.remote.close()

    play(played())


def test_a_newer_bundle_is_kept_trusted_and_reported_to_the_servers(tmp_path: Path) -> None:
    """Without a restart; after a restart it starts with it."""

    async def told(plane: Plane) -> None:
        assert await plane.follow(plane.both, plane.old, plane.new)
        assert plane.remote.access(ME.name).ca == plane.both.pem
        assert (plane.pki / CERTIFICATES).read_bytes() == plane.both.pem
        assert (load_bundle(plane.pki), plane.changes) == (plane.both, 1)
        assert not await plane.trust.follow(plane.both.generation)
        # What it asked with before, and what it asks with since.
        assert not await plane.follow(
            msgspec.structs.replace(plane.both, generation=9), CertificateAuthority.new()[0]
        )
        old, new = plane.old.fingerprint[:SHORT], plane.new.fingerprint[:SHORT]
        assert plane.heard == [old, f"{old},{new}"]

    story(tmp_path, told)


def test_a_bundle_that_no_trusted_authority_has_signed_is_refused_and_said(tmp_path: Path) -> None:
    """A server's certificate alone adds no authority. [B5]"""

    async def told(plane: Plane) -> None:
        assert not await plane.follow(plane.both, plane.new)
        assert "not signed by a certificate authority trusted here" in plane.rotation.trouble
        assert plane.remote.access(ME.name).ca == plane.old.pem
        assert not (plane.pki / BUNDLE).exists()
        assert plane.changes == 0

    story(tmp_path, told)


def test_trouble_with_a_bundle_is_over_when_one_is_taken(tmp_path: Path) -> None:
    """A server that follows later than the others sent one that is in use already."""

    async def told(plane: Plane) -> None:
        plane.text = sign_bundle(plane.first, [plane.old])
        assert not await plane.trust.follow(plane.both.generation)
        assert plane.rotation.trouble == ""
        assert not await plane.follow(plane.both, plane.new)
        assert plane.rotation.trouble
        assert await plane.follow(plane.both, plane.old, plane.new)
        assert plane.rotation.trouble == ""

    story(tmp_path, told)


def test_what_cannot_be_kept_is_not_reported_as_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart would undo it, while the servers already rely on it."""

    def full(path: Path, content: bytes) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("holdfast.host.pki.trust_follower.write_private", full)

    async def told(plane: Plane) -> None:
        assert not await plane.follow(plane.both, plane.old, plane.new)
        assert "No space left" in plane.rotation.trouble
        assert plane.remote.access(ME.name).ca == plane.old.pem

    story(tmp_path, told)


def test_when_another_authority_signs_certificates_are_renewed_within_seconds(
    tmp_path: Path,
) -> None:
    """It repeats this while a server that is late renews with the old one; a restart does not
    forget it."""

    async def told(plane: Plane) -> None:
        usual = plane.rotation.due_s[ME.name]
        await plane.follow(plane.both, plane.old, plane.new)
        assert plane.rotation.due_s[ME.name] == usual
        await plane.follow(switch_signer(plane.both), plane.old, plane.new)
        assert plane.rotation.due_s[ME.name] < usual - HURRY_S
        plane.renewed_by = plane.old
        await plane.rotation.turn(ME.name)
        assert plane.rotation.due_s[ME.name] < usual - HURRY_S
        await plane.remote.close()
        plane.start()
        assert plane.rotation.due_s[ME.name] < usual - HURRY_S
        plane.renewed_by = plane.new
        await plane.rotation.turn(ME.name)
        found = plane.remote.access(ME.name).certificate
        assert names(plane.both)[issuer_of(found)] == plane.new.fingerprint
        assert plane.rotation.due_s[ME.name] > usual - HURRY_S

    story(tmp_path, told)


def test_certificates_of_an_operator_count_more_than_an_older_bundle(
    tmp_path: Path,
) -> None:
    """A component that was away for a whole rotation gets new files."""

    async def told(plane: Plane) -> None:
        await plane.follow(plane.both, plane.old, plane.new)
        other, _ = CertificateAuthority.new()
        write_private(plane.pki / CERTIFICATES, other.pem)
        assert load_bundle(plane.pki).pem == other.pem

    story(tmp_path, told)
