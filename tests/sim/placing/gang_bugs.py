"""Bugs planted in gangs.

    python -m holdfast.sim mutants tests.sim.placing.gang_bugs:MUTANTS \
        --record tests/sim/placing/found_gangs.json

searches for each in a world of gangs and records the seed that found it.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.sim.mutants import Mutant, Plant, rewrite, swap

RECORDED = Path(__file__).with_name("found_gangs.json")
GANGS = "holdfast.sim.worlds.placing.gang_worlds:GANGS"
LARGE = "holdfast.sim.worlds.placing.gang_worlds:LARGE_GANGS"
RIVALS = "holdfast.sim.worlds.placing.small_worlds:RIVALS"
CONTENDED = "holdfast.sim.worlds.placing.gang_worlds:CONTENDED_GANGS"
COMMIT = "holdfast.commit.lifecycle."
SEARCH = "holdfast.propose.preemption.victim_search:VictimSearch."
GANG = "holdfast.propose.gang."
REPAIR = "holdfast.correct.repair:RepairController."


def _bug(name: str, mistake: str, world: str, *plants: Plant) -> Mutant:
    return Mutant(name, mistake, world, plants)


MUTANTS = (
    _bug(
        "started-with-members-missing",
        "one member is enough to start, for the proposal and for the commit",
        GANGS,
        swap(GANG + "decide:members_needed", lambda _workload: 1),
        swap(COMMIT + "gangs:members_needed", lambda _workload: 1),
    ),
    _bug(
        "committed-before-it-is-complete",
        "a gang is committed when its first member has a place",
        LARGE,
        rewrite(GANG + "steps:GangSteps.by_reservation", "return found\n", "return found[:1]\n"),
        swap(COMMIT + "gangs:commit_refusal", lambda *_: None),
    ),
    _bug(
        "a-member-leaves-unnoticed",
        "a member that stops stays in the record of its gang",
        GANGS,
        swap(COMMIT + "transitions:leave", lambda *_: None),
    ),
    _bug(
        "too-few-go-on",
        "a gang runs on, and is joined, with fewer members than it needs",
        GANGS,
        swap(COMMIT + "gangs:is_broken", lambda *_: False),
        swap(COMMIT + "reservations:is_broken", lambda *_: False),
    ),
    _bug(
        "what-is-left-runs-on",
        "no member of a gang that is over is stopped",
        GANGS,
        swap(REPAIR + "_without_gang", lambda *_: None),
    ),
    _bug(
        "two-block-each-other",
        "a gang that was refused a place keeps the others, and they have no deadline: two wait for "
        "each other for ever",
        RIVALS,
        # Neither a refused plan nor a scheduler that finds its reservation gives anything back.
        swap(GANG + "steps:GangSteps.give_back", lambda *_: ()),
        rewrite(GANG + "rounds:GangRounds._is_mine", "record.status.by == self._identity", "False"),
        rewrite(
            GANG + "rounds:GangRounds.plan_of",
            "timestamp(now.wall_ms + for_ms)",
            "timestamp(now.wall_ms + 10**9)",
        ),
        swap(COMMIT + "reservations:distant_refusal", lambda *_: None),
    ),
    _bug(
        "formed-twice",
        "the rest of a gang that runs forms the same gang again",
        GANGS,
        swap(GANG + "decide:is_formed", lambda *_: False),
        swap(GANG + "decide:CHARGED", frozenset()),
        swap(COMMIT + "gangs:is_formed", lambda *_: False),
        swap(COMMIT + "reservations:runs", lambda *_: False),
        swap(GANG + "decide:members_needed", lambda _workload: 1),
        swap(COMMIT + "gangs:members_needed", lambda _workload: 1),
    ),
    _bug(
        "claims-leaked-with-the-workload",
        "a reserved member of a deleted workload keeps its place",
        LARGE,
        swap(COMMIT + "transitions:drop_claims", lambda *_: None),
    ),
    _bug(
        "a-gang-is-split",
        "members of a gang are stopped for other work, and too few to go on are left running",
        CONTENDED,
        swap(COMMIT + "preempt:split_gang_refusal", lambda *_: None),
        rewrite(
            SEARCH + "_units_of_gang",
            "len(here) if gang.spare is None else gang.spare",
            "len(here)",
        ),
    ),
    _bug(
        "room-for-one-is-enough",
        "work is stopped for one member of a gang that cannot start with it",
        CONTENDED,
        swap(COMMIT + "gangs:start_refusal", lambda *_: None),
        rewrite(GANG + "decide:_start", "alike[:needed], gang", "alike[:1], gang"),
    ),
    _bug(
        "one-place-is-kept",
        "of several places that are promised on one node other work takes all but the first",
        CONTENDED,
        rewrite(
            "holdfast.model.quota.ledger:NodeLedger.free",
            "in self.promised.items() if",
            "in list(self.promised.items())[:1] if",
        ),
    ),
    _bug(
        "domain-forgotten",
        "the members of a gang are placed wherever there is room or work to stop",
        CONTENDED,
        rewrite(GANG + "victims:_where", "if not gang.within:", "if True:"),
        rewrite(GANG + "member_places:gang_places", "if not gang.within:", "if True:"),
    ),
)
