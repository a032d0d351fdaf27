"""What agents, servers and controller:nodes say to each other about who is alive.

A renewal is an observation and an answer, never a store write: a server keeps in memory whom it
heard, and controller:nodes asks every server for that. What makes a renewal worth something is the
answer: `Renewed` without a mark lets the agent's work run on (`model.fence` has the arithmetic).

With a renewal an agent also says how far it is with work of which the servers have not acknowledged
that. Nothing is decided by it: it tells people whether a binding was seen, and whether status is
behind (`explain/on_node.py`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.model.fence import FenceTiming
from holdfast.model.kinds.node import NodePhase

# Of so much work an agent says how far it is; more than this is under way only for a moment.
NOTES_MAX = 32


class Doing(StrEnum):
    """How far an agent is with work of which status does not say so yet."""

    # It knows of the binding, and nothing runs.
    STARTING = "starting"
    RUNS = "running"
    # It ran, and does not any more.
    ENDED = "ended"


class Note(msgspec.Struct, frozen=True, gc=False):
    """How far an agent is with one replica, by its uid."""

    uid: Annotated[str, Meta(max_length=63)]
    doing: Doing


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of which an agent has no acknowledgement yet; `more` counts what has no room here."""

    notes: Annotated[tuple[Note, ...], Meta(max_length=NOTES_MAX)] = ()
    more: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class Renew(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent says that it is alive, in this life of its node, and asks to be let run on."""

    node: str
    uid: str
    incarnation: int
    said: Said = Said()


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


class Heard(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long ago, in milliseconds, this server heard each node, and for how long it listens.

    `said` is what agents said then, of those that said anything.
    """

    server: str
    listening_ms: int
    ages_ms: dict[str, int]
    timing: FenceTiming
    said: dict[str, Said] = {}
