"""One tenant that fills the journal loses its own records first, and the chain stays valid."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.host.audit import thinning
from holdfast.host.audit.journal import Journal, JournalLimits
from holdfast.host.audit.segments import records, segments, verify_segments
from holdfast.model.audit.audit_records import (
    AuditRecord,
    ElidedRecords,
    Head,
    Mutation,
    elided_of,
    encode,
    is_elided,
    line_of,
    make_record,
    mutation_of,
)

KEEP = 60_000
BATCH = 20
LIMITS = JournalLimits(
    segment_bytes=6_000, segment_age_ms=1 << 60, keep_bytes=KEEP, keep_ms=1 << 60
)


def chain(tenants: Iterable[str]) -> list[AuditRecord]:
    made: list[AuditRecord] = []
    previous = Head().hash
    for number, tenant in enumerate(tenants, 1):
        said = Mutation(who="ann", verb="Patch", kind="workloads", namespace=tenant, name="w")
        made.append(make_record(number, number, 0, previous, encode(said)))
        previous = made[-1].hash
    return made


def flood(count: int = 2_000, seed: int = 1) -> list[AuditRecord]:
    """Records mostly of one tenant, and some of others and of the plane itself."""
    rng = random.Random(seed)
    names = ["loud"] * 195 + ["quiet", "calm", "", "still", "mild"]
    return chain(rng.choice(names) for _ in range(count))


class Kept:
    """A journal, and a store that learns of all removals before they happen."""

    def __init__(self, folder: Path, limits: JournalLimits = LIMITS) -> None:
        self.folder, self.head = folder, Head()
        self.journal = Journal(folder, limits)
        self.journal.resume(self.head)

    def write(self, made: list[AuditRecord]) -> None:
        for place in range(0, len(made), BATCH):
            batch = made[place : place + BATCH]
            record = batch[-1]
            kept = self.journal.append([line_of(it) for it in batch])
            floor = max(self.head.floor, kept.floor)
            thinned = max(self.head.thinned, kept.thinned)
            self.head = Head(number=record.number, hash=record.hash, floor=floor, thinned=thinned)
            self.journal.prune(floor, thinned)

    @property
    def size(self) -> int:
        return sum(it.path.stat().st_size for it in segments(self.folder))

    def of(self, tenant: str) -> list[int]:
        said = [(it.number, mutation_of(it).namespace) for it in records([self.folder])]
        return [number for number, namespace in said if namespace == tenant]


def test_a_tenant_that_floods_the_journal_pushes_out_only_itself(tmp_path: Path) -> None:
    made = flood()
    kept = Kept(tmp_path)
    kept.write(made)
    for tenant in ("quiet", "calm", "still", "mild", ""):
        assert kept.of(tenant) == [it.number for it in made if mutation_of(it).namespace == tenant]
    assert kept.head.floor == 1
    assert 0 < len(kept.of("loud")) < len(made) // 2
    assert kept.of("loud")[-1] > len(made) - 100
    assert kept.of("quiet"), "the flood has none of it"
    assert kept.size < KEEP + 2 * LIMITS.segment_bytes
    found = verify_segments([tmp_path], kept.head)
    assert found.is_whole, found.findings
    elided = sum(it.elided["loud"] for it in found.elided)
    assert elided + len(kept.of("loud")) == sum(mutation_of(it).namespace == "loud" for it in made)


def test_without_shares_the_same_flood_removes_what_others_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: every tenant may fill the whole journal."""
    monkeypatch.setattr(thinning, "SHARE", 1)
    monkeypatch.setattr(thinning.Shares, "heavy_tenants", lambda self, paths, most: frozenset())
    kept = Kept(tmp_path)
    kept.write(flood())
    assert kept.head.floor > 1
    lost = [it for it in flood() if mutation_of(it).namespace not in ("loud", "")]
    assert lost[0].number < kept.head.floor


def test_where_no_tenant_has_too_much_the_oldest_files_go(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.write(chain(f"tenant-{number % 20}" for number in range(1_000)))
    assert kept.head.floor > 1
    assert kept.head.thinned == 0
    assert verify_segments([tmp_path], kept.head).is_whole


def test_what_is_let_go_of_without_the_stores_knowledge_is_a_finding(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    made = flood(200)
    kept.write(made)
    assert kept.head.thinned == 0
    segment = segments(tmp_path)[1]
    lines = segment.path.read_bytes().splitlines()
    one = made[segment.first - 1]
    gone = ElidedRecords(
        elided={"loud": 1},
        first=one.number,
        last=one.number,
        previous=one.previous,
        hash=one.hash,
    )
    segment.path.write_bytes(b"".join(it + b"\n" for it in [encode(gone), *lines[1:]]))
    (finding,) = verify_segments([tmp_path], kept.head).findings
    assert "the store has no record" in finding


@pytest.mark.parametrize("what", ["previous", "hash", "first", "last"])
def test_a_line_in_place_of_records_is_part_of_the_chain(tmp_path: Path, what: str) -> None:
    kept = Kept(tmp_path)
    kept.write(flood())
    # One with a record on each side of it, in the same file.
    path, lines, at = next(
        (it.path, lines, at)
        for it in segments(tmp_path)
        for lines in [it.path.read_bytes().splitlines()]
        for at in range(1, len(lines) - 1)
        if is_elided(lines[at])
    )
    gone = elided_of(lines[at])
    wrong = "e" * 64 if what in ("previous", "hash") else getattr(gone, what) + 1
    fields = {it: getattr(gone, it) for it in gone.__struct_fields__}
    lines[at] = encode(ElidedRecords(**{**fields, what: wrong}))
    path.write_bytes(b"".join(it + b"\n" for it in lines))
    assert verify_segments([tmp_path], kept.head).findings


@pytest.mark.parametrize("hashed", ["f" * 64, "0" * 64])
def test_no_hash_means_anything_goes(tmp_path: Path, hashed: str) -> None:
    """A line that only the verifier itself may write is not accepted from others."""
    kept = Kept(tmp_path)
    made = flood(200)
    kept.write(made)
    segment = segments(tmp_path)[1]
    lines = segment.path.read_bytes().splitlines()
    one = made[segment.first - 1]
    gone = ElidedRecords(
        elided={"loud": 1}, first=one.number, last=one.number, previous=one.previous, hash=hashed
    )
    segment.path.write_bytes(b"".join(it + b"\n" for it in [encode(gone), *lines[1:]]))
    head = Head(number=kept.head.number, hash=kept.head.hash, thinned=200)
    assert "elided records was altered" in verify_segments([tmp_path], head).findings[0]


def test_a_copy_that_has_what_was_let_go_of_is_welcome(tmp_path: Path) -> None:
    made = flood()
    kept = Kept(tmp_path / "thin")
    kept.write(made)
    whole = Kept(tmp_path / "whole", JournalLimits(segment_bytes=50_000, segment_age_ms=1 << 60))
    whole.write(made)
    for folders in ([kept.folder, whole.folder], [whole.folder, kept.folder]):
        found = verify_segments(folders, kept.head)
        assert found.is_whole, found.findings


def test_a_crash_before_it_was_done_is_made_up_for(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    made = flood()
    kept.write(made[:1_000])
    # The store has it, and the disk was full.
    head = kept.head
    again = Kept(tmp_path)
    again.head = head
    again.journal.resume(head)
    again.journal.prune(head.floor, head.thinned)
    again.write(made[1_000:])
    assert again.size < KEEP + 2 * LIMITS.segment_bytes
    assert verify_segments([tmp_path], again.head).is_whole
