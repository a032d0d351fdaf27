"""One per node and its rollout: which nodes count at the moment.

Part of controller:rollout. A replica of one per node has its node and no other. While that takes
nothing new nobody could follow, so what works there is left as it is until the node takes work
again, and is no ground to stop another one either. What is missing there counts: a replica that
does not work, and a place that the rollout itself has emptied; its node may have been closed since.
Only what ended there for other reasons is not waited for.
"""

from __future__ import annotations

from holdfast.correct.controller import View
from holdfast.correct.each_node import belongs, in_force, takes
from holdfast.model.disruption import is_available
from holdfast.model.homes import home_of
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import RolloutStrategy, Workload
from holdfast.model.lifecycle import Cause
from holdfast.model.vacancy import vacates


def led_on_nodes(view: View, workload: Workload, mine: list[Replica]) -> tuple[list[Replica], int]:
    """The replicas that a rollout leads, and on how many nodes there should be one."""
    is_recreate = workload.spec.rollout.strategy is RolloutStrategy.RECREATE
    nodes: list[Node] = list(view.all("nodes"))
    stated = in_force(view, workload)
    counted = {it.name for it in nodes if belongs(stated, it) and takes(view, stated, it)}
    if is_recreate:
        # All of them go, wherever they are, before anything is born.
        return [it for it in mine if home_of(it) in counted or not vacates(it)], len(counted)
    led = [it for it in mine if home_of(it) in counted or _is_missing(it)]
    return led, len(counted | {home_of(it) for it in led})


def _is_missing(replica: Replica) -> bool:
    """Whether its place counts as missing on a node that takes nothing new."""
    if vacates(replica):
        return replica.status.cause is Cause.ROLLOUT
    return not is_available(replica)
