"""The request for a proposal."""

from __future__ import annotations

from holdfast.model.kinds.replica import Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.fit import Allocation
from holdfast.model.requests import Term
from holdfast.propose.bind_operation import bind_of
from holdfast.propose.feasibility.outcome import BindReplica
from tests.plane import template

TERM = Term("scheduler:one", 3)


def replica(number: int) -> Replica:
    meta = ObjectMeta(name="web-0-0", namespace="acme", uid="uid")
    spec = ReplicaSpec(workload="web", workload_uid="w", template=template())
    status = ReplicaStatus(state=State.PENDING, transition_number=number)
    return Replica(meta, spec=spec, status=status)


def test_the_same_intention_has_the_same_id_after_a_restart() -> None:
    """Another node, transition or scheduler is another intention. [E5]"""

    def made(node: str = "n", number: int = 4, who: str = "system:scheduler:one") -> str:
        held = Allocation(charge={})
        proposal = BindReplica(node, "uid-n", held, 1.0, {}, 1, {}, "p", 8, 12, node_revision=3)
        bind = bind_of(who, replica(number), proposal, TERM)
        assert (bind.policy, bind.snapshot_revision, bind.snapshot_age_ms) == ("p", 8, 12)
        assert bind.node_revision == 3
        return bind.operation

    ids = [made(), made("m"), made(number=5), made(who="system:scheduler:two")]
    assert len(set(ids)) == 4
    assert made() == ids[0]
