"""The trust bundle: which certificate authorities a plane trusts, and which of them issues what.

Usually it has one authority. A rotation adds the next one, lets it sign, and removes the first,
each step as a bundle of the next generation (`ca_rotation`). Servers store it in the store and
beside their keys (`ca_keys`), components beside their certificates (`trust_seen`), and joining
nodes get it before they send their token (`node_join`).

A bundle is signed by every authority in it. A client that trusts one of them accepts the whole
bundle, and nothing else: neither a server's certificate nor write access to the store can add an
authority. An older generation is never accepted, so that a removed authority does not come back.
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
# The length of a fingerprint in messages, headers and file names.
SHORT = FINGERPRINT_SHORT
# No certificate begins like this: a signature of a bundle is never valid for a certificate.
_CONTEXT = b"holdfast trust bundle, version 1\n"
FETCH_S = 10.0


class RotationPhase(Enum):
    """The progress of a rotation."""

    STABLE = "no rotation"
    BEGUN = "begun"
    SWITCHED = "switched"
    FINISHING = "finishing"


class TrustBundle(msgspec.Struct, frozen=True):
    """One generation.

    authorities: certificates as PEM, the oldest first.
    signs: the fingerprint of the one that issues to nodes, components and people.
    serves: the one that issues server certificates. It changes last: clients that know only the old
        authority can connect until a rotation ends.
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
        """Return whether no rotation is in progress."""
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
    """The stored and sent form: `bundle` is JSON, `signatures` are base64 by fingerprint."""

    bundle: str
    signatures: dict[str, str]


def first_bundle(pem: bytes) -> TrustBundle:
    """Return the bundle of a plane without rotations. Raises Invalid."""
    found = certificates(pem)
    signs = fingerprint(found[0])
    return TrustBundle(0, tuple(_pem(it) for it in found), signs, signs)


def bundle_of_files(pem: bytes, text: bytes) -> TrustBundle:
    """Return the bundle of a directory with these certificates and this signed bundle, which may
    be empty. Raises Invalid.
    """
    found = decode_bundle(text) if text else None
    # An operator may have copied other certificates, or a crash came between two writes.
    return found if found is not None and found.pem == pem else first_bundle(pem)


def begin_rotation(
    bundle: TrustBundle, authority_pem: bytes, now: datetime | None = None
) -> TrustBundle:
    """Return a bundle with the next authority, which signs nothing yet."""
    authorities = (*bundle.authorities, authority_pem.decode())
    return _next(bundle, authorities=authorities, begun=now or datetime.now(UTC))


def switch_signer(bundle: TrustBundle, now: datetime | None = None) -> TrustBundle:
    """Return a bundle in which the new authority issues to all but servers."""
    return _next(bundle, signs=bundle.fingerprints[-1], switched=now or datetime.now(UTC))


def switch_servers(bundle: TrustBundle) -> TrustBundle:
    """Return a bundle in which the new authority issues server certificates too."""
    return _next(bundle, serves=bundle.fingerprints[-1])


def finish_rotation(bundle: TrustBundle) -> TrustBundle:
    """Return a bundle without the old authority."""
    return _next(bundle, authorities=bundle.authorities[-1:], begun=None, switched=None)


def abort_rotation(bundle: TrustBundle) -> TrustBundle:
    """Return a bundle without the new authority, as before the rotation."""
    return _next(bundle, authorities=bundle.authorities[:1], begun=None, switched=None)


def _next(bundle: TrustBundle, **changes: Any) -> TrustBundle:
    return msgspec.structs.replace(bundle, generation=bundle.generation + 1, **changes)


def sign_bundle(bundle: TrustBundle, authorities: Iterable[CertificateAuthority]) -> bytes:
    """Return the bundle with the signatures of its authorities."""
    return seal(_CONTEXT, msgspec.json.encode(bundle), authorities)


def seal(context: bytes, text: bytes, authorities: Iterable[CertificateAuthority]) -> bytes:
    """Return a text with signatures of these authorities, valid only in this context."""
    made = {
        it.fingerprint: base64.b64encode(it.signature(context + text)).decode()
        for it in authorities
    }
    return msgspec.json.encode(_Signed(text.decode(), made))


