"""Records in quarantine: what was found wrong with them, and on what evidence.

The authority writes one when a decision found that records disagree or that one cannot be read, and
the store has confirmed what it saw. `holdfast repair` shows them and takes them away again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.meta import Part, Timestamp
from holdfast.model.transaction import ABSENT

# A decision may have read hundreds of records, and a message may quote one of them.
EVIDENCE_MAX = 32
MESSAGE_MAX = 512


class RecordRevision(Part, frozen=True):
    """A record that the decision rested on, and the revision at which it was written."""

    key: str
    revision: int = ABSENT


class Quarantined(Part, frozen=True):
    """One record in quarantine.

    key: where the record is stored.
    revision: the revision at which it was written, as it was found.
    reason: RecordsDisagree or RecordUnreadable.
    message: what is wrong with it.
    request: what was asked for when it was found, and by whom.
    evidence: all records that the decision rested on.
    since: when it was found.
    """

    key: str
    revision: int
    reason: str
    message: str
    request: str
    since: Timestamp
    evidence: tuple[RecordRevision, ...] = ()


# Asks a server what a record in quarantine says, and repairs nothing.
SHOW = "Show"


class Repair(msgspec.Struct, frozen=True, rename="camel"):
    """What an operator asks a server for.

    key: the record.
    action: Show, Recount, Restore or Release.
    word: why, for the audit.
    dry_run: say what would be written, and write nothing.
    seen: the revision that the operator looked at; 0 means whatever it is.
    """

    key: str
    action: str
    word: str = ""
    dry_run: bool = True
    seen: int = 0


class Repaired(msgspec.Struct, frozen=True, rename="camel"):
    """What a repair writes, or would write.

    before, after: the record, as JSON; what cannot be read is text.
    source: the revision of the objects that were counted, or of the record that was restored.
    disagreements: what the recount of everything finds afterwards, as far as it is about sums.
    """

    key: str
    seen: int
    done: bool
    before: Any = None
    after: Any = None
    source: int = 0
    disagreements: tuple[str, ...] = ()


class Quarantine(msgspec.Struct, frozen=True):
    """All records in quarantine, as a server tells them."""

    records: tuple[Quarantined, ...] = ()
    # Objects that this server could not read when it followed the store, by key.
    unreadable: dict[str, str] = {}
