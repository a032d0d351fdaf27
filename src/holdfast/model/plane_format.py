"""The version of each component of a plane, and whether the plane's format may be raised.

A server collects the components (`host/api/plane/upgrade_routes.py`), and `holdfast upgrade` shows
them. Every transaction compares the format, so an older server cannot write under a newer one in
any case. The checks here only avoid surprises: the format is not raised while an older component is
alive.
"""

from __future__ import annotations

import msgspec

from holdfast import __version__
from holdfast.model.meta import Part


class InstalledPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One component of the plane.

    part: server, scheduler, controller or agent.
    name: its name; for a controller, the process that is active.
    version: its version of holdfast; empty if unknown.
    is_gone: whether it has been silent for so long that an upgrade does not wait for it.
    """

    part: str
    name: str
    version: str = ""
    is_gone: bool = False


class Upgrade(msgspec.Struct, frozen=True):
    """A server's view of the plane's versions.

    format: the format of the plane.
    newest: the newest format that this server supports.
    version: the version of this server.
    parts: all known components.
    """

    format: int
    newest: int
    version: str
    parts: tuple[InstalledPart, ...] = ()

    def older(self) -> tuple[InstalledPart, ...]:
        """The live components with an older version than this server."""
        return tuple(
            it for it in self.parts if not it.is_gone and is_older(it.version, self.version)
        )

    def refusal(self) -> str:
        """Why the format may not be raised now; empty when it may."""
        if self.format >= self.newest:
            return (
                f"the plane has format {self.format}, the newest that holdfast {self.version} "
                "supports: nothing to finish"
            )
        older = self.older()
        if not older:
            return ""
        named = ", ".join(f"{it.part} {it.name} ({it.version or 'unknown'})" for it in older[:10])
        more = f" and {len(older) - 10} more" if len(older) > 10 else ""
        return (
            f"these components are older than version {self.version}: {named}{more}; upgrade and "
            "restart them, or stop them, and try again"
        )


class RaiseRequest(msgspec.Struct, frozen=True):
    """An operator's request to raise the plane's format, with the reason in `word`."""

    to: int
    word: str = ""


def is_older(version: str, than: str) -> bool:
    """Whether a version is older than another. An unknown version is older than any."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 1.12.0rc1 is 1, 12, 0."""
    found = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


# The format of a plane: which versions may write to its store.
#
# It is one small record that every transaction compares. An added field needs no new format: it
# survives versions that do not know it (`encoding/unknown_fields.py`). A new format is needed when
# a version writes records that an older one would misread, and only an operator raises it. From
# then on older servers write nothing, not even what they had decided before.

# The newest format that this version supports, and the format of a new plane.
FORMAT = 1
# The version of this program, by which other components know what it supports.
VERSION = __version__


class PlaneFormat(Part, frozen=True):
    """The format of a plane's records.

    A field at its default is left out, so the default is the first format in every version. If it
    were the newest, each version would read its own format from another version's record.
    """

    format: int = 1


def too_new(found: int) -> str:
    """Why this version may not write to a plane of this format; empty if it may."""
    if found <= FORMAT:
        return ""
    return (
        f"the plane has format {found} and this version of holdfast knows formats up to {FORMAT}: "
        "install the version that the other servers have"
    )


def format_refusal(value: bytes) -> str:
    """Why this version may not write to a plane with this format record; empty if it may."""
    try:
        return too_new(_DECODER.decode(value).format)
    except msgspec.DecodeError as error:
        return f"the format record of the plane cannot be read: {error}"


_DECODER = msgspec.json.Decoder(PlaneFormat)
