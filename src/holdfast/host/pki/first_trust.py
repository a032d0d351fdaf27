"""What a first start creates: the authority, certificates, and the administrator's kubeconfig.

Later starts find it all there. Only this user may read the files. `certificates` says what a
certificate is, `docs/adr/0042-certificates.md` explains why.
"""

from __future__ import annotations

import fcntl
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.certificates import CLIENT, IssuedCertificate, Purpose
from holdfast.host.pki.kubeconfig import kubeconfig
from holdfast.host.process.files import private_directory, write_private
from holdfast.host.server.settings import ServerSettings
from holdfast.model.access import identity as who

ADMIN = "admin"
SERVER = "server"


class Trust(msgspec.Struct, frozen=True):
    """The authorities, and what they issued to this server and to its administrator."""

    authorities: CertificateAuthorities
    server: tuple[Path, Path]
    # The client certificate of this server towards other servers.
    peer: tuple[Path, Path]
    admin: IssuedCertificate

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of the server's socket. Client certificates are optional."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self.server)
        # Only our own authorities: a certificate of any other proves nothing about permissions.
        context.load_verify_locations(cadata=self.authorities.pem.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def peer_context(self) -> ssl.SSLContext:
        """Return the TLS context towards other servers, with certificates on both sides."""
        context = ssl.create_default_context(cadata=self.authorities.pem.decode())
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self.peer)
        return context


class ServerTls:
    """The TLS of a socket that stays open while trust and certificates change.

    `context` is for the socket. Handshakes use the context that was taken last: an authority cannot
    be removed from a context, so each change needs a new one.
    """

    def __init__(self, trust: Trust) -> None:
        self.context, self._current = trust.context(), trust.context()
        self.context.sni_callback = self._choose

    def take(self, current: ssl.SSLContext) -> None:
        """Use this context for all handshakes from now on."""
        self._current = current

    def _choose(self, tls: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        tls.context = self._current


def establish(settings: ServerSettings) -> Trust:
    """Load or create everything. Raises Invalid if existing files cannot be used."""
    private_directory(settings.data)
    directory = private_directory(settings.pki_directory)
    with alone(directory):
        return _establish(settings, directory)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Lock a directory: servers that start together must not create two authorities in it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _establish(settings: ServerSettings, directory: Path) -> Trust:
    name = who.server(settings.server_name).name
    # Servers that share a directory of certificates have their own files in it.
    suffix = f"-{settings.server_name}" if settings.pki is not None else ""
    authorities = CertificateAuthorities.open(directory)
    signer = authorities.signer
    purpose = Purpose(server_names=settings.certificate_names)
    life = settings.server_certificate_life
    return Trust(
        authorities,
        authorities.server_signer.keep(directory, SERVER + suffix, name, purpose, life=life),
        signer.keep(directory, f"peer-{settings.server_name}", name, CLIENT, life=life),
        _issued(signer.keep(directory, ADMIN, ADMIN, CLIENT, (who.ADMINS,))),
    )


def write_kubeconfig(settings: ServerSettings, trust: Trust, url: str) -> Path:
    """Write the administrator's kubeconfig to the data directory, if it changed."""
    path = settings.data / "kubeconfig"
    content = kubeconfig(url, trust.authorities.pem, trust.admin, user=ADMIN)
    try:
        if path.read_bytes() == content:
            return path
    except OSError:
        # There is none yet.
        pass
    write_private(path, content)
    return path


def _issued(files: tuple[Path, Path]) -> IssuedCertificate:
    certificate, key = files
    return IssuedCertificate(certificate.read_bytes(), key.read_bytes())
