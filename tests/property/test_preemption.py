"""Whatever the ledgers say and whatever a scheduler asks for, no illegal victim is stopped.

The oracle counts from the objects and spells the rule once more, so that it shares no mistake with
the commit.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commit.ledgers.recount import excesses, recount
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, PriorityClassSpec
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Refusal
from holdfast.model.requests import StopAndReserve
from holdfast.store.contract import KEY_END
from tests.furnished import every
from tests.plane import SCHEDULER, Plane, bind, target, template
from tests.scale import scaled

CLASSES = {
    "urgent": PriorityClassSpec(value=100, preempts=True),
    "usual": PriorityClassSpec(value=0),
    "high": PriorityClassSpec(value=50, preempts=True),
    "batch": PriorityClassSpec(value=60, capacity_class=CapacityClass.RECLAIMABLE),
    "spot": PriorityClassSpec(value=-10, capacity_class=CapacityClass.RECLAIMABLE),
}
TENANTS = ("acme", "globex")
NOMINAL = 4
CPUS = 21
Work = tuple[str, str, int]

# One tenant borrows more often than the other, so that there is something to take back.
works = st.tuples(
    st.sampled_from(("acme", "acme", "globex")),
    st.sampled_from(("usual", "usual", *CLASSES)),
    st.integers(1, 3),
)
fleets = st.lists(works, min_size=3, max_size=7)
picks = st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True)
asks = st.tuples(st.sampled_from(TENANTS), st.sampled_from(("urgent", "high", "usual")), picks)


class Contest:
    """A node that running work fills, and work that asks for the place of some of it."""

    def __init__(self, fleet: list[Work]) -> None:
        self.plane = plane = Plane()
        plane.region()
        for name, spec in CLASSES.items():
            plane.create(PriorityClass(ObjectMeta(name=name), spec=spec))
        quota = {"hard": {"cpu": NOMINAL}, "borrowing": {"cpu": NOMINAL}, "cohort": "house"}
        for tenant in TENANTS:
            plane.tenant(tenant)
            plane.quota(tenant, **quota)
        self.node = plane.node(capacity={"cpu": CPUS, "memory": "32Gi"})
        self.term = plane.term(SCHEDULER)
        self._count = 0
        pending = [self.pending(*work) for work in fleet]
        answers = [self.plane.ask(SCHEDULER, bind(it, self.node, self.term)) for it in pending]
        self.running = [
            self.plane.get(it)
            for it, answer in zip(pending, answers, strict=True)
            if not isinstance(answer, Refusal)
        ]
        # The rest of the node is taken, so that each victim is needed.
        plane.tenant("filler")
        left = CPUS - sum(_cpus(it) for it in self.running)
        if left:
            filler = self.pending("filler", "usual", left)
            assert not isinstance(plane.ask(SCHEDULER, bind(filler, self.node, self.term)), Refusal)

    def pending(self, tenant: str, name: str, cpu: int) -> Any:
        """A pending replica of a workload of its own."""
        self._count += 1
        made = template(cpu=str(cpu), memory="1Mi", priority_class=name)
        workload = self.plane.workload(f"w{self._count}", tenant, template=made)
        return self.plane.replica(workload)

    def preempt(self, replica: Any, victims: list[Any]) -> Any:
        request = StopAndReserve(
            target(self.plane.get(replica)),
            self.node.name,
            self.node.metadata.uid,
            tuple(target(self.plane.get(it)) for it in victims),
            self.term,
            self.plane.at(60),
        )
        return self.plane.ask(SCHEDULER, request)

    def committed(self, tenant: str, *, leaving: bool) -> int:
        """The committed cores of a tenant, promised ones too; `leaving` counts its victims."""
        running = [
            _cpus(it)
            for it in every(self.plane, Replica)
            if it.namespace == tenant
            and it.status.binding is not None
            and it.status.binding.capacity_class == "hard"
            and (leaving or it.status.cause is not Cause.PREEMPTION)
        ]
        promised = [
            it.status.claims[0].charge["cpu"] // 1000
            for it in every(self.plane, Reservation)
            if it.namespace == tenant and it.spec.quota and it.spec.capacity_class.value == "hard"
        ]
        return sum(running) + sum(promised)


def _cpus(replica: Any) -> int:
    return int(replica.status.binding.charge["cpu"]) // 1000


def is_legal(preemptor: Any, victim: Any, lender: int, before: dict[str, int]) -> bool:
    """The rule. `lender` is what the preemptor's tenant would have, `before` what each tenant has
    of committed cores before this victim.
    """
    spec = CLASSES[preemptor.spec.template.priority_class]
    if not spec.preempts:
        return False
    if victim.status.binding.capacity_class == "reclaimable":
        return bool(victim.spec.priority < preemptor.spec.priority)
    is_lender = preemptor.namespace != victim.namespace
    return is_lender and lender <= NOMINAL and before[victim.namespace] > NOMINAL


@settings(max_examples=scaled(150, 2_000), deadline=None)
@given(fleets, st.lists(asks, min_size=1, max_size=4))
def test_no_illegal_victim_is_ever_accepted(
    fleet: list[Work], asked: list[tuple[str, str, list[int]]]
) -> None:
    """Of several preemptions after each other, too: what victims still hold is given back.
    [G1, G4, C6.8, D3]"""
    contest = Contest(fleet)
    for tenant, name, chosen in asked:
        victims = [contest.running[it] for it in chosen if it < len(contest.running)]
        # It takes exactly what they hold.
        cpu = sum(_cpus(it) for it in victims)
        if not 0 < cpu <= 2 * NOMINAL:
            continue
        preemptor = contest.pending(tenant, name, cpu)
        before = {each: contest.committed(each, leaving=False) for each in TENANTS}
        lender = contest.committed(tenant, leaving=True) + cpu
        states = [contest.plane.get(it).status.state for it in victims]
        answer = contest.preempt(preemptor, victims)
        records = contest.plane.store.range("", KEY_END).records
        assert recount(records) == []
        assert excesses(records) == []
        after = [contest.plane.get(it) for it in victims]
        if isinstance(answer, Refusal):
            assert [it.status.state for it in after] == states, "a refusal stops nothing"
            continue
        assert {it.status.state for it in after} == {State.STOPPING}
        for it in victims:
            facts = preemptor.spec.priority, it.spec.priority, it.status.binding.capacity_class
            assert is_legal(preemptor, it, lender, before), (it.name, before, lender, facts)
            if it.status.binding.capacity_class == "hard":
                before[it.namespace] -= _cpus(it)
