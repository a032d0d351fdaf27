"""When certificates of a running component are renewed, and the message when they cannot be."""

from __future__ import annotations

import errno
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import msgspec
import pytest

from holdfast.host.client.server_access import Access
from holdfast.host.pki.certificates import (
    BACKDATE,
    RENEW_BY,
    RENEW_FROM,
    CertificateAuthority,
    moment,
)
from holdfast.host.pki.component_credentials import CertificateRenewal, access_of, issue, provide
from holdfast.model.errors import Invalid, Unavailable
from tests.puppet import play

NAME = "system:node:n1"
SERVERS = ("https://127.0.0.1:1",)
LIFE = timedelta(days=90)


def access(
    authority: CertificateAuthority, age: timedelta = timedelta(), life: timedelta = LIFE
) -> Access:
    issued = authority.issue(NAME, life=life, now=datetime.now(UTC) - age)
    return Access(servers=SERVERS, ca=authority.pem, certificate=issued.certificate, key=issued.key)


class Taken:
    """Records which renewed credentials are used."""

    def __init__(self) -> None:
        self.accesses: list[Access] = []

    async def take(self, name: str, access: Access) -> None:
        assert name == NAME
        self.accesses.append(access)


def test_a_certificate_is_renewed_in_the_middle_of_its_life_and_never_later(
    tmp_path: Path,
) -> None:
    """Each at its own moment: certificates issued together are not renewed together."""
    authority = CertificateAuthority.open(tmp_path)
    one = access(authority)

    async def nothing(name: str, before: Access) -> Access:
        return before

    dues = [
        CertificateRenewal({NAME: one}, nothing, Taken().take, Random(seed)).due_s[NAME]
        for seed in range(50)
    ]
    first, last = (moment(one.certificate, share).timestamp() for share in (RENEW_FROM, RENEW_BY))
    assert all(first <= due < last for due in dues)
    assert max(dues) - min(dues) > (last - first) / 2


def test_what_is_renewed_is_asked_with_and_becomes_due_again(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path)
    old, new = access(authority, age=LIFE * 0.6), access(authority)
    taken = Taken()

    async def renew(name: str, before: Access) -> Access:
        assert (name, before) == (NAME, old)
        return new

    async def story() -> None:
        rotation = CertificateRenewal({NAME: old}, renew, taken.take)
        await rotation.turn(NAME)
        assert taken.accesses == [new]
        assert rotation.due_s[NAME] >= moment(new.certificate, RENEW_FROM).timestamp()
        assert not rotation.trouble

    play(story())


@pytest.mark.parametrize("age, word", [(0.6, "ends"), (0.99, "ends"), (1.01, "ended")])
def test_what_cannot_be_renewed_is_said_and_tried_again_before_the_end(
    age: float, word: str, tmp_path: Path
) -> None:
    """The less time is left, the sooner; also after the expiry, for a token may come."""
    authority = CertificateAuthority.open(tmp_path)
    old = access(authority, age=LIFE * age)
    taken = Taken()

    async def renew(name: str, before: Access) -> Access:
        raise Unavailable("no server answers")

    async def story() -> None:
        rotation = CertificateRenewal({NAME: old}, renew, taken.take)
        await rotation.turn(NAME)
        assert rotation.trouble.startswith(f"the certificate of {NAME} {word} at 20")
        assert rotation.trouble.endswith(": no server answers")
        assert not taken.accesses
        now_s = datetime.now(UTC).timestamp()
        left_s = moment(old.certificate, 1).timestamp() - now_s
        assert now_s < rotation.due_s[NAME] < now_s + (left_s if left_s > 0 else 61)

    play(story())


def test_what_cannot_be_used_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    """A disk that is full, or a certificate that is broken."""
    authority = CertificateAuthority.open(tmp_path)
    old, new = access(authority, age=LIFE * 0.6), access(authority)

    async def renew(name: str, before: Access) -> Access:
        assert before == old
        return new

    async def refuse(name: str, access: Access) -> None:
        raise Invalid("the certificates cannot be used")

    async def full(name: str, before: Access) -> Access:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def story() -> None:
        one = CertificateRenewal({NAME: old}, renew, refuse)
        for _ in range(2):
            await one.turn(NAME)
            assert one.trouble.endswith(": the certificates cannot be used")
        other = CertificateRenewal({NAME: old}, full, Taken().take)
        await other.turn(NAME)
        assert other.trouble.endswith(": No space left on device")

    play(story())


def test_a_running_component_takes_the_next_certificate_that_is_put_there(tmp_path: Path) -> None:
    """A file that was not replaced is a problem to report."""
    authority, own = CertificateAuthority.open(tmp_path / "pki"), tmp_path / "own"
    provide(tmp_path / "pki", own, (NAME,))
    certificate, key = issue(tmp_path / "pki", NAME, own)
    old = access(authority, age=LIFE * 0.6)
    certificate.write_bytes(old.certificate)
    key.write_bytes(old.key)
    taken = Taken()

    async def renew(name: str, before: Access) -> Access:
        return access_of(SERVERS, own, name)

    async def story() -> None:
        rotation = CertificateRenewal({NAME: old}, renew, taken.take)
        await rotation.turn(NAME)
        assert rotation.trouble.endswith("no new certificate was put there")
        provide(tmp_path / "pki", own, (NAME,))
        await rotation.turn(NAME)
        assert not rotation.trouble
        (new,) = taken.accesses
        assert new.certificate == certificate.read_bytes() != old.certificate

    play(story())


def test_a_short_life_is_not_half_over_when_it_begins(tmp_path: Path) -> None:
    """It is backdated for clocks that differ, by a part of itself."""
    authority = CertificateAuthority.open(tmp_path)
    for life in (timedelta(seconds=6), timedelta(hours=1), timedelta(days=365)):
        before = datetime.now(UTC)
        one = access(authority, life=life)
        # Certificates know no fractions of a second.
        second = timedelta(seconds=1)
        assert moment(one.certificate, RENEW_FROM) > before + life / 3 - second
        assert moment(one.certificate, 0) >= before - BACKDATE - second


def test_an_access_by_token_has_nothing_to_renew() -> None:
    async def nothing(name: str, before: Access) -> Access:
        return before

    async def story() -> None:
        token = msgspec.structs.replace(Access(servers=SERVERS), token="x")
        rotation = CertificateRenewal({NAME: token}, nothing, Taken().take)
        # It ends by itself: there is nothing to wait for.
        await rotation.run()

    play(story())
