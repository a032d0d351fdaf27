"""controller:quota: what was lent comes back, after a notice, no faster than allowed, and no more
than a lender waits for.

The world below plays a cohort on the real authority: its scheduler reports what it cannot place,
binds the lender first, and its agents take a while to stop work. The planted bugs at the end show
that its checks can fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.correct import quota as module
from holdfast.correct.quota import LATE_MS, QuotaController
from holdfast.model.access import identity as who
from holdfast.model.kinds.replica import Pending
from holdfast.model.kinds.tenant import Lending
from holdfast.model.kinds.workload import Gang
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.quota import allowance
from holdfast.model.quota.allowance import above_nominal
from holdfast.model.quota.ledger import QuotaLedger
from holdfast.model.requests import (
    Accepted,
    BindTogether,
    Evict,
    Move,
    ReportPending,
    ReportStage,
)
from tests.plane import SCHEDULER, accepted, bind, target, template
from tests.unit.correct.controller_rig import DONE, DOWN, LOST_AFTER, LOST_BEFORE, Rig

NOTICE_S = 60
PER_MINUTE = 3
GRACE_MS = 10_000
# From when the lender waits: the controller sees it, the notice, the churn limit for six replicas
# (two minutes), the time to stop, and one more round for lost answers.
BACK_MS = NOTICE_S * 1_000 + LATE_MS + 2 * 60_000 + 2 * GRACE_MS + 30_000


class Lent:
    """Tenant `lender` has 6 of 12 cpus and `borrower` uses all of them; then the lender comes back.

    Checks after each second: the invariants of lending, as `wrong` lists them.
    """

    def __init__(self, seed: int = 1, *, size: str = "1", gangs: Sequence[Gang] = ()) -> None:
        self.rng = random.Random(seed)
        self.rig = rig = Rig((QuotaController(),))
        plane = rig.plane
        plane.region()
        self.size = int(size)
        lending = Lending(notice_seconds=NOTICE_S, stops_per_minute=PER_MINUTE)
        for tenant in ("lender", "borrower"):
            plane.tenant(tenant)
            plane.quota(
                tenant,
                cohort="house",
                hard={"cpu": "6"},
                borrowing={"cpu": "6"},
                lending=lending,
            )
        self.nodes = [plane.node(f"node-{n}") for n in range(3)]
        self.term = plane.term(SCHEDULER)
        made = template(cpu=size)
        self.work = {
            it: plane.workload("web", it, template=made, replicas=99)
            for it in ("lender", "borrower")
        }
        self.numbers = 0
        self.stopping_ms: dict[str, int] = {}
        self.noticed_ms: dict[str, int] = {}
        self.stopped_ms: list[int] = []
        self.wrong: list[str] = []
        left = 12 // self.size
        for number, gang in enumerate(gangs):
            self.form(number, gang)
            left -= gang.min_available
        for _ in range(left):
            self.place(self.born("borrower"))
        rig.run(1_000)

    def form(self, number: int, gang: Gang) -> None:
        """Bind the members of a gang of the borrower, as many as it needs at once."""
        plane = self.rig.plane
        workload = plane.workload(
            f"ring-{number}",
            "borrower",
            template=template(cpu=str(self.size)),
            replicas=gang.min_available,
            gang=gang,
        )
        members = [plane.replica(workload, ordinal) for ordinal in range(gang.min_available)]
        binds = [
            bind(it, self.nodes[place % len(self.nodes)], self.term)
            for place, it in enumerate(members)
        ]
        answer = plane.ask(SCHEDULER, BindTogether(tuple(binds)))
        assert isinstance(answer, Accepted), answer

    def born(self, tenant: str) -> Any:
        self.numbers += 1
        return self.rig.plane.replica(self.work[tenant], self.numbers)

    def place(self, replica: Any) -> bool:
        """Bind and start it, or report that the cohort is exhausted."""
        plane = self.rig.plane
        for node in self.nodes:
            answer = plane.ask(SCHEDULER, bind(replica, node, self.term))
            if isinstance(answer, Accepted):
                bound = answer.objects[0]
                move = Move(
                    target(bound), State.RUNNING, incarnation=bound.status.binding.node_incarnation
                )
                accepted(plane.ask(who.agent(node.name), move))
                return True
            reason = answer.reason.value
            if reason != "NodeFull":
                break
        said = Pending(reasons={reason: 1}, message=answer.message)
        old = replica.status.pending
        if old is None or old.reasons != said.reasons:
            plane.ask(
                SCHEDULER,
                ReportPending(
                    target(replica), said, term=self.term, version=replica.metadata.resource_version
                ),
            )
        return False

    def ready(self, replica: Any) -> None:
        """Its agent reports that it is ready."""
        binding = replica.status.binding
        report = ReportStage(target(replica), Stage.READY, incarnation=binding.node_incarnation)
        accepted(self.rig.plane.ask(who.agent(binding.node), report))

    def pass_second(self) -> None:
        self.rig.run(1_000)
        now_ms = self.rig.now_ms
        for it in self.rig.all("replicas"):
            if it.status.state is State.STOPPING:
                self._note_stop(it, now_ms)
                if now_ms - self.stopping_ms[it.metadata.uid] >= GRACE_MS:
                    binding = it.status.binding
                    gone = Move(
                        target(it), State.RELEASED, "Stopped", incarnation=binding.node_incarnation
                    )
                    accepted(self.rig.plane.ask(who.agent(binding.node), gone))
        waiting = [it for it in self.rig.all("replicas") if it.status.state is State.PENDING]
        for it in sorted(waiting, key=lambda it: it.namespace != "lender"):
            self.place(it)
        for quota in self.rig.all("quotas"):
            if quota.status.reclaim is not None:
                self.noticed_ms.setdefault(quota.namespace, now_ms)
            else:
                self.noticed_ms.pop(quota.namespace, None)

    def _note_stop(self, replica: Any, now_ms: int) -> None:
        uid = replica.metadata.uid
        if uid in self.stopping_ms:
            return
        self.stopping_ms[uid] = now_ms
        self.stopped_ms.append(now_ms)
        told_ms = self.noticed_ms.get(replica.namespace)
        if told_ms is None or now_ms - told_ms < NOTICE_S * 1_000 - 2_000:
            self.wrong.append(f"{replica.name} was stopped without {NOTICE_S} s of notice")
        if replica.namespace != "borrower":
            self.wrong.append("the lender's work was stopped")
        recent = [at for at in self.stopped_ms if at > now_ms - 58_000]
        if len(recent) > PER_MINUTE:
            self.wrong.append(f"{len(recent)} were stopped in a minute")

    def used(self, tenant: str) -> int:
        held = [it.status.binding for it in self.rig.all("replicas") if it.namespace == tenant]
        states = [it.status.state for it in self.rig.all("replicas") if it.namespace == tenant]
        live = zip(held, states, strict=True)
        return (
            sum(
                b.charge["cpu"]
                for b, state in live
                if b is not None and state in (State.RUNNING, State.BOUND)
            )
            // 1_000
        )

    def come_back(self, cpus: int = 6) -> None:
        for _ in range(cpus // self.size):
            self.place(self.born("lender"))

    def run(self, ms: int) -> None:
        for _ in range(ms // 1_000):
            self.pass_second()

    def check(self, cpus: int = 6) -> None:
        if self.used("lender") != cpus:
            self.wrong.append(f"the lender has {self.used('lender')} of {cpus} cpus back")
        if self.used("borrower") != 12 - cpus:
            self.wrong.append(f"the borrower was left {self.used('borrower')} of {12 - cpus} cpus")
        if any(it.status.reclaim is not None for it in self.rig.all("quotas")):
            self.wrong.append("a notice was not withdrawn")


def play(seed: int = 1, fate: Any = None) -> Lent:
    """One lender that comes back, from the loan to the end."""
    it = Lent(seed)
    if fate is not None:
        it.rig.fate = fate
    cpus = it.rng.choice((2, 4, 6))
    it.run(5_000)
    if it.stopping_ms:
        it.wrong.append("work was stopped although no lender waits")
    it.come_back(cpus)
    it.run(BACK_MS)
    it.check(cpus)
    return it


def test_a_lender_has_its_nominal_amount_back_after_the_notice() -> None:
    """And the borrower keeps its own; nothing is stopped before the deadline, nor faster than
    allowed, nor more than is needed. [G1, D1, INV3, C7.1]
    """
    it = play()
    assert it.wrong == []
    assert it.stopped_ms


def test_the_notice_says_what_until_when_and_for_whom() -> None:
    """The borrower reads it in its own quota. [G1]"""
    it = Lent()
    it.come_back(4)
    it.run(3_000)
    notice = it.rig.get("quotas", "default", "borrower").status.reclaim
    assert notice.amounts == {"cpu": "4"}
    assert notice.lenders == 1
    assert (notice.deadline - notice.since).total_seconds() == NOTICE_S
    assert it.rig.get("quotas", "default", "lender").status.reclaim is None


def test_a_lender_that_gives_up_ends_the_reclaim() -> None:
    """No work is stopped for a lender that does not wait any more. [G1]"""
    it = Lent()
    replica = it.born("lender")
    it.place(replica)
    it.run(10_000)
    assert it.noticed_ms
    found = it.rig.get("replicas", replica.name, "lender")
    said = Pending(reasons={"NodeFull": 3}, message="no node has room")
    request = ReportPending(
        target(found), said, term=it.term, version=found.metadata.resource_version
    )
    accepted(it.rig.plane.ask(SCHEDULER, request))
    it.rig.run(5_000)
    assert it.rig.get("quotas", "default", "borrower").status.reclaim is None
    assert not it.stopping_ms


def test_lowering_a_quota_stops_nothing() -> None:
    """Only a lender that waits does. [INV3]"""
    it = Lent()
    it.run(BACK_MS)
    assert not it.stopping_ms
    assert it.rig.writes() == []


def test_work_in_large_pieces_is_taken_back_too() -> None:
    """The last piece may be larger than what is missing. [G1, INV3]"""
    it = Lent(size="4")
    it.come_back(4)
    it.run(BACK_MS)
    assert it.used("lender") == 4
    assert it.used("borrower") == 8
    assert it.wrong == []


def gang_of(replica: Any) -> str:
    return str(replica.spec.gang)


def test_a_gang_is_stopped_as_a_whole() -> None:
    """One that has lost a member that it needs is of no use: all its members go, and no other's.
    [G1, G5]
    """
    it = Lent(gangs=[Gang(min_available=3), Gang(min_available=3)])
    alone = [r for r in it.rig.all("replicas") if r.namespace == "borrower" and not r.spec.gang]
    for replica in alone:
        # It is ready, and so the gangs, which are still starting, are the smaller loss.
        it.ready(replica)
    it.come_back(2)
    it.run(NOTICE_S * 1_000 + 5_000)
    stopped = [r for r in it.rig.all("replicas") if r.metadata.uid in it.stopping_ms]
    assert len(stopped) == 3
    assert len({gang_of(r) for r in stopped}) == 1
    assert gang_of(stopped[0])
    assert it.wrong == []


def test_a_gang_larger_than_the_churn_limit_is_not_broken() -> None:
    """Stopping one member would end all of them, more than may be stopped in a minute. [G1, G5]"""
    it = Lent(gangs=[Gang(min_available=PER_MINUTE + 1)] * 3)
    it.come_back(6)
    it.run(BACK_MS)
    assert it.noticed_ms
    assert it.stopped_ms == []


def test_nothing_is_stopped_for_a_gang_that_could_not_start_by_it() -> None:
    """A gang that waits for more than its tenant's nominal amount would have to borrow. [G1, G5]"""
    it = Lent()
    workload = it.rig.plane.workload(
        "ring", "lender", template=template(cpu="1"), replicas=8, gang=Gang(min_available=8)
    )
    for ordinal in range(8):
        found = it.rig.plane.replica(workload, ordinal)
        said = Pending(reasons={"CohortExhausted": 8}, message="it needs 8 members at once")
        version = found.metadata.resource_version
        request = ReportPending(target(found), said, term=it.term, version=version)
        accepted(it.rig.plane.ask(SCHEDULER, request))
    it.rig.run(BACK_MS)
    assert [r for r in it.rig.all("replicas") if r.status.cause is Cause.RECLAIM] == []
    assert it.rig.get("quotas", "default", "borrower").status.reclaim is None


