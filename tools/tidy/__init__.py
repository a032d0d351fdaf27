"""House rules as code: rules of the rooms that no common linter checks.

`make check` runs this over the tree (`python -m tools.tidy`), and tests/unit/test_tidy.py shows for
each rule a violation that it finds and a look-alike that it accepts. The rules are in `purity`
(pure rooms), `set_order` (pure rooms), `house` (all of src, and tests/unit), `durations` (all of
tests), `names` (src and tests) and `once` (src without the simulator).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.tidy import durations, house, names, once, purity, set_order
from tools.tidy.finding import Finding, Source

ROOT = Path(__file__).resolve().parents[2]


def check_text(path: str, text: str) -> list[Finding]:
    """All findings in one file, by the rules for its path from the root."""
    source = Source.parse(path, text)
    return sorted(_findings(source))


def check_tree(root: Path = ROOT) -> list[Finding]:
    """All findings in src and tests below `root`."""
    sources = [
        Source.parse(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8"))
        for folder in ("src", "tests")
        for file in sorted((root / folder).rglob("*.py"))
    ]
    found = [finding for source in sources for finding in sorted(_findings(source))]
    product = [source for source in sources if source.path.startswith("src/")]
    named = [*names.tree_findings(product), *names.participles(product, names.PARTICIPLES_ALLOWED)]
    return found + sorted([*named, *once.findings(product)])


def _findings(source: Source) -> Iterator[Finding]:
    parts = source.path.split("/")
    yield from names.docstring_sentences(source)
    if parts[0] == "src":
        yield from house.findings(source)
        if len(parts) > 2 and parts[2].removesuffix(".py") in purity.PURE_ROOMS:
            yield from purity.findings(source)
            yield from set_order.findings(source)
    elif parts[0] == "tests":
        yield from durations.findings(source)
        yield from names.private_names(source)
        if parts[1] == "sim" and parts[-1].startswith("test_"):
            yield from names.simulation_coverage(source)
        if parts[1] == "unit":
            yield from house.unit_test_findings(source)
