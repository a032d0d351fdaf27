"""The examples of docs/client.md, to be run in order in one namespace."""

from __future__ import annotations

import re

from tests.live.part import ROOT

PAGE = ROOT / "docs" / "client.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def examples() -> list[tuple[int, str]]:
    """Each example with the line of the page at which it begins."""
    text = PAGE.read_text()
    return [(text.count("\n", 0, it.start(1)), it[1]) for it in _BLOCK.finditer(text)]
