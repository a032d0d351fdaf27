"""What agents, servers and controller:nodes say to each other about who is alive.

A renewal is an observation and an answer, never a store write: a server keeps in memory whom it
heard, and servers tell each other. controller:nodes asks any of them and hears of all. What makes a
renewal worth something is the answer: `Renewed` without a mark lets the agent's work run on
(`model.fence` has the arithmetic).

Which servers there are is known by their leases, which each of them renews in the store: the scope
is `server:NAME`, the instance tells one life of the process from the next.

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


class WorkProgress(StrEnum):
    """How far an agent is with work of which status does not say so yet."""

    # It knows of the binding, and nothing runs.
    STARTING = "starting"
    RUNS = "running"
    # It ran, and does not any more.
    ENDED = "ended"


class ProgressNote(msgspec.Struct, frozen=True, gc=False):
    """How far an agent is with one replica, by its uid."""

    uid: Annotated[str, Meta(max_length=63)]
    doing: WorkProgress


class ProgressNotes(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of which an agent has no acknowledgement yet; `more` counts what has no room here."""

    notes: Annotated[tuple[ProgressNote, ...], Meta(max_length=NOTES_MAX)] = ()
    more: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class Renew(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent says that it is alive, in this life of its node, and asks to be let run on."""

    node: str
    uid: str
    incarnation: int
    said: ProgressNotes = ProgressNotes()


class Renewed(msgspec.Struct, frozen=True):
    """What a linearizable read, sent within the ack window before this answer, showed of the node.

    Only an answer that `acknowledges` the life that asked moves its deadline; any other tells the
    agent where it stands. The timing is the plane's, limited to what the node's record allows;
    `wanted` is the plane's where the record differs from it.
    """

    node: str
    uid: str
    incarnation: int
    phase: NodePhase
    mark: int
    timing: FenceTiming
    wanted: FenceTiming | None = None

    def is_of(self, renew: Renew) -> bool:
        """Whether the life that asked is the one on record."""
        asked = (renew.node, renew.uid, renew.incarnation)
        return (self.node, self.uid, self.incarnation) == asked

    def acknowledges(self, renew: Renew) -> bool:
        """Whether the work of the life that asked may run on."""
        is_trusted = self.phase in (NodePhase.READY, NodePhase.SUSPECT)
        return self.is_of(renew) and is_trusted and not self.mark


class HeartbeatQuery(msgspec.Struct, frozen=True, gc=False):
    """Ask a server whom it heard. For controller:nodes, and for the other servers."""


class ServerLease(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lease of a server as the store had it. `life` is empty where it was given back."""

    server: str
    life: str
    epoch: int
    renewals: int
    duration_ms: int
    address: str = ""
    version: str = ""


class ServerRoster(msgspec.Struct, frozen=True):
    """All servers by their leases, from a linearizable read that was sent so long ago.

    `idle_ms` is for how long the server that read it has not seen each lease move. It is for
    people: whoever decides by it counts on a clock of his own.
    """

    age_ms: int
    servers: tuple[ServerLease, ...]
    idle_ms: dict[str, int] = {}

    def expired(self) -> dict[str, int]:
        """The servers that did not renew their leases for as long as those last, nor gave them
        back: for how long they have not."""
        return {
            it.server: self.idle_ms[it.server]
            for it in self.servers
            if it.life and self.idle_ms.get(it.server, 0) >= it.duration_ms
        }


class ServerReport(msgspec.Struct, frozen=True):
    """What one server heard is in an answer, as of so long ago, and for how long it listens.

    Only with its word does the absence of a node from an answer say something.
    """

    server: str
    life: str
    age_ms: int
    listening_ms: int
    timing: FenceTiming


class HeartbeatReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long ago, in milliseconds, each node was heard, and for how long this server listens.

    `said` is what agents said then, of those that said anything. `words` are of the other servers
    whose hearing is in here, too; `life` tells this process from an earlier one of its name.
    """

    server: str
    listening_ms: int
    ages_ms: dict[str, int]
    timing: FenceTiming
    said: dict[str, ProgressNotes] = {}
    life: str = ""
    words: tuple[ServerReport, ...] = ()
    roster: ServerRoster | None = None

    def all_words(self) -> tuple[ServerReport, ...]:
        """The words of all servers whose hearing this answer holds, its own first."""
        own = ServerReport(self.server, self.life, 0, self.listening_ms, self.timing)
        return (own, *self.words)


# More servers than any plane has; leases beyond this are cleared away early.
SERVERS_MAX = 64
_SERVER_SCOPE = "server:"
# A server's lease at the usual timing, and the least for planes whose times are very short.
_SERVER_LEASE_MAX_MS, _SERVER_LEASE_MIN_MS = 15_000, 3_000
_EXCHANGE_MAX_MS, _EXCHANGE_MIN_MS = 2_500, 100


def server_scope(server: str) -> str:
    """The scope of a server's lease."""
    return _SERVER_SCOPE + server


def server_of_scope(scope: str) -> str:
    """The server whose lease has this scope; nothing for any other lease."""
    return scope.removeprefix(_SERVER_SCOPE) if scope.startswith(_SERVER_SCOPE) else ""


def server_lease_ms(timing: FenceTiming) -> int:
    """For how long a server that does not renew its lease still counts: less than a node may be
    silent before it is marked, so that the loss of a server hardly delays the word on a node."""
    wanted_ms = timing.renew_every_ms * 3 // 2
    return min(_SERVER_LEASE_MAX_MS, max(_SERVER_LEASE_MIN_MS, wanted_ms))


def exchange_every_ms(timing: FenceTiming) -> int:
    """How often servers ask each other whom they heard, and controller:nodes asks them."""
    return min(_EXCHANGE_MAX_MS, max(_EXCHANGE_MIN_MS, timing.renew_every_ms // 4))
