"""The world of the authority, where servers cannot reach each other and have wrong calendars.

Whoever cannot reach the holder of the lease `authority` decides by itself, and stamps what it
accepts by its own calendar. One server holds the lease for long, and finds these stamps later.
Nothing that any of them remembers may be forgotten early for it.

python -m holdfast.sim run holdfast.sim.worlds.authority.alone:ALONE --seeds 0-99
"""

from __future__ import annotations

import msgspec

from holdfast.sim.lateness import LATENESS
from holdfast.sim.plan import CALENDAR_STEPS_MS, Hazard
from holdfast.sim.worlds.authority.scenario import SCENARIO

HAZARDS = (
    *LATENESS,
    Hazard("partition", 300, for_ms=(5_000, 40_000), only="server", peers="server", share=1),
    Hazard(
        "clock_step",
        200,
        for_ms=(20_000, 90_000),
        only="server",
        share=1,
        amounts=CALENDAR_STEPS_MS,
        alone=True,
    ),
    Hazard("loss", 60, for_ms=(1_000, 40_000), amount=(50, 600)),
    Hazard("duplicate", 90, for_ms=(1_000, 60_000), amount=(100, 800)),
    Hazard("store_late", 90, for_ms=(1_000, 30_000), amount=(50, 600)),
)

ALONE = msgspec.structs.replace(
    SCENARIO, name="holdfast.sim.worlds.authority.alone:ALONE", hazards=HAZARDS
)
