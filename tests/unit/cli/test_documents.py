"""Documents that people write, and what is said about those that cannot be read."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from holdfast.cli.documents import FILE_BYTES_MAX, documents
from holdfast.model.errors import Invalid

TWO = """\
# A comment, and then nothing.
---
kind: Workload
metadata: {name: one}
---
kind: Tenant
metadata: {name: two}
"""


def write(folder: Path, text: str, name: str = "a.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_every_document_of_a_file_knows_its_place(tmp_path: Path) -> None:
    file = write(tmp_path, TWO)
    assert [it.title for it in documents(file)] == [
        f"{file}, document 1 at line 2 (Workload one)",
        f"{file}, document 2 at line 5 (Tenant two)",
    ]


def test_json_lists_and_folders_are_unfolded(tmp_path: Path) -> None:
    write(tmp_path, '{"kind": "List", "items": [{"kind": "A"}, {"kind": "B"}]}', "b.json")
    write(tmp_path, "kind: C", "a.yml")
    write(tmp_path, "not looked at", "notes.txt")
    assert [it.tree["kind"] for it in documents(str(tmp_path))] == ["C", "A", "B"]


def test_the_input_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    given = io.TextIOWrapper(io.BytesIO(b"kind: Workload"))
    monkeypatch.setattr(sys, "stdin", given)
    (found,) = documents("-")
    assert found.title == "standard input, document 1 at line 1 (Workload)"


@pytest.mark.parametrize(
    "text, rule",
    [
        ("kind: [", "is not YAML: did not find expected node content at line 2"),
        ('{"kind": ', "is not JSON"),
        ("- a", "document 1 at line 1: must be an object"),
        ("a: &x 1\nb: *x", "must not have anchors or aliases"),
        ("a: !!python/object:os.system {}", "must not have tags"),
        ("a: 1\na: 2", "duplicate field"),
        ("", "contains no document"),
        ("---\n---\n", "contains no document"),
        ("kind: XList\nitems: [1]", "item 1: must be an object"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_file(tmp_path: Path, text: str, rule: str) -> None:
    file = write(tmp_path, text, "bad.yaml")
    with pytest.raises(Invalid) as caught:
        documents(file)
    assert caught.value.message.startswith(file)
    assert rule in caught.value.message


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(Invalid, match=f"at most {FILE_BYTES_MAX >> 20} MiB"):
        documents("/dev/zero")


def test_text_that_is_no_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Invalid, match="must be UTF-8 text"):
        documents(str(tmp_path / "a.yaml"))
    with pytest.raises(Invalid, match="no-such-file cannot be read: No such file"):
        documents("no-such-file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(Invalid, match=r"ends in \.yaml, \.yml, \.json"):
        documents(str(tmp_path / "empty"))
