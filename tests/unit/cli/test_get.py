"""In which forms objects are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from holdfast.cli.documents import kind_named
from holdfast.cli.exit_codes import UsageError
from holdfast.cli.get import FORMS, GetOptions, form_of, show_document, value

DOCUMENT: dict[str, Any] = {
    "status": {"state": "Running", "process": {"restarts": 0, "addresses": {"http": "h:1"}}},
    "kind": "Replica",
    "apiVersion": "holdfast.dev/v1",
}


def test_every_form_is_known_and_others_are_reported_with_all_of_them() -> None:
    for form in (*FORMS, "value=status.state"):
        assert form_of(form) == form
    for wrong in ("xml", "value=", "value=a..b", ""):
        with pytest.raises(UsageError, match="must be one of table, wide, json, yaml, name"):
            form_of(wrong)


@pytest.mark.parametrize(
    "path, text",
    [
        ("status.state", "Running"),
        ("status.process.restarts", "0"),
        ("status.process.addresses", '{"http": "h:1"}'),
        ("status.process.addresses.http", "h:1"),
        ("status.missing.deeper", ""),
        ("kind.deeper", ""),
    ],
)
def test_one_field_is_shown_bare_for_scripts(path: str, text: str) -> None:
    assert value(DOCUMENT, path) == text


def test_documents_say_first_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show_document(DOCUMENT, "yaml")
    said = capsys.readouterr().out
    assert said.splitlines()[:2] == ["apiVersion: holdfast.dev/v1", "kind: Replica"]
    assert yaml.safe_load(said) == DOCUMENT
    show_document(DOCUMENT, "json")
    assert json.loads(capsys.readouterr().out) == DOCUMENT


def test_a_field_is_shown_of_each_object_of_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    show_document({"kind": "ReplicaList", "items": [DOCUMENT, DOCUMENT]}, "value=kind")
    assert capsys.readouterr().out == "Replica\nReplica\n"


def test_namespaces_are_shown_where_there_may_be_several() -> None:
    assert GetOptions(kind=kind_named("wl")).shows_namespaces
    assert not GetOptions(kind=kind_named("wl"), namespace="shop").shows_namespaces
    assert not GetOptions(kind=kind_named("node")).shows_namespaces
