"""All long forms of the tests, one after another: `make test-long`, or `python -m tests.long_run`.

Each part is a target of the Makefile and can be run by itself; its own words say what it is. A part
that fails does not keep the others from running. What every part prints goes on the terminal; this
adds where it is, and at the end how each went and how long it took.

    python -m tests.long_run                     all of them
    python -m tests.long_run crash-long fuzz     only these
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The cheap ones first, so that a broken tree is noticed early.
PARTS = (
    *("full-long", "storm-long", "end-to-end-long", "run-long", "failover-long"),
    *("fuzz", "crash-long", "property-long"),
    *("sim-sweep", "sim-edges", "sim-authority", "sim-end-to-end", "sim-all-controllers"),
)


def described(makefile: str) -> dict[str, str]:
    """What each target says of itself."""
    return dict(re.findall(r"^([a-z-]+):.*## (.+)$", makefile, re.MULTILINE))


def main(chosen: list[str]) -> int:
    """Run them; how many failed."""
    about = described((ROOT / "Makefile").read_text(encoding="utf-8"))
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
        return 2
    parts = chosen or list(PARTS)
    began, ended = time.monotonic(), list[tuple[str, str, float]]()
    for number, part in enumerate(parts, 1):
        minutes = (time.monotonic() - began) / 60
        print(f"\n[{number}/{len(parts)}, {minutes:.0f} min so far] {part}: {about[part]}")
        sys.stdout.flush()
        started = time.monotonic()
        code = subprocess.run(["make", part], cwd=ROOT, check=False).returncode
        outcome = "passed" if code == 0 else f"FAILED ({code})"
        ended.append((part, outcome, (time.monotonic() - started) / 60))
    print()
    for part, outcome, minutes in ended:
        print(f"{minutes:7.1f} min  {part:15} {outcome}")
    return sum(outcome != "passed" for _, outcome, _ in ended)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
