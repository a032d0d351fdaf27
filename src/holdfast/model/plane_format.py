"""The format of a plane: which versions may write to its store.

One small record that every transaction compares. Fields that are added need no new format: they
survive versions that do not know them (`unknown_fields`). A format is raised when a version writes
what an older one would take for something else, and only once an operator says so; from then on
older servers write nothing, not even what they had decided before.
"""

from __future__ import annotations

import msgspec

from holdfast import __version__
from holdfast.model.meta import Part

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


def unusable(value: bytes) -> str:
    """Why a server of this version may not write to a plane with this record of its format."""
    try:
        return too_new(_DECODER.decode(value).format)
    except msgspec.DecodeError as error:
        return f"the format of the plane cannot be read: {error}"


_DECODER = msgspec.json.Decoder(PlaneFormat)
