"""What can be simulated, by name: the worked examples, and the worlds with their faults.

`holdfast sim` looks here. A name never changes its meaning; where it is defined may change.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import FieldError, Invalid

_EXAMPLES = "holdfast.sim.scenarios."
_WORLDS = "holdfast.sim.worlds."


class CatalogueEntry(msgspec.Struct, frozen=True):
    """A name, what it is in a line, and where it is defined.

    An example has sentences that are judged one by one; a world has laws only. One that takes more
    than a moment is not played for every seed by whoever plays them all.
    """

    name: str
    title: str
    scenario: str
    is_example: bool = True
    is_long: bool = False


def _example(name: str, module: str, title: str) -> CatalogueEntry:
    return CatalogueEntry(name, title, f"{_EXAMPLES}{module}:SCENARIO")


def _world(name: str, where: str, title: str) -> CatalogueEntry:
    return CatalogueEntry(name, title, _WORLDS + where, is_example=False)


NAMES = (
    _example(
        "sc1-conservative-binding",
        "sc1_conservative_binding",
        "a late heartbeat, a slow quota ledger, a GPU that is taken meanwhile",
    ),
    _example(
        "sc2-drain-races-placement",
        "sc2_drain_races_placement",
        "a node is drained while a scheduler that does not know picks it",
    ),
    _example(
        "sc3-answer-lost",
        "sc3_answer_lost",
        "the answer to a bind is lost, once after and once before it was committed",
    ),
    _example(
        "sc4-stuck-replica",
        "sc4_stuck_replica",
        "a replica is stuck for five reasons, one after the other, and somebody asks why",
    ),
    _example(
        "sc6-node-loss",
        "sc6_node_loss",
        "nodes die, are cut off, hang, and come back a second before and after the fence",
    ),
    _example(
        "sc7-leader-change",
        "sc7_leader_change",
        "a leader stalls in mid-placement, another takes over, the first one wakes and writes",
    ),
    _example(
        "sc8-one-free-slot",
        "sc8_one_free_slot",
        "two schedulers bind for the last GPU, the last CPU, the last unit of quota",
    ),
    _example(
        "sc13-repair-in-an-incident",
        "sc13_repair_in_an_incident",
        "two zones are lost; leaks, and useful progress that looks like one",
    ),
    CatalogueEntry(
        "sc14-retry-storm",
        "the store slows tenfold and then refuses for a minute, below 5,000 agents (takes minutes)",
        _EXAMPLES + "sc14_retry_storm:SCENARIO",
        is_long=True,
    ),
    CatalogueEntry(
        "sc14-retry-storm-small",
        "the same with 100 agents on slower machines",
        _EXAMPLES + "sc14_retry_storm:SMALL",
        is_long=True,
    ),
    _example(
        "sc15-lost-wakeup",
        "sc15_lost_wakeup",
        "events that would have woken waiting work are dropped",
    ),
    CatalogueEntry(
        "overload",
        "five times the peak, and a store that stands still for 30 s",
        _EXAMPLES + "overload_speeds:SCENARIO",
        is_long=True,
    ),
    CatalogueEntry(
        "overload-quarter",
        "the same on a server of a quarter of the speed",
        _EXAMPLES + "overload_speeds:QUARTER",
        is_long=True,
    ),
    CatalogueEntry(
        "overload-fourfold",
        "the same on a server of four times the speed",
        _EXAMPLES + "overload_speeds:FOURFOLD",
        is_long=True,
    ),
    CatalogueEntry(
        "overload-slow-store",
        "the same over a store that takes long for every transaction",
        _EXAMPLES + "overload_speeds:SLOW_STORE",
        is_long=True,
    ),
    _world(
        "authority", "authority.scenario:SCENARIO", "the commit alone, and all who ask it badly"
    ),
    _world("end-to-end", "end_to_end.scenario:SCENARIO", "one replica, on twenty nodes"),
    _world(
        "all-controllers",
        "all_controllers.scenario:SCENARIO",
        "all controllers and all types of work",
    ),
    _world("rot", "versions.rot:ROT", "records that are damaged below a plane that goes on"),
    _world("ledgers", "versions.ledgers:LEDGERS", "ledgers that are damaged, and recounted"),
    _world("mixed", "versions.mixed:MIXED", "servers of two versions over one store"),
    _world("placing", "placing.scenario:SCENARIO", "schedulers that compete, on twenty nodes"),
)


# Worlds that show what the large ones hide, and have no campaign of their own: `python -m
# holdfast.sim edges` plays seeds of each. A test demands that every world is here or has a reason.
EDGES = tuple(
    _WORLDS + where
    for where in (
        *(f"end_to_end.tight:{it}" for it in ("TIGHT", "ZONE", "SKEWED", "TAKEOVER")),
        *("end_to_end.crowded:CROWDED", "end_to_end.crowded:LOSSY", "end_to_end.hung_servers:HUNG"),
        *(
            "end_to_end.one_address:ONE",
            "end_to_end.node_names:REUSED",
            "end_to_end.node_names:TWO_MACHINES",
        ),
        *("end_to_end.fence_timings:RETIMED", "end_to_end.fence_timings:LOWERED"),
        *("versions.mixed:MIXED", "versions.raised:RAISED"),
        *("versions.rot:ROT", "versions.ledgers:LEDGERS"),
        *(
            "all_controllers.calendars:CALENDARS",
            "all_controllers.dark_zones:DARK",
            "all_controllers.rollouts_under_faults:ROLLING",
        ),
        "authority.scenario:ALONE",
        *(f"agents.scenario:{it}" for it in ("AGENTS", "AWAY", "PORTS", "STOPPING")),
        "audit.scenario:SCENARIO",
        *(f"placing.scenario:{it}" for it in ("SCENARIO", "SHARDS", "PROMPT", "MANY")),
    )
)


def find_entry(name: str) -> CatalogueEntry:
    """What is meant by a name. Raises Invalid."""
    for found in NAMES:
        if found.name == name:
            return found
    rule = f"must be one of {', '.join(it.name for it in NAMES)}"
    error = FieldError(path="NAME", value=name, rule=rule)
    raise Invalid(str(error), (error,))
