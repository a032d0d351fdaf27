"""Heartbeat messages between agents, servers and controller:nodes.

A renewal is never a store write: a server keeps the time of each node's last renewal in memory, and
servers exchange these times. controller:nodes queries any server and receives the times of all. The
answer matters: a `Renewed` without a mark lets the agent's work run on (`model/nodes/fence.py` has
the arithmetic).

The servers are known by their leases in the store, which each server renews: the scope is
`server:NAME`, and the instance distinguishes successive processes.

With a renewal an agent also reports its progress on work whose status the servers have not
acknowledged yet. No component decides by it: `explain/on_node.py` shows users whether the agent has
seen a binding and whether a status is behind.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.model.kinds.node import NodePhase
from holdfast.model.nodes.fence import FenceTiming

# An agent reports progress on at most this much work; more is in progress only briefly.
NOTES_MAX = 32

# For how long a zone of which most nodes are silent is held back: a setting of the plane. With the
# fence afterwards, work that fell silent with its zone is replaced within 300 seconds. It is longer
# than a server takes to restart.
ZONE_SILENCE_MAX_MS = 90_000
# A shorter wait would be over before all nodes of a zone count as silent.
ZONE_SILENCE_LEAST_MS, ZONE_SILENCE_MOST_MS = 1_000, 86_400_000


class WorkProgress(StrEnum):
    """An agent's progress on work whose status does not show it yet."""

    # The agent has seen the binding; nothing runs yet.
    STARTING = "starting"
    RUNS = "running"
    # It ran, and has ended.
    ENDED = "ended"


class ProgressNote(msgspec.Struct, frozen=True, gc=False):
    """The progress on one replica, by its uid."""

    uid: Annotated[str, Meta(max_length=63)]
    doing: WorkProgress


class ProgressNotes(msgspec.Struct, frozen=True, omit_defaults=True):
    """All unacknowledged progress of an agent; `more` counts what does not fit."""

    notes: Annotated[tuple[ProgressNote, ...], Meta(max_length=NOTES_MAX)] = ()
    more: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


# An agent sends samples of at most this much work, the largest first; the sums include the rest.
SAMPLES_MAX = 256
_Amount = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]


class ReplicaUse(msgspec.Struct, frozen=True, gc=False):
    """What one replica used when it was last sampled: thousandths of a CPU, and bytes."""

    uid: Annotated[str, Meta(max_length=63)]
    cpu_milli: _Amount
    memory_bytes: _Amount


class NodeUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the work of a node used when it was last sampled.

    cpu_milli, memory_bytes: of all work together.
    source: where it was read: cgroup-v1, cgroup-v2 or proc, for memory.
    replicas: of single replicas; `more` counts those that are left out.
    """

    cpu_milli: _Amount
    memory_bytes: _Amount
    source: Annotated[str, Meta(max_length=63)] = ""
    replicas: Annotated[tuple[ReplicaUse, ...], Meta(max_length=SAMPLES_MAX)] = ()
    more: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class SeenUse(msgspec.Struct, frozen=True, gc=False):
    """The last sample of a node's work as a server knows it."""

    age_ms: int
    cpu_milli: int
    memory_bytes: int


