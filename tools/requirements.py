"""Ties docs/requirements.md to the tests: each test names, at its docstring's end, what it proves.

`make requirements` rewrites the page's last column from those docstrings, `make requirements ID=C4`
lists the single tests of one requirement, and tests/unit/test_requirements.py fails when a test
names an id that the page does not know or the page claims a proof that is not there. A proof that
the page lacks is only reported: else every two people who add tests at the same time would break
each other's runs. The form is one only, so that both a person and this module can rely on it:

    def test_two_schedulers_bind_the_last_gpu_once() -> None:
        \"\"\"The second bind is refused with DeviceTaken. [C6.1, N1.7, SC8]\"\"\"

The page names files, not single tests, so that it does not change with every new test.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/requirements.md"
NONE_YET = "–"

_ID = r"(?:INV\d{1,2}|SC\d{1,2}|V\d|[A-N]\d{1,2}(?:\.\d{1,2})?)"
_NAMED = re.compile(rf"\[({_ID}(?:, {_ID})*)\]\.?\Z")
# Forms that people write by mistake: (C4), [C4 F8], "Requirement: C4", an id as the first or last
# word. Taken for prose they would look like a proof and count for nothing.
_MISTAKES = (
    re.compile(rf"[\[(][^\[\]()]*\b{_ID}\b[^\[\]()]*[\])]\.?\Z"),
    re.compile(rf"\b{_ID}\.?\Z"),
    re.compile(rf"\A{_ID}\b"),
)
_ROW = re.compile(rf"\| (?P<id>{_ID}) \| (?P<mark>[a-z, ]+) \| (?P<text>.+) \| (?P<proofs>.+) \|")


@dataclass(frozen=True, order=True)
class Proof:
    """A test that names a requirement. `name` is "" when a whole file does."""

    path: str
    name: str

    def __str__(self) -> str:
        return f"{self.path}::{self.name}" if self.name else self.path


@dataclass(frozen=True)
class Evidence:
    """What all tests together say: the proofs of each id, and docstrings that cannot be read."""

    proofs: dict[str, list[Proof]]
    mistakes: list[str]


def named_ids(docstring: str) -> list[str]:
    """The ids that a docstring names at its end."""
    match = _NAMED.search(docstring.strip())
    return match[1].split(", ") if match else []


def is_mistaken(docstring: str) -> bool:
    """Whether a docstring seems to name an id, but not in the one form that counts."""
    text = docstring.strip()
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


def known_ids(page: str) -> list[str]:
    """Every id of the page, in its order."""
    return [match["id"] for line in page.splitlines() if (match := _ROW.fullmatch(line))]


def proven_ids(page: str, evidence: Evidence) -> list[str]:
    """Ids with a proof. One that has parts (C6.1, C6.2, …) is proven when all its parts are."""
    known = known_ids(page)

    def proven(requirement: str) -> bool:
        parts = [other for other in known if other.startswith(f"{requirement}.")]
        return all(map(proven, parts)) if parts else requirement in evidence.proofs

    return [requirement for requirement in known if proven(requirement)]


def rewrite(page: str, evidence: Evidence) -> str:
    """The page with its column of proofs as the tests have it now."""
    proven = set(proven_ids(page, evidence))
    lines = []
    for line in page.splitlines():
        match = _ROW.fullmatch(line)
        if match:
            requirement = match["id"]
            files = sorted({proof.path for proof in evidence.proofs.get(requirement, [])})
            cell = ", ".join(f"[{path.removeprefix('tests/')}](../{path})" for path in files)
            cell = cell or ("its parts" if requirement in proven else NONE_YET)
            line = f"| {requirement} | {match['mark']} | {match['text']} | {cell} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def claims(page: str) -> set[tuple[str, str]]:
    """Every id and file that the page's column ties together."""
    return {
        (match["id"], path)
        for line in page.splitlines()
        if (match := _ROW.fullmatch(line))
        for path in re.findall(r"\]\(\.\./([^)]+)\)", match["proofs"])
    }


def summary(root: Path = ROOT) -> str:
    """How many ids have a proof, which have none, and whether the page should be written anew."""
    page = (root / PAGE).read_text(encoding="utf-8")
    known = known_ids(page)
    evidence = collect(root)
    proven = set(proven_ids(page, evidence))
    without = [requirement for requirement in known if requirement not in proven]
    text = f"{len(proven)} of {len(known)} requirements are named by a test"
    if without:
        text += f"; without one: {' '.join(without)}"
    missed = claims(rewrite(page, evidence)) - claims(page)
    if missed:
        text += f"\nthe page lacks {len(missed)} of these proofs; `make requirements` adds them"
    return text


def main(arguments: list[str], root: Path = ROOT) -> int:
    # A page with the proofs of files that are not committed would be wrong for everybody else.
    evidence = collect(root, tracked_only=not arguments)
    if arguments:
        for requirement in arguments:
            found = evidence.proofs.get(requirement, [])
            print(f"{requirement}: {len(found)} tests")
            for proof in found:
                print(f"  {proof}")
        return 0
    file = root / PAGE
    file.write_text(rewrite(file.read_text(encoding="utf-8"), evidence), encoding="utf-8")
    print(summary(root))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
