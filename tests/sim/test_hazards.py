"""All worlds pause servers, delay requests and set calendars, or this test states why not."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import holdfast.sim.scenarios
import holdfast.sim.worlds
from holdfast.sim.__main__ import main
from holdfast.sim.catalogue import EDGES, NAMES
from holdfast.sim.plan import CALENDAR_STEPS_MS, PAUSED_MS, Hazard
from holdfast.sim.run import Scenario

WORLDS = f"{holdfast.sim.worlds.__name__}."
EXAMPLES = f"{holdfast.sim.scenarios.__name__}."
# A hazard in a smaller share of seeds than this is as good as none in a campaign of a hundred.
SHARE_MIN = 0.2
PAUSE, LATE, CALENDAR = "pause", "late", "calendar"
ALL = {PAUSE, LATE, CALENDAR}

# The worlds that lack some of these hazards, which ones, and why.
EXEMPT: dict[str, tuple[set[str], str]] = {
    "end_to_end.scenario:CALM": (ALL, "shows that no component misses anything without faults"),
    "all_controllers.scenario:CALM": (
        ALL,
        "shows that no component misses anything without faults",
    ),
    "placing.scenario:CALM": (ALL, "shows that no component misses anything without faults"),
    "placing.scenario:PROMPT": (
        ALL,
        "shows what events alone wake, without the list after a broken stream",
    ),
    "placing.small_worlds:STATED": (ALL, "a fault delays a start that was stated before it"),
    "all_controllers.small_worlds:SMALL": (
        ALL,
        "the sweep puts one fault at each of its points, and no others",
    ),
    "audit.scenario:SCENARIO": ({PAUSE, LATE}, "its components send no requests to servers"),
}


def _all_scenarios() -> dict[str, Scenario]:
    """Every scenario below `sim`, by where it is defined."""
    found: dict[str, Scenario] = {}
    for package in (holdfast.sim.worlds, holdfast.sim.scenarios):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            things = vars(importlib.import_module(module.name)).values()
            found |= {it.name: it for it in things if isinstance(it, Scenario)}
    return found


FOUND = _all_scenarios()
RANDOM = sorted(name.removeprefix(WORLDS) for name in FOUND if name.startswith(WORLDS))
SCRIPTED = sorted(name.removeprefix(EXAMPLES) for name in FOUND if name.startswith(EXAMPLES))


def _is(hazard: Hazard, what: str) -> bool:
    if hazard.share < SHARE_MIN:
        return False
    if what == PAUSE:
        # Of servers alone: a hazard for all components hits agents most of the time.
        return (hazard.kind, hazard.only, hazard.for_ms) == ("pause", "server", PAUSED_MS)
    if what == LATE:
        return hazard.kind == "late" and not hazard.only
    return (
        hazard.kind == "clock_step"
        and set(hazard.amounts) == set(CALENDAR_STEPS_MS)
        and hazard.alone
    )


def test_every_scenario_with_a_name_is_among_these() -> None:
    """Every scenario of `holdfast sim list` is checked here. [N6]"""
    assert {it.scenario for it in NAMES} <= FOUND.keys()
    assert len(RANDOM) >= 25


@pytest.mark.parametrize("world", RANDOM)
def test_a_world_pauses_servers_delays_requests_and_sets_calendars(world: str) -> None:
    """Servers for 20 to 60 s, requests beyond every time-out, calendars by 5 minutes, a day and 40
    days both ways on one computer at a time. [INV2, INV3, INV7, N6]"""
    without, _why = EXEMPT.get(world, (set(), ""))
    hazards = FOUND[WORLDS + world].hazards
    missing = {what for what in ALL if not any(_is(hazard, what) for hazard in hazards)}
    # An exemption that is no longer needed is an error, too.
    assert missing == without


@pytest.mark.parametrize("example", SCRIPTED)
def test_a_worked_example_has_no_hazards_but_its_script(example: str) -> None:
    """Its script says what happens when, and its sentences are about that. [N6]"""
    assert FOUND[EXAMPLES + example].hazards == ()


def test_an_exemption_names_an_existing_world_and_a_reason() -> None:
    """[N6]"""
    assert EXEMPT.keys() <= set(RANDOM)
    assert all(why for _, why in EXEMPT.values())


def test_calendars_are_set_by_minutes_a_day_and_forty_days_both_ways() -> None:
    """[N6]"""
    day = 86_400_000
    steps = {300_000, day, 40 * day}
    assert set(CALENDAR_STEPS_MS) == steps | {-step for step in steps}
    assert PAUSED_MS == (20_000, 60_000)


# What plays the seeds of the worlds that are not part of `make sim-edges`.
ELSEWHERE = {
    "authority.scenario:SCENARIO": "make sim-authority",
    "all_controllers.scenario:SCENARIO": "make sim-all-controllers",
    "end_to_end.scenario:SCENARIO": "make sim-end-to-end",
    "end_to_end.scenario:QUICK": "make sim-end-to-end, with a longer calm",
    "all_controllers.small_worlds:SMALL": "make sim-sweep",
    "end_to_end.scenario:CALM": "nothing goes wrong there, so all seeds are much the same",
    "all_controllers.scenario:CALM": "nothing goes wrong there, so all seeds are much the same",
    "placing.scenario:CALM": "nothing goes wrong there, so all seeds are much the same",
}


def test_many_seeds_of_every_world_are_played_by_some_target() -> None:
    """A planted bug may take 27 seeds, more than any test plays of its world. [N6]"""
    assert set(RANDOM) == {it.removeprefix(WORLDS) for it in EDGES} | ELSEWHERE.keys()
    assert not ELSEWHERE.keys() & {it.removeprefix(WORLDS) for it in EDGES}


def test_the_worlds_at_the_edge_are_played_by_one_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """[N6]"""
    assert main(["edges", "--only", "audit", "--seeds", "0-1"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("[1/1] holdfast.sim.worlds.audit.scenario:SCENARIO\n")
    assert "   0 violations in 2 seeds" in output
