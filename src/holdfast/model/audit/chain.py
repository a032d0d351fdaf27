"""Verifies a chain of audit records: whether any was removed, changed, added or moved.

`holdfast audit verify` passes it the lines of all files of all servers. The writing server changes,
so the chain consists of parts that may overlap: a record that was written twice is identical. A
chain alone cannot show that its end was cut off or that it was rewritten as a whole; the head in
the store shows that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from holdfast.model.audit.audit_records import (
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

# Further findings are only counted.
FINDINGS_MAX = 50
# A larger gap in the numbers is not filled: a forged number must not exhaust the memory.
HOLE_MAX = 1_000_000
_HASH_BYTES = 32
_NOTHING = msgspec.Raw(b"{}")
_HASH = re.compile(r"[0-9a-f]{64}")
_UNKNOWN = bytes(_HASH_BYTES)
# The hash of an elided record; another server may still have the record.
_LET_GO = b"\xff" * _HASH_BYTES


class ChainVerification(msgspec.Struct):
    """The result of a verification.

    findings: one sentence each; empty if the chain is intact.
    gaps: the gaps that the chain itself records.
    elided: the records that journals removed to make room, as recorded in the chain.
    first, last: the numbers of the first and last record; 0 if there is none.
    beyond: how many records come after the head. Shortly after they are written, this is 0.
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
    """Whether its numbers and hashes are valid."""
    if not 0 < gone.first <= gone.last < gone.first + HOLE_MAX:
        return False
    if _HASH.fullmatch(gone.previous) is None or _HASH.fullmatch(gone.hash) is None:
        return False
    # The two special values would not be compared.
    return bytes.fromhex(gone.hash) not in (_UNKNOWN, _LET_GO)


class ChainVerifier:
    """Reads parts in the order of their first records, then returns the result.

    It keeps 32 bytes of each record, to compare with the copies in other parts.
    """

    def __init__(self, since: Head | None = None) -> None:
        """Starts after the record `since`, up to which the chain is already verified."""
        self._found = ChainVerification()
        self._hashes = bytearray()
        self._since = since
        self._revision = 0
        self._unsaid = 0

    def part(self, name: str, lines: Iterable[bytes]) -> None:
        """Reads one file."""
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
        """The result, once all parts are read."""
        found = self._found
        if head is not None:
            self._judge_ends(head)
        if self._unsaid:
            found.findings.append(f"and {self._unsaid} more findings")
        return found

    # One record ----------------------------------------------------------------------------------

    def _read(self, where: str, line: bytes) -> AuditRecord | None:
        try:
            record = record_of(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._say(f"{where}: not an audit record: {error}")
            return None
        is_one = record.number > 0 and _HASH.fullmatch(record.previous) is not None
        if not is_one or line_of(record) != line:
            self._say(f"{where}: record {record.number} was altered: its encoding differs")
            return None
        if record_hash(record) != record.hash:
            self._say(f"{where}: record {record.number} was changed: its hash does not match")
            return None
        return record

    def _pass_over(self, where: str, line: bytes, before: int) -> int:
        """Reads a line in place of elided records: the number of the last one, or 0 if invalid."""
        try:
            gone = elided_of(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._say(f"{where}: not an audit record: {error}")
            return 0
        if not _is_sound(gone) or encode(gone) != line:
            self._say(f"{where}: the line for elided records was altered")
            return 0
        if self._since is not None and gone.first <= self._since.number:
            return gone.last
        found = self._found
        found.elided.append(gone)
        if not found.first or gone.first > found.last:
            # It stands for a range of records: only its first and last one are verified.
            begin = AuditRecord(gone.first, self._revision, 0, gone.previous, gone.hash, _NOTHING)
            self._take(where, begin, before)
            if found.last == gone.first < gone.last:
                del self._hashes[-_HASH_BYTES:]
                found.last -= 1
        if found.last < gone.last:
            self._hashes += _LET_GO * (gone.last - found.last - 1) + bytes.fromhex(gone.hash)
            found.last = gone.last
        elif self._hash(gone.last) not in (_UNKNOWN, _LET_GO, bytes.fromhex(gone.hash)):
            self._say(f"{where}: record {gone.last} differs from another copy")
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
            self._say(f"{where}: record {number} has an older revision than the one before it")
        if record.is_gap:
            self._note_gap(where, record)
        self._hashes += bytes.fromhex(record.hash)
        self._revision, found.last = record.revision, number

    def _note_gap(self, where: str, record: AuditRecord) -> None:
        try:
            self._found.gaps.append(gap_of(record))
        except msgspec.DecodeError as error:
            self._say(f"{where}: record {record.number} is an unreadable gap: {error}")

    def _begin(self, where: str, record: AuditRecord) -> None:
        """Reads the first existing record."""
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
        # Earlier records were removed after their retention time; the head states up to where.
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
            self._say(f"{where}: record {record.number} is out of order")
        elif known != bytes.fromhex(record.hash):
            self._say(f"{where}: record {record.number} differs from another copy")

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
                    f"records {gone.first} to {gone.last} are missing: the store has no record of "
                    "their removal"
                )
        if not found.last:
            if head.number >= first:
                self._say(f"records {first} to {head.number} are missing: no records were found")
            return
        if found.first > first and since < found.first - 1:
            self._say(f"records {first} to {found.first - 1} are missing at the beginning")
        if found.last < head.number:
            self._say(f"records {found.last + 1} to {head.number} are missing at the end")
        elif head.number >= found.first:
            known = self._hash(head.number)
            if known not in (_UNKNOWN, _LET_GO, bytes.fromhex(head.hash)):
                self._say(f"record {head.number} does not match the hash in the store")
        found.beyond = max(0, found.last - max(head.number, found.first - 1))

    def _say(self, sentence: str) -> None:
        if len(self._found.findings) < FINDINGS_MAX:
            self._found.findings.append(sentence)
        else:
            self._unsaid += 1
