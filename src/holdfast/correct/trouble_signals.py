"""What each signal of trouble may decide, as data.

A signal is an observation: it may be late, wrong, or about the observer. The stronger the step, the
stronger the evidence that it needs; everything else waits, and reports what it waits for.
`make signals-page` prints this into docs/signals.md. A test plays each row on the real machines and
checks that their requests stay within it (`act_of` names the act of each request).
"""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.endpoints import Endpoints
from holdfast.model.kinds.event import Event
from holdfast.model.kinds.replica import Replica
from holdfast.model.registry import kind_of
from holdfast.model.requests import (
    Bind,
    Create,
    Evict,
    JudgeNode,
    Move,
    Remove,
    ReportPending,
    ReportStage,
    Request,
    Update,
)

# Every component may always report what it observes.
TELL = "tell"
SUSPECT, TRUST, MARK, CLEAR, FENCE = "suspect", "trust", "mark", "clear", "fence"
CREATE, REMOVE, BIND, EVICT = "create", "remove", "bind", "evict"
UNKNOWN, FAILED, RELEASED = "to Unknown", "to Failed", "to Released"


def act_of(request: Request) -> str:
    """The name of what a request does to work."""
    match request:
        case JudgeNode(word=action):
            return str(action.value).lower()
        case Move(to=to):
            return f"to {to.value}"
        case Evict():
            return EVICT
        case Bind():
            return BIND
        case ReportPending() | ReportStage():
            return TELL
        case Update(subresource="status") | Create(object=Event() | Endpoints()):
            return TELL
        case Update(object=Event() | Endpoints()):
            return TELL
        case Create(object=Replica()):
            return CREATE
        case Create(object=obj) | Update(object=obj):
            return f"write {kind_of(obj).name}"
        case Remove(plural=plural):
            return REMOVE if plural == "replicas" else f"remove {plural}"
    return type(request).__name__


class Signal(msgspec.Struct, frozen=True):
    """One row.

    `seen_by` observes it, on its own clock. `may` are the acts that it justifies at most, besides
    reporting; `not_by_itself` is what it must never lead to alone, and `because` why it is
    ambiguous.
    """

    name: str
    seen_by: str
    may: tuple[str, ...]
    not_by_itself: str
    because: str


_LOST = (SUSPECT, MARK, UNKNOWN)

SIGNALS: tuple[Signal, ...] = (
    Signal(
        "two heartbeats missed",
        "controller:nodes, from the heartbeats that all servers received",
        (SUSPECT,),
        "nothing is stopped, marked or replaced; the node takes no new work",
        "the agent, its link or a server may be slow",
    ),
    Signal(
        "three and a half heartbeats missed",
        "controller:nodes",
        _LOST,
        "nothing is failed or replaced: its work may continue",
        "silence says nothing about the work; the mark starts the only clock that does",
    ),
    Signal(
        "silence for fenceAfter since the mark was seen",
        "controller:nodes, from the commit of its own mark",
        (*_LOST, FENCE, FAILED, RELEASED, CREATE, REMOVE),
        "work that continues when disconnected (`keep`) is not released",
        "the shims have stopped by now all work that could not renew; that is arithmetic",
    ),
    Signal(
        "most of a zone silent",
        "controller:nodes (correct/nodes/disruption_limits.py)",
        (SUSPECT,),
        "no mark and no fence in that zone, until that has lasted for the wait of the plane or a "
        "person approves it",
        "many machines rarely die at once; the observer is the likelier cause",
    ),
    Signal(
        "no server reports heartbeats",
        "controller:nodes",
        (),
        "no silence is counted at all",
        "the observer receives nothing",
    ),
    Signal(
        "a heartbeat before the fence",
        "controller:nodes",
        (TRUST, CLEAR),
        "nothing is restarted: work continues, as its agent reports",
        "the node was disconnected and is back in the same incarnation",
    ),
    Signal(
        "readiness probe fails",
        "agent",
        (),
        "not stopped, not replaced; its address leaves the endpoints",
        "it may be busy, or wait for a dependency",
    ),
    Signal(
        "liveness probe fails",
        "agent",
        (),
        "restarted in place by its own agent; no controller replaces it",
        "the process hangs, its node is healthy",
    ),
    Signal(
        "API timeout",
        "the caller",
        (CREATE,),
        "no second try under another name: it is read first, and repeated under the same id",
        "the write may have been committed and only its answer lost",
    ),
    Signal(
        "watch disconnect",
        "every watcher (observe/cache.py)",
        (),
        "nothing is written on a cache older than 30 s",
        "an object that is missing from the cache may exist",
    ),
    Signal(
        "lease expired",
        "its holder, on its own clock",
        (),
        "the former holder sends no more requests; those in flight are refused by epoch",
        "the lease says who should act, never that no other process does",
    ),
    Signal(
        "queue age",
        "scheduler, controller:status",
        (),
        "the number of wanted replicas is never raised, nothing is preempted for it alone",
        "waiting has reasons, and they are in the replica's status",
    ),
    Signal(
        "repeated bind conflicts",
        "scheduler",
        (BIND,),
        "the work is not failed; backoff grows, other nodes are tried",
        "other schedulers were faster, or the cache is old",
    ),
    Signal(
        "rollout deadline",
        "controller:rollout",
        (),
        "expansion pauses; no running replica is removed, old or new",
        "the new replicas may be slow, and the old ones serve",
    ),
    Signal(
        "controller errors",
        "the controller's runner",
        (CREATE,),
        "the same request again with growing backoff, and nothing stronger",
        "servers that are down say nothing about the work",
    ),
    Signal(
        "stalled observedGeneration",
        "readers of the status",
        (),
        "nothing is stopped or created for it: replicas follow from the spec itself",
        "the counting controller is behind; the replicas are not",
    ),
    Signal(
        "SLO burn",
        "operators, and the review of commitments",
        (),
        "no controller stops, moves or adds anything for it",
        "it shows that users are affected, not why",
    ),
)
