"""Writes docs/requirements.md: what is required, how much of it is built, and the count of proofs.

docs/requirements.toml holds the text and the state of each clause, judged by hand. The tests name
at the end of their docstrings what they prove. `make requirements` writes the page from both;
`make requirements ID=J2` lists the clauses and the proofs of one requirement. A tag has one form:

    def test_two_schedulers_bind_the_last_gpu_once() -> None:
        \"\"\"The second bind is refused with DeviceTaken. [C6.1, N1.7, SC8]\"\"\"

A tag is correct only where the test would fail if that sentence of the requirement broke.
tests/unit/test_requirements.py fails if `faults` finds something, or if the page is not the output
of this module.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = "docs/requirements.toml"
PAGE = "docs/requirements.md"
PAGE_BYTES_MAX = 40_000

NONE, PART, FULL = "none", "part", "full"
STATES = (NONE, PART, FULL)
MARKS = ("core", "ext")


@dataclass(frozen=True)
class Section:
    """The ids PREFIX1 to PREFIXn, under one heading of the page."""

    prefix: str
    count: int
    title: str
    introduction: str = ""


SECTIONS = (
    Section("A", 15, "A. Objects and API"),
    Section("B", 6, "B. Admission"),
    Section("C", 9, "C. Store, authority, properties"),
    Section("D", 9, "D. Quota and capacity"),
    Section("E", 6, "E. Scheduling queue"),
    Section("F", 9, "F. Filter, score, bind"),
    Section("G", 5, "G. Preemption, fairness, gangs"),
    Section("H", 10, "H. Node agents, leases, failure detection"),
    Section("I", 10, "I. Controllers"),
    Section("J", 12, "J. Several regions, partitions"),
    Section("K", 3, "K. Leader election and fencing"),
    Section("L", 4, "L. Overrides"),
    Section("M", 10, "M. Observability and explain"),
    Section("N", 11, "N. Simulation, fault matrix, design review"),
    Section(
        "INV",
        12,
        "Invariants",
        "Checked after every committed revision and every start or stop of a process.",
    ),
    Section("V", 5, "Liveness, once the faults stop"),
    Section(
        "SC",
        15,
        "Scenarios",
        "Each is played under virtual time with a seed; SC1, SC3, SC5, SC6, SC7 and SC9 are also "
        "played\nwith real processes.",
    ),
)
# Requirements whose rows are ids of their own: C6.1 to C6.9.
PARTS = {"C6": 9, "C7": 7, "N1": 8}

INTRODUCTION = f"""\
# Requirements

What Holdfast owes its users, and how much of it is built. Everything is core, that is, must hold
without exception, except what follows **ext:**, which completes it. States are set by hand in
[{DATA.removeprefix("docs/")}]({DATA.removeprefix("docs/")}), clause by clause:

- **full**: built, and tests prove it.
- **part**: some of it is built; the next column says what is missing.
- **none**: not built. A field that is accepted and on which nothing acts is none.

The last column counts the tests that name the id
([checklists/adding-a-test.md](checklists/adding-a-test.md)); `make requirements ID=C4` lists them.
A test proves its own sentence of the requirement, not the whole of it. `make requirements` writes
this page.
"""

_ID = r"(?:INV\d{1,2}|SC\d{1,2}|V\d|[A-N]\d{1,2}(?:\.\d{1,2})?)"
_NAMED = re.compile(rf"\[({_ID}(?:,\s{_ID})*)\]\.?\Z")
# Forms that people write by mistake: (C4), [C4 F8], "Requirement: C4", an id as the first or last
# word. Read as prose they would look like a proof and count for nothing.
_MISTAKES = (
    re.compile(rf"[\[(][^\[\]()]*\b{_ID}\b[^\[\]()]*[\])]\.?\Z"),
    re.compile(rf"\b{_ID}\.?\Z"),
    re.compile(rf"\A{_ID}\b"),
    re.compile(rf"{_ID}\]\s+\[{_ID}"),
)


@dataclass(frozen=True)
class Clause:
    """One sentence or a few of a requirement, with a state. A parent's text has none."""

    mark: str
    text: str
    state: str
    missing: str


@dataclass(frozen=True)
class Requirement:
    """An id with its clauses. `parts` are the ids below it, from which its state follows."""

    id: str
    clauses: tuple[Clause, ...]
    parts: tuple[Requirement, ...] = ()

    @property
    def state(self) -> str:
        states = {each.state for each in self.parts or self.clauses}
        return states.pop() if len(states) == 1 else PART

    @property
    def missing(self) -> str:
        return "; ".join(clause.missing for clause in self.clauses if clause.missing)


