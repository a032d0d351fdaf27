"""What each signal of trouble may decide, as data.

A signal is an observation: it may be late, wrong, or about the observer. The stronger the step, the
stronger the evidence that it needs; everything else waits, and says for what. `make signals-page`
prints this into docs/signals.md, and a test plays each row on the real machines and holds what they
ask for to it (`act_of` gives each request its word).
"""

from __future__ import annotations

from typing import Any

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
    Update,
)

# Everybody may always say what he sees.
TELL = "tell"
SUSPECT, TRUST, MARK, CLEAR, FENCE = "suspect", "trust", "mark", "clear", "fence"
BIRTH, REMOVE, BIND, EVICT = "birth", "remove", "bind", "evict"
UNKNOWN, FAILED, RELEASED = "to Unknown", "to Failed", "to Released"


def act_of(request: Any) -> str:
    """The word for what a request does to the work of others."""
    match request:
        case JudgeNode(word=word):
            return str(word.value).lower()
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
            return BIRTH
        case Create(object=obj) | Update(object=obj):
            return f"write {kind_of(obj).name}"
        case Remove(plural=plural):
            return REMOVE if plural == "replicas" else f"remove {plural}"
    return type(request).__name__


class Signal(msgspec.Struct, frozen=True):
    """One row.

    `seen_by` observes it, on its own clock. `may` are the acts that it carries at most, besides
    telling; `not_by_itself` is what it must never lead to alone, and `because` why it is ambiguous.
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
        "controller:nodes, from what all servers heard",
        (SUSPECT,),
        "nothing is stopped, marked or replaced; the node takes no new work",
        "the agent, its link or a server may be slow",
    ),
    Signal(
        "three and a half heartbeats missed",
        "controller:nodes",
        _LOST,
        "nothing is failed or replaced: its work may run on",
        "silence says nothing about the work; the mark starts the only clock that does",
    ),
    Signal(
        "silence for fenceAfter since the mark was seen",
        "controller:nodes, from the commit of its own mark",
        (*_LOST, FENCE, FAILED, RELEASED, BIRTH, REMOVE),
        "work that runs on when cut off is not released",
        "the shims have stopped by now whatever could not renew; that is arithmetic, not a guess",
    ),
    Signal(
        "most of a zone silent",
        "controller:nodes (correct/nodes/disruption_limits.py)",
        (SUSPECT,),
        "no mark and no fence in that zone",
        "so many machines seldom die at once; the observer is the likelier culprit",
    ),
    Signal(
        "no server says whom it heard",
        "controller:nodes",
        (),
        "no silence is counted at all",
        "the observer is deaf",
    ),
    Signal(
        "a heartbeat before the fence",
        "controller:nodes",
        (TRUST, CLEAR),
        "nothing is restarted: what ran goes on, by its agent's word",
        "the node was away and is back in the same life",
    ),
    Signal(
        "readiness probe fails",
        "agent",
        (),
        "not stopped, not replaced; its address leaves the endpoints",
        "it may be busy, or wait for somebody else",
    ),
    Signal(
        "liveness probe fails",
        "agent",
        (),
        "restarted in place by its own agent; no controller replaces it",
        "the process hangs, its node is well",
    ),
    Signal(
        "API timeout",
        "whoever asked",
        (BIRTH,),
        "no second try under another name: it is read first, and repeated under the same id",
        "the write may have been committed and only its answer lost",
    ),
    Signal(
        "watch disconnect",
        "whoever follows (observe/cache.py)",
        (),
        "nothing is written on a picture older than 30 s",
        "what is missing from the picture may just not have been told",
    ),
    Signal(
        "lease expired",
        "its holder, on its own clock",
        (),
        "the former holder asks for nothing more; what is on its way is refused by epoch",
        "the lease says who should act, never that nobody else does",
    ),
    Signal(
        "queue age",
        "scheduler, controller:status",
        (),
        "the number of wanted replicas is never raised, nobody is pushed out for it alone",
        "waiting has reasons, and they are written on the replica",
    ),
    Signal(
        "repeated bind conflicts",
        "scheduler",
        (BIND,),
        "the work is not failed; pauses grow, other nodes are tried",
        "others were faster, or the picture is old",
    ),
    Signal(
        "rollout deadline",
        "controller:rollout",
        (),
        "expansion pauses; nothing that runs is removed, old or new",
        "the new ones may be slow, and the old ones serve",
    ),
    Signal(
        "controller errors",
        "the controller's team",
        (BIRTH,),
        "the same request again after growing pauses, and nothing stronger",
        "servers that are down say nothing about the work",
    ),
    Signal(
        "stalled observedGeneration",
        "whoever reads status",
        (),
        "nothing is stopped or made for it: places follow from the spec itself",
        "whoever counts is behind; what is counted is not",
    ),
    Signal(
        "SLO burn",
        "people, and the review of commitments",
        (),
        "no controller stops, moves or adds anything for it",
        "it says that users suffer, not why",
    ),
)
