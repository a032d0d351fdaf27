"""House rules as code: what the rooms promise and no common linter checks.

`make check` runs this over the tree (`python -m tools.tidy`), and tests/unit/test_tidy.py shows for
each rule a violation that it finds and a look-alike that it lets pass. The rules live in `purity`
(pure rooms), `set_order` (pure rooms), `house` (all of src, and tests/unit) and `durations` (all of
tests).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.tidy import durations, house, purity, set_order
from tools.tidy.finding import Finding, Source

ROOT = Path(__file__).resolve().parents[2]


def check_text(path: str, text: str) -> list[Finding]:
    """All findings in one file, by the rules that its path from the root calls for."""
    source = Source.parse(path, text)
    return sorted(_findings(source))


def check_tree(root: Path = ROOT) -> list[Finding]:
    """All findings in src and tests below `root`."""
    found: list[Finding] = []
    for folder in ("src", "tests"):
        for file in sorted((root / folder).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            found += check_text(path, file.read_text(encoding="utf-8"))
    return found


def _findings(source: Source) -> Iterator[Finding]:
    parts = source.path.split("/")
    if parts[0] == "src":
        yield from house.findings(source)
        if len(parts) > 2 and parts[2].removesuffix(".py") in purity.PURE_ROOMS:
            yield from purity.findings(source)
            yield from set_order.findings(source)
    elif parts[0] == "tests":
        yield from durations.findings(source)
        if parts[1] == "unit":
            yield from house.unit_test_findings(source)
