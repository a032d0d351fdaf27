"""Audit records over the API: a page at a time, and only its own to a tenant."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.host.audit import records_route
from holdfast.host.audit.journal import Journal, JournalLimits
from holdfast.host.audit.records_route import RecordQuery, ShownRecord, page
from holdfast.model.audit.audit_records import (
    AuditRecord,
    Gap,
    Head,
    Mutation,
    encode,
    line_of,
    make_record,
)

LONG = JournalLimits(segment_bytes=2_000, segment_age_ms=1 << 60)
SAID = [
    Mutation(who="ann", verb="Patch", kind="workloads", namespace="risk", name="web"),
    Mutation(
        who="system:scheduler:one",
        verb="Bind",
        kind="replicas",
        namespace="risk",
        name="web-0-0",
        more=("replicas/rival/db-0-0", "replicas/risk/web-0-1", "nodes/n1"),
    ),
    Mutation(who="bob", verb="Read", kind="secrets", namespace="rival", name="db"),
]


def journal(folder: Path, count: int = 30) -> list[AuditRecord]:
    made: list[AuditRecord] = []
    head = Head().hash
    for number in range(1, count + 1):
        said = Gap(1, 2) if number == 7 else encode(SAID[number % 3])
        record = make_record(number, number, 0, head, said)
        made.append(record)
        head = record.hash
    file = Journal(folder, LONG)
    file.resume(Head())
    for record in made:
        file.append([line_of(record)])
    return made


def all_pages(folder: Path, limit: int, upto: int = 30, **wanted: str) -> list[ShownRecord]:
    found: list[ShownRecord] = []
    after = 0
    for _ in range(100):
        reached, records = page(
            folder, RecordQuery(after, limit, wanted), upto, sees_all=not wanted
        )
        found += records
        if reached == after:
            return found
        after = reached
    raise AssertionError("the pages never end")


@pytest.mark.parametrize("limit", [1, 4, 500])
def test_all_pages_together_are_the_whole_chain(tmp_path: Path, limit: int) -> None:
    made = journal(tmp_path)
    found = all_pages(tmp_path, limit)
    assert [(it.number, it.hash) for it in found] == [(it.number, it.hash) for it in made]
    assert [it.number for it in found if it.said is None] == [7]


def test_what_is_beyond_the_head_is_not_reported(tmp_path: Path) -> None:
    journal(tmp_path)
    assert [it.number for it in all_pages(tmp_path, 500, upto=11)] == list(range(1, 12))


def test_a_tenant_gets_its_own_and_no_name_of_others(tmp_path: Path) -> None:
    journal(tmp_path)
    found = all_pages(tmp_path, 5, namespace="risk")
    assert {it.said.namespace for it in found if it.said} == {"risk"}
    assert len(found) == 19
    assert b"rival" not in msgspec.json.encode(found)
    binds = [it.said for it in found if it.said and it.said.verb == "Bind"]
    assert {it.more for it in binds} == {("replicas/risk/web-0-1",)}
    assert {it.hash for it in found} == {""}


def test_one_answer_looks_at_a_bounded_number_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal(tmp_path)
    monkeypatch.setattr(records_route, "LOOKED_AT_MAX", 4)
    reached, records = page(tmp_path, RecordQuery(0, 500, {"who": "nobody"}), 30, sees_all=True)
    assert (reached, records) == (4, ())
    assert len(all_pages(tmp_path, 500, namespace="rival")) == 10
