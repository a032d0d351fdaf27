"""Quarantined records: what is wrong with them, and the evidence.

The authority writes a quarantine record when a decision finds that records disagree or that one is
unreadable, and the store has confirmed it. `holdfast repair` shows and removes them.
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
    """A record that the decision read, and the revision of its last write."""

    key: str
    revision: int = ABSENT


class Quarantined(Part, frozen=True):
    """One record in quarantine.

    key: the key of the record.
    revision: the revision of its last write when it was found.
    reason: RecordsDisagree or RecordUnreadable.
    message: what is wrong with it.
    request: the request that found it, and its sender.
    evidence: all records that the decision read.
    since: when it was found.
    """

    key: str
    revision: int
    reason: str
    message: str
    request: str
    since: Timestamp
    evidence: tuple[RecordRevision, ...] = ()


# The action that shows a quarantined record and repairs nothing.
SHOW = "Show"


class Repair(msgspec.Struct, frozen=True, rename="camel"):
    """An operator's repair request.

    key: the key of the record.
    action: Show, Recount, Restore or Release.
    word: the reason, for the audit log.
    dry_run: return what would be written, and write nothing.
    seen: the revision that the operator saw; 0 means any.
    """

    key: str
    action: str
    word: str = ""
    dry_run: bool = True
    seen: int = 0


class Repaired(msgspec.Struct, frozen=True, rename="camel"):
    """What a repair wrote, or would write.

    before, after: the record as JSON; an unreadable one as text.
    source: the revision of the counted objects, or of the restored record.
    disagreements: the wrong sums that a full recount finds afterwards.
    """

    key: str
    seen: int
    done: bool
    before: Any = None
    after: Any = None
    source: int = 0
    disagreements: tuple[str, ...] = ()


class Quarantine(msgspec.Struct, frozen=True):
    """All quarantined records that a server knows."""

    records: tuple[Quarantined, ...] = ()
    # Objects that this server could not decode from its watch of the store, by key.
    unreadable: dict[str, str] = {}
