"""Planes with records that this version does not expect: everything else goes on."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.commit.objects.field_writers import WRITERS
from holdfast.sim.mutants import Mutant, confirm, load
from holdfast.sim.planes.checkers.plane_census import PlaneCensus
from holdfast.sim.run import attempt, find
from holdfast.sim.world import World
from holdfast.sim.worlds.versions.ledgers import Damage
from holdfast.sim.worlds.versions.mixed import PreservedFields, VersionsMet
from holdfast.sim.worlds.versions.rot import DECOYS, ConfinedRecords
from tests.scale import scaled
from tests.sim.findings import SEEDS_MAX, everything_happened
from tests.sim.versions.mutants import MUTANTS, RECORDED

# The tests that use the campaign run in one process, so that it is run once.
together = pytest.mark.xdist_group("versions-world")
LEDGERS = "holdfast.sim.worlds.versions.ledgers:LEDGERS"
MIXED = "holdfast.sim.worlds.versions.mixed:MIXED"
RAISED = "holdfast.sim.worlds.versions.raised:RAISED"
ROT = "holdfast.sim.worlds.versions.rot:ROT"
SEEDS = scaled(3, 10)
PARTS = ("server-1", "server-2", "scheduler", "controllers-1", "controllers-2", "agent-0")
RAISED_SEEDS = scaled(2, 30)
LEDGERS_SEEDS = scaled(2, 40)
# What must happen over the seeds of the default run: the faults, a refusal for each damaged decoy,
# and work that goes on.
DEMANDED = (
    *(f"fault {kind}" for kind in ("rot", "crash", "watch_expire", "stream_break")),
    *(f"refused {key}" for key in DECOYS),
    *("accepted Bind", "started", "list restarted after Expired"),
)


class Campaign:
    """The results of all seeds."""

    def __init__(self) -> None:
        self.broken: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        for seed in range(SEEDS):
            world = World(seed)
            broken = attempt(find(ROT), world)
            if broken is not None:
                self.broken[seed] = str(broken)
            self.counts.update(world.checker(PlaneCensus).counts)
            self.counts.update({f"fault {kind}": n for kind, n in world.injected.items()})
            self.counts.update(f"refused {key}" for key in world.checker(ConfinedRecords).met)


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    return Campaign()


@together
@pytest.mark.timeout(600)
def test_damaged_records_stop_nothing_else(campaign: Campaign) -> None:
    """INV1 to INV7, INV10 to INV12 at every commit, V1 to V5 after the faults. [N6]"""
    assert campaign.broken == {}


@together
@pytest.mark.timeout(600)
def test_records_are_damaged_and_decisions_read_them(campaign: Campaign) -> None:
    """The world proves nothing about what never happens. [N6]"""
    assert campaign.counts["fault rot"] > 10 * SEEDS
    everything_happened(DEMANDED, campaign.counts)


@pytest.mark.timeout(600)
def test_a_damaged_ledger_is_recounted_and_stops_only_what_needs_it() -> None:
    """INV1 to INV7 for all else and from the repair on, V2 meanwhile, V1 to V5 at the end.
    [N6]"""
    struck = met = 0
    for seed in range(LEDGERS_SEEDS):
        world = World(seed)
        assert attempt(find(LEDGERS), world) is None, seed
        damage = world.checker(Damage)
        assert damage.repaired == damage.struck, seed
        struck, met = struck + damage.struck, met + damage.met
    # Ledgers are damaged, and decisions read them.
    assert struck >= 2 * LEDGERS_SEEDS
    assert met >= LEDGERS_SEEDS


@pytest.mark.timeout(600)
def test_components_of_two_versions_keep_the_invariants_and_the_newer_field() -> None:
    """INV1 to INV7, INV10 to INV12 at every commit, V1 to V5 after the faults. [N6]"""
    known = set(WRITERS)
    rewritten, promised, lives = 0, 0, dict.fromkeys(PARTS, 0)
    met: set[VersionsMet] = set()
    for seed in range(SEEDS):
        world = World(seed)
        assert attempt(find(MIXED), world) is None, seed
        preserved = world.checker(PreservedFields)
        rewritten, promised = rewritten + preserved.rewritten, promised + preserved.promised
        met |= preserved.met
        for part in PARTS:
            lives[part] += world.cells[part].life - 1
    assert rewritten > 10 * SEEDS
    assert promised >= SEEDS
    # Each version of a component has met each of a server, and each component was replaced.
    status = "system:controller:status"
    pairs = {(it.is_newer, it.server_is_newer) for it in met if it.sender == status}
    assert pairs == {(False, False), (False, True), (True, False), (True, True)}
    assert min(lives.values()) >= SEEDS, lives
    # The structs of that version do not leak into the rest of this process.
    assert set(WRITERS) == known


@pytest.mark.timeout(600)
def test_a_server_that_is_too_old_for_the_format_writes_nothing_once_it_is_raised() -> None:
    """Nor do its transactions in flight; the next version keeps all invariants. [N6]"""
    for seed in range(RAISED_SEEDS):
        assert attempt(find(RAISED), World(seed)) is None, seed


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_planted_in_dealing_with_other_versions_is_found(mutant: Mutant) -> None:
    """That no component crashes is one of the invariants here. [N6]"""
    finding = confirm(mutant, load(RECORDED), seeds_max=SEEDS_MAX)
    assert finding.is_expected(), finding


def test_the_recorded_search_is_of_these_bugs() -> None:
    """[N6]"""
    assert {finding.mutant for finding in load(RECORDED)} == {it.name for it in MUTANTS}
