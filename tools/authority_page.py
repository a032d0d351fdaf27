"""Print docs/authority.md from the table in commit/authority_table.py: `make authority-page`
rewrites it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.commit.authority_table import STEPS
from holdfast.commit.request_steps import ActionGuard, PlacementStep

PAGE = Path(__file__).parent.parent / "docs" / "authority.md"

_HEAD = """# The authority table

For each step of a placement: how old its information may be, what can go wrong between seeing and
doing, who decides when two disagree, and how the action is guarded. Printed by
`make authority-page` from the rows beside the handlers in `src/holdfast/commit/`; a test holds
every request to its row.

- **alone**: on the actor's own knowledge; being wrong costs only itself.
- **fresh read**: after a linearizable read sent for this very action.
- **serialised**: inside one transaction that compares every record it rests on.

The greatest age called "the plane's" is the setting `--observation-age-max` of its servers, 30 s by
default. A snapshot never authorises anything, but most of what is decided on an old one is refused;
too small a bound makes a busy plane stand still. Each decision records the bound that applied.

| step | by | guard | observes | at most old | between seeing and doing | decides | compares |
|---|---|---|---|---|---|---|---|
"""


def _row(step: PlacementStep[Any]) -> str:
    age = "the plane's" if step.is_aged else "-"
    if step.age_max_ms is not None:
        age = f"{step.age_max_ms / 1000:g} s"
    compares = ", ".join(step.compares) if step.guard is ActionGuard.SERIALISED else "-"
    cells = (
        step.name,
        step.actor,
        step.guard.value,
        step.observes,
        age,
        step.between,
        step.decides,
        compares,
    )
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_row(step) for step in STEPS)


if __name__ == "__main__":
    PAGE.write_text(page())
