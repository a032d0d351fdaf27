"""What the scribe asks of its journal, and what it hears of it.

`host/audit` performs these with files, the simulator with a list.
"""

from __future__ import annotations

import msgspec

from holdfast.model.audit.records import Head


class Resume(msgspec.Struct, frozen=True):
    """Make the journal ready to go on after this head. Answered by Ready, or an error.

    `cut`, if it is given, is to be done first, as by Cut.
    """

    call: int
    head: Head
    cut: int | None = None


class Ready(msgspec.Struct, frozen=True):
    """It is."""


class Append(msgspec.Struct, frozen=True):
    """Write these lines and sync them. Those that the journal has already are not written twice.

    Answered by Appended, or an error: then none of them counts.
    """

    call: int
    lines: tuple[bytes, ...]


class Appended(msgspec.Struct, frozen=True):
    """They are on disk. `floor` is the first record that this journal means to keep; up to
    `thinned` it means to let go of records of those who wrote too many.
    """

    floor: int = 1
    thinned: int = 0


class Prune(msgspec.Struct, frozen=True):
    """Remove what lies wholly before this record, and thin out what lies up to another one.

    Nobody answers.
    """

    floor: int
    thinned: int = 0


class Cut(msgspec.Struct, frozen=True):
    """Set aside what was written after this record: another one wrote on from there. Nobody
    answers.
    """

    last: int
