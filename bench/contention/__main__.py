"""Scheduling under contention: what it costs when work competes for less room than it needs.

Each part is a module of this folder with a `main`, and prints its own figures.
HOLDFAST_BENCH_PARTS, if set, says which of them to run, such as `preemption,gangs`.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

PARTS = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_")
)


def main() -> None:
    wanted = os.environ.get("HOLDFAST_BENCH_PARTS", "")
    unknown = [it for it in wanted.split(",") if it and it not in PARTS]
    if unknown:
        sys.exit(f"HOLDFAST_BENCH_PARTS: {unknown[0]!r} is none of {', '.join(PARTS)}")
    for part in wanted.split(",") if wanted else PARTS:
        importlib.import_module(f"bench.contention.{part}").main()


if __name__ == "__main__":
    main()
