"""Certificates: Holdfast's own authority, and what it issues to servers, components and people.

The first start of a plane creates the authority, which issues everything else. In a certificate the
common name is the identity, and organizations are its groups. Keys are on the P-256 curve, so that
a handshake is cheap and creating a key at start-up is fast.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.host.process.files import private_directory, write_private
from holdfast.model.errors import Invalid, unreachable

AUTHORITY_DAYS = 3_650
LEAF_LIFE = timedelta(days=365)
# A leaf is renewed in this part of its life: late enough to be rare, and early enough that a
# client without contact for a third of it does not lose its place in the plane.
RENEW_FROM, RENEW_BY = 1 / 2, 2 / 3
# The longest common name that X.509 allows.
COMMON_NAME_MAX = 64
# Clocks differ a little; a certificate must not start in its receiver's future. A short life is
# backdated by a part of itself, or most of it would be over at its beginning.
BACKDATE = timedelta(minutes=5)
BACKDATE_SHARE = 10
# Our serial numbers hold a mark, the time of issue in milliseconds, and random bits. Certificates
# are backdated, so their dates cannot separate those before a revocation from later ones.
# The order of the curve P-256.
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_SERIAL_MARK, _MOMENT_BITS, _LUCK_BITS = 0x484644, 48, 80


class IssuedCertificate(msgspec.Struct, frozen=True):
    """A certificate and its key, as PEM. It is never printed, because it holds the key."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "IssuedCertificate(certificate and key)"


class Purpose(msgspec.Struct, frozen=True):
    """The purpose of a certificate: a server under these names, or a client."""

    server_names: tuple[str, ...] = ()

    @property
    def usage(self) -> x509.ObjectIdentifier:
        return (
            ExtendedKeyUsageOID.SERVER_AUTH
            if self.server_names
            else ExtendedKeyUsageOID.CLIENT_AUTH
        )


CLIENT = Purpose()


