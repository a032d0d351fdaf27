"""resourceVersions: the clients' form of store revisions. Only this module converts between them.

A group commit puts many objects into one revision, and a stream may break between two of them. So a
client that has seen one object of a revision has seen less than a client with a list of that
revision. The version distinguishes them:

    2 * revision        of an object or an event: at least this object of the revision was seen
    2 * revision + 1    of a list or a bookmark: everything up to and including this revision

Everywhere else a `revision` is the store's number and a `version` is the text that clients see.
Versions grow with revisions, so clients may compare them.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import FieldError, Invalid, invariant

# As in Kubernetes: an unsigned number of 64 bits.
VERSION_MAX = 2**64 - 1
_DIGITS_MAX = len(str(VERSION_MAX))
_RULE = f"must be a whole number from 0 to {VERSION_MAX}"


class Version(msgspec.Struct, frozen=True, gc=False):
    """A parsed version: the revision, and whether all of it was seen."""

    revision: int
    is_complete: bool

    @property
    def is_any(self) -> bool:
        """Whether it is "0", by which a client accepts any state."""
        return self.revision == 0 and not self.is_complete


def object_version(revision: int) -> str:
    """The version of an object that was last written at a revision, and of its event."""
    invariant(revision > 0, f"no object was ever written at revision {revision}")
    return str(2 * revision)


def complete_version(revision: int) -> str:
    """The version of lists and bookmarks at a revision."""
    invariant(revision >= 0, f"there is no revision {revision}")
    return str(2 * revision + 1)


def parse_version(text: str, field: str = "resourceVersion") -> Version:
    """Parses a client's version. Raises Invalid if it is not a version."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    number = int(text) if is_number else VERSION_MAX + 1
    if number > VERSION_MAX:
        error = FieldError(field, repr(text[:40]), _RULE)
        raise Invalid(str(error), (error,))
    return Version(number // 2, number % 2 == 1)


def object_revision(version: str) -> int:
    """The revision of an object's version. Raises Invalid for the version of a list."""
    found = parse_version(version)
    if found.is_complete or found.is_any:
        raise _misused(version, "is not the version of an object")
    return found.revision


def last_written(version: str) -> int:
    """The same, or 0 for an object that was never stored and so has no version."""
    return object_revision(version) if version else 0


def complete_revision(version: str) -> int:
    """The revision of a list's or bookmark's version. Raises Invalid for that of an object."""
    found = parse_version(version)
    if not found.is_complete:
        raise _misused(version, "is not the version of a list")
    return found.revision


def _misused(version: str, rule: str) -> Invalid:
    error = FieldError("resourceVersion", repr(version), rule)
    return Invalid(str(error), (error,))
