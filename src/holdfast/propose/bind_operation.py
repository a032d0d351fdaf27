"""The course of one bind, from the first request until its outcome is known.

A lost answer settles nothing. The replica is read, and its recorded operations say whether the bind
happened. If not, the same request is sent again under the same id, so that however many copies
arrive, one takes effect. No other node is tried before that.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from holdfast.model.errors import Rejected, Unavailable
from holdfast.model.kinds.replica import Replica
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, Bind, Target, Term
from holdfast.observe.cache import Key
from holdfast.observe.watch_events import GetResult
from holdfast.propose.feasibility.outcome import Proposal

# Each lost answer is followed by a read. If the third copy is not there either, the path to the
# servers is the problem: a pause and a fresh candidate do better than a fourth copy.
SENDS_MAX = 3
PAUSE_MIN_MS = 500
PAUSE_MAX_MS = 30_000
_DOUBLINGS_MAX = 6


class BindPhase(Enum):
    """Who acts next: the servers, or this scheduler when the pause is over."""

    SENT = auto()
    LOOKING = auto()
    TO_SEND = auto()
    TO_LOOK = auto()


class Course(msgspec.Struct):
    """One bind in flight. `sends` counts its copies, `looks` the reads in a row that failed."""

    key: Key
    bind: Bind
    phase: BindPhase = BindPhase.SENT
    sends: int = 1
    looks: int = 0
    due_ms: int = 0

    @property
    def uid(self) -> str:
        return self.bind.target.uid

    def pause(self, phase: BindPhase, tries: int, now_ms: int, jitter: float) -> int:
        """Continue with this phase after a growing pause. Returns until when it pauses."""
        pause_ms = min(PAUSE_MAX_MS, PAUSE_MIN_MS << min(tries, _DOUBLINGS_MAX))
        self.phase = phase
        self.due_ms = now_ms + int(pause_ms * (0.5 + jitter / 2))
        return self.due_ms


class BindOutcome(Enum):
    """What an answer says about a bind."""

    COMMITTED = auto()
    REFUSED = auto()
    # This copy did not happen, and it was the only one.
    UNDONE = auto()
    # It may have happened: read the replica.
    UNKNOWN = auto()
    # It did not happen, and the replica is unchanged.
    ABSENT = auto()
    # The replica took another transition, or is gone.
    OVERTAKEN = auto()
    # The read failed.
    UNREAD = auto()


def outcome_of_bind(course: Course, answer: object) -> BindOutcome:
    """The outcome that the answer to a bind shows."""
    match answer:
        case Accepted():
            return BindOutcome.COMMITTED
        case Refusal():
            return BindOutcome.REFUSED
        case Unavailable() | Rejected():
            # With several copies, this answer is about one of them only.
            return BindOutcome.UNDONE if course.sends == 1 else BindOutcome.UNKNOWN
    return BindOutcome.UNKNOWN


def outcome_of_look(course: Course, answer: object) -> BindOutcome:
    """The outcome that the replica shows, read after the answer was lost."""
    if not isinstance(answer, GetResult):
        return BindOutcome.UNREAD
    return outcome_in(course, answer.object)


def outcome_in(course: Course, found: object) -> BindOutcome:
    """The outcome that a replica shows, from whatever source."""
    target = course.bind.target
    if not isinstance(found, Replica) or found.metadata.uid != target.uid:
        return BindOutcome.OVERTAKEN
    if any(past.id == course.bind.operation for past in found.metadata.operations):
        return BindOutcome.COMMITTED
    same = found.status.transition_number == target.number
    return BindOutcome.ABSENT if same else BindOutcome.OVERTAKEN


def operation_of(identity: str, uid: str, number: int, node: str) -> str:
    """The id of a bind, which links it to the store's history and to the agent."""
    return f"{identity}/{uid}/{number}/bind-{node}"


def bind_of(identity: str, replica: Replica, proposal: Proposal, term: Term) -> Bind:
    """The bind request for a proposal.

    Its id is derived from the scheduler, the replica, its transition number and the node, so that
    this scheduler uses the same id after a restart. If it then chooses other devices, the commit
    refuses the id as used, and reading the replica shows the outcome.
    """
    uid, number = replica.metadata.uid, replica.status.transition_number
    return Bind(
        Target(replica.namespace, replica.name, uid, number),
        proposal.node,
        proposal.node_uid,
        term,
        operation=operation_of(identity, uid, number, proposal.node),
        devices=proposal.held.devices or None,
        policy=proposal.policy,
        snapshot_revision=proposal.snapshot_revision,
        snapshot_age_ms=proposal.snapshot_age_ms,
        reservation=proposal.reservation,
    )
