"""What `explain` answers: where a replica's progress stopped, why, who acts next, and by when.

`explain_replica.py` builds the answer, the servers return it (`host/api/plane/explanations.py`),
and the command line prints it. The values of the enums never change once released.
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
    """The step of a replica's progress at which it stopped."""

    SCHEDULING = "scheduling"
    BINDING = "binding"
    STARTUP = "startup"
    READINESS = "readiness"
    SERVING = "serving"
    # It is being stopped or released.
    RELEASE = "release"
    # It has completed every step.
    NONE = "none"


class StuckReason(StrEnum):
    """Why it stopped there."""

    # It is not stuck: it works, or it was released.
    NOTHING = "Nothing"
    # No scheduler has decided about it yet.
    NOT_TRIED = "NotTried"
    QUOTA = "QuotaBlocked"
    # No node can take it.
    NO_PLACE = "NoPlace"
    # A node would take it, and the last decision rests on an older snapshot.
    STALE_PICTURE = "StalePicture"
    # A bind is in flight, or its answer was lost.
    BIND_OPEN = "BindOpen"
    # A reservation holds a place for it.
    RESERVED = "PlaceReserved"
    # It is bound, and its agent has not seen the binding yet.
    UNSEEN = "BindingUnseen"
    # It is bound, and it is unknown whether its agent has seen the binding.
    UNTOLD = "AgentUnheard"
    STARTING = "Starting"
    # It has progressed further than its status shows.
    UNPROPAGATED = "StatusNotPropagated"
    CRASHING = "CrashLoop"
    NOT_READY = "NotReady"
    # It is ready, and no Endpoints object lists it.
    UNLISTED = "NotListed"
    # Its node sends no renewals.
    SILENT = "NodeSilent"
    # Its node is marked out of contact, and the fence must pass before it is replaced.
    FENCE = "AwaitingFence"
    # Most of the zone is silent: no node in it is marked or fenced.
    BRAKE = "ZoneSilent"
    # It is certain that it no longer runs, and controller:repair must record that.
    REPAIR = "AwaitingRepair"
    # Its node is back, and the agent has not reported the replica yet.
    RETURN = "AwaitingReturn"
    # It may still run on an unreachable machine. Only an operator can confirm that it does not.
    WORD = "AwaitingWord"
    STOPPING = "Stopping"
    # It has ended, and its agent must prove that.
    RELEASE = "AwaitingRelease"


class EvidenceItem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One piece of evidence.

    what: the source of the evidence, such as `node n1`.
    says: what the source shows.
    revision: the store revision of the last write; 0 for evidence outside the store.
    age_ms: the age of the evidence.
    """

    what: str
    says: str
    revision: int = 0
    age_ms: int | None = None


class Diagnosis(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where progress stopped, and what happens next.

    owner: who acts next; empty if no action is due.
    then: who acts after that, or when the deadline passes.
    deadline: the latest time of the next action.
    no_deadline: why there is no deadline.
    verdict, nearest_miss, smallest_change: copied from the status of a replica without a place.
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

    revision: the store revision at which the objects were read.
    late_ms: how long ago the deadline passed.
    signs: the evidence, the replica itself first.
    timeline: the last transitions of the replica.
    unknown: what could not be determined, and why.
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


# Deadlines: the bounds that components keep, and the moments from which they count.

# Controllers resync once a minute, plus or minus a quarter; a scheduler resyncs exactly then.
CONTROLLER_LOOKS_MS = 75_000
SCHEDULER_LOOKS_MS = 60_000
# An agent compares its state with the servers this often, and may need two rounds.
AGENT_LOOKS_MS = 80_000
_NODES = f"{CONTROLLER_PREFIX}nodes/"


def after(moment: datetime | None, ms: int) -> datetime | None:
    """The moment plus `ms`; None if the moment is unknown."""
    return moment + timedelta(milliseconds=ms) if moment is not None else None


def next_of(moment: datetime, every_ms: int, now: datetime) -> datetime:
    """The first moment after `now` in the series that starts at `moment` with this period."""
    if moment > now:
        return moment
    every = timedelta(milliseconds=every_ms)
    return moment + every * ((now - moment) // every + 1)


def judged_at(node: Node) -> datetime | None:
    """When controller:nodes last changed the phase of a node."""
    said = [it.at for it in node.metadata.operations if it.id.startswith(_NODES)]
    return max(said, default=None)


def changed_at(node: Node) -> datetime | None:
    """When any component last did: a phase change, or the registration of a new incarnation."""
    return max((it.at for it in node.metadata.operations), default=None)
