"""The page of requirements and the tests agree about what is proven."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import requirements
from tools.requirements import PAGE, ROOT, claims, collect, is_mistaken, known_ids, named_ids

# How many requirements each section has, so that none is lost in an edit of the page.
SECTIONS = {
    "A": 12, "B": 6, "C": 8, "D": 7, "E": 6, "F": 9, "G": 5, "H": 8, "I": 10, "J": 8, "K": 3,
    "L": 4, "M": 6, "N": 8, "INV": 12, "V": 5, "SC": 15,
}  # fmt: skip
PARTS = {"C6": 9, "C7": 7, "N1": 8}

PAGE_EXAMPLE = """\
# Requirements

| id | mark | what is owed | proved by |
|---|---|---|---|
| A1 | core | Objects. | – |
| C6 | core | Safety. | – |
| C6.1 | core | One owner. | stale |
| C6.2 | ext | Right place. | – |
"""


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / PAGE).read_text(encoding="utf-8")


def plant(root: Path, name: str, text: str) -> None:
    (root / "tests" / "unit").mkdir(parents=True, exist_ok=True)
    (root / "tests" / "unit" / name).write_text(text)
    (root / "docs").mkdir(exist_ok=True)
    (root / PAGE).write_text(PAGE_EXAMPLE)


def test_the_page_lists_every_requirement_once(page: str) -> None:
    """Every id from A1 to N8, the parts, the invariants, liveness and the scenarios."""
    expected = [f"{section}{n}" for section, count in SECTIONS.items() for n in range(1, count + 1)]
    expected += [f"{parent}.{n}" for parent, count in PARTS.items() for n in range(1, count + 1)]
    assert sorted(known_ids(page)) == sorted(expected)


def test_every_id_named_by_a_test_is_on_the_page(page: str) -> None:
    """A typo in an id would claim a proof of nothing."""
    evidence = collect()
    unknown = {
        requirement: [str(proof) for proof in proofs]
        for requirement, proofs in evidence.proofs.items()
        if requirement not in known_ids(page)
    }
    assert unknown == {}
    assert evidence.mistakes == []


def test_the_page_claims_no_proof_that_is_not_there(page: str) -> None:
    """A test that was removed or renamed takes its claim with it."""
    evidence = collect()
    there = {(i, proof.path) for i, proofs in evidence.proofs.items() for proof in proofs}
    assert claims(page) - there == set(), "run `make requirements` and commit the page"


@pytest.mark.parametrize(
    "docstring, ids",
    [
        ("It holds. [C4]", ["C4"]),
        ("It holds [C4].", ["C4"]),
        (
            "It holds.\n\nAlways. [C6.1, N1.7, SC8, INV12, V5]",
            ["C6.1", "N1.7", "SC8", "INV12", "V5"],
        ),
        ("It holds. [C4] Most of the time.", []),
        ("It holds for list[int] and A4 paper.", []),
        ("", []),
    ],
)
def test_ids_are_read_from_the_end_of_a_docstring(docstring: str, ids: list[str]) -> None:
    """There is one form, and prose is not taken for it."""
    assert named_ids(docstring) == ids
    assert not is_mistaken(docstring)


@pytest.mark.parametrize(
    "docstring",
    [
        "It holds (C4).",
        "It holds. [C4 F8]",
        "It holds. [C4,F8]",
        "C4: it holds.",
        "It holds: C4",
        "C4",
    ],
)
def test_an_id_in_another_form_is_called_a_mistake(docstring: str) -> None:
    """It would look like a proof to a person and count for nothing."""
    assert named_ids(docstring) == []
    assert is_mistaken(docstring)


def test_proofs_are_collected_from_files_classes_and_tests(tmp_path: Path) -> None:
    """A test function, a class and a file may each name what they prove; a helper may not."""
    plant(
        tmp_path,
        "test_x.py",
        '"""All of it. [A1]"""\n'
        'class TestY:\n    """[C6.1]"""\n    def test_z(self):\n        """Z. [C6.2]"""\n'
        'def helper():\n    """Not one. [C6]"""\n'
        'def test_w():\n    """W (A1)."""\n',
    )
    evidence = collect(tmp_path)
    assert {k: [str(p) for p in v] for k, v in evidence.proofs.items()} == {
        "A1": ["tests/unit/test_x.py"],
        "C6.1": ["tests/unit/test_x.py::TestY"],
        "C6.2": ["tests/unit/test_x.py::TestY::test_z"],
    }
    assert [mistake.partition(": ")[0] for mistake in evidence.mistakes] == [
        "tests/unit/test_x.py::test_w"
    ]


def test_the_column_is_rewritten_and_nothing_else(tmp_path: Path) -> None:
    """A second run changes nothing; a proof that is gone leaves the page; parts make up a whole."""
    plant(tmp_path, "test_x.py", 'def test_a():\n    """A. [C6.1, C6.2]"""\n')
    assert requirements.main([], tmp_path) == 0
    written = (tmp_path / PAGE).read_text()
    link = "[unit/test_x.py](../tests/unit/test_x.py)"
    assert written == (
        PAGE_EXAMPLE.replace("Safety. | –", "Safety. | its parts")
        .replace("One owner. | stale", f"One owner. | {link}")
        .replace("Right place. | –", f"Right place. | {link}")
    )
    requirements.main([], tmp_path)
    assert (tmp_path / PAGE).read_text() == written


def test_only_files_that_git_knows_enter_the_page(tmp_path: Path) -> None:
    """Else the page would claim, for everybody else, a file that they do not have."""
    plant(tmp_path, "test_x.py", 'def test_a():\n    """A. [C6.1]"""\n')
    plant(tmp_path, "test_y.py", 'def test_b():\n    """B. [A1]"""\n')
    for command in (["init", "-q"], ["add", "tests/unit/test_x.py"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    requirements.main([], tmp_path)
    assert claims((tmp_path / PAGE).read_text()) == {("C6.1", "tests/unit/test_x.py")}
    assert set(collect(tmp_path).proofs) == {"C6.1", "A1"}


def test_what_has_no_proof_yet_is_said(tmp_path: Path) -> None:
    """The list of what is still owed can be read at any time; naming a whole proves no part."""
    plant(tmp_path, "test_x.py", 'def test_a():\n    """A. [C6, C6.1]"""\n')
    assert requirements.summary(tmp_path) == (
        "1 of 4 requirements are named by a test; without one: A1 C6 C6.2\n"
        "the page lacks 2 of these proofs; `make requirements` adds them"
    )
    requirements.main([], tmp_path)
    assert "lacks" not in requirements.summary(tmp_path)


def test_a_proof_that_is_gone_leaves_the_page(tmp_path: Path) -> None:
    """The claim of a removed test is found, and the next writing of the page drops it."""
    plant(tmp_path, "test_x.py", 'def test_a():\n    """A. [C6.1]"""\n')
    requirements.main([], tmp_path)
    (tmp_path / "tests/unit/test_x.py").unlink()
    assert claims((tmp_path / PAGE).read_text()) == {("C6.1", "tests/unit/test_x.py")}
    requirements.main([], tmp_path)
    assert claims((tmp_path / PAGE).read_text()) == set()


def test_the_tests_of_one_requirement_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page names files; this names each test."""
    plant(tmp_path, "test_x.py", 'def test_a():\n    """A. [C6.1]"""\n')
    assert requirements.main(["C6.1", "A1"], tmp_path) == 0
    assert capsys.readouterr().out == (
        "C6.1: 1 tests\n  tests/unit/test_x.py::test_a\nA1: 0 tests\n"
    )
