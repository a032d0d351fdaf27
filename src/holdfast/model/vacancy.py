"""When the place of a replica may be taken by the next incarnation.

controller:workload asks for the birth by this rule, and the commit lets it happen by the same.
"""

from __future__ import annotations

from holdfast.model.identity import NODE_PREFIX
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import State

# The reason of a step that controller:repair takes because the node lives in another life.
NODE_RETURNED = "NodeReturned"


def vacates(replica: Replica) -> bool:
    """Whether its place may be taken: it was released, or its owner does not want to wait for it.

    The latter is `keep` work out of contact that was given up after replaceAfter. It may still run
    beside its successor; whoever wants that asked for it.
    """
    state, steps = replica.status.state, replica.status.transitions
    if state is not State.FAILED or replica.spec.template.on_disconnect is not OnDisconnect.KEEP:
        return state is State.RELEASED
    last = steps[-1]
    # One whose agent has told how it ended, or whose node is back in another life, will also be
    # proven to have stopped, and soon.
    is_back = last.by.startswith(NODE_PREFIX) or last.reason == NODE_RETURNED
    return last.from_state is State.UNKNOWN and not is_back