@pytest.mark.parametrize("fate", [DOWN, LOST_AFTER, LOST_BEFORE])
def test_every_request_may_fail_once(fate: str) -> None:
    """[C7.7, INV3]"""
    seen: set[str] = set()

    def once(ask: Any) -> str:
        # A notice that is given again has another time.
        body = ask.body
        what = repr(body.target) if isinstance(body, Evict) else repr(body.object.metadata)
        if what in seen:
            return DONE
        seen.add(what)
        return fate

    assert play(2, once).wrong == []


@pytest.mark.parametrize("write", range(1, 6))
def test_a_crash_after_any_write_changes_nothing(write: int) -> None:
    """Except that one more minute's worth may be stopped by the next process. [INV3]"""
    it = Lent(3)
    it.rig.crash_after = write
    it.come_back(6)
    it.run(BACK_MS)
    it.check(6)
    assert [line for line in it.wrong if "in a minute" not in line] == []
    assert (
        max((sum(a <= b < a + 58_000 for b in it.stopped_ms) for a in it.stopped_ms), default=0)
        <= 2 * PER_MINUTE
    )


def test_at_the_fixed_point_nothing_is_written() -> None:
    """[V4]"""
    it = play()
    it.rig.writes()
    it.run(60_000)
    assert it.rig.writes() == []


