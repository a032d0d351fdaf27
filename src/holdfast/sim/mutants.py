"""Planted bugs: a measure of how well the checkers would find a new mistake.

A mutant is a patch of the code under test, applied only inside a `with` block of the harness and
undone after it. The product contains none. Each runs over seeds until a checker finds it. Benign
controls, patches that change the code but not its behaviour, must never be found.

There are two ways to plant one: `swap` replaces a function, method or constant with another object;
`rewrite` replaces a piece of text in a function's source, which must occur exactly once, and
compiles it again. A rewrite that no longer finds its text fails, so a stale mutant is noticed.
"""

from __future__ import annotations
import __future__

import contextlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.model.errors import invariant
from holdfast.sim.run import Report, find, run

# Packages whose modules may have imported a swapped object by name.
_ROOMS = ("holdfast", "tests")
_PLAIN = (int, float, str, bytes, tuple, frozenset)

Undo = Callable[[], None]
Plant = Callable[[], Undo]


class Mutant(msgspec.Struct, frozen=True):
    """A planted bug, or with `benign` a change that must not be found."""

    name: str
    # The mistake, described in a sentence.
    mistake: str
    scenario: str
    plants: tuple[Plant, ...]
    benign: bool = False

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Apply all its patches inside a `with` block."""
        with contextlib.ExitStack() as stack:
            for plant in self.plants:
                stack.callback(plant())
            yield

    def run(self, seed: int, *, tell: bool = False) -> Report:
        # A module that is first imported while a patch is applied would keep the patched names.
        scenario = find(self.scenario)
        with self.planted():
            return run(scenario, seed, tell=tell)


class Finding(msgspec.Struct, frozen=True):
    """The result of a search. `seeds` is how many were needed, or tried without success."""

    mutant: str
    benign: bool
    seeds: int
    seed: int | None
    invariant: str
    message: str

    def is_expected(self) -> bool:
        return (self.seed is None) == self.benign


def search(mutant: Mutant, *, seeds_max: int, first_seed: int = 0) -> Finding:
    """Run seeds until one finds the mutant."""
    for count, seed in enumerate(range(first_seed, first_seed + seeds_max), start=1):
        broken = mutant.run(seed).broken
        if broken is not None:
            return Finding(
                mutant.name, mutant.benign, count, seed, broken.invariant, broken.message
            )
    return Finding(mutant.name, mutant.benign, seeds_max, None, "", "")


def confirm(mutant: Mutant, recorded: Sequence[Finding], *, seeds_max: int) -> Finding:
    """Run the seed that an earlier search recorded; search again if it no longer finds the mutant.

    Every change of a world shifts what its seeds mean, so a recorded seed saves time and nothing
    depends on it. How many seeds the earlier search needed stays on record while its seed holds.
    """
    for finding in recorded:
        if finding.mutant == mutant.name and finding.seed is not None:
            again = search(mutant, seeds_max=1, first_seed=finding.seed)
            if again.seed is not None:
                return msgspec.structs.replace(again, seeds=finding.seeds)
    return search(mutant, seeds_max=seeds_max)


def save(findings: Sequence[Finding], path: Path) -> None:
    """Record findings as JSON, one on each line."""
    lines = (msgspec.json.encode(finding).decode() for finding in findings)
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def load(path: Path) -> list[Finding]:
    return msgspec.json.decode(path.read_bytes(), type=list[Finding])


def table(findings: Sequence[Finding]) -> str:
    """A text table: mutant, the invariant that found it, seeds needed."""
    rows = [("mutant", "found by", "seeds", "at seed", "")]
    for finding in findings:
        seed = "–" if finding.seed is None else str(finding.seed)
        kind = "benign" if finding.benign else ""
        verdict = kind if finding.is_expected() else f"{kind} UNEXPECTED".strip()
        found_by = finding.invariant or "–"
        rows.append((finding.mutant, found_by, str(finding.seeds), seed, verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def swap(target: str, replacement: Any) -> Plant:
    """Replace `module:name` or `module:Class.name` with another object."""

    def plant() -> Undo:
        owner, name, original = _resolve(target)
        return _rebind(owner, name, original, replacement)

    return plant


def rewrite(target: str, old: str, new: str) -> Plant:
    """Replace text in the source of a function or method. It must not use `super()`."""

    def plant() -> Undo:
        owner, name, original = _resolve(target)
        mutated = _recompile(target, original, old, new)
        return _rebind(owner, name, original, mutated)

    return plant


def _resolve(target: str) -> tuple[Any, str, Any]:
    """The owner of an attribute, its name, and its current value (unbound)."""
    module_name, _, path = target.partition(":")
    owner: Any = importlib.import_module(module_name)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name, inspect.getattr_static(owner, name)


def _recompile(target: str, original: Any, old: str, new: str) -> Any:
    wrapper = type(original) if isinstance(original, (staticmethod, classmethod)) else None
    function = original.__func__ if wrapper is not None else original
    source = textwrap.dedent(inspect.getsource(function))
    count = source.count(old)
    invariant(count == 1, f"the text to rewrite occurs {count} times in {target}: {old!r}")
    flags = __future__.annotations.compiler_flag
    code = compile(source.replace(old, new), f"<mutant of {target}>", "exec", flags, True)
    names: dict[str, Any] = {}
    exec(code, function.__globals__, names)
    return names[function.__name__]


def _rebind(owner: Any, name: str, original: Any, replacement: Any) -> Undo:
    """Rebind a name, also in the modules that imported the original by name, and in their tables of
    functions.

    Equal numbers and strings may be the same object, so for these the name must match as well.
    """
    bound = [(owner, name)]
    listed: list[tuple[dict[Any, Any], Any]] = []
    is_plain = isinstance(original, _PLAIN)
    if inspect.ismodule(owner):
        for module_name in sorted(sys.modules):
            module = sys.modules[module_name]
            if module_name.split(".")[0] in _ROOMS and module is not owner:
                held = vars(module)
                bound += [
                    (module, key)
                    for key in sorted(held)
                    if held[key] is original and (key == name or not is_plain)
                ]
                listed += [
                    (table, key)
                    for table in held.values()
                    if inspect.isfunction(original) and isinstance(table, dict)
                    for key in table
                    if table[key] is original
                ]

    def bind(to: Any) -> None:
        for place, key in bound:
            setattr(place, key, to)
        for table, key in listed:
            table[key] = to

    bind(replacement)

    def undo() -> None:
        bind(original)

    return undo
