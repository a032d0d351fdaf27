"""The files of a journal: one for each stretch of records, named after the first of them.

`journal.py` writes them, `reading.py` reads them. A line is a record; a file is a part of the
chain without holes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

# Where a server keeps its part of the chain, below its data.
FOLDER = "audit"
_NAME = re.compile(r"audit-([0-9]{16})\.jsonl")


class Segment(msgspec.Struct, frozen=True, order=True):
    """One file, and the number of its first record."""

    first: int
    path: Path


def path_of(folder: Path, first: int) -> Path:
    return folder / f"audit-{first:016d}.jsonl"


def segments(folder: Path) -> list[Segment]:
    """All files of a journal, in the order of their records."""
    if not folder.is_dir():
        return []
    found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted(Segment(int(name[1]), path) for name, path in found if name is not None)


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file. One that a crash cut short is none: nobody was told of it."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line[:-1]