# Planted bugs ------------------------------------------------------------------------------------


def _borrowed_is_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "above_nominal", lambda ledger, tenant: {})


def _everything_is_borrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_it(ledger: QuotaLedger, tenant: str) -> dict[str, int]:
        return dict(ledger.used[tenant].hard) if tenant in ledger.used else {}

    monkeypatch.setattr(module, "above_nominal", all_of_it)
    monkeypatch.setattr(module, "cohort_used", lambda ledger, it: 12_000)


def _no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.notice_to
    monkeypatch.setattr(
        module,
        "notice_to",
        lambda quota, *more: module.msgspec.structs.replace(
            (made := real(quota, *more)), deadline=made.since
        ),
    )


def _no_churn_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.RecentStops, "left", lambda self, *more: 99)


def _forgets_what_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.RecentStops.left

    def forget(self: Any, *more: Any) -> int:
        self._stopped.clear()
        return real(self, *more)

    monkeypatch.setattr(module.RecentStops, "left", forget)


def _counts_stopping_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDING", ())


def _never_withdraws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "withdrawals", lambda quotas: ())


def _ignores_the_lender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.LenderClaims, "inside_nominal", lambda self, ledger: {})


def _stops_one_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.cohort_nominal
    monkeypatch.setattr(module, "cohort_nominal", lambda ledger, it: real(ledger, it) + 1_000)


