"""The requests to the authority, and its answers.

A request states what it wants and its preconditions: uid and transition number of a replica, the
epoch of a lease, the mark of a node, the resourceVersion of an object. Each of these changes when
the request succeeds, so a repetition can never take effect a second time. `operation` is the
caller's own stable id; an accepted one is kept on the object, and a repetition is answered instead
of performed again.

Fields at their defaults are not encoded, so a request has the same encoding in a version with an
additional field.
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
    """The lease under which the caller acts. A privileged write without one is refused."""

    scope: str
    epoch: int


class Target(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A replica as the caller saw it, by uid: a later one of the same name does not match."""

    namespace: str
    name: str
    uid: str
    number: int


class Bind(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Bind a pending or reserved replica to a node.

    If `devices` is None, the commit chooses them.
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
    """Reserve a place for a pending replica until a deadline: Pending to Reserved."""

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
    """Release a reserved place: Reserved to Pending."""

    target: Target
    reason: str
    term: Term | None = None
    operation: str = ""


class HoldCapacity(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Hold capacity for an owner and an intent, without a specific replica: recovery, gangs.

    controller:reserves may repeat it for a recovery: then the reservation holds exactly these open
    claims from now on, until the later deadline.
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
    """Commit a gang whose members all have places, so that they can be bound."""

    namespace: str
    reservation: str
    uid: str
    term: Term
    operation: str = ""


class DropReservation(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Release everything that a reservation still holds."""

    namespace: str
    reservation: str
    uid: str
    reason: str
    term: Term | None = None
    operation: str = ""


class Evict(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Stop running work on purpose, for one of the causes, inside its disruption budget.

    With `idle` only if it is not ready at the commit, whatever the caller has seen.
    """

    target: Target
    cause: Cause
    evidence: str = ""
    term: Term | None = None
    operation: str = ""
    idle: bool = False


class StopAndReserve(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The first half of a preemption: stop the victims and promise their place, atomically."""

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

    `incarnation` is the incarnation of the reporting agent's node, and `installation` the id of its
    data directory; `mark` is the mark under which a node was out of contact or fenced; `word` is an
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

    `version` is the resourceVersion of the replica that the report rests on: a replica may become
    ready more than once, and a delayed copy must not report it again.
    """

    target: Target
    stage: Stage
    incarnation: int | None = None
    process: Process | None = None
    operation: str = ""
    version: str = ""
    term: Term | None = None


class ReportPending(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The scheduler reports why a replica waits, for the replica at this resourceVersion."""

    target: Target
    pending: Pending
    operation: str = ""
    version: str = ""
    term: Term | None = None


class RegisterNode(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """An agent registers its node: the machine and, after a fence, the work that still runs on it.

    The node's metadata holds the uid and the resourceVersion that the agent has seen; both are
    empty if it saw no such node. `holds` is the timing that its work uses, in case the plane's
    changed.
    """

    node: Node
    running: tuple[str, ...] = ()
    operation: str = ""
    holds: HeldTimes | None = None


class NodeAction(StrEnum):
    """What controller:nodes may do to a node."""

    SUSPECT = "Suspect"
    TRUST = "Trust"
    MARK = "Mark"
    CLEAR = "Clear"
    FENCE = "Fence"
    LOSE = "Lose"


class JudgeNode(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Change the phase of a node. Clearing and fencing name the number of the mark.

    `waited_ms` is how long a fence waited since the mark was seen; None means the time that the
    servers' own settings require. `version` is the resourceVersion of the node that the decision
    rests on: any later change, such as a renewed contact, makes the request void.
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
    """Take a lease that is free, or was not renewed for its duration by the caller's own clock.

    `seen_epoch` and `seen_renewals` are those of the lease that the caller saw, held or free; zero
    if there was none. `instance` distinguishes processes that share an identity. `address` is where
    peers reach the caller; here and in a renewal, empty means nowhere. `version` is its program's.
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
    """Renew a lease.

    `number` grows with every renewal that the holder sends, so that a delayed one does not make a
    stopped holder look alive.
    """

    term: Term
    operation: str = ""
    address: str = ""
    number: int = 0
    version: str = ""


class ReleaseLease(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Release a lease, so that another process need not wait."""

    term: Term
    operation: str = ""


class RetireLease(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Delete a lease without recent renewals, as it was last seen. Its epoch is never reused."""

    scope: str
    seen_epoch: int
    seen_renewals: int


class Create(msgspec.Struct, frozen=True, omit_defaults=True):
    """Create an object. Here and below, `term` is a controller's lease; people have none."""

    object: Object
    manager: str = ""
    dry_run: bool = False
    operation: str = ""
    term: Term | None = None


class Update(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replace spec and metadata, or the status alone.

    An empty resourceVersion matches any. Only people may leave it empty.
    """

    object: Object
    subresource: str = ""
    manager: str = ""
    dry_run: bool = False
    operation: str = ""
    term: Term | None = None


def refuses_unknown(request: Create | Update) -> bool:
    """Whether a server refuses a component's write because of a field that it does not know.

    An object that is created or replaced must be exactly what was requested. A status is sent with
    the rest of its object, of which a newer component may know more than the server.
    """
    return isinstance(request, Create) or not request.subresource


class PatchType(StrEnum):
    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class Patch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Change an object by a patch, applied to the current object at the commit."""

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
    """Delete an object. It is removed once its finalizers are gone; `force` is for operators.

    `collection` means that one request deletes many objects and this is one of them. A component
    names the uid of the object.
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
    """Delete operations that are kept apart from their objects, if their retention time is over.

    Each is named by its key in the store without the prefix.
    """

    operations: tuple[str, ...]
    term: Term | None = None


class QuarantineRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Quarantine a record, as it was found. Only servers send this, to themselves."""

    record: Quarantined


class RepairAction(StrEnum):
    # Write the sums of the objects into a ledger.
    RECOUNT = "Recount"
    # Write the record of an earlier revision.
    RESTORE = "Restore"
    # Write nothing: the record is right.
    RELEASE = "Release"


class RepairRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Repair a quarantined record, at an operator's request.

    A server computes the value and sends this in the operator's name; no client can send it. `seen`
    is the revision of the record at that time; `value` is None for a release.
    """

    key: str
    action: RepairAction
    seen: int
    word: str
    value: Any = None
    dry_run: bool = False


class RaiseFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Raise the format of the plane's records, at an operator's request.

    `to` is one more than the format that the plane has, so that a second copy is refused.
    """

    to: int
    word: str


class Forward(msgspec.Struct, frozen=True):
    """A request that another server received and authenticated. Only servers may send it.

    `epoch` is the epoch of the receiver's lease `authority`. Under any other epoch the receiver
    does
    not decide: the sender may have forwarded the request to the next holder by then.
    """

    identity: Identity
    request: Any
    epoch: int = 0


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The request took effect by this revision, and these objects are now as given.

    `replayed` means that it took effect before this request; then the caller must read the objects.
    `created` means that the create or the apply created its object, now or, if replayed, then.
    """

    revision: int
    objects: tuple[Object, ...] = ()
    replayed: bool = False
    warnings: tuple[str, ...] = ()
    created: bool = False


Verdict = Accepted | Refusal
