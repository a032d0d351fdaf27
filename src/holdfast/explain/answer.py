"""What `explain` says of a replica: where its progress stopped, why, who moves next, and by when.

`replica.py` finds it, the servers answer requests with it (`host/api/plane/explanations.py`), and
the command line prints it. The words of the enums never change once released.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from holdfast.model.access.identity import CONTROLLER_PREFIX
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import TransitionRecord
from holdfast.model.lifecycle import Stage, State


class ProgressStep(StrEnum):
    """The part of a replica's way on which it stopped."""

    SCHEDULING = "scheduling"
    BINDING = "binding"
    STARTUP = "startup"
    READINESS = "readiness"
    SERVING = "serving"
    # It is on its way out.
    RELEASE = "release"
    # It has come as far as it can.
    NONE = "none"


class StuckReason(StrEnum):
    """What keeps it there."""

    # Nothing does: it works, or its life is over.
    NOTHING = "Nothing"
    # No scheduler has said anything about it yet.
    NOT_TRIED = "NotTried"
    QUOTA = "QuotaBlocked"
    # No node can take it.
    NO_PLACE = "NoPlace"
    # There is a place for it, and what was last decided rests on a picture without that.
    STALE_PICTURE = "StalePicture"
    # A bind is on its way, or its answer was lost.
    BIND_OPEN = "BindOpen"
    # A place is held for it.
    RESERVED = "PlaceReserved"
    # It is bound, and its agent does not know yet.
    UNSEEN = "BindingUnseen"
    # It is bound, and whether its agent knows cannot be told.
    UNTOLD = "AgentUnheard"
    STARTING = "Starting"
    # It has come further than status says.
    UNPROPAGATED = "StatusNotPropagated"
    CRASHING = "CrashLoop"
    NOT_READY = "NotReady"
    # It is ready, and in no list of addresses.
    UNLISTED = "NotListed"
    # Its node is not heard.
    SILENT = "NodeSilent"
    # Its node is given up, and the fence has to pass before anybody acts on that.
    FENCE = "AwaitingFence"
    # Most of a zone is silent: nobody is given up there.
    BRAKE = "ZoneSilent"
    # What it was is known to be over, and has to be said.
    REPAIR = "AwaitingRepair"
    # Its node is back, and its agent has not said yet how it fared.
    RETURN = "AwaitingReturn"
    # It may run on where nobody sees it. Only a person can say that it does not.
    WORD = "AwaitingWord"
    STOPPING = "Stopping"
    # It has ended, and its agent has to prove that.
    RELEASE = "AwaitingRelease"


class EvidenceItem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One piece of evidence.

    what: of what it is, such as `node n1`.
    says: what it says.
    revision: the revision of the store at which that was last written; 0 where it is in no store.
    age_ms: how old that is.
    """

    what: str
    says: str
    revision: int = 0
    age_ms: int | None = None


class Diagnosis(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where it stopped and what follows.

    owner: who makes the next move; empty where there is none to make.
    then: who moves after that, or if the deadline passes.
    deadline: by when the next move is made at the latest.
    no_deadline: why there is none.
    verdict, nearest_miss, smallest_change: of one that waits for a place, as its status has them.
    """

    leg: ProgressStep
    why: StuckReason
    message: str
    owner: str = ""
    then: str = ""
    deadline: datetime | None = None
    no_deadline: str = ""
    verdict: str = ""
    nearest_miss: str = ""
    smallest_change: str = ""
    signs: tuple[EvidenceItem, ...] = ()


class Explanation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The whole answer.

    revision: of the store, as of which the objects were read.
    late_ms: for how long the deadline has passed.
    signs: the evidence, the replica itself first.
    timeline: the last steps of its life.
    unknown: what could not be found out, and why.
    """

    namespace: str
    name: str
    uid: str
    state: State
    stage: Stage
    revision: int
    finding: Diagnosis
    late_ms: int = 0
    signs: tuple[EvidenceItem, ...] = ()
    timeline: tuple[TransitionRecord, ...] = ()
    unknown: dict[str, str] = {}


# By when somebody moves: the bounds that components keep, and the moments that they count from.

# A team looks at everything once a minute, a quarter more or less; a scheduler does so exactly.
CONTROLLER_LOOKS_MS = 75_000
SCHEDULER_LOOKS_MS = 60_000
# An agent compares its picture with the servers' this often, and may then have to be told twice.
AGENT_LOOKS_MS = 80_000
_NODES = f"{CONTROLLER_PREFIX}nodes/"


def after(moment: datetime | None, ms: int) -> datetime | None:
    """So long after a moment, if that is known."""
    return moment + timedelta(milliseconds=ms) if moment is not None else None


def next_of(moment: datetime, every_ms: int, now: datetime) -> datetime:
    """The next of the moments that follow each other at this distance."""
    if moment > now:
        return moment
    every = timedelta(milliseconds=every_ms)
    return moment + every * ((now - moment) // every + 1)


def judged_at(node: Node) -> datetime | None:
    """When controller:nodes last said something of a node."""
    said = [it.at for it in node.metadata.operations if it.id.startswith(_NODES)]
    return max(said, default=None)


def changed_at(node: Node) -> datetime | None:
    """When anybody did: a judgement, or the beginning of another life."""
    return max((it.at for it in node.metadata.operations), default=None)
