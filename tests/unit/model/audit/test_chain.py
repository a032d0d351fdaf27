"""What a judge finds in a chain of audit records, and what it does not hold against it."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model.audit.audit_records import (
    Gap,
    Head,
    Mutation,
    encode,
    line_of,
    make_record,
    record_hash,
)
from holdfast.model.audit.chain import FINDINGS_MAX, ChainVerification, ChainVerifier
from tests.audit_chains import chain, head_at, lines

CHAIN = chain(10)
HEAD = head_at(CHAIN[-1])


def judged(
    *parts: list[bytes], head: Head | None = HEAD, since: Head | None = None
) -> ChainVerification:
    judge = ChainVerifier(since)
    for number, part in enumerate(parts):
        judge.part(f"part-{number}", part)
    return judge.judgement(head)


def test_an_unchanged_chain_is_whole() -> None:
    found = judged(lines(CHAIN))
    assert found.is_whole
    assert (found.first, found.last, found.gaps) == (1, 10, [])


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_parts_of_several_servers_make_one_chain_also_where_they_overlap(cut: int) -> None:
    every = lines(CHAIN)
    assert judged(every[:cut], every[max(0, cut - 2) :]).is_whole


def test_a_cut_end_is_found_by_the_head_alone() -> None:
    every = lines(CHAIN)
    assert judged(every[:-1], head=None).is_whole
    assert judged(every[:-1]).findings == ["records 10 to 10 are missing at the end"]
    assert not judged().is_whole


def test_a_chain_that_was_rewritten_is_not_the_one_that_the_store_knows() -> None:
    """A change of a record and all that follow it does not match the head in the store."""
    rewritten = [*CHAIN[:4], *chain(6, first=5, previous=CHAIN[2].hash)]
    forged = lines(rewritten[:4] + chain(6, first=5, previous=rewritten[3].hash))
    assert judged(forged).is_whole
    other = Mutation(who="mallory", verb="Patch", kind="workloads", name="w5")
    fifth = make_record(5, 2, 5, CHAIN[3].hash, encode(other))
    forged = lines([*CHAIN[:4], fifth, *chain(5, first=6, previous=fifth.hash)])
    assert judged(forged).findings == ["record 10 does not match the hash in the store"]


def test_what_was_removed_when_its_time_was_over_is_not_missing() -> None:
    """The head says from where on all must be there."""
    kept = lines(CHAIN[4:])
    assert judged(kept, head=head_at(CHAIN[-1], floor=5)).is_whole
    assert judged(kept, head=head_at(CHAIN[-1], floor=4)).findings == [
        "records 4 to 4 are missing at the beginning"
    ]


def test_records_that_the_store_knows_nothing_of_are_counted() -> None:
    found = judged(lines(CHAIN), head=head_at(CHAIN[6]))
    assert (found.findings, found.beyond, found.is_whole) == ([], 3, False)


def test_a_known_record_spares_judging_what_is_before_it() -> None:
    every = lines(CHAIN)
    since = head_at(CHAIN[3])
    assert judged([b"rubbish", *every[4:]], since=since).findings != []
    assert judged(every[2:], since=since).is_whole
    assert judged(every[5:], since=since).findings != []
    other = msgspec.structs.replace(since, hash="f" * 64)
    assert judged(every, since=other).findings != []


def test_a_gap_is_recorded_and_cannot_be_put_in_afterwards() -> None:
    gap = Gap(5, 9, 1)
    sixth = make_record(11, 9, 1, CHAIN[-1].hash, gap)
    found = judged(lines([*CHAIN, sixth]), head=head_at(sixth))
    assert (found.findings, found.gaps) == ([], [gap])
    swapped = lines([*CHAIN[:5], make_record(6, 9, 1, CHAIN[4].hash, gap), *CHAIN[6:]])
    assert judged(swapped).findings != []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"\xff\xfe",
        line_of(CHAIN[4]).replace(b'"who"', b'"WHO"'),
        line_of(CHAIN[4]).replace(b",", b", ", 1),
        line_of(msgspec.structs.replace(CHAIN[4], previous="zz")),
        line_of(msgspec.structs.replace(CHAIN[4], is_gap=True)),
        line_of(CHAIN[4]).replace(b'"said"', b'"said":{},"said"'),
        line_of(make_record(5, 2, 5, CHAIN[3].hash, b"null")),
        line_of(msgspec.structs.replace(CHAIN[4], at=6)),
        line_of(msgspec.structs.replace(CHAIN[4], revision=3)),
        line_of(msgspec.structs.replace(CHAIN[4], number=1 << 60)),
    ],
)
def test_what_is_no_record_as_it_was_written_is_found(line: bytes) -> None:
    every = lines(CHAIN)
    assert judged([*every[:4], line, *every[5:]]).findings != []


def test_a_number_from_nowhere_costs_no_memory() -> None:
    number = 1 << 60
    body = encode(Mutation(who="mallory", verb="Patch"))
    forged = make_record(number, 99, 0, CHAIN[-1].hash, body)
    assert record_hash(forged) == forged.hash
    finding = judged(lines([*CHAIN, forged])).findings[-1]
    assert "are missing before record" in finding


def test_findings_are_bounded() -> None:
    found = judged([b"{}"] * 1_000).findings
    assert len(found) == FINDINGS_MAX + 1
    assert found[-1] == "and 951 more findings"
