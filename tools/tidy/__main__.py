"""Prints every finding, one per line, and fails if there is one: `python -m tools.tidy`."""

from __future__ import annotations

import sys

from tools.tidy import check_tree

found = check_tree()
for finding in found:
    print(finding)
print(f"tidy: {len(found)} findings" if found else "tidy: no findings")
sys.exit(bool(found))
