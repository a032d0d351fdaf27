"""Chains of audit records to judge, and how an attacker could change them."""

from __future__ import annotations

from holdfast.model.audit.audit_records import (
    GENESIS,
    AuditRecord,
    Head,
    Mutation,
    encode,
    line_of,
    make_record,
)


def chain(
    count: int, *, first: int = 1, previous: str = GENESIS, who: str = "ann"
) -> list[AuditRecord]:
    """This many records, two to a revision."""
    made: list[AuditRecord] = []
    for number in range(first, first + count):
        said = Mutation(who=who, verb="Patch", kind="workloads", name=f"w{number}")
        previous = made[-1].hash if made else previous
        made.append(make_record(number, number // 2, number, previous, encode(said)))
    return made


def lines(records: list[AuditRecord]) -> list[bytes]:
    return [line_of(record) for record in records]


def head_at(record: AuditRecord, floor: int = 1) -> Head:
    return Head(number=record.number, hash=record.hash, revision=record.revision, floor=floor)
