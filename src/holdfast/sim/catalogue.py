"""All scenarios by name: the worked examples, and the worlds with their faults.

`holdfast sim` looks names up here. A name keeps its meaning; where it is defined may change.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import FieldError, Invalid

_EXAMPLES = "holdfast.sim.scenarios."
_WORLDS = "holdfast.sim.worlds."


class CatalogueEntry(msgspec.Struct, frozen=True):
    """A scenario: its name, a one-line title, and where it is defined.

    An example has sentences that are checked one by one; a world has invariants only. Tests that
    run all examples on several seeds skip those with `is_long`.
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
        "a late heartbeat, a slow quota ledger, a GPU that another replica takes meanwhile",
    ),
    _example(
        "sc2-drain-races-placement",
        "sc2_drain_races_placement",
        "a node is drained while a scheduler with a stale cache picks it",
    ),
    _example(
        "sc3-answer-lost",
        "sc3_answer_lost",
        "the answer to a bind is lost, once after and once before the commit",
    ),
    _example(
        "sc4-stuck-replica",
        "sc4_stuck_replica",
        "a replica is stuck for five reasons, one after the other, and a user asks why",
    ),
    _example(
        "sc6-node-loss",
        "sc6_node_loss",
        "nodes die, are cut off, hang, and come back a second before and after the fence",
    ),
    CatalogueEntry(
        "sc6-node-loss-ten",
        "the same, and the zone that is lost has ten nodes",
        _EXAMPLES + "sc6_node_loss:TEN",
    ),
    _example(
        "sc7-leader-change",
        "sc7_leader_change",
        "a leader stalls during placement, another takes over, the first one resumes and writes",
    ),
    _example(
        "sc8-one-free-slot",
        "sc8_one_free_slot",
        "two schedulers compete for the last GPU, the last CPU, the last unit of quota",
    ),
    _example(
        "sc13-repair-in-an-incident",
        "sc13_repair_in_an_incident",
        "two zones are lost; resources leak, and useful progress looks like a leak",
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
        "watch events that would have woken waiting replicas are dropped",
    ),
    CatalogueEntry(
        "overload",
        "five times the peak load, and a store that stalls for 30 s",
        _EXAMPLES + "overload_speeds:SCENARIO",
        is_long=True,
    ),
    CatalogueEntry(
        "overload-quarter",
        "the same on a server at a quarter of the speed",
        _EXAMPLES + "overload_speeds:QUARTER",
        is_long=True,
    ),
    CatalogueEntry(
        "overload-fourfold",
        "the same on a server at four times the speed",
        _EXAMPLES + "overload_speeds:FOURFOLD",
        is_long=True,
    ),
    CatalogueEntry(
        "overload-slow-store",
        "the same with a store that is slow for every transaction",
        _EXAMPLES + "overload_speeds:SLOW_STORE",
        is_long=True,
    ),
    _world(
        "authority",
        "authority.scenario:SCENARIO",
        "the commit authority alone, with clients that send wrong requests",
    ),
    _world(
        "end-to-end",
        "end_to_end.scenario:SCENARIO",
        "replicas from creation to removal, on twenty nodes",
    ),
    _world(
        "all-controllers",
        "all_controllers.scenario:SCENARIO",
        "all controllers and all types of workload",
    ),
    _world("rot", "versions.rot:ROT", "stored records are damaged while the plane keeps running"),
    _world("ledgers", "versions.ledgers:LEDGERS", "ledgers are damaged and recounted"),
    _world("mixed", "versions.mixed:MIXED", "servers of two versions over one store"),
    _world("two-planes", "two_planes:TWO", "two planes whose link is cut"),
    _world("placing", "placing.scenario:SCENARIO", "competing schedulers, on twenty nodes"),
    _world(
        "contended", "placing.contended:CONTENDED", "less room than work: classes and preemption"
    ),
)


# Edge-case worlds: they show what the large ones hide, and have no campaign of their own. `python
# -m holdfast.sim edges` runs seeds of each. A test demands that every world is here or listed
# with a reason.
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
        "all_controllers.memories:MEMORIES",
        *("authority.scenario:ALONE", "authority.scenario:OVERCOMMIT"),
        *(f"agents.scenario:{it}" for it in ("AGENTS", "AWAY", "PORTS", "STOPPING")),
        "audit.scenario:SCENARIO",
        "two_planes:TWO",
        *(f"placing.scenario:{it}" for it in ("SCENARIO", "SHARDS", "PROMPT", "MANY")),
        "placing.contended:CONTENDED",
        *(f"placing.gang_worlds:{it}" for it in ("GANGS", "LARGE_GANGS", "CONTENDED_GANGS")),
        *(f"placing.small_worlds:{it}" for it in ("RIVALS", "TURNS", "SHARES", "STATED")),
    )
)


def find_entry(name: str) -> CatalogueEntry:
    """The entry with this name. Raises Invalid."""
    for found in NAMES:
        if found.name == name:
            return found
    rule = f"must be one of {', '.join(it.name for it in NAMES)}"
    error = FieldError(path="NAME", value=name, rule=rule)
    raise Invalid(str(error), (error,))
