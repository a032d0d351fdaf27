"""The trust bundle: which certificate authorities a plane trusts, and which of them issues what.

Usually it has one authority. A rotation adds the next one, lets it sign, and removes the first,
each step as a bundle of the next generation (`ca_rotation`). Servers keep it in the store and
beside their keys (`authorities`), components beside their certificates (`trust_following`), and
joining nodes get it before they show their token (`joining`).

A bundle is signed by every authority in it. A part that trusts one of them takes the whole bundle,
and nothing else: neither a server's certificate nor the right to write to the store adds an
authority. An older generation is never taken, so that a removed authority does not come back.
docs/adr/0107 has the reasons.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.host.client.paths import FINGERPRINT_SHORT
from holdfast.host.client.transport import Transport
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.join_protocol import BUNDLE_PATH
from holdfast.model.errors import HoldfastError, Invalid

# A rotation replaces one authority by one other.
AUTHORITIES_MAX = 2
BYTES_MAX = 64 << 10
# People, headers and file names have this much of a fingerprint.
SHORT = FINGERPRINT_SHORT
# No certificate begins so: a signature of a bundle never counts as one of a certificate.
_CONTEXT = b"holdfast trust bundle, version 1\n"
FETCH_S = 10.0


class RotationPhase(Enum):
    """How far a rotation is."""

    STABLE = "no rotation"
    BEGUN = "begun"
    SWITCHED = "switched"
    FINISHING = "finishing"


class TrustBundle(msgspec.Struct, frozen=True):
    """One generation.

    authorities: certificates as PEM, the oldest first.
    signs: the fingerprint of the one that issues to nodes, components and people.
    serves: the one that issues the certificates that servers show. It follows last: clients that
        know only the old authority can connect until a rotation ends.
    begun, switched: when these steps of the rotation were made.
    """

    generation: int
    authorities: tuple[str, ...]
    signs: str
    serves: str
    begun: datetime | None = None
    switched: datetime | None = None

    @property
    def pem(self) -> bytes:
        return "".join(self.authorities).encode()

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(fingerprint(it) for it in certificates(self.pem))

    @property
    def is_stable(self) -> bool:
        """Whether no rotation is under way."""
        return len(self.authorities) == 1

    @property
    def phase(self) -> RotationPhase:
        if self.is_stable:
            return RotationPhase.STABLE
        newest = self.fingerprints[-1]
        if self.serves == newest:
            return RotationPhase.FINISHING
        return RotationPhase.SWITCHED if self.signs == newest else RotationPhase.BEGUN


class _Signed(msgspec.Struct, frozen=True):
    """As it is stored and sent. `bundle` is JSON, `signatures` are by fingerprint, as base64."""

    bundle: str
    signatures: dict[str, str]


def first_bundle(pem: bytes) -> TrustBundle:
    """The bundle of a plane that never rotated. Raises Invalid."""
    found = certificates(pem)
    signs = fingerprint(found[0])
    return TrustBundle(0, tuple(_pem(it) for it in found), signs, signs)


def bundle_of_files(pem: bytes, text: bytes) -> TrustBundle:
    """The bundle of a directory with these certificates and this signed bundle, if there is one.
    Raises Invalid.
    """
    found = decode_bundle(text) if text else None
    # An operator may have brought other certificates, or a crash have come between two writes.
    return found if found is not None and found.pem == pem else first_bundle(pem)


def begin_rotation(
    bundle: TrustBundle, authority_pem: bytes, now: datetime | None = None
) -> TrustBundle:
    """The next authority is trusted, and signs nothing yet."""
    authorities = (*bundle.authorities, authority_pem.decode())
    return _next(bundle, authorities=authorities, begun=now or datetime.now(UTC))


def switch_signer(bundle: TrustBundle, now: datetime | None = None) -> TrustBundle:
    """The new authority issues to all but servers."""
    return _next(bundle, signs=bundle.fingerprints[-1], switched=now or datetime.now(UTC))


def switch_servers(bundle: TrustBundle) -> TrustBundle:
    """Servers show certificates of the new authority."""
    return _next(bundle, serves=bundle.fingerprints[-1])


def finish_rotation(bundle: TrustBundle) -> TrustBundle:
    """The old authority is trusted no more."""
    return _next(bundle, authorities=bundle.authorities[-1:], begun=None, switched=None)


def abort_rotation(bundle: TrustBundle) -> TrustBundle:
    """The new authority is trusted no more, as if the rotation had not begun."""
    return _next(bundle, authorities=bundle.authorities[:1], begun=None, switched=None)


def _next(bundle: TrustBundle, **changes: Any) -> TrustBundle:
    return msgspec.structs.replace(bundle, generation=bundle.generation + 1, **changes)


def sign_bundle(bundle: TrustBundle, authorities: Iterable[CertificateAuthority]) -> bytes:
    """The bundle with the signatures of its authorities."""
    return seal(_CONTEXT, msgspec.json.encode(bundle), authorities)


def seal(context: bytes, text: bytes, authorities: Iterable[CertificateAuthority]) -> bytes:
    """A text with the signatures of these authorities, which are good in this context alone."""
    made = {
        it.fingerprint: base64.b64encode(it.signature(context + text)).decode()
        for it in authorities
    }
    return msgspec.json.encode(_Signed(text.decode(), made))


def verify_seal(context: bytes, text: bytes, trusted: Sequence[x509.Certificate]) -> bytes:
    """The text that one of the trusted authorities has sealed. Raises Invalid."""
    try:
        document = msgspec.json.decode(text, type=_Signed)
    except msgspec.DecodeError as error:
        raise Invalid(f"this is no signed text: {error}") from error
    data = document.bundle.encode()
    if not any(_has_signed(it, document, context + data) for it in trusted):
        raise Invalid("this is not signed by a certificate authority trusted here")
    return data


def verify_bundle(text: bytes, trusted: Sequence[x509.Certificate]) -> TrustBundle:
    """The bundle in a text that one of the trusted authorities has signed. Raises Invalid."""
    document, bundle = _decoded(text)
    data = _CONTEXT + document.bundle.encode()
    if not any(_has_signed(it, document, data) for it in trusted):
        raise Invalid("this trust bundle is not signed by a certificate authority trusted here")
    return bundle


def decode_bundle(text: bytes) -> TrustBundle:
    """The bundle in a text that is already known to be ours. Raises Invalid."""
    return _decoded(text)[1]


def verify_newer(current: TrustBundle, text: bytes) -> TrustBundle:
    """The next bundle, if the text holds one. Raises Invalid."""
    found = verify_bundle(text, certificates(current.pem))
    if found.generation <= current.generation:
        raise Invalid(
            f"generation {found.generation} of the trust bundle is not newer than generation "
            f"{current.generation}, which is in use"
        )
    return found


async def fetch_bundle(transport: Transport, trusted: bytes) -> TrustBundle:
    """The plane's bundle, proven by what is trusted already. Raises HoldfastError."""
    return verify_bundle(await fetch_bundle_text(transport), certificates(trusted))


