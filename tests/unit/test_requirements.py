"""The data file of requirements, the tags in the tests and the page agree."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import requirements
from tools.requirements import (
    DATA,
    FULL,
    NONE,
    PAGE,
    PAGE_BYTES_MAX,
    PART,
    ROOT,
    Evidence,
    Proof,
    all_ids,
    collect,
    faults,
    is_mistaken,
    load,
    named_ids,
    page,
    read,
    report,
)

# Three requirements of which one has a part, as the data file states them.
STATED = """\
[[A1]]
mark = "core"
text = "Objects."
state = "full"
[[A1]]
mark = "ext"
text = "Pages."
state = "none"
missing = "pages"
[[C6]]
mark = "core"
text = "Safety."
[["C6.1"]]
mark = "core"
text = "One owner."
state = "full"
"""
IDS = ("A1", "C6", "C6.1")


def evidence(**proofs: int) -> Evidence:
    """`C6_1=2` means that two tests name C6.1."""
    return Evidence(
        {
            name.replace("_", "."): [Proof("tests/unit/test_x.py", f"test_{n}") for n in range(n)]
            for name, n in proofs.items()
        },
        [],
    )


def changed(old: str, new: str) -> str:
    assert old in STATED
    return STATED.replace(old, new)


def plant(root: Path, name: str, text: str) -> None:
    (root / "tests" / "unit").mkdir(parents=True, exist_ok=True)
    (root / "tests" / "unit" / name).write_text(text)
    (root / "docs").mkdir(exist_ok=True)
    (root / DATA).write_text((ROOT / DATA).read_text())


def test_states_and_tags_do_not_contradict_each_other() -> None:
    """Nothing is full without a proof, nothing unbuilt is proven, and every tag names an id."""
    assert faults(load(), collect()) == []


def test_the_page_is_what_the_tool_prints() -> None:
    """A state or a proof that the page does not show would be believed for too long."""
    printed = page(load(), collect(tracked_only=True))
    assert (ROOT / PAGE).read_text(encoding="utf-8") == printed, "run `make requirements`"


def test_the_page_stays_short() -> None:
    """People read it as a whole."""
    assert len((ROOT / PAGE).read_bytes()) <= PAGE_BYTES_MAX


def test_there_are_all_ids() -> None:
    """None is lost in an edit of the tool: 14 sections, their parts, invariants, scenarios."""
    ids = all_ids()
    assert len(ids) == len(set(ids)) == 175
    assert {"A15", "C6.9", "C9", "D9", "H10", "J12", "M10", "N1.8", "N11", "INV12", "V5"} < {*ids}
    assert ids[-1] == "SC15"


def test_the_state_of_a_requirement_follows_from_its_clauses() -> None:
    """All full, all none, or part; one with parts asks those."""
    found = read(STATED, IDS)
    assert {each: it.state for each, it in found.items()} == {"A1": PART, "C6": FULL, "C6.1": FULL}
    assert found["A1"].missing == "pages"
    unbuilt = read(changed('text = "Objects."\nstate = "full"', 'text = "O."\nstate = "none"'), IDS)
    assert unbuilt["A1"].state == NONE


@pytest.mark.parametrize(
    "text, sentence",
    [
        (STATED + '[[A99]]\ntext = "x"\n', "A99: unknown id"),
        (changed('[["C6.1"]]', "[[C6]]"), "C6.1: missing"),
        (changed('state = "none"', 'state = "soon"'), "A1: state must be one of none, part, full"),
        (changed('missing = "pages"', ""), "A1: say what is missing: Pages."),
        (changed('state = "none"', 'state = "full"'), "A1: nothing can be missing from full"),
        (changed('text = "Pages."', ""), "A1: text without | needed"),
        (changed('text = "Pages."', 'text = "a|b"'), "A1: text without | needed"),
        (changed('mark = "ext"', 'mark = "maybe"'), "A1: mark must be one of core, ext"),
        (changed('mark = "ext"', 'mark = "ext"\nwhen = 1'), "A1: unknown key when"),
        (changed('"Safety."', '"S."\nstate = "full"'), "C6: its state follows from its parts"),
    ],
)
def test_a_data_file_that_breaks_a_rule_is_refused(text: str, sentence: str) -> None:
    """The error names the file, the id and the rule."""
    with pytest.raises(ValueError) as refused:
        read(text, IDS)
    assert str(refused.value).startswith(f"{DATA}: {sentence}")


def test_a_contradiction_is_found() -> None:
    """Full without a proof, a proof of what is not built, an unknown id, a tag of a parent."""
    good = read(STATED, IDS)
    assert faults(good, evidence(C6_1=1)) == []
    assert faults(good, evidence()) == ["C6.1 is full, and no test names it"]
    proof = "tests/unit/test_x.py::test_0"
    assert faults(good, evidence(C6_1=1, Z9=1)) == [f"Z9 is not a requirement; {proof} names it"]
    assert faults(good, evidence(C6_1=1, C6=1)) == [f"{proof} names C6; name one of its parts"]
    unbuilt = read(changed('text = "Objects."\nstate = "full"', 'text = "O."\nstate = "none"'), IDS)
    assert faults(unbuilt, evidence(C6_1=1, A1=1)) == [
        f"A1 is none, and {proof} claims to prove it"
    ]


@pytest.mark.parametrize(
    "docstring, ids",
    [
        ("It holds. [C4]", ["C4"]),
        ("It holds [C4].", ["C4"]),
        (
            "It holds.\n\nAlways. [C6.1, N1.7, SC8, INV12, V5]",
            ["C6.1", "N1.7", "SC8", "INV12", "V5"],
        ),
        ("It holds. [C4,\nF8]", ["C4", "F8"]),
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


def test_two_lists_of_ids_are_called_a_mistake() -> None:
    """Only the last one would count."""
    assert is_mistaken("It holds. [C4] [F8]")
    assert is_mistaken("It holds.\n[C4]\n[F8]")


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
    found = collect(tmp_path)
    assert {k: [str(p) for p in v] for k, v in found.proofs.items()} == {
        "A1": ["tests/unit/test_x.py"],
        "C6.1": ["tests/unit/test_x.py::TestY"],
        "C6.2": ["tests/unit/test_x.py::TestY::test_z"],
    }
    assert [mistake.partition(": ")[0] for mistake in found.mistakes] == [
        "tests/unit/test_x.py::test_w"
    ]


def test_the_page_has_a_row_for_each_id() -> None:
    """Text, state, what is missing, and the number of proofs."""
    text = page(load(), evidence(J2=3))
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [it[0].removeprefix("| ") for it in rows if it[0] != "| id"] == all_ids()
    (row,) = (it for it in rows if it[0] == "| J2")
    assert row[2] in ("none", "part", "full")
    assert row[-1] == "3 |"


def test_only_files_that_git_knows_enter_the_page(tmp_path: Path) -> None:
    """The page would otherwise count, for everyone else, a file that they do not have."""
    plant(tmp_path, "test_x.py", 'def test_a():\n    """A. [C6.1]"""\n')
    plant(tmp_path, "test_y.py", 'def test_b():\n    """B. [A1]"""\n')
    for command in (["init", "-q"], ["add", "tests/unit/test_x.py"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert requirements.main([], tmp_path) == 0
    assert (tmp_path / PAGE).read_text() == page(load(), evidence(C6_1=1))
    assert set(collect(tmp_path).proofs) == {"C6.1", "A1"}


def test_the_summary_says_when_the_page_is_out_of_date(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a test run shows it."""
    plant(tmp_path, "test_x.py", 'def test_a():\n    """A. [C6.1]"""\n')
    requirements.main([], tmp_path)
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == requirements.summary(tmp_path)
    assert "out of date" not in shown
    plant(tmp_path, "test_y.py", 'def test_b():\n    """B. [C6.1]"""\n')
    assert f"{PAGE} is out of date" in requirements.summary(tmp_path)


def test_one_requirement_is_reported_with_clauses_and_proofs() -> None:
    """The page counts the tests; this names each."""
    found = read(STATED, IDS)
    assert report(found["A1"], evidence(A1=1)) == (
        "A1: part\n"
        "  core full: Objects.\n"
        "  ext none: Pages.\n"
        "    missing: pages\n"
        "  1 proofs\n"
        "    tests/unit/test_x.py::test_0"
    )
    assert report(found["C6"], evidence()) == "C6: full\n  core: Safety.\n  parts: C6.1 full"


def test_an_unknown_id_on_the_command_line_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with 2, as a wrong command line does."""
    assert requirements.main(["Z9"]) == 2
    assert capsys.readouterr().err == "unknown id: Z9\n"
