"""Whatever the ledgers say and whatever a scheduler asks for, no illegal victim is stopped.

The oracle counts from the objects and spells the rule once more, so that it shares no mistake with
the commit.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.commit.ledgers.recount import excesses, recount
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Intent, Reservation
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, PriorityClassSpec
from holdfast.model.kinds.workload import Gang, Workload
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Refusal
from holdfast.model.requests import BindTogether, PromisedPlace, StopAndReserve
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
            if it.namespace == tenant
            and it.spec.intent is Intent.PREEMPTION
            and it.spec.quota
            and it.spec.capacity_class.value == "hard"
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


# Several nodes, and gangs on both sides -----------------------------------------------------------

NODES = 3
NODE_CPUS = 12
# Tenant, class, size, on which node each starts, and how many of a gang are needed; 0 is no gang.
Group = tuple[str, str, list[int], int]

groups = st.tuples(
    st.sampled_from(("acme", "acme", "globex")),
    st.sampled_from(("batch", "spot", "spot", "spot", "usual", "usual", "high")),
    st.lists(st.integers(0, NODES - 1), min_size=1, max_size=4),
    st.integers(0, 4),
)
# Who asks, in which class, which victims, how many more or fewer members than room, and how many
# of them the gang needs less than all.
gang_asks = st.tuples(
    st.sampled_from(TENANTS),
    st.sampled_from(("urgent", "urgent", "urgent", "high", "usual")),
    st.lists(st.integers(0, 11), min_size=1, max_size=5, unique=True),
    st.sampled_from((0, 0, 0, 0, 1, -1)),
    st.integers(-1, 2),
)


class WideContest(Contest):
    """Nodes that running work fills, gangs among it, and gangs that ask for the place of some."""

    def __init__(self, fleet: list[Group]) -> None:
        super().__init__([])
        self.running = []
        capacity = {"cpu": NODE_CPUS, "memory": "32Gi"}
        self.nodes = [self.plane.node(f"wide-{n}", capacity=capacity) for n in range(NODES)]
        for tenant, name, where, least in fleet:
            workload = self.workload(tenant, name, len(where), min(least, len(where)))
            made = [self.plane.replica(workload, n) for n in range(len(where))]
            binds = tuple(
                bind(it, self.nodes[n], self.term) for it, n in zip(made, where, strict=True)
            )
            answer = self.plane.ask(SCHEDULER, BindTogether(binds))
            if not isinstance(answer, Refusal):
                self.running += [self.plane.get(it) for it in made]
        for node in self.nodes:
            left = NODE_CPUS - self.used(node)
            if left:
                filler = self.plane.replica(self.workload("filler", "usual", 1, 0, cpu=left))
                bound = self.plane.ask(SCHEDULER, bind(filler, node, self.term))
                assert not isinstance(bound, Refusal)

    def workload(self, tenant: str, name: str, size: int, least: int, cpu: int = 1) -> Any:
        self._count += 1
        made = template(cpu=str(cpu), memory="1Mi", priority_class=name)
        gang = Gang(min_available=least) if least else None
        return self.plane.workload(
            f"w{self._count}", tenant, template=made, replicas=size, gang=gang
        )

    def used(self, node: Any, *, leaving: bool = True) -> int:
        return sum(
            _cpus(it)
            for it in every(self.plane, Replica)
            if it.status.binding is not None
            and it.status.binding.node == node.name
            and (leaving or it.status.cause is not Cause.PREEMPTION)
        )

    def promised(self, node: Any) -> int:
        claims = [claim for it in every(self.plane, Reservation) for claim in it.status.claims]
        open_ = [it for it in claims if it.node == node.name and not it.consumed]
        return sum(it.charge["cpu"] // 1000 for it in open_)

    def ask_for(self, tenant: str, name: str, victims: list[Any], extra: int, spare: int) -> Any:
        """A gang of one-core members that takes what these hold; None if it would have none."""
        nodes = [it.status.binding.node for it in victims]
        if extra > 0:
            nodes.append(nodes[0])
        nodes = nodes[-extra if extra < 0 else 0 :]
        if not nodes:
            return None
        least = max(1, len(nodes) - spare)
        workload = self.workload(tenant, name, max(least, len(nodes)), least)
        members = [self.plane.replica(workload, n) for n in range(len(nodes))]
        uids = {it.name: it.metadata.uid for it in self.nodes}
        first, *rest = (
            PromisedPlace(target(it), node, uids[node])
            for it, node in zip(members, nodes, strict=True)
        )
        request = StopAndReserve(
            first.target,
            first.node,
            first.node_uid,
            tuple(target(self.plane.get(it)) for it in victims),
            self.term,
            self.plane.at(60),
            members=tuple(rest),
        )
        return workload, members, request

    def gangs(self) -> dict[str, int]:
        """How many members of each gang run on, by the uid of its workload."""
        found: dict[str, int] = {}
        for it in every(self.plane, Replica):
            if it.spec.gang and it.status.state in (State.BOUND, State.STOPPING):
                runs = it.status.state is State.BOUND
                found[it.spec.workload_uid] = found.get(it.spec.workload_uid, 0) + runs
        return found


def test_no_gang_is_split_below_its_minimum_or_gets_less_room_than_it_needs() -> None:
    """For gangs that preempt over several nodes, and gangs of which members are victims; each
    victim is legal, and tenants stay inside their quota. [G1, G4, G5, C6.8, D3]"""
    outcomes = {"accepted": 0, "shrunk": 0, "ended": 0, "refused": 0, "split": 0}

    # A gang is ended, split and shrunk in every run.
    @example([("acme", "spot", [0, 0, 1], 3)], [("acme", "urgent", [0, 1, 2], 0, 0)])
    @example([("acme", "spot", [0, 0, 1], 3)], [("acme", "urgent", [0, 1], 0, 0)])
    @example([("acme", "spot", [0, 0, 1], 1)], [("acme", "urgent", [0, 2], 0, 0)])
    @settings(max_examples=scaled(150, 2_000), deadline=None)
    @given(
        st.lists(groups, min_size=2, max_size=6),
        st.lists(gang_asks, min_size=1, max_size=3),
    )
    def contend(fleet: list[Group], asked: list[tuple[str, str, list[int], int, int]]) -> None:
        contest = WideContest(fleet)
        for tenant, name, chosen, extra, spare in asked:
            victims = [contest.running[it] for it in chosen if it < len(contest.running)]
            made = contest.ask_for(tenant, name, victims, extra, spare) if victims else None
            if made is None:
                continue
            _judge(contest, tenant, victims, made, outcomes)

    contend()
    assert all(outcomes.values()), outcomes


def _judge(
    contest: WideContest, tenant: str, victims: list[Any], made: Any, outcomes: dict[str, int]
) -> None:
    workload, members, request = made
    before = {each: contest.committed(each, leaving=False) for each in TENANTS}
    lender = contest.committed(tenant, leaving=True) + len(members)
    states = [contest.plane.get(it).status.state for it in victims]
    ran = contest.gangs()
    promises = len(every(contest.plane, Reservation))
    answer = contest.plane.ask(SCHEDULER, request)
    records = contest.plane.store.range("", KEY_END).records
    assert recount(records) == []
    assert excesses(records) == []
    after = [contest.plane.get(it) for it in victims]
    for node in contest.nodes:
        kept = contest.used(node, leaving=False) + contest.promised(node)
        assert kept <= NODE_CPUS, "more is promised than the victims leave"
    if isinstance(answer, Refusal):
        assert [it.status.state for it in after] == states, "a refusal stops nothing"
        assert len(every(contest.plane, Reservation)) == promises, "and promises nothing"
        outcomes["refused"] += 1
        outcomes["split"] += answer.details.get("rule") == "Gang"
        return
    assert {it.status.state for it in after} == {State.STOPPING}
    assert len(members) >= workload.spec.gang.min_available
    for it in victims:
        assert is_legal(members[0], it, lender, before), (it.name, before, lender)
        if it.status.binding.capacity_class == "hard":
            before[it.namespace] -= _cpus(it)
    outcomes["accepted"] += 1
    least = {
        it.metadata.uid: it.spec.gang.min_available
        for it in every(contest.plane, Workload)
        if it.spec.gang is not None
    }
    for uid, runs in contest.gangs().items():
        if runs < ran[uid]:
            assert not 0 < runs < least[uid], "too few of a gang run on"
            outcomes["shrunk" if runs else "ended"] += 1