async def fetch_bundle_text(transport: Transport) -> bytes:
    """The signed text from a server. Raises HoldfastError."""
    answer = await transport.send("GET", BUNDLE_PATH, timeout_s=FETCH_S)
    if not answer.is_good:
        raise answer.error(may_have_happened=False)
    return answer.body


async def current_authorities(transport: Transport, trusted: bytes) -> tuple[bytes, int]:
    """What to hand on to others: the plane's authorities and their generation, or else what is
    trusted.
    """
    try:
        found = await fetch_bundle(transport, trusted)
    except HoldfastError:
        # A server of the version before has no bundle; it has no second authority either.
        return trusted, 0
    return found.pem, found.generation


def certificates(pem: bytes) -> list[x509.Certificate]:
    """The certificates in a PEM text. Raises Invalid."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise Invalid(f"this holds no certificate of an authority: {error}") from error


def fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def common_name(name: x509.Name) -> str:
    """The name by which issuer and issued find each other; each authority has its own."""
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def names(bundle: TrustBundle) -> dict[str, str]:
    """The fingerprints of the authorities, by the names that they issue under."""
    return {common_name(it.subject): fingerprint(it) for it in certificates(bundle.pem)}


def issuer_of(certificate: bytes) -> str:
    """The name of the authority that issued a certificate. Raises ValueError for what is none."""
    return common_name(x509.load_pem_x509_certificate(certificate).issuer)


def _decoded(text: bytes) -> tuple[_Signed, TrustBundle]:
    if len(text) > BYTES_MAX:
        raise Invalid(f"a trust bundle has at most {BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(text, type=_Signed)
        bundle = msgspec.json.decode(document.bundle, type=TrustBundle)
    except msgspec.DecodeError as error:
        raise Invalid(f"this is no trust bundle: {error}") from error
    found = certificates(bundle.pem)
    known = [fingerprint(it) for it in found]
    if len(found) != len(bundle.authorities) or len(set(known)) != len(known):
        raise Invalid("a trust bundle names each of its authorities once")
    if len(found) > AUTHORITIES_MAX or not all(map(_is_authority, found)):
        raise Invalid(f"a trust bundle has one or {AUTHORITIES_MAX} certificate authorities")
    if bundle.signs not in known or bundle.serves not in known:
        raise Invalid("the authority that signs is not in the trust bundle")
    return document, bundle


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return found.ca and isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)


def _has_signed(certificate: x509.Certificate, document: _Signed, data: bytes) -> bool:
    key = certificate.public_key()
    given = document.signatures.get(fingerprint(certificate), "")
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(base64.b64decode(given, validate=True), data, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, binascii.Error):
        return False
    return True


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
