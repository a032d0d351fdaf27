"""What agents, servers and controller:nodes say to each other about who is alive.

A renewal is an observation and an answer, never a store write: a server keeps in memory whom it
heard, and controller:nodes asks every server for that. What makes a renewal worth something is the
answer: `Renewed` without a mark lets the agent's work run on (`model.fence` has the arithmetic).
"""

from __future__ import annotations

import msgspec

from holdfast.model.fence import FenceTiming
from holdfast.model.kinds.node import NodePhase


class Renew(msgspec.Struct, frozen=True, gc=False):
    """An agent says that it is alive, in this life of its node, and asks to be let run on."""

    node: str
    uid: str
    incarnation: int


class Renewed(msgspec.Struct, frozen=True):
    """What a linearizable read, sent within the ack window before this answer, showed of the node.

    Only an answer that `acknowledges` the life that asked moves its deadline; any other tells the
    agent where it stands. The timing is the plane's.
    """

    node: str
    uid: str
    incarnation: int
    phase: NodePhase
    mark: int
    timing: FenceTiming

    def is_of(self, renew: Renew) -> bool:
        """Whether the life that asked is the one on record."""
        asked = (renew.node, renew.uid, renew.incarnation)
        return (self.node, self.uid, self.incarnation) == asked

    def acknowledges(self, renew: Renew) -> bool:
        """Whether the work of the life that asked may run on."""
        is_trusted = self.phase in (NodePhase.READY, NodePhase.SUSPECT)
        return self.is_of(renew) and is_trusted and not self.mark


class HeardOf(msgspec.Struct, frozen=True, gc=False):
    """Ask one server whom it heard. For controller:nodes."""


class Heard(msgspec.Struct, frozen=True):
    """How long ago, in milliseconds, this server heard each node, and for how long it listens."""

    server: str
    listening_ms: int
    ages_ms: dict[str, int]
    timing: FenceTiming
