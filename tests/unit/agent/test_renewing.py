"""When an agent renews: as often as the plane wants it, from its first answer on."""

from __future__ import annotations

import random

from holdfast.agent.renewing import Echo, Life, Renewing
from holdfast.model.fence import FenceTiming
from holdfast.model.heartbeat import Renewed
from holdfast.model.kinds.node import NodePhase


def test_a_plane_that_wants_to_be_told_more_often_is_obeyed_at_once() -> None:
    """A second renewal after the usual time would come after the deadline of the first. [H3]"""
    renewing = Renewing("n1", random.Random(1))
    renewing.begin(Life("u", 1), 1_000)
    renew = renewing.due(1_000)
    assert renew is not None
    timing = FenceTiming(self_stop_after_ms=6_000)
    answer = Renewed("n1", "u", 1, NodePhase.READY, 0, timing)
    assert renewing.answered(renew, answer, 1_000, 1_050) is Echo.ACKNOWLEDGED
    assert renewing.next_ms == 1_000 + timing.renew_every_ms
    assert renewing.deadline_ms == 7_000