def _stops_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.cohort_nominal
    monkeypatch.setattr(module, "cohort_nominal", lambda ledger, it: real(ledger, it) - 1_000)


BUGS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    _borrowed_is_own,
    _everything_is_borrowed,
    _no_notice,
    _no_churn_limit,
    _forgets_what_it_stopped,
    _counts_stopping_work,
    _never_withdraws,
    _ignores_the_lender,
    _stops_one_too_few,
    _stops_one_too_many,
)


@pytest.mark.parametrize("plant", BUGS)
def test_the_checks_find_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a few seeds, each of which is another amount and order."""
    plant(monkeypatch)
    assert any(play(seed).wrong for seed in range(1, 51)), plant.__name__


def test_the_commit_refuses_to_take_back_what_is_not_borrowed_or_not_announced() -> None:
    """Whatever the controller believes. [INV3, G1]"""
    it = Lent()
    plane, quotas = it.rig.plane, who.controller("quota")
    term = plane.term(quotas)
    victim = next(it for it in it.rig.all("replicas"))
    answer = plane.ask(quotas, Evict(target(victim), Cause.RECLAIM, "", term))
    assert "no notice of a reclaim" in answer.message
    it.come_back(6)
    it.run(NOTICE_S * 1_000 - 5_000)
    answer = plane.ask(quotas, Evict(target(victim), Cause.RECLAIM, "", term))
    assert "no notice of a reclaim whose deadline has passed" in answer.message
    assert above_nominal is allowance.above_nominal
