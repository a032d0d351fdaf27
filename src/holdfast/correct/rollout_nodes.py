"""One per node and its rollout: which nodes count at the moment.

Part of controller:rollout. A replica of one per node has its node and no other. While that takes
nothing new nobody could follow, so what is there is left as it is until the node takes work again;
and if it counted neither as there nor as missing, the next one would go at once. A place that the
rollout itself has emptied goes on counting: its node may have been closed since.
"""

from __future__ import annotations

from holdfast.correct.controller import View
from holdfast.correct.each_node import belongs, home_of, in_force, takes
from holdfast.correct.endings import vacates
from holdfast.model.disruption import is_available
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import RolloutStrategy, Workload
from holdfast.model.lifecycle import Cause


def led_on_nodes(view: View, workload: Workload, mine: list[Replica]) -> tuple[list[Replica], int]:
    """The replicas that a rollout leads, and on how many nodes there should be one."""
    is_recreate = workload.spec.rollout.strategy is RolloutStrategy.RECREATE
    nodes: list[Node] = list(view.all("nodes"))
    stated = in_force(view, workload)
    counted = {it.name for it in nodes if belongs(stated, it) and takes(view, stated, it)}
    if is_recreate:
        # All of them go, wherever they are, before anything is born.
        return [it for it in mine if home_of(it) in counted or not vacates(it)], len(counted)
    led = [it for it in mine if home_of(it) in counted or _was_emptied(it)]
    return led, len(counted | {home_of(it) for it in led})


def _was_emptied(replica: Replica) -> bool:
    """Whether a rollout has stopped it and nobody has followed yet; also out of contact since."""
    return replica.status.cause is Cause.ROLLOUT and not is_available(replica)