@dataclass(frozen=True, order=True)
class Proof:
    """A test that names a requirement. `name` is "" when a whole file does."""

    path: str
    name: str

    def __str__(self) -> str:
        return f"{self.path}::{self.name}" if self.name else self.path


@dataclass(frozen=True)
class Evidence:
    """The tags of all tests: the proofs of each id, and tags that cannot be read."""

    proofs: dict[str, list[Proof]]
    mistakes: list[str]

    def count(self, requirement: str) -> int:
        return len(self.proofs.get(requirement, ()))


def all_ids() -> list[str]:
    """Every id in the order of the page."""
    tops = [f"{each.prefix}{n}" for each in SECTIONS for n in range(1, each.count + 1)]
    return [each for top in tops for each in (top, *_part_ids(top))]


def _part_ids(top: str) -> list[str]:
    return [f"{top}.{n}" for n in range(1, PARTS.get(top, 0) + 1)]


def load(root: Path = ROOT) -> dict[str, Requirement]:
    """Every requirement of the data file, by id. A file that breaks a rule raises ValueError."""
    return read((root / DATA).read_text(encoding="utf-8"))


def read(text: str, ids: Iterable[str] | None = None) -> dict[str, Requirement]:
    """The requirements in `text`, which must have each of `ids`, and no others."""
    ids = list(all_ids() if ids is None else ids)
    stated = tomllib.loads(text)
    wrong = [f"{each}: unknown id" for each in stated if each not in ids]
    wrong += [f"{each}: missing" for each in ids if each not in stated]
    if wrong:
        raise ValueError(f"{DATA}: {', '.join(wrong)}")
    found: dict[str, Requirement] = {}
    # Parts first, since a parent holds its parts.
    for each in sorted(ids, key=lambda it: "." not in it):
        parts = tuple(found[it] for it in ids if it.startswith(f"{each}."))
        clauses = tuple(_clause(each, it, is_parent=bool(parts)) for it in stated[each])
        found[each] = requirement = Requirement(each, clauses, parts)
        if requirement.state == PART and not parts:
            silent = [it.text for it in clauses if it.state != FULL and not it.missing]
            if silent:
                raise ValueError(f"{DATA}: {each}: say what is missing: {silent[0]}")
    return {each: found[each] for each in ids}


def _clause(requirement: str, stated: Mapping[str, Any], *, is_parent: bool) -> Clause:
    def demand(is_right: bool, rule: str) -> None:
        if not is_right:
            raise ValueError(f"{DATA}: {requirement}: {rule}: {dict(stated)}")

    unknown = set(stated) - {"mark", "text", "state", "missing"}
    demand(not unknown, f"unknown key {', '.join(sorted(unknown))}")
    clause = Clause(
        stated.get("mark", ""),
        stated.get("text", ""),
        stated.get("state", ""),
        stated.get("missing", ""),
    )
    demand(clause.mark in MARKS, f"mark must be one of {', '.join(MARKS)}")
    demand(bool(clause.text) and "|" not in clause.text + clause.missing, "text without | needed")
    if is_parent:
        demand(not clause.state + clause.missing, "its state follows from its parts")
        return clause
    demand(clause.state in STATES, f"state must be one of {', '.join(STATES)}")
    demand(clause.state != FULL or not clause.missing, "nothing can be missing from full")
    return clause


def named_ids(docstring: str) -> list[str]:
    """The ids that a docstring names at its end."""
    match = _NAMED.search(docstring.strip())
    return re.split(r",\s", match[1]) if match else []


def is_mistaken(docstring: str) -> bool:
    """Whether a docstring seems to name an id, but not in the one valid form."""
    text = docstring.strip()
    if _MISTAKES[-1].search(text):
        return True
    return not _NAMED.search(text) and any(mistake.search(text) for mistake in _MISTAKES)


def collect(root: Path = ROOT, *, tracked_only: bool = False) -> Evidence:
    """Read every test below `root` without running it, or only those that git knows."""
    proofs: dict[str, list[Proof]] = {}
    mistakes: list[str] = []
    tracked = _tracked(root) if tracked_only else None
    for file in sorted((root / "tests").rglob("test_*.py")):
        path = file.relative_to(root).as_posix()
        if tracked is not None and path not in tracked:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=path)
        for name, docstring in _docstrings(tree, ""):
            proof = Proof(path, name)
            for requirement in named_ids(docstring):
                proofs.setdefault(requirement, []).append(proof)
            if is_mistaken(docstring):
                mistakes.append(f"{proof}: write [C4, F8] at the very end, not {docstring[-40:]!r}")
    return Evidence(proofs, mistakes)


