"""Who a component is to the servers: certificate files, one pair for each identity.

On a machine that has the plane's authority they are issued here (`issue`), at the start of a
component or ahead of it. Elsewhere the directory is brought along: `ca.crt` and, for each identity,
its certificate and key. Agents of other machines join with a token instead (`host/joining`).
"""

from __future__ import annotations

from pathlib import Path

from holdfast.host.authorities import Authorities
from holdfast.host.certificates import CLIENT
from holdfast.host.client.access import Access
from holdfast.host.files import private_directory
from holdfast.host.trust import alone
from holdfast.model.errors import Invalid


def file_name(identity: str) -> str:
    """What the files of an identity are called. No part of an identity has an underscore."""
    return identity.replace(":", "_")


def issue(pki: Path, identity: str) -> tuple[Path, Path]:
    """Certificate and key of an identity beside the authority, issued anew when need be."""
    directory = private_directory(pki)
    with alone(directory):
        signer = Authorities.open(directory).signer
        return signer.keep(directory, file_name(identity), identity, CLIENT)


def forget(pki: Path, identity: str) -> None:
    """Let the next one be issued anew."""
    for end in ("crt", "key"):
        (pki / f"{file_name(identity)}.{end}").unlink(missing_ok=True)


def access_of(servers: tuple[str, ...], pki: Path, identity: str) -> Access:
    """The access of an identity, issued if the authority is here. Raises Invalid."""
    if (pki / "ca.key").exists():
        issue(pki, identity)
    certificate, key = (pki / f"{file_name(identity)}.{end}" for end in ("crt", "key"))
    try:
        access = Access(
            servers=servers,
            ca=(pki / "ca.crt").read_bytes(),
            certificate=certificate.read_bytes(),
            key=key.read_bytes(),
        )
    except OSError as error:
        raise Invalid(
            f"{identity} has no certificate in {pki}: {error.filename}: {error.strerror}"
        ) from error
    access.check()
    return access
