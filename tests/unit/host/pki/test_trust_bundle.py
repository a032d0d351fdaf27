"""Who may add or remove a certificate authority: only one that is trusted already."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.host.pki import node_join, trust_bundle
from holdfast.host.pki.ca_keys import BUNDLE, KEY, CertificateAuthorities, keep_bundle, key_file
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.join_tokens import JoinToken, fingerprint
from holdfast.host.pki.trust_bundle import (
    RotationPhase,
    TrustBundle,
    abort_rotation,
    begin_rotation,
    certificates,
    finish_rotation,
    sign_bundle,
    switch_servers,
    switch_signer,
    verify_bundle,
    verify_newer,
)
from holdfast.host.process.files import write_private
from holdfast.model.errors import Invalid, Unavailable


class Plane:
    """The authorities of a plane, and each generation of its bundle."""

    def __init__(self, folder: Path) -> None:
        self.old, self.new = (
            CertificateAuthority.open(folder / "old"),
            CertificateAuthority.open(folder / "new"),
        )
        self.both = (self.old, self.new)
        self.first = trust_bundle.first_bundle(self.old.pem)
        self.begun = begin_rotation(self.first, self.new.pem)
        self.switched = switch_signer(self.begun)
        self.serving = switch_servers(self.switched)
        self.finished = finish_rotation(self.serving)
        self.aborted = abort_rotation(self.begun)


@pytest.fixture
def plane(tmp_path: Path) -> Plane:
    return Plane(tmp_path)


def test_each_step_is_the_next_generation_for_a_server_with_the_one_before(
    plane: Plane,
) -> None:
    steps = (plane.begun, plane.switched, plane.serving, plane.finished)
    phases = (
        RotationPhase.BEGUN,
        RotationPhase.SWITCHED,
        RotationPhase.FINISHING,
        RotationPhase.STABLE,
    )
    current = plane.first
    for number, (step, phase) in enumerate(zip(steps, phases, strict=True), 1):
        authorities = (plane.new,) if phase is RotationPhase.STABLE else plane.both
        current = verify_newer(current, sign_bundle(step, authorities))
        assert (current, current.generation, current.phase) == (step, number, phase)
    assert current.pem == plane.new.pem
    back = verify_newer(plane.begun, sign_bundle(plane.aborted, [plane.old]))
    assert (back.pem, back.phase) == (plane.old.pem, RotationPhase.STABLE)


def test_an_authority_that_is_not_trusted_adds_none(plane: Plane, tmp_path: Path) -> None:
    """Not by its own signature, nor by one of another bundle. [B5]"""
    rogue = CertificateAuthority.open(tmp_path / "rogue")
    wanted = begin_rotation(plane.first, rogue.pem)
    with pytest.raises(Invalid, match="not signed by a certificate authority trusted here"):
        verify_newer(plane.first, sign_bundle(wanted, [rogue]))
    # A signature of the right authority, for another bundle.
    good = msgspec.json.decode(sign_bundle(plane.begun, plane.both))
    moved = {"bundle": msgspec.json.encode(wanted).decode(), "signatures": good["signatures"]}
    with pytest.raises(Invalid, match="not signed"):
        verify_newer(plane.first, msgspec.json.encode(moved))
    # What the authority has signed as a certificate is no signature of a bundle, and neither is
    # one without the words that come before a bundle.
    bare = plane.old.signature(msgspec.json.encode(wanted))
    moved["signatures"] = {plane.old.fingerprint: bare.hex()}
    with pytest.raises(Invalid, match="not signed"):
        verify_newer(plane.first, msgspec.json.encode(moved))


def test_an_older_generation_never_comes_back(plane: Plane) -> None:
    """The authority that a rotation removed would be trusted again. [B5]"""
    for text in (sign_bundle(plane.begun, plane.both), sign_bundle(plane.switched, plane.both)):
        with pytest.raises(Invalid, match="not newer"):
            verify_newer(plane.switched, text)
    with pytest.raises(Invalid, match="not signed"):
        verify_newer(plane.finished, sign_bundle(plane.first, [plane.old]))


@pytest.mark.parametrize(
    "change",
    [
        {"authorities": ()},
        {"authorities": ("no certificate",)},
        {"signs": "0" * 64},
        {"serves": ""},
    ],
)
def test_a_bundle_that_makes_no_sense_is_refused_whichever_key_signed_it(
    plane: Plane, change: dict[str, object]
) -> None:
    """[B5]"""
    broken = msgspec.structs.replace(plane.begun, **change)
    with pytest.raises(Invalid):
        verify_newer(plane.first, sign_bundle(broken, plane.both))


def test_a_leaf_certificate_is_no_authority(plane: Plane) -> None:
    leaf = plane.old.issue("system:node:n1").certificate
    wanted = begin_rotation(plane.first, leaf)
    with pytest.raises(Invalid, match="certificate authorities"):
        verify_newer(plane.first, sign_bundle(wanted, [plane.old]))


def token_of(authority: CertificateAuthority, generation: int = 0) -> JoinToken:
    return JoinToken("join-1", "x" * 43, authority.fingerprint, generation)


def test_a_joining_node_trusts_what_the_authority_of_its_token_vouches_for(
    plane: Plane, tmp_path: Path
) -> None:
    """By the hash of either one while both are trusted; after the rotation only by the new one."""
    rogue = CertificateAuthority.open(tmp_path / "rogue")
    text = sign_bundle(plane.begun, plane.both)
    for known in plane.both:
        found = node_join.verified_authorities(plane.begun.pem, text, token_of(known))
        assert found == (plane.begun.pem, text)
        # Of a plane that has gone on since: the authority of the token counts, and no other.
        later = token_of(known, plane.finished.generation)
        assert node_join.verified_authorities(plane.begun.pem, text, later) == (known.pem, b"")
    # What is sent along without a signature is not trusted.
    planted = plane.old.pem + rogue.pem
    forged = sign_bundle(begin_rotation(plane.first, rogue.pem), [rogue])
    assert node_join.verified_authorities(planted, forged, token_of(plane.old)) == (
        plane.old.pem,
        b"",
    )
    done = sign_bundle(plane.finished, [plane.new])
    assert node_join.verified_authorities(plane.finished.pem, done, token_of(plane.old)) is None
    # A token that is made during a rotation is good after it.
    assert fingerprint(plane.begun.pem) == plane.new.fingerprint


def kept(
    directory: Path, bundle: TrustBundle, *signers: CertificateAuthority
) -> CertificateAuthorities:
    keep_bundle(
        directory, CertificateAuthorities.load(directory).bundle, sign_bundle(bundle, signers)
    )
    return CertificateAuthorities.load(directory)


def test_a_server_signs_with_the_authority_of_each_step(plane: Plane, tmp_path: Path) -> None:
    directory = tmp_path / "old"
    write_private(directory / key_file(plane.new.fingerprint), key_of(tmp_path / "new"))
    found = kept(directory, plane.begun, *plane.both)
    assert found.signer.pem == found.server_signer.pem == plane.old.pem
    found = kept(directory, plane.switched, *plane.both)
    assert (found.signer.pem, found.server_signer.pem) == (plane.new.pem, plane.old.pem)
    found = kept(directory, plane.serving, *plane.both)
    assert found.signer.pem == found.server_signer.pem == plane.new.pem
    found = kept(directory, plane.finished, plane.new)
    assert found.signer.pem == found.pem == plane.new.pem
    # The old key is nowhere any more, and every tool finds the new one where the old one was.
    assert sorted(it.name for it in directory.glob("ca*.key")) == [KEY]
    assert CertificateAuthority.open(directory).pem == plane.new.pem


def key_of(directory: Path) -> bytes:
    return (directory / KEY).read_bytes()


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_crash_while_the_last_step_is_written_leaves_the_new_authority(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """After this many of the writes."""
    directory = tmp_path / "old"
    write_private(directory / key_file(plane.new.fingerprint), key_of(tmp_path / "new"))
    before = kept(directory, plane.serving, *plane.both)

    class Crash(Exception):
        pass

    left = [done]

    def counted(path: Path, *content: bytes) -> None:
        if not left[0]:
            raise Crash
        left[0] -= 1
        write_private(path, *content) if content else path.unlink(missing_ok=True)

    for name in ("write_private", "remove"):
        monkeypatch.setattr(f"holdfast.host.pki.ca_keys.{name}", counted)
    with pytest.raises(Crash):
        keep_bundle(directory, before.bundle, sign_bundle(plane.finished, [plane.new]))
    monkeypatch.undo()
    after = CertificateAuthorities.open(directory)
    expected = plane.new.pem if done else plane.begun.pem
    assert after.pem == expected
    assert after.signer.pem == plane.new.pem
    if done:
        assert CertificateAuthority.open(directory).pem == plane.new.pem


def test_a_server_without_the_next_key_says_which_file_it_needs(
    plane: Plane, tmp_path: Path
) -> None:
    found = kept(tmp_path / "old", plane.switched, *plane.both)
    with pytest.raises(Unavailable, match=key_file(plane.new.fingerprint)):
        _ = found.signer
    assert found.server_signer.pem == plane.old.pem


def test_what_was_aborted_leaves_no_key(plane: Plane, tmp_path: Path) -> None:
    directory = tmp_path / "old"
    write_private(directory / key_file(plane.new.fingerprint), key_of(tmp_path / "new"))
    kept(directory, plane.begun, *plane.both)
    found = kept(directory, plane.aborted, plane.old)
    assert found.signer.pem == found.pem == plane.old.pem
    assert sorted(it.name for it in directory.glob("ca*.key")) == [KEY]
    assert certificates((directory / "ca.crt").read_bytes()) == certificates(plane.old.pem)
    assert (
        verify_bundle((directory / BUNDLE).read_bytes(), certificates(plane.old.pem))
        == plane.aborted
    )
