"""Who a component is to the servers: certificate files, one pair for each identity.

On a machine that has the plane's authority `provide` issues them into a directory of their own:
`ca.crt` and, for each identity, its certificate and key. `holdfast up` does so before it starts a
part, `holdfast component certificate` for parts elsewhere. A component never has the authority's
key: whoever took over its process would be everybody. Agents usually join with a token instead
(`host/joining`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from holdfast.host.authorities import BUNDLE, Authorities
from holdfast.host.certificates import CLIENT
from holdfast.host.client.access import Access
from holdfast.host.files import private_directory, write_private
from holdfast.host.trust import alone
from holdfast.model import identity as who
from holdfast.model.errors import Invalid

AUTHORITY, AUTHORITY_KEYS = "ca.crt", "ca*.key"
SCHEDULER, CONTROLLERS, AGENT = "scheduler", "controllers", "agent"


def checked(name: str) -> str:
    """The name of a component, if it can be part of an identity. Raises Invalid."""
    if not who.acts_as(who.scheduler(name)):
        raise Invalid(f"{name[:63]!r} is no name: lower-case letters, digits, - and .")
    return name


def identities(part: str, name: str) -> tuple[str, ...]:
    """Who a process of this kind and name is to the servers. Raises Invalid."""
    if part == SCHEDULER:
        return (who.scheduler(checked(name)).name,)
    if part == AGENT:
        return (who.agent(checked(name)).name,)
    # Only who makes them needs the controllers at hand.
    from holdfast.correct.registry import all_controllers
    from holdfast.host.zones import zones

    return tuple(it.identity for it in all_controllers(zones))


def file_name(identity: str) -> str:
    """What the files of an identity are called. No part of an identity has an underscore."""
    return identity.replace(":", "_")


def issue(pki: Path, identity: str, into: Path | None = None, file: str = "") -> tuple[Path, Path]:
    """Certificate and key of an identity, issued anew when need be; beside the authority, or into
    another directory, and perhaps under another name.
    """
    directory = private_directory(pki)
    with alone(directory):
        signer = Authorities.open(directory).signer
        return signer.keep(into or directory, file or file_name(identity), identity, CLIENT)


def provide(pki: Path, into: Path, names: Iterable[str], file: str = "") -> None:
    """Have the certificates of these identities, and what they trust, in a directory of their own.

    Whatever is good for a while yet stays as it is.
    """
    private_directory(into)
    for name in names:
        issue(pki, name, into, file)
    # The bundle first, as in `trust_following`: it says of which generation the certificates are.
    for source in filter(Path.exists, (pki / BUNDLE, pki / AUTHORITY)):
        trusted, kept = source.read_bytes(), into / source.name
        if not kept.exists() or kept.read_bytes() != trusted:
            write_private(kept, trusted)


def has_authority(directory: Path) -> bool:
    """Whether a key of the authority is here."""
    return any(directory.glob(AUTHORITY_KEYS))


def refuse_authority(directory: Path, part: str, advice: str) -> None:
    """Raises Invalid if a key of the authority lies where a component keeps its own things.

    Whoever gets at its process, its directory or a backup of it would be everybody.
    """
    for path in sorted(directory.glob(AUTHORITY_KEYS)):
        raise Invalid(f"{path} is the key of the plane's authority, which no {part} has: {advice}")


def access_of(servers: tuple[str, ...], pki: Path, identity: str) -> Access:
    """The access of an identity by its files. Raises Invalid."""
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
