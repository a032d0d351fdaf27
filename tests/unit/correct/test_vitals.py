"""How controllers are doing: their heartbeat, and the counts of what they do."""

from __future__ import annotations

from datetime import timedelta

from holdfast.correct.vitals import REASONS_MAX, Vitals
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted
from tests.unit.correct.pictures import NOW
from tests.unit.correct.team_rig import DONE, DOWN, Rig


def test_every_answer_is_counted_as_what_it_is() -> None:
    """Refusals by reason, and no more reasons than a bound. [M6, I1]"""
    vitals = Vitals()
    vitals.looked(3, NOW)
    refusal = Refusal(Reason.EXISTS, "x")
    for answer in (Accepted(1), refusal, refusal, Unavailable("x"), OutcomeUnknown("x")):
        vitals.answered(answer)
    assert (vitals.looks, vitals.sent, vitals.last_look_ms) == (1, 3, NOW.monotonic_ms)
    assert (vitals.accepted, vitals.down, vitals.unknown) == (1, 1, 1)
    assert vitals.refused == {"AlreadyExists": 2}
    vitals.refused = {str(number): 1 for number in range(REASONS_MAX)}
    vitals.answered(refusal)
    assert len(vitals.refused) == REASONS_MAX


def test_each_controller_of_a_team_has_a_heartbeat_and_counts_of_its_own() -> None:
    """The lease is renewed under its name for as long as it lives, also with nothing to do. [A4]"""
    rig = Rig()
    rig.plane.tenant()
    rig.plane.node("node-a")
    rig.plane.workload(replicas=2)
    rig.fate = lambda ask: DOWN if len(rig.sent) < 3 else DONE
    rig.turn()
    vitals = rig.team.vitals()
    assert sorted(vitals) == sorted(it.name for it in rig.controllers)
    mine = vitals["workload"]
    assert mine.accepted >= 2
    assert sum(it.down for it in vitals.values()) == 2
    assert mine.sent == mine.accepted + mine.down + mine.unknown + sum(mine.refused.values())
    before = {it.name: it.spec.renewed for it in rig.all("leases")}
    rig.run(60_000)
    after = {it.name: it.spec.renewed for it in rig.all("leases")}
    for name in vitals:
        beat = after[f"controller-{name}"]
        assert beat - before[f"controller-{name}"] > timedelta(seconds=50)