class CertificateAuthority:
    """Holdfast's own certificate authority, in its own directory."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def open(cls, directory: Path) -> CertificateAuthority:
        """Load the authority of this directory; create it if there is none."""
        certificate, key = directory / "ca.crt", directory / "ca.key"
        if not certificate.exists() and not key.exists():
            made = _new_authority()
            private_directory(directory)
            # The key first: a certificate without a key would look like a lost authority.
            write_private(key, made.key)
            write_private(certificate, made.certificate)
        return cls.load(certificate, key)

    @classmethod
    def load(cls, certificate: Path, key: Path) -> CertificateAuthority:
        """Load the authority in these files. Raises Invalid and says what is wrong with them."""
        try:
            found = x509.load_pem_x509_certificate(certificate.read_bytes())
            secret = serialization.load_pem_private_key(key.read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise Invalid(
                f"the certificate authority in {certificate.parent} cannot be used: {error}; "
                "restore both ca.crt and ca.key from a backup, or remove both to make a new one, "
                "after which every client needs a new certificate"
            ) from error
        if not isinstance(secret, ec.EllipticCurvePrivateKey):
            raise Invalid(f"{key} is not a key on an elliptic curve")
        if secret.public_key() != found.public_key():
            raise Invalid(f"{key} is not the key of {certificate}")
        return cls(found, secret)

    def derived_key(self, purpose: str) -> ec.EllipticCurvePrivateKey:
        """Derive a key for another purpose, the same wherever the authority's key is.

        The derived key reveals neither the authority's key nor that of another purpose.
        """
        secret = self._key.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        # Half as many bits again as the order of the curve, so that all keys are equally likely.
        spread = HKDF(hashes.SHA256(), 48, None, purpose.encode()).derive(secret)
        number = int.from_bytes(spread, "big") % (_P256_ORDER - 1) + 1
        return ec.derive_private_key(number, ec.SECP256R1())

    @classmethod
    def new(cls) -> tuple[CertificateAuthority, IssuedCertificate]:
        """Create an authority; return it, and its certificate and key as PEM."""
        made = _new_authority()
        key = serialization.load_pem_private_key(made.key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            unreachable("our own keys are on a curve")
        return cls(x509.load_pem_x509_certificate(made.certificate), key), made

    @property
    def pem(self) -> bytes:
        """Return the certificate that clients trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        """Return the hash that identifies it."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def signature(self, data: bytes) -> bytes:
        """Sign data that is not a certificate; see `trust_bundle`."""
        return self._key.sign(data, ec.ECDSA(hashes.SHA256()))

    def issue(
        self,
        name: str,
        purpose: Purpose = CLIENT,
        groups: Iterable[str] = (),
        *,
        life: timedelta = LEAF_LIFE,
        now: datetime | None = None,
    ) -> IssuedCertificate:
        """Issue a certificate for an identity and its groups, or for a server and its names."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self.certify(key.public_key(), name, purpose, groups, life=life, now=now)
        return IssuedCertificate(made, _pem(key))

    def certify(
        self,
        key: ec.EllipticCurvePublicKey,
        name: str,
        purpose: Purpose = CLIENT,
        groups: Iterable[str] = (),
        *,
        life: timedelta = LEAF_LIFE,
        now: datetime | None = None,
    ) -> bytes:
        """Issue a certificate, as PEM, for a key that another process holds."""
        moment = now if now is not None else datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_subject(name, groups))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(_serial(moment))
            .not_valid_before(moment - min(BACKDATE, life / BACKDATE_SHARE))
            .not_valid_after(moment + life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose.usage]), critical=False)
        )
        if purpose.server_names:
            names = x509.SubjectAlternativeName([_general_name(n) for n in purpose.server_names])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM)

    def keep(
        self,
        directory: Path,
        file: str,
        name: str,
        purpose: Purpose,
        groups: Iterable[str] = (),
        *,
        life: timedelta = LEAF_LIFE,
    ) -> tuple[Path, Path]:
        """Return the files of a certificate. It is issued again if it is missing, of another
        authority, under other names, past the first part of its life, or made for a longer one.
        """
        certificate, key = directory / f"{file}.crt", directory / f"{file}.key"
        if not self._is_good(certificate, key, purpose, life):
            issued = self.issue(name, purpose, groups, life=life)
            private_directory(directory)
            write_private(key, issued.key)
            write_private(certificate, issued.certificate)
        return certificate, key

    def _is_good(self, certificate: Path, key: Path, purpose: Purpose, life: timedelta) -> bool:
        try:
            found = x509.load_pem_x509_certificate(certificate.read_bytes())
            secret = serialization.load_pem_private_key(key.read_bytes(), password=None)
        except (OSError, ValueError):
            return False
        return (
            found.issuer == self._certificate.subject
            and datetime.now(UTC) < _moment(found, RENEW_FROM)
            and found.not_valid_after_utc - found.not_valid_before_utc <= life + BACKDATE
            and secret.public_key() == found.public_key()
            and _names_of(found) >= set(purpose.server_names)
        )


def moment(certificate: bytes, share: float) -> datetime:
    """Return when this share of a certificate's life is over. Raises Invalid if it is not one."""
    try:
        return _moment(x509.load_pem_x509_certificate(certificate), share)
    except ValueError as error:
        raise Invalid(f"not a certificate: {error}") from error


def serial_of(certificate: bytes) -> int:
    """Return the serial number of a certificate in PEM. Raises ValueError if it is not one."""
    return x509.load_pem_x509_certificate(certificate).serial_number


def issued_ms(serial: int, not_before_s: float) -> int:
    """Return when a certificate was issued; for foreign ones, their first date."""
    if serial >> (_MOMENT_BITS + _LUCK_BITS) != _SERIAL_MARK:
        return int(not_before_s * 1_000)
    return serial >> _LUCK_BITS & (1 << _MOMENT_BITS) - 1


def _serial(now: datetime) -> int:
    moment_ms = int(now.timestamp() * 1_000)
    marked = _SERIAL_MARK << _MOMENT_BITS | moment_ms
    return marked << _LUCK_BITS | secrets.randbits(_LUCK_BITS)


def _moment(of: x509.Certificate, share: float) -> datetime:
    return of.not_valid_before_utc + share * (of.not_valid_after_utc - of.not_valid_before_utc)


def _new_authority() -> IssuedCertificate:
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial in the name distinguishes two authorities of the same plane in trust stores.
    serial = x509.random_serial_number()
    subject = _subject(f"holdfast-ca-{serial:x}"[:40], ())
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return IssuedCertificate(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def _subject(name: str, groups: Iterable[str]) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names_of(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
