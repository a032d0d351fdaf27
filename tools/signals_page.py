"""Print docs/signals.md from the table in correct/trouble_signals.py: `make signals-page` rewrites
it.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.correct.trouble_signals import SIGNALS, Signal

PAGE = Path(__file__).parent.parent / "docs" / "signals.md"

_HEAD = """# Signals, and what each may decide

A signal is an observation. It may be late, wrong, or about the observer; so each carries only so
much, and the strongest steps need the strongest evidence. Telling people what was seen is always
allowed. Printed by `make signals-page` from `src/holdfast/correct/trouble_signals.py`; a test plays
each row on the real machines and holds what they ask for to it.

| signal | seen by | may at most lead to | not by itself | because |
|---|---|---|---|---|
"""


def _row(signal: Signal) -> str:
    may = ", ".join(signal.may) or "-"
    cells = (signal.name, signal.seen_by, may, signal.not_by_itself, signal.because)
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_row(signal) for signal in SIGNALS)


if __name__ == "__main__":
    PAGE.write_text(page())
