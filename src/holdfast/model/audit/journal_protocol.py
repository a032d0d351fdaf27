"""The effects by which the audit writer uses its journal, and the journal's answers.

`host/audit` performs them with files, the simulator with a list.
"""

from __future__ import annotations

import msgspec

from holdfast.model.audit.audit_records import Head


class Resume(msgspec.Struct, frozen=True):
    """Prepare the journal to continue after this head. Answered by Ready, or an error.

    `cut`, if given, is performed first, as by Cut.
    """

    call: int
    head: Head
    cut: int | None = None


class Ready(msgspec.Struct, frozen=True):
    """The journal is prepared."""


class Append(msgspec.Struct, frozen=True):
    """Write these lines and sync them. Lines that the journal already has are not written twice.

    Answered by Appended, or an error: then none of them counts.
    """

    call: int
    lines: tuple[bytes, ...]


class Appended(msgspec.Struct, frozen=True):
    """The lines are on disk. `floor` is the first record that this journal wants to keep; up to
    `thinned` it wants to drop records of actors that wrote too many.
    """

    floor: int = 1
    thinned: int = 0


class Prune(msgspec.Struct, frozen=True):
    """Remove the segments that lie entirely before `floor`, and thin out those up to `thinned`.

    It has no answer.
    """

    floor: int
    thinned: int = 0


class Cut(msgspec.Struct, frozen=True):
    """Set aside what was written after this record: another server continued from there. It has no
    answer.
    """

    last: int


# What an audit writer wants of its journal.
JournalEffect = Resume | Append | Prune | Cut
