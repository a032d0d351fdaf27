"""What may be asked of the authority, and what it answers.

A request says what it wants and on what it rests: uid and transition number of a replica, the
epoch of a lease, the mark of a node, the resourceVersion of an object. Each of these changes when
the request succeeds, so a repetition can never take effect a second time. `operation` is the
caller's own stable id; an accepted one is remembered on the object and answered again instead of
being performed again.

Fields at their defaults are not encoded, so that a request says the same in the words of a version
that has a field more.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.model.access.identity import Identity
from holdfast.model.fence import HeldTimes
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import DeviceShare, Pending, Process
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import Object
from holdfast.model.quarantine import Quarantined
from holdfast.model.refusal import Refusal


class Term(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Under which lease the caller acts. A privileged write without one is refused."""

    scope: str
    epoch: int


class Target(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The very replica that is meant, as the caller saw it: a later one of that name is another."""

    namespace: str
    name: str
    uid: str
    number: int


class Bind(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Give a pending or reserved replica its place.

    `devices` None leaves their choice to the commit.
    """

    target: Target
    node: str
    node_uid: str
    term: Term
    operation: str = ""
    devices: tuple[DeviceShare, ...] | None = None
    policy: str = ""
    snapshot_revision: int = 0
    snapshot_age_ms: int = 0
    reservation: str = ""
    deadline: datetime | None = None


class BindTogether(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Bind all of these or none, in one transaction."""

    binds: tuple[Bind, ...]
    operation: str = ""


class Reserve(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Hold a place for a pending replica until a deadline: Pending to Reserved."""

    target: Target
    node: str
    node_uid: str
    term: Term
    deadline: datetime
    intent: Intent = Intent.BIND
    operation: str = ""
    devices: tuple[DeviceShare, ...] | None = None
    gang: str = ""
    snapshot_age_ms: int = 0


class Unreserve(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Give a reserved place back: Reserved to Pending."""

    target: Target
    reason: str
    term: Term | None = None
    operation: str = ""


class HoldCapacity(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Hold capacity for an owner and an intent, not for a certain replica: recovery lanes,
    gangs.

    controller:reserves may ask again for a recovery: then it holds these open claims and no others
    from now on, until the later deadline.
    """

    namespace: str
    owner: ReservationOwner
    intent: Intent
    claims: tuple[Claim, ...]
    deadline: datetime
    term: Term
    min_available: int = 0
    operation: str = ""


class CommitGang(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """All members have their places: let them be bound."""

    namespace: str
    reservation: str
    uid: str
    term: Term
    operation: str = ""


class DropReservation(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Release whatever a reservation still holds."""

    namespace: str
    reservation: str
    uid: str
    reason: str
    term: Term | None = None
    operation: str = ""


class Evict(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Stop running work on purpose, for one of the causes, inside its disruption budget.

    With `idle` only if it does no work at that moment, whatever whoever asks has seen.
    """

    target: Target
    cause: Cause
    evidence: str = ""
    term: Term | None = None
    operation: str = ""
    idle: bool = False


class StopAndReserve(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The first half of a preemption: stop the victims and promise their place,
    in one transaction.
    """

    target: Target
    node: str
    node_uid: str
    victims: tuple[Target, ...]
    term: Term
    deadline: datetime
    devices: tuple[DeviceShare, ...] | None = None
    snapshot_age_ms: int = 0
    operation: str = ""


class Move(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Any other transition of the lifecycle table.

    `incarnation` is the life of the agent that speaks, and `installation` the directory that it
    keeps; `mark` the mark under which a node was declared out of contact or fenced; `word` an
    operator's reason.
    """

    target: Target
    to: State
    reason: str = ""
    evidence: str = ""
    incarnation: int | None = None
    mark: int = 0
    process: Process | None = None
    word: str = ""
    term: Term | None = None
    operation: str = ""
    installation: str = ""


class ReportStage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Progress without a change of ownership: queued, starting, ready, serving.

    `version` is the resourceVersion of the replica that it rests on: it may become ready more than
    once, and a copy that comes late must not say so again.
    """

    target: Target
    stage: Stage
    incarnation: int | None = None
    process: Process | None = None
    operation: str = ""
    version: str = ""
    term: Term | None = None


class ReportPending(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Why a replica waits, said by the scheduler, of the replica at this resourceVersion."""

    target: Target
    pending: Pending
    operation: str = ""
    version: str = ""
    term: Term | None = None


class RegisterNode(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """An agent presents itself: what the machine is and, after a fence, what still runs on it.

    The node's metadata names the uid and the resourceVersion that the agent has seen, and neither
    if it saw no such node. `holds` is what its work holds of the plane's times, for when these have
    changed.
    """

    node: Node
    running: tuple[str, ...] = ()
    operation: str = ""
    holds: HeldTimes | None = None


class NodeAction(StrEnum):
    """What controller:nodes may say of a node."""

    SUSPECT = "Suspect"
    TRUST = "Trust"
    MARK = "Mark"
    CLEAR = "Clear"
    FENCE = "Fence"
    LOSE = "Lose"


class JudgeNode(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Move a node's phase. Clearing and fencing name the very mark that they are about.

    A fence says for how long it was waited since the mark was seen; None is for the time that the
    servers' own settings demand. `version` is the resourceVersion of the node that was judged: what
    was said of it since then, also that it was heard again, makes this judgement void.
    """

    node: str
    uid: str
    word: NodeAction
    term: Term
    mark: int = 0
    reason: str = ""
    operation: str = ""
    waited_ms: int | None = None
    version: str = ""


class AcquireLease(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Take a lease that is free,
    or that did not move for its duration on the caller's own clock.

    `seen_epoch` and `seen_renewals` are those of the lease as it was seen, held or free; zero if
    there was none. `instance` tells processes that share an identity apart. `address` is where
    peers reach the caller; here and in a renewal, none means nowhere. `version` is that of its
    program.
    """

    scope: str
    duration_ms: int
    seen_epoch: int = 0
    seen_renewals: int = 0
    operation: str = ""
    instance: str = ""
    address: str = ""
    version: str = ""


class RenewLease(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Stay the holder.

    `number` grows with every renewal that the holder sends, so that one that comes late does not
    make a holder that has stopped look alive.
    """

    term: Term
    operation: str = ""
    address: str = ""
    number: int = 0
    version: str = ""


class ReleaseLease(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Give it back, so that another need not wait."""

    term: Term
    operation: str = ""


class RetireLease(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Forget a lease that was not renewed for long, as it was last seen. Its epoch never comes
    again.
    """

    scope: str
    seen_epoch: int
    seen_renewals: int


class Create(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new object. Here and below, `term` is what a controller acts under; people have none."""

    object: Object
    manager: str = ""
    dry_run: bool = False
    operation: str = ""
    term: Term | None = None


class Update(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replace spec and metadata, or the status alone.

    An empty resourceVersion means: whatever it is now. Only people may mean that.
    """

    object: Object
    subresource: str = ""
    manager: str = ""
    dry_run: bool = False
    operation: str = ""
    term: Term | None = None


def refuses_unknown(request: Create | Update) -> bool:
    """Whether a server refuses what a component writes for a field that it does not know.

    An object that is made or replaced must be what was asked for. A status is sent with the rest of
    its object, of which a component of the next version may know more than the server.
    """
    return isinstance(request, Create) or not request.subresource


class PatchType(StrEnum):
    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class Patch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Change an object by a patch, computed on what is current at the commit."""

    plural: str
    namespace: str
    name: str
    type: PatchType
    body: Any
    subresource: str = ""
    manager: str = ""
    force: bool = False
    strict: bool = True
    dry_run: bool = False
    operation: str = ""
    term: Term | None = None


class Propagation(StrEnum):
    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class Remove(msgspec.Struct, frozen=True, omit_defaults=True):
    """Delete an object. It is gone once its finalizers are; `force` is an operator's word.

    `collection` says that it is one of many that are deleted by one request. A component names the
    uid of the object that it means.
    """

    plural: str
    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    propagation: Propagation = Propagation.BACKGROUND
    grace_seconds: int | None = None
    force: bool = False
    dry_run: bool = False
    operation: str = ""
    collection: bool = False
    term: Term | None = None


class ForgetOperations(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Forget operations that were kept apart from their objects, as far as their time is over.

    Each is named by what follows the prefix of its key in the store.
    """

    operations: tuple[str, ...]
    term: Term | None = None


class QuarantineRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Put a record into quarantine, as it was found. Only servers ask for this, of themselves."""

    record: Quarantined


class RepairAction(StrEnum):
    # What the objects add up to, for a ledger.
    RECOUNT = "Recount"
    # What the record was at an earlier revision.
    RESTORE = "Restore"
    # Nothing: it is right as it is.
    RELEASE = "Release"


class RepairRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Take a record out of quarantine, on the word of an operator.

    A server finds the value out and asks in the operator's name; nobody else can send this. `seen`
    is the revision at which the record was written then; `value` is None for a release.
    """

    key: str
    action: RepairAction
    seen: int
    word: str
    value: Any = None
    dry_run: bool = False


class RaiseFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator's word that the records of the plane may have the next format from now on.

    `to` is one more than the format that the plane has, so that a second copy is refused.
    """

    to: int
    word: str


class Forward(msgspec.Struct, frozen=True):
    """A request that another server took in and authenticated. Only servers may send it.

    `epoch` is that of the lease `authority` under which the receiver is asked. Under any other it
    decides nothing: whoever forwarded may have turned to the next holder by then.
    """

    identity: Identity
    request: Any
    epoch: int = 0


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """It is so, as of this revision, and these objects are now as given.

    `replayed` says that it was so before this request; then the objects are for the caller to read.
    `created` says that the create or the apply made its object, now or, if replayed, at that time.
    """

    revision: int
    objects: tuple[Object, ...] = ()
    replayed: bool = False
    warnings: tuple[str, ...] = ()
    created: bool = False


Verdict = Accepted | Refusal
