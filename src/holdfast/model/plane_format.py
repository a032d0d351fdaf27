"""Which version each part of a plane has, and whether the format of the plane may be raised.

A server gathers the parts (`host/api/plane/upgrade`), `holdfast upgrade` shows them. An older
server is kept from writing under a newer format by the compare of every transaction, whatever is
said here: the format is not raised while an older part lives so that no part stops working by
surprise.
"""

from __future__ import annotations

import msgspec

from holdfast import __version__
from holdfast.model.meta import Part


class InstalledPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of the plane.

    part: server, scheduler, controller or agent.
    name: its name; of a controller, the process that acts.
    version: the version of holdfast that it runs; empty where it does not say.
    is_gone: it was not heard for so long that nobody waits for it.
    """

    part: str
    name: str
    version: str = ""
    is_gone: bool = False


class Upgrade(msgspec.Struct, frozen=True):
    """What a server says of the plane.

    format: the format that the plane has.
    newest: the newest format that this server knows.
    version: the version of this server.
    parts: all parts that are known.
    """

    format: int
    newest: int
    version: str
    parts: tuple[InstalledPart, ...] = ()

    def older(self) -> tuple[InstalledPart, ...]:
        """The parts that live and have an older version than the server that was asked."""
        return tuple(
            it for it in self.parts if not it.is_gone and is_older(it.version, self.version)
        )

    def refusal(self) -> str:
        """Why the format may not be raised now; empty when it may."""
        if self.format >= self.newest:
            return (
                f"the plane has format {self.format}, and version {self.version} of holdfast knows "
                "no newer one: there is nothing to finish"
            )
        older = self.older()
        if not older:
            return ""
        named = ", ".join(f"{it.part} {it.name} ({it.version or 'unknown'})" for it in older[:10])
        more = f" and {len(older) - 10} more" if len(older) > 10 else ""
        return (
            f"these parts are older than version {self.version}: {named}{more}; upgrade and "
            "restart them, or stop them, and try again"
        )


class RaiseRequest(msgspec.Struct, frozen=True):
    """What an operator asks a server for: the plane's next format, and why."""

    to: int
    word: str = ""


def is_older(version: str, than: str) -> bool:
    """Whether a version comes before another one. One that is not said is older than any."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: 1.12.0rc1 is 1, 12, 0."""
    found = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


# The format of a plane: which versions may write to its store.
#
# One small record that every transaction compares. Fields that are added need no new format: they
# survive versions that do not know them (`unknown_fields`). A format is raised when a version
# writes what an older one would take for something else, and only once an operator says so; from
# then on older servers write nothing, not even what they had decided before.

# The newest format that this version can work with, and what it writes into a new plane.
FORMAT = 1
# The version of this program, by which others know what it can work with.
VERSION = __version__


class PlaneFormat(Part, frozen=True):
    """The format that the records of a plane have.

    A default is left out of a record, so this one is the first format in every version: were it
    the newest, each version would read its own format from what another one wrote.
    """

    format: int = 1


def too_new(found: int) -> str:
    """Why a server of this version may not write to a plane of this format, if so."""
    if found <= FORMAT:
        return ""
    return (
        f"the plane has format {found} and this version of holdfast knows formats up to {FORMAT}: "
        "install the version that the other servers have"
    )


def format_refusal(value: bytes) -> str:
    """Why a server of this version may not write to a plane with this record of its format."""
    try:
        return too_new(_DECODER.decode(value).format)
    except msgspec.DecodeError as error:
        return f"the format of the plane cannot be read: {error}"


_DECODER = msgspec.json.Decoder(PlaneFormat)
