"""Validation as a whole: every kind, bounded reports, texts that are safe to show."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.model.registry import KINDS
from holdfast.model.validation import validate, validate_status
from holdfast.model.validation.findings import ERRORS_MAX, FieldPath, Findings, short_text
from holdfast.model.validation.table import RULES
from tests.documents import MINIMAL, Document, errors, obj
from tests.yardstick import assert_cheap


def test_every_kind_of_the_registry_has_rules_and_a_smallest_document() -> None:
    """A kind that is here exists everywhere [A1]."""
    assert list(RULES) == [kind.struct for kind in KINDS]
    assert list(MINIMAL) == [kind.name for kind in KINDS]


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_the_smallest_document_of_every_kind_is_valid(kind: str) -> None:
    assert validate(obj(kind)) == ()
    assert validate_status(obj(kind)) == ()


def test_a_status_is_judged_alone_where_only_the_status_is_written() -> None:
    broken = obj("Replica", {"spec.template.command": [], "status.state": "Running"})
    assert [error.path for error in validate_status(broken)] == ["status.binding"]
    assert len(validate(broken)) == 2


def test_a_report_is_bounded_and_says_how_much_it_leaves_out() -> None:
    """A hostile document cannot make the answer longer than the question."""
    names = [{"name": f"{number} "} for number in range(400)]
    found = errors("Workload", {"spec.template.env": names})
    assert len(found) == ERRORS_MAX + 1
    assert str(found[-1]) == f"{400 - ERRORS_MAX}: further errors are not listed"


MIB = 1 << 20


@pytest.mark.parametrize(
    "kind, changes",
    [
        ("Workload", {"spec.template.files": [{"path": "a/" * (MIB // 2)}]}),
        ("Workload", {"spec.template.files": [{"path": f"{i}/" * 500} for i in range(128)]}),
        ("Workload", {"spec.template.command": ["a" * MIB, "\x00" * MIB]}),
        ("Workload", {"spec.template.priorityClass": "a-" * (MIB // 2)}),
        ("Workload", {"spec.template.placement.tolerations": [{"key": "a." * MIB}]}),
        ("Workload", {"spec.cron": {"schedule": "0," * MIB}}),
        ("Tenant", {"metadata.labels": {"a." * (MIB // 2) + "/x": "-" * MIB}}),
        ("Tenant", {"metadata.annotations": {"a": "\u202e" * 80_000}}),
        ("Tenant", {"spec.regions": ["a"] * 20_000}),
        ("Quota", {"spec.hard": {f"r{i}": "1e1e" for i in range(10_000)}}),
        ("Node", {"spec.devices": [{"id": "a", "deviceClass": "b"}] * 1024}),
        ("Role", {"rules": [{"verbs": ["a-" * 500] * 200, "resources": ["/" * 500] * 200}] * 40}),
        ("Secret", {"data": {f"k {i}": "=" for i in range(1024)}}),
        ("Workload", {"spec.template.env": [{"name": "="} for _ in range(512)]}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_hostile_document_costs_little(kind: str, changes: Document) -> None:
    """Length is looked at before anything that takes longer than a look."""
    made = obj(kind, changes)

    def refused() -> None:
        assert validate(made)

    assert_cheap(refused, 4_000_000)


def test_a_path_reads_as_on_the_wire() -> None:
    findings = Findings()
    at = FieldPath(findings)
    at["spec"]["ports"][1]["name"].wrong("a", "must be b")
    at["metadata"]["labels"].entry("example.com/a").wrong(None, "must go")
    at.wrong(None, "must be anything else")
    assert [str(error) for error in findings.errors()] == [
        'spec.ports[1].name: "a": must be b',
        "metadata.labels[example.com/a]: must go",
        "must be anything else",
    ]


@pytest.mark.parametrize(
    "value, text",
    [
        (None, ""),
        ("a", '"a"'),
        ('a"b\n\x1b\u202e', '"a\\"b\\n\\u001b\\u202e"'),
        ("x" * 61, '"' + "x" * 60 + '…"'),
        (True, "true"),
        (12, "12"),
        (1.5, "1.5"),
        ((1,), "1 item"),
        ({}, "0 items"),
        (datetime(2026, 3, 1, tzinfo=UTC), "2026-03-01T00:00:00+00:00"),
        (obj("Tenant"), ""),
    ],
)
def test_a_value_is_shown_short_and_without_tricks(value: object, text: str) -> None:
    """Nothing that a terminal or a browser would act on reaches a reader."""
    assert short_text(value) == text