class Renew(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent renews its node, in this incarnation, so that its work may run on.

    `use` is a new sample of what its work uses, if there is one; no component decides by it.
    """

    node: str
    uid: str
    incarnation: int
    said: ProgressNotes = ProgressNotes()
    use: NodeUse | None = None


class Renewed(msgspec.Struct, frozen=True):
    """The node as read by a linearizable read, sent within the ack window before this answer.

    Only an answer that `acknowledges` the agent's incarnation extends its deadline; any other tells
    the agent the node's state. `timing` is the plane's timing, limited by the node's record;
    `wanted` is the plane's timing if the record differs from it.
    """

    node: str
    uid: str
    incarnation: int
    phase: NodePhase
    mark: int
    timing: FenceTiming
    wanted: FenceTiming | None = None

    def is_of(self, renew: Renew) -> bool:
        """Whether the renewal came from the recorded incarnation."""
        asked = (renew.node, renew.uid, renew.incarnation)
        return (self.node, self.uid, self.incarnation) == asked

    def acknowledges(self, renew: Renew) -> bool:
        """Whether the work of that incarnation may run on."""
        is_trusted = self.phase in (NodePhase.READY, NodePhase.SUSPECT)
        return self.is_of(renew) and is_trusted and not self.mark


class HeartbeatQuery(msgspec.Struct, frozen=True, gc=False):
    """Asks a server for its heartbeat report. From controller:nodes and the other servers.

    node: of this node also what single replicas use, if this server itself received its samples.
    """

    node: str = ""


class ServerLease(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lease of a server in the store. `life` is empty if the lease was released."""

    server: str
    life: str
    epoch: int
    renewals: int
    duration_ms: int
    address: str = ""
    version: str = ""


class ServerRoster(msgspec.Struct, frozen=True):
    """All servers by their leases, from a linearizable read that was sent `age_ms` ago.

    `idle_ms` is how long the reading server has seen no renewal of each lease. It is for users: a
    component that decides by it counts on its own clock.
    """

    age_ms: int
    servers: tuple[ServerLease, ...]
    idle_ms: dict[str, int] = {}

    def expired_servers(self) -> dict[str, int]:
        """The servers whose leases expired without a release, each with the time since renewal."""
        return {
            it.server: self.idle_ms[it.server]
            for it in self.servers
            if it.life and self.idle_ms.get(it.server, 0) >= it.duration_ms
        }


class ServerReport(msgspec.Struct, frozen=True):
    """States that a report includes one server's heartbeats: their age, and how long it listens.

    The absence of a node from a report means something only for servers that are included. `heard`
    is how many nodes renewed at this server itself of late.
    """

    server: str
    life: str
    age_ms: int
    listening_ms: int
    timing: FenceTiming
    heard: int = 0


class HeartbeatReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The age of each node's last renewal in milliseconds, and how long this server listens.

    `said` holds the progress notes of agents that sent any. `words` are the reports of the other
    servers that are included; `life` distinguishes this process from earlier ones of its name.
    `used` is what the work of each node used, `replicas` that of single replicas of one node.
    `heard` is how many nodes renewed at this server itself of late. `zone_silence_max_ms` is the
    plane's setting.
    """

    server: str
    listening_ms: int
    ages_ms: dict[str, int]
    timing: FenceTiming
    said: dict[str, ProgressNotes] = {}
    life: str = ""
    words: tuple[ServerReport, ...] = ()
    roster: ServerRoster | None = None
    used: dict[str, SeenUse] = {}
    replicas: tuple[ReplicaUse, ...] = ()
    heard: int = 0
    zone_silence_max_ms: int = ZONE_SILENCE_MAX_MS

    def all_words(self) -> tuple[ServerReport, ...]:
        """The reports of all included servers, its own first."""
        own = ServerReport(self.server, self.life, 0, self.listening_ms, self.timing, self.heard)
        return (own, *self.words)


# More servers than any plane has; leases beyond this are removed early.
SERVERS_MAX = 64
_SERVER_SCOPE = "server:"
# A server's lease at the usual timing, and the least for planes whose times are very short.
_SERVER_LEASE_MAX_MS, _SERVER_LEASE_MIN_MS = 15_000, 3_000
_EXCHANGE_MAX_MS, _EXCHANGE_MIN_MS = 2_500, 100


def server_scope(server: str) -> str:
    """The scope of a server's lease."""
    return _SERVER_SCOPE + server


def server_of_scope(scope: str) -> str:
    """The server whose lease has this scope; empty for any other lease."""
    return scope.removeprefix(_SERVER_SCOPE) if scope.startswith(_SERVER_SCOPE) else ""


def server_lease_ms(timing: FenceTiming) -> int:
    """How long a server counts after its last lease renewal.

    This is less than a node may be silent before it is marked, so that the loss of a server hardly
    delays the decision about a node.
    """
    wanted_ms = timing.renew_every_ms * 3 // 2
    return min(_SERVER_LEASE_MAX_MS, max(_SERVER_LEASE_MIN_MS, wanted_ms))


def exchange_every_ms(timing: FenceTiming) -> int:
    """How often servers query each other's reports, and controller:nodes queries them."""
    return min(_EXCHANGE_MAX_MS, max(_EXCHANGE_MIN_MS, timing.renew_every_ms // 4))
