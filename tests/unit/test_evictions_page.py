"""docs/evictions.md shows what the rules answer."""

from __future__ import annotations

from tools.evictions_page import PAGE, page


def test_the_page_shows_what_the_rules_answer() -> None:
    """`make evictions-page` rewrites it. [G1, G4]"""
    assert PAGE.read_text() == page()


def test_committed_work_inside_its_quota_is_no_victim_on_the_page() -> None:
    """A page whose examples all had the same answer would show nothing. [G4]"""
    rows = [line for line in page().splitlines() if line.startswith(("| reclaimable", "| commit"))]
    safe = [line for line in rows if "inside its nominal" in line or "of the same tenant" in line]
    assert safe
    assert all("may be stopped" not in line for line in safe)
    assert any("may be stopped" in line for line in rows)
