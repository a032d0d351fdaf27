"""Judging a chain of audit records: whether any was removed, changed, added or moved.

`holdfast audit verify` gives it the lines of all files, of all servers. Followers change, so the
chain lies in parts, which may overlap: a record that was written twice is the same twice. What a
chain alone cannot show is that its end was cut off, or that all of it was written anew; the head
that the store keeps shows that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from holdfast.model.audit.records import (
    GENESIS,
    AuditRecord,
    ElidedRecords,
    Gap,
    Head,
    elided_of,
    encode,
    gap_of,
    is_elided,
    line_of,
    record_hash,
    record_of,
)

# Whoever has read so many need not read more.
FINDINGS_MAX = 50
# Beyond such a hole nothing is compared: a forged number must not cost all memory.
HOLE_MAX = 1_000_000
_HASH_BYTES = 32
_NOTHING = msgspec.Raw(b"{}")
_HASH = re.compile(r"[0-9a-f]{64}")
_UNKNOWN = bytes(_HASH_BYTES)
# Of a record that was let go of; another server may still have it.
_LET_GO = b"\xff" * _HASH_BYTES


class ChainVerification(msgspec.Struct):
    """What was found.

    findings: each a sentence; none if the chain is whole.
    gaps: what the chain itself says is missing.
    elided: records that were let go of to make room for others, and the chain says so.
    first, last: the numbers of its first and last record; 0 if there is none.
    beyond: how many records come after the head. A moment after they were written, none do.
    """

    findings: list[str] = []
    gaps: list[Gap] = []
    elided: list[ElidedRecords] = []
    first: int = 0
    last: int = 0
    beyond: int = 0

    @property
    def is_whole(self) -> bool:
        return not self.findings and not self.beyond


def _is_sound(gone: ElidedRecords) -> bool:
    """Whether its numbers are some, and its hashes such as a record may have."""
    if not 0 < gone.first <= gone.last < gone.first + HOLE_MAX:
        return False
    if _HASH.fullmatch(gone.previous) is None or _HASH.fullmatch(gone.hash) is None:
        return False
    # Those that mean something else here would be compared with nothing.
    return bytes.fromhex(gone.hash) not in (_UNKNOWN, _LET_GO)


class ChainVerifier:
    """Takes in parts in the order of their first records, then gives its judgement.

    It keeps 32 bytes of each record, to compare with what is written elsewhere.
    """

    def __init__(self, since: Head | None = None) -> None:
        """Up to the record `since` somebody knows the chain; what is older is passed over."""
        self._found = ChainVerification()
        self._hashes = bytearray()
        self._since = since
        self._revision = 0
        self._unsaid = 0

    def part(self, name: str, lines: Iterable[bytes]) -> None:
        """One file."""
        before = 0
        for place, line in enumerate(lines, 1):
            if is_elided(line):
                before = self._pass_over(f"{name}:{place}", line, before)
                continue
            record = self._read(f"{name}:{place}", line)
            if record is None:
                before = 0
                continue
            if self._since is None or record.number > self._since.number:
                self._take(f"{name}:{place}", record, before)
            before = record.number

    def judgement(self, head: Head | None) -> ChainVerification:
        """All that was found, once all parts are in."""
        found = self._found
        if head is not None:
            self._judge_ends(head)
        if self._unsaid:
            found.findings.append(f"and {self._unsaid} more of the kind")
        return found

    # One record ----------------------------------------------------------------------------------

    def _read(self, where: str, line: bytes) -> AuditRecord | None:
        try:
            record = record_of(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._say(f"{where}: this is no record: {error}")
            return None
        is_one = record.number > 0 and _HASH.fullmatch(record.previous) is not None
        if not is_one or line_of(record) != line:
            self._say(f"{where}: record {record.number} is not as it was written")
            return None
        if record_hash(record) != record.hash:
            self._say(f"{where}: record {record.number} was changed: its hash is another")
            return None
        return record

    def _pass_over(self, where: str, line: bytes, before: int) -> int:
        """A line in place of records: the number of the last one, or 0 if it cannot be used."""
        try:
            gone = elided_of(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._say(f"{where}: this is no record: {error}")
            return 0
        if not _is_sound(gone) or encode(gone) != line:
            self._say(f"{where}: this is not as it was written")
            return 0
        if self._since is not None and gone.first <= self._since.number:
            return gone.last
        found = self._found
        found.elided.append(gone)
        if not found.first or gone.first > found.last:
            # It stands for records as a whole: where it begins is judged, and where it ends.
            begin = AuditRecord(gone.first, self._revision, 0, gone.previous, gone.hash, _NOTHING)
            self._take(where, begin, before)
            if found.last == gone.first < gone.last:
                del self._hashes[-_HASH_BYTES:]
                found.last -= 1
        if found.last < gone.last:
            self._hashes += _LET_GO * (gone.last - found.last - 1) + bytes.fromhex(gone.hash)
            found.last = gone.last
        elif self._hash(gone.last) not in (_UNKNOWN, _LET_GO, bytes.fromhex(gone.hash)):
            self._say(f"{where}: record {gone.last} is another one elsewhere")
        return gone.last

    def _take(self, where: str, record: AuditRecord, before: int) -> None:
        found, number = self._found, record.number
        if before and number != before + 1:
            self._say(f"{where}: record {number} comes after record {before}")
        if not found.first:
            self._begin(where, record)
        if number < found.first:
            self._say(f"{where}: record {number} comes before the first one, {found.first}")
            return
        if number <= found.last:
            self._compare(where, record)
            return
        if number > found.last + 1:
            missing = f"{found.last + 1} to {number - 1}"
            self._say(f"{where}: records {missing} are missing before record {number}")
            if number - found.last > HOLE_MAX:
                return
            self._hashes += _UNKNOWN * (number - found.last - 1)
        elif found.last >= found.first:
            self._follow(where, record)
        if record.revision < self._revision:
            self._say(f"{where}: record {number} is of an older revision than the one before it")
        if record.is_gap:
            self._note_gap(where, record)
        self._hashes += bytes.fromhex(record.hash)
        self._revision, found.last = record.revision, number

    def _note_gap(self, where: str, record: AuditRecord) -> None:
        try:
            self._found.gaps.append(gap_of(record))
        except msgspec.DecodeError as error:
            self._say(f"{where}: record {record.number} is a gap that cannot be read: {error}")

    def _begin(self, where: str, record: AuditRecord) -> None:
        """The first record that is there, whichever it is."""
        found, since = self._found, self._since
        found.first, found.last = record.number, record.number - 1
        if since is not None and record.number != since.number + 1:
            missing = f"{since.number + 1} to {record.number - 1}"
            self._say(f"{where}: records {missing} are missing before record {record.number}")
        elif record.previous != self._expected_first(record.number, record.previous):
            self._say(f"{where}: record {record.number} does not follow the one before it")

    def _expected_first(self, number: int, stated: str) -> str:
        if self._since is not None:
            return self._since.hash
        # What came before was removed when its time was over; the head says up to where.
        return GENESIS if number == 1 else stated

    def _follow(self, where: str, record: AuditRecord) -> None:
        last = self._hash(record.number - 1)
        if last not in (_UNKNOWN, _LET_GO, bytes.fromhex(record.previous)):
            self._say(f"{where}: record {record.number} does not follow the one before it")

    def _compare(self, where: str, record: AuditRecord) -> None:
        known = self._hash(record.number)
        if known == _LET_GO:
            at = (record.number - self._found.first) * _HASH_BYTES
            self._hashes[at : at + _HASH_BYTES] = bytes.fromhex(record.hash)
        elif known == _UNKNOWN:
            self._say(f"{where}: record {record.number} is out of its place")
        elif known != bytes.fromhex(record.hash):
            self._say(f"{where}: record {record.number} is another one elsewhere")

    def _hash(self, number: int) -> bytes:
        at = (number - self._found.first) * _HASH_BYTES
        return bytes(self._hashes[at : at + _HASH_BYTES])

    # The ends ------------------------------------------------------------------------------------

    def _judge_ends(self, head: Head) -> None:
        found = self._found
        since = self._since.number if self._since is not None else 0
        first = max(head.floor, since + 1)
        for gone in found.elided:
            if gone.last > head.thinned:
                self._say(
                    f"records {gone.first} to {gone.last} are missing: the store knows nothing of "
                    "their having been let go of"
                )
        if not found.last:
            if head.number >= first:
                self._say(f"records {first} to {head.number} are missing: there is none at all")
            return
        if found.first > first and since < found.first - 1:
            self._say(f"records {first} to {found.first - 1} are missing at the beginning")
        if found.last < head.number:
            self._say(f"records {found.last + 1} to {head.number} are missing at the end")
        elif head.number >= found.first:
            known = self._hash(head.number)
            if known not in (_UNKNOWN, _LET_GO, bytes.fromhex(head.hash)):
                self._say(f"record {head.number} is not the one that the store knows")
        found.beyond = max(0, found.last - max(head.number, found.first - 1))

    def _say(self, sentence: str) -> None:
        if len(self._found.findings) < FINDINGS_MAX:
            self._found.findings.append(sentence)
        else:
            self._unsaid += 1
