"""The certificate authorities of a server: the trust bundle and the private keys that it holds.

They are in one directory. `ca.crt` has the certificates, `ca.key` the usual signing key,
`ca-FINGERPRINT.key` the key of an authority that a rotation introduces, and `ca.bundle` the signed
bundle after the first rotation. A key is found by the certificate that it matches, whatever its
file is called, so that a crash between two writes leaves a readable state.

Private keys never leave their directory. Servers with separate directories get the key of the next
authority as they got the first one: an operator copies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.host.pki import trust_bundle
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.trust_bundle import SHORT, TrustBundle, certificates, fingerprint
from holdfast.host.process.files import remove, write_private
from holdfast.model.errors import Invalid, Unavailable

CERTIFICATES, KEY, BUNDLE = "ca.crt", "ca.key", "ca.bundle"
KEYS = "ca*.key"


def key_file(of: str) -> str:
    """Return the file with the key of an authority that a rotation introduces."""
    return f"ca-{of[:SHORT]}.key"


class CertificateAuthorities:
    """See the module's docstring. `take` updates a shared instance."""

    def __init__(
        self, bundle: TrustBundle, held: Mapping[str, CertificateAuthority], text: bytes = b""
    ) -> None:
        self.bundle, self.held = bundle, dict(held)
        self._text = text
        self.names = trust_bundle.names(bundle)

    @classmethod
    def open(cls, directory: Path) -> CertificateAuthorities:
        """Load this directory; create a first authority if there is none. Raises Invalid."""
        if not any((directory / it).exists() for it in (CERTIFICATES, KEY, BUNDLE)):
            CertificateAuthority.open(directory)
        found = cls.load(directory)
        if (directory / BUNDLE).exists():
            # A crash may have left a part of it undone.
            _settle(directory, found.bundle)
        return found

    @classmethod
    def load(cls, directory: Path) -> CertificateAuthorities:
        """Load this directory. Raises Invalid."""
        kept = directory / BUNDLE
        if not kept.exists():
            one = CertificateAuthority.load(directory / CERTIFICATES, directory / KEY)
            bundle = trust_bundle.first_bundle((directory / CERTIFICATES).read_bytes())
            return cls(bundle, {one.fingerprint: one})
        text = kept.read_bytes()
        bundle = trust_bundle.decode_bundle(text)
        return cls(bundle, held_keys(directory, bundle), text)

    def take(self, other: CertificateAuthorities) -> None:
        """Replace the contents by those of another instance."""
        self.bundle, self.held, self.names = other.bundle, other.held, other.names
        self._text = other._text

    @property
    def pem(self) -> bytes:
        """Return the certificates that clients trust."""
        return self.bundle.pem

    @property
    def text(self) -> bytes:
        """Return the bundle with its signatures."""
        if not self._text:
            self._text = trust_bundle.sign_bundle(self.bundle, self.held.values())
        return self._text

    @property
    def signer(self) -> CertificateAuthority:
        """Return the authority that issues to nodes, components and people. Raises Unavailable."""
        return self._with_key(self.bundle.signs)

    @property
    def server_signer(self) -> CertificateAuthority:
        """Return the authority that issues server certificates. Raises Unavailable."""
        return self._with_key(self.bundle.serves)

    def _with_key(self, wanted: str) -> CertificateAuthority:
        found = self.held.get(wanted)
        if found is None:
            raise Unavailable(
                f"this server has no key of the certificate authority {wanted[:SHORT]}: copy "
                f"{key_file(wanted)}, or {KEY} after a rotation, from the pki directory of another "
                "server into its own"
            )
        return found


def held_keys(directory: Path, bundle: TrustBundle) -> dict[str, CertificateAuthority]:
    """Return the authorities of a bundle whose keys are in this directory, by fingerprint."""
    found: dict[str, CertificateAuthority] = {}
    trusted = certificates(bundle.pem)
    for path in sorted(directory.glob(KEYS)):
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError) as error:
            text = f"{path} is not a private key: {error}; restore it from a backup"
            raise Invalid(text) from error
        for it in trusted:
            if isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == it.public_key():
                found[fingerprint(it)] = CertificateAuthority(it, key)
    return found


def keep_bundle(directory: Path, before: TrustBundle, text: bytes) -> None:
    """Store the next verified bundle, and move the keys to where they belong after it.

    The bundle is written first: it decides what the other files mean.
    """
    bundle = trust_bundle.decode_bundle(text)
    write_private(directory / BUNDLE, text)
    _settle(directory, bundle)
    if bundle.is_stable:
        for it in before.fingerprints:
            remove(directory / key_file(it))


def _settle(directory: Path, bundle: TrustBundle) -> None:
    """Make the usual files agree with the bundle. After a rotation the signing key is in the usual
    file, and the previous key is removed.
    """
    if (directory / CERTIFICATES).read_bytes() != bundle.pem:
        write_private(directory / CERTIFICATES, bundle.pem)
    moved = directory / key_file(bundle.signs)
    if bundle.is_stable and moved.exists():
        write_private(directory / KEY, moved.read_bytes())
        remove(moved)
