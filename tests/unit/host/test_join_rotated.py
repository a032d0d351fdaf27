"""Nodes that join a plane whose certificate authority was rotated, over real TLS."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from holdfast.host.pki.ca_keys import BUNDLE, KEY
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.component_credentials import provide
from holdfast.host.pki.join_protocol import (
    AUTHORITY_PATH,
    BUNDLE_PATH,
    JOIN_PATH,
    Joined,
    JoinRequest,
)
from holdfast.host.pki.join_requests import signed_key
from holdfast.host.pki.join_tokens import new_token, parse
from holdfast.host.pki.node_join import NodeFiles, join_or_load, renew_certificate
from holdfast.host.pki.trust_bundle import (
    TrustBundle,
    begin_rotation,
    finish_rotation,
    first_bundle,
    sign_bundle,
    switch_servers,
    switch_signer,
)
from holdfast.host.pki.trust_follower import load_bundle, save_bundle
from holdfast.host.process.files import write_private
from holdfast.model.errors import Unavailable
from tests.puppet import play
from tests.unit.host.client.scripted import Scripted

NODE, HOUR = "n1", timedelta(hours=1)
NAME = "system:node:n1"


class Plane:
    """A rotated plane, and a server of one of its authorities that answers for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("old", "new"):
            (folder / name).mkdir(mode=0o700)
        self.old, self.new = (
            CertificateAuthority.open(folder / it / "pki") for it in ("old", "new")
        )
        self.both = begin_rotation(first_bundle(self.old.pem), self.new.pem)
        self.rotated = finish_rotation(switch_servers(switch_signer(self.both)))
        self.joins: list[JoinRequest] = []

    def server(self, by: CertificateAuthority, told: TrustBundle) -> Scripted:
        """A server with a certificate of this authority, which sends this bundle."""
        signers = [it for it in (self.old, self.new) if it.fingerprint in told.fingerprints]
        text = sign_bundle(told, signers)

        def answer(request: web.BaseRequest) -> web.StreamResponse:
            if request.path == AUTHORITY_PATH:
                return web.Response(body=told.pem)
            if request.path == BUNDLE_PATH:
                return web.Response(body=text)
            if request.path != JOIN_PATH:
                return web.Response(status=201, body=b"{}")
            wanted = msgspec.json.decode(made.bodies[-1], type=JoinRequest)
            self.joins.append(wanted)
            issued = by.certify(signed_key(wanted.request), NAME)
            return web.json_response(
                msgspec.to_builtins(Joined(NODE, issued.decode(), told.pem.decode()))
            )

        made = Scripted(self.folder / ("old" if by is self.old else "new"), answer)
        return made

    def token(self, bundle: TrustBundle) -> str:
        return new_token(bundle.pem, NODE, HOUR, generation=bundle.generation)[1].text


def test_a_token_says_from_which_generation_on_a_bundle_counts(tmp_path: Path) -> None:
    """A plane that never rotated has tokens as before."""
    plane = Plane(tmp_path)
    assert parse(plane.token(plane.rotated)).generation == plane.rotated.generation
    assert plane.token(first_bundle(plane.old.pem)).count(".") == 2
    assert parse(plane.token(first_bundle(plane.old.pem))).generation == 0


def test_an_authority_that_was_removed_gets_no_join_token_to_see(tmp_path: Path) -> None:
    """A thief of it has the bundles of the rotation, which the new authority signed too. [B5]"""

    async def story() -> None:
        plane = Plane(tmp_path)
        async with plane.server(plane.old, switch_servers(switch_signer(plane.both))) as thief:
            with pytest.raises(
                Unavailable, match="If the plane's certificate authority was rotated"
            ):
                await join_or_load(
                    (thief.url,), NODE, tmp_path / "agent", plane.token(plane.rotated)
                )
        assert plane.joins == []

    play(story())


def test_a_node_that_joins_during_a_rotation_keeps_the_bundle_that_it_was_proven(
    tmp_path: Path,
) -> None:
    """The next one that it accepts must be newer."""

    async def story() -> None:
        plane, agent = Plane(tmp_path), tmp_path / "agent"
        async with plane.server(plane.old, plane.both) as server:
            access = await join_or_load((server.url,), NODE, agent, plane.token(plane.both))
        assert access.ca == plane.both.pem
        assert load_bundle(agent) == plane.both

    play(story())


@pytest.mark.parametrize("missed", ["all", "the end"])
def test_a_node_that_was_away_for_a_rotation_joins_again_with_a_token(
    tmp_path: Path, missed: str
) -> None:
    """It trusts no present server, or no server its certificate. Its key stays."""

    async def story() -> None:
        plane, agent = Plane(tmp_path), tmp_path / "agent"
        files = NodeFiles(agent)
        async with plane.server(plane.old, first_bundle(plane.old.pem)) as server:
            await join_or_load((server.url,), NODE, agent, plane.token(first_bundle(plane.old.pem)))
        if missed == "the end":
            save_bundle(agent, sign_bundle(plane.both, [plane.old, plane.new]))
        key = files.key.read_bytes()
        said: list[str] = []
        async with plane.server(plane.new, plane.rotated) as server:
            # A token from before is no reason to join.
            stale = plane.token(first_bundle(plane.old.pem))
            access = await join_or_load((server.url,), NODE, agent, stale, said.append)
            assert access.ca != plane.new.pem
            token = plane.token(plane.rotated)
            access = await join_or_load((server.url,), NODE, agent, token, said.append)
            assert access.ca == plane.new.pem
            assert files.key.read_bytes() == key == access.key
            assert load_bundle(agent) == plane.rotated
            assert plane.joins[-1].token == token
        # Where no server answers, the node starts with what it has, as ever.
        later = msgspec.structs.replace(plane.rotated, generation=9)
        nobody = ("https://127.0.0.1:1",)
        again = await join_or_load(nobody, NODE, agent, plane.token(later), said.append)
        assert again.certificate == access.certificate

    play(story())


def test_a_renewal_leaves_the_authorities_on_disk_alone(tmp_path: Path) -> None:
    """The next bundle may have been stored while it was in progress."""

    async def story() -> None:
        plane, agent = Plane(tmp_path), tmp_path / "agent"
        async with plane.server(plane.new, plane.both) as server:
            access = await join_or_load((server.url,), NODE, agent, plane.token(plane.both))
            save_bundle(agent, sign_bundle(plane.rotated, [plane.new]))
            after = await renew_certificate(access, NODE, agent)
        assert after.certificate != access.certificate
        assert NodeFiles(agent).authority.read_bytes() == plane.new.pem
        assert load_bundle(agent) == plane.rotated

    play(story())


def test_what_a_component_is_provided_with_has_the_generation_of_its_plane(tmp_path: Path) -> None:
    """An earlier bundle, which its authority signed too, is not newer."""
    plane, pki, into = Plane(tmp_path), tmp_path / "pki", tmp_path / "component"
    shutil.copytree(tmp_path / "new" / "pki", pki)
    write_private(pki / BUNDLE, sign_bundle(plane.rotated, [plane.new]))
    provide(pki, into, ["system:scheduler:one"])
    assert load_bundle(into) == plane.rotated
    assert not (into / KEY).exists()