def verify_seal(context: bytes, text: bytes, trusted: Sequence[x509.Certificate]) -> bytes:
    """Return the text that one of the trusted authorities has sealed. Raises Invalid."""
    try:
        document = msgspec.json.decode(text, type=_Signed)
    except msgspec.DecodeError as error:
        raise Invalid(f"not a signed text: {error}") from error
    data = document.bundle.encode()
    if not any(_has_signed(it, document, context + data) for it in trusted):
        raise Invalid("the text is not signed by a certificate authority trusted here")
    return data


def verify_bundle(text: bytes, trusted: Sequence[x509.Certificate]) -> TrustBundle:
    """Return the bundle in a text signed by a trusted authority. Raises Invalid."""
    document, bundle = _decoded(text)
    data = _CONTEXT + document.bundle.encode()
    if not any(_has_signed(it, document, data) for it in trusted):
        raise Invalid("the trust bundle is not signed by a certificate authority trusted here")
    return bundle


def decode_bundle(text: bytes) -> TrustBundle:
    """Return the bundle in a text of known origin. Raises Invalid."""
    return _decoded(text)[1]


def verify_newer(current: TrustBundle, text: bytes) -> TrustBundle:
    """Return the bundle in a text if it is newer. Raises Invalid."""
    found = verify_bundle(text, certificates(current.pem))
    if found.generation <= current.generation:
        raise Invalid(
            f"generation {found.generation} of the trust bundle is not newer than generation "
            f"{current.generation}, which is in use"
        )
    return found


async def fetch_bundle(transport: Transport, trusted: bytes) -> TrustBundle:
    """Return the plane's bundle, verified by what is trusted already. Raises HoldfastError."""
    return verify_bundle(await fetch_bundle_text(transport), certificates(trusted))


async def fetch_bundle_text(transport: Transport) -> bytes:
    """Return the signed text from a server. Raises HoldfastError."""
    answer = await transport.send("GET", BUNDLE_PATH, timeout_s=FETCH_S)
    if not answer.is_good:
        raise answer.error(may_have_happened=False)
    return answer.body


async def current_authorities(transport: Transport, trusted: bytes) -> tuple[bytes, int]:
    """Return the plane's authorities and their generation to pass on to others, or else what is
    trusted.
    """
    try:
        found = await fetch_bundle(transport, trusted)
    except HoldfastError:
        # A server of the previous version has no bundle and no second authority.
        return trusted, 0
    return found.pem, found.generation


def certificates(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates in a PEM text. Raises Invalid."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise Invalid(f"no certificate of an authority found: {error}") from error


def fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def common_name(name: x509.Name) -> str:
    """Return the common name, which links a certificate to its issuer; it is unique."""
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def names(bundle: TrustBundle) -> dict[str, str]:
    """Return the fingerprints of the authorities by their common names."""
    return {common_name(it.subject): fingerprint(it) for it in certificates(bundle.pem)}


def issuer_of(certificate: bytes) -> str:
    """Return the name of a certificate's issuer. Raises ValueError if it is not a certificate."""
    return common_name(x509.load_pem_x509_certificate(certificate).issuer)


def _decoded(text: bytes) -> tuple[_Signed, TrustBundle]:
    if len(text) > BYTES_MAX:
        raise Invalid(f"a trust bundle may have at most {BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(text, type=_Signed)
        bundle = msgspec.json.decode(document.bundle, type=TrustBundle)
    except msgspec.DecodeError as error:
        raise Invalid(f"not a trust bundle: {error}") from error
    found = certificates(bundle.pem)
    known = [fingerprint(it) for it in found]
    if len(found) != len(bundle.authorities) or len(set(known)) != len(known):
        raise Invalid("a trust bundle must name each of its authorities once")
    if len(found) > AUTHORITIES_MAX or not all(map(_is_authority, found)):
        raise Invalid(f"a trust bundle must have 1 to {AUTHORITIES_MAX} certificate authorities")
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
