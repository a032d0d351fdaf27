"""Gangs of eight on a thousand nodes: members bound a second, beside the same work without gangs.

Both are CPU time inside the steps of one scheduler that is played (`bench/played.py`), with the
same replicas on the same nodes, one run after the other, so that a busy machine counts for both.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bench.decisions import replicas_of, template_of
from bench.harness import figure
from bench.played import Played
from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Gang, Workload, WorkloadSpec
from holdfast.model.machine import Pushed
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import Accepted, BindTogether
from holdfast.observe.watch_events import Present, Reached

NODES, GANGS, SIZE = 1_000, 400, 8


class PlayedGangs(Played):
    """A played scheduler whose authority also binds several at once."""

    def know(self, workloads: list[Workload]) -> None:
        """Show these workloads to the scheduler."""
        self.revision += len(workloads)
        events = tuple(Present(it, self.revision) for it in workloads)
        stream = self.streams["workloads"]
        self.step(Pushed(stream, (*events, Reached(self.revision))))

    def _answer(self, request: Any, bound: list[Replica]) -> Any:
        if not isinstance(request, BindTogether):
            return super()._answer(request, bound)
        members = tuple(versioned(self._bound(it), self.revision) for it in request.binds)
        self.binds += len(members)
        bound += members
        return Accepted(self.revision, members)


def versioned(replica: Replica, revision: int) -> Replica:
    """The replica as it was written at this revision."""
    metadata = msgspec.structs.replace(replica.metadata, resource_version=object_version(revision))
    return msgspec.structs.replace(replica, metadata=metadata)


def rate(*, gangs: bool) -> float:
    """Members bound a second of CPU time of the scheduler."""
    spec = NodeSpec(capacity={"cpu": "16", "memory": "64Gi"})
    nodes = [Node(ObjectMeta(name=f"node-{n}", uid=f"n{n}"), spec=spec) for n in range(NODES)]
    played = PlayedGangs(nodes, ["acme"])
    template = template_of()
    work: list[Replica] = []
    workloads: list[Workload] = []
    for number in range(GANGS):
        name = f"ring-{number}"
        members = [versioned(it, 1) for it in replicas_of(template, SIZE, name)]
        if gangs:
            meta = ObjectMeta(name=name, namespace="acme", uid=name)
            made = WorkloadSpec(template, replicas=SIZE, gang=Gang(min_available=SIZE))
            workloads.append(Workload(meta, spec=made))
            members = [
                msgspec.structs.replace(it, spec=msgspec.structs.replace(it.spec, gang=name))
                for it in members
            ]
        work += members
    played.know(workloads)
    before_s = played.spent_s
    played.submit(work)
    played.settle()
    assert played.binds == GANGS * SIZE, played.binds
    return played.binds / (played.spent_s - before_s)


def main() -> None:
    """Print the figure."""
    plain, together = rate(gangs=False), rate(gangs=True)
    plain = max(plain, rate(gangs=False))
    together = max(together, rate(gangs=True))
    figure(
        "gang.basic.rate",
        together,
        "members/s",
        peer="the same replicas without gangs",
        peer_value=plain,
        goal="ratio >= 0.5",
    )


if __name__ == "__main__":
    main()
