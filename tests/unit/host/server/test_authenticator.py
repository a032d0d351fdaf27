"""Authentication by the hub's tokens and revocations, also on open connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from holdfast.commit.record_encoding import encode
from holdfast.host.api.objects.presentation import Forms
from holdfast.host.pki.bearer_tokens import groups_for, new_bearer
from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.certificates import CertificateAuthority, IssuedCertificate
from holdfast.host.pki.trust_bundle import begin_rotation, first_bundle
from holdfast.host.process.shell import Shell
from holdfast.host.server.authentication import CertificateEnded, TokenUnknown
from holdfast.host.server.authenticator import Authenticator, CredentialLives
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.credential_life import revocation_name
from holdfast.model.errors import Forbidden, Invalid
from holdfast.model.kinds.access import Revocation, RevocationSpec
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.read_requests import Reach
from holdfast.model.transaction import Delete, Put, Transaction
from holdfast.model.validation import validate
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.memory import MemoryStore
from tests.patience import STORY_S

HOUR = timedelta(hours=1)
NOW = datetime.now(UTC).replace(microsecond=0)
# The parts of a name in the words of the ssl module.
_NAMES = {
    NameOID.COMMON_NAME: "commonName",
    NameOID.ORGANIZATION_NAME: "organizationName",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "organizationalUnitName",
}


class Line:
    """The part of a connection that is needed: its certificate in the form of the ssl module."""

    def __init__(self, issued: IssuedCertificate | None) -> None:
        self.peer: dict[str, Any] = {}
        if issued is not None:
            found = x509.load_pem_x509_certificate(issued.certificate)
            form = "%b %d %H:%M:%S %Y GMT"
            self.peer = {
                "subject": tuple(((_NAMES[it.oid], it.value),) for it in found.subject),
                "issuer": tuple(((_NAMES[it.oid], it.value),) for it in found.issuer),
                "serialNumber": f"{found.serial_number:X}",
                "notBefore": found.not_valid_before_utc.strftime(form),
                "notAfter": found.not_valid_after_utc.strftime(form),
            }

    def get_extra_info(self, name: str) -> Any:
        return self.peer if name == "peercert" else None


class Asking:
    """The part of a request that the authenticator reads."""

    def __init__(self, line: Line, token: str = "") -> None:
        self.transport = line
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}


class Rig:
    """A hub over a store, and the authenticator that asks it."""

    def __init__(self) -> None:
        self.store, self.hub = MemoryStore(), WatchHub(Forms())
        hub = self.hub
        self.shell = Shell(hub, who.server("one"), store=self.store)
        self.authenticator = Authenticator(hub)

    async def put(self, *objects: Object) -> None:
        await self._write(*(Put(keys.key_of(it), encode(it)) for it in objects))

    async def remove(self, obj: Object) -> None:
        await self._write(Delete(keys.key_of(obj)))

    async def _write(self, *writes: Put | Delete) -> None:
        outcome = await self.store.txn(Transaction((), writes))
        await self.shell.ask("test", Reach(outcome.revision), 10.0)  # type: ignore[union-attr]

    def who(self, line: Line, token: str = "") -> who.Identity:
        return self.authenticator(Asking(line, token))  # type: ignore[arg-type]


def play(story: Callable[[Rig], Awaitable[None]]) -> None:
    async def played() -> None:
        rig = Rig()
        await rig.shell.start()
        try:
            await rig.shell.ask("test", Reach(0), 10.0)
            await story(rig)
        finally:
            await rig.shell.stop()

    asyncio.run(asyncio.wait_for(played(), STORY_S))


def revocation(user: str, before: datetime) -> Revocation:
    spec = RevocationSpec(user=user, before=before)
    return Revocation(ObjectMeta(name=revocation_name(user)), spec=spec)


def test_a_certificate_is_good_until_it_is_revoked_also_on_an_open_connection(
    tmp_path: Path,
) -> None:
    """Credentials issued after that are valid again, however far they are backdated."""

    async def story(rig: Rig) -> None:
        authority = CertificateAuthority.open(tmp_path)
        old = Line(authority.issue("system:node:n1", now=NOW))
        assert rig.who(old).node == "n1"
        await rig.put(revocation("system:node:n1", NOW + timedelta(milliseconds=1)))
        with pytest.raises(CertificateEnded, match="of system:node:n1 was revoked"):
            rig.who(old)
        with pytest.raises(CertificateEnded):
            rig.authenticator.peer_identity(old)
        new = Line(authority.issue("system:node:n1", now=NOW + timedelta(milliseconds=2)))
        other = Line(authority.issue("system:node:n2", now=NOW))
        assert (rig.who(new).node, rig.who(other).node) == ("n1", "n2")

    play(story)


def test_a_certificate_of_a_removed_authority_counts_on_no_connection(tmp_path: Path) -> None:
    """During a rotation certificates of both authorities are valid; after it the old one's are not,
    also on connections that were made before."""

    async def story(rig: Rig) -> None:
        authorities = CertificateAuthorities.open(tmp_path)
        old, (new, _) = authorities.signer, CertificateAuthority.new()
        rig.authenticator = Authenticator(rig.hub, authorities=authorities)
        of_old = Line(old.issue("ann"))
        of_new = Line(new.issue("ann"))
        assert rig.who(of_old).name == "ann"
        with pytest.raises(CertificateEnded, match="no longer trusted"):
            rig.who(of_new)
        both = begin_rotation(authorities.bundle, new.pem)
        authorities.take(CertificateAuthorities(both, authorities.held))
        assert [rig.who(it).name for it in (of_old, of_new)] == ["ann", "ann"]
        authorities.take(CertificateAuthorities(first_bundle(new.pem), {}))
        assert rig.who(of_new).name == "ann"
        for line in (of_old, Line(old.issue("ann"))):
            with pytest.raises(CertificateEnded, match="no longer trusted"):
                rig.who(line)

    play(story)


def test_a_certificate_counts_for_no_longer_than_the_server_allows(tmp_path: Path) -> None:
    """By whichever authority: a revocation is kept for that long."""

    async def story(rig: Rig) -> None:
        authority = CertificateAuthority.open(tmp_path)
        rig.authenticator = Authenticator(rig.hub, lives=CredentialLives(certificate_ms=86_400_000))
        now = datetime.now(UTC)
        life = timedelta(days=3_000)
        young = Line(authority.issue("ann", life=life, now=now - timedelta(hours=23)))
        old = Line(authority.issue("ann", life=life, now=now - timedelta(hours=25)))
        foreign = Line(authority.issue("ann", life=life, now=now - timedelta(hours=25)))
        foreign.peer["serialNumber"] = "0123456789ABCDEF"
        assert rig.who(young).name == "ann"
        for line in (old, foreign):
            with pytest.raises(CertificateEnded, match="has expired"):
                rig.who(line)

    play(story)


def test_a_certificate_of_another_making_counts_by_its_first_date(tmp_path: Path) -> None:
    """Its time of issue is not known better, and in doubt it is not valid. [B5]"""

    async def story(rig: Rig) -> None:
        line = Line(CertificateAuthority.open(tmp_path).issue("ann", now=NOW))
        line.peer["serialNumber"] = "0123456789ABCDEF"
        await rig.put(revocation("ann", NOW - HOUR))
        assert rig.who(line).name == "ann"
        await rig.put(revocation("ann", NOW - timedelta(minutes=4)))
        with pytest.raises(CertificateEnded):
            rig.who(line)

    play(story)


def test_a_token_is_good_until_it_is_revoked_ends_or_its_user_is_revoked() -> None:
    async def story(rig: Rig) -> None:
        def created(user: str, ttl: timedelta = HOUR) -> tuple[Any, str]:
            made, text = new_bearer(user, groups_for(("ops",), ("risk",)), ttl, NOW)
            return _with(made, creation_timestamp=NOW), text

        (ann, ann_token), (bob, bob_token) = created("ann"), created("bob")
        anonymous = Line(None)
        with pytest.raises(TokenUnknown):
            rig.who(anonymous, ann_token)
        await rig.put(ann, bob)
        found = rig.who(anonymous, ann_token)
        assert (found.name, found.groups) == ("ann", ("ops", "tenant:risk"))
        assert found.tenants == ("risk",)
        await rig.put(_revoked(ann))
        with pytest.raises(Forbidden, match="the bearer token is not valid here"):
            rig.who(anonymous, ann_token)
        await rig.put(revocation("bob", NOW + timedelta(seconds=1)))
        with pytest.raises(Forbidden, match="the bearer token is not valid here"):
            rig.who(anonymous, bob_token)
        await rig.remove(revocation("bob", NOW))
        assert rig.who(anonymous, bob_token).name == "bob"
        await rig.remove(bob)
        with pytest.raises(TokenUnknown):
            rig.who(anonymous, bob_token)

    play(story)


def test_a_client_without_credentials_is_anonymous() -> None:
    async def story(rig: Rig) -> None:
        assert rig.who(Line(None)).name == who.ANONYMOUS
        assert rig.authenticator.peer_identity(None) is None

    play(story)


def test_a_tenants_own_token_speaks_for_names_of_that_tenant() -> None:
    """Permission to create tokens in one namespace must not give access to others."""
    made, text = new_bearer("ci", ("deployers",), HOUR, NOW, "risk")
    assert (made.spec.user, made.spec.groups) == ("tenant:risk:ci", ("tenant:risk:deployers",))
    assert text.startswith(f"risk.{made.name}.")
    assert not validate(made)
    assert new_bearer("tenant:risk:ci", (), HOUR, NOW, "risk")[0].spec.user == "tenant:risk:ci"


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(days=367)])
def test_a_bearer_token_is_neither_for_nothing_nor_for_ever(ttl: timedelta) -> None:
    with pytest.raises(Invalid, match="at most 366 days"):
        new_bearer("ann", (), ttl)


def _with(obj: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(obj.metadata, **changes))


def _revoked(obj: Any) -> Any:
    return msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, revoked=True))