def _docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef, prefix: str
) -> Iterator[tuple[str, str]]:
    """The docstrings of a file, its classes and its tests. A class may be a state machine."""
    yield prefix, ast.get_docstring(node) or ""
    if isinstance(node, ast.FunctionDef):
        return
    for child in node.body:
        if isinstance(child, ast.ClassDef) or (
            isinstance(child, ast.FunctionDef) and child.name.startswith("test")
        ):
            yield from _docstrings(child, f"{prefix}::{child.name}".lstrip(":"))


def _tracked(root: Path) -> set[str] | None:
    """The files that git knows, or None outside a repository."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "tests"], cwd=root, capture_output=True, text=True, check=False
    )
    return set(done.stdout.split("\0")) if done.returncode == 0 else None


def faults(requirements: Mapping[str, Requirement], evidence: Evidence) -> list[str]:
    """Where the data file and the tests contradict each other."""
    found = list(evidence.mistakes)
    for each, proofs in evidence.proofs.items():
        if each not in requirements:
            found.append(f"{each} is not a requirement; {proofs[0]} names it")
    for each, requirement in requirements.items():
        proofs = evidence.proofs.get(each, [])
        if requirement.parts:
            found += [f"{proof} names {each}; name one of its parts" for proof in proofs]
        elif requirement.state == FULL and not proofs:
            found.append(f"{each} is full, and no test names it")
        elif requirement.state == NONE and proofs:
            found.append(f"{each} is none, and {proofs[0]} claims to prove it")
    return found


def page(requirements: Mapping[str, Requirement], evidence: Evidence) -> str:
    """The whole page."""
    blocks = [INTRODUCTION]
    for section in SECTIONS:
        rows = [
            _row(requirements[each], evidence)
            for n in range(1, section.count + 1)
            for each in (f"{section.prefix}{n}", *_part_ids(f"{section.prefix}{n}"))
        ]
        blocks.append(f"## {section.title}\n")
        if section.introduction:
            blocks.append(f"{section.introduction}\n")
        header = "| id | what is owed | state | missing | proofs |\n|---|---|---|---|---|\n"
        blocks.append(header + "".join(rows))
    return "\n".join(blocks)


def _row(requirement: Requirement, evidence: Evidence) -> str:
    text, mark = "", "core"
    for clause in requirement.clauses:
        if clause.mark != mark:
            text, mark = f"{text} **{clause.mark}:**", clause.mark
        text = f"{text} {clause.text}"
    proofs = "" if requirement.parts else str(evidence.count(requirement.id))
    cells = (requirement.id, text.strip(), requirement.state, requirement.missing, proofs)
    return f"| {' | '.join(cells)} |\n"


def report(requirement: Requirement, evidence: Evidence) -> str:
    """The clauses of one requirement with their states, and the tests that name it."""
    lines = [f"{requirement.id}: {requirement.state}"]
    for clause in requirement.clauses:
        state = f" {clause.state}" if clause.state else ""
        lines.append(f"  {clause.mark}{state}: {clause.text}")
        if clause.missing:
            lines.append(f"    missing: {clause.missing}")
    if requirement.parts:
        states = ", ".join(f"{part.id} {part.state}" for part in requirement.parts)
        return "\n".join([*lines, f"  parts: {states}"])
    proofs = evidence.proofs.get(requirement.id, [])
    return "\n".join([*lines, f"  {len(proofs)} proofs", *(f"    {proof}" for proof in proofs)])


def summary(root: Path = ROOT) -> str:
    """How much is built, and whether the page is out of date."""
    requirements, evidence = load(root), collect(root, tracked_only=True)
    leaves = [each for each in requirements.values() if not each.parts]
    counts = [f"{sum(each.state == state for each in leaves)} {state}" for state in STATES[::-1]]
    text = f"{len(leaves)} requirements: {', '.join(counts)}"
    if (root / PAGE).read_text(encoding="utf-8") != page(requirements, evidence):
        text += f"\n{PAGE} is out of date; `make requirements` writes it"
    return text


def main(arguments: list[str], root: Path = ROOT) -> int:
    requirements = load(root)
    unknown = [each for each in arguments if each not in requirements]
    if unknown:
        print(f"unknown id: {', '.join(unknown)}", file=sys.stderr)
        return 2
    if arguments:
        evidence = collect(root)
        print("\n".join(report(requirements[each], evidence) for each in arguments))
        return 0
    # A page with the proofs of files that are not committed would be wrong for everyone else.
    evidence = collect(root, tracked_only=True)
    (root / PAGE).write_text(page(requirements, evidence), encoding="utf-8")
    print(summary(root))
    for fault in faults(requirements, evidence):
        print(fault)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
