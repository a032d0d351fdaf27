"""What a first start makes so that all can trust each other: authority, certificates, a way in.

The next starts find it all there. Files are for this user alone. `certificates` says what a
certificate is, `docs/adr/0042-certificates.md` why it is so.
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
    """The authorities, and what they have issued to this server and to its administrator."""

    authorities: CertificateAuthorities
    server: tuple[Path, Path]
    # Who this server is when it asks another one.
    peer: tuple[Path, Path]
    admin: IssuedCertificate

    def context(self) -> ssl.SSLContext:
        """The TLS of the server's socket. Whoever has a certificate of ours may show it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self.server)
        # Our own only: a certificate of any other authority says nothing about who may do what.
        context.load_verify_locations(cadata=self.authorities.pem.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def peer_context(self) -> ssl.SSLContext:
        """The TLS towards other servers: they prove themselves to us, and we to them."""
        context = ssl.create_default_context(cadata=self.authorities.pem.decode())
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self.peer)
        return context


class ServerTls:
    """The TLS of a socket that stays open while what is trusted and shown there changes.

    `context` is for the socket. Handshakes use what was taken last: an authority cannot be removed
    from a context, so that each change makes another one.
    """

    def __init__(self, trust: Trust) -> None:
        self.context, self._current = trust.context(), trust.context()
        self.context.sni_callback = self._choose

    def take(self, current: ssl.SSLContext) -> None:
        """Use this one for all handshakes from now on."""
        self._current = current

    def _choose(self, tls: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        tls.context = self._current


def establish(settings: ServerSettings) -> Trust:
    """Find or make everything. Raises Invalid when what is there cannot be used."""
    private_directory(settings.data)
    directory = private_directory(settings.pki_directory)
    with alone(directory):
        return _establish(settings, directory)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Servers that share a directory and start together must not make two authorities in it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _establish(settings: ServerSettings, directory: Path) -> Trust:
    name = who.server(settings.server_name).name
    # Servers that share a directory of certificates have files of their own in it.
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
    """The administrator's way in, in the data directory. It is left alone while it is right."""
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
