"""The requests to the authority, and its answers.

A request states what it wants and its preconditions: uid and transition number of a replica, the
epoch of a lease, the mark of a node, the resourceVersion of an object. Each of these changes when
the request succeeds, so a repetition can never take effect a second time. `operation` is the
caller's own stable id; an accepted one is kept on the object, and a repetition is answered instead
of performed again.

Fields at their defaults are not encoded, so a request has the same encoding in a version with an
additional field.

Each request declares what others need to know of its type. The permissions of its sender, the
built-in roles, visibility, the shares of tenants, flow control, the paths and encodings on the wire
and the audit are derived from that; its handler in `commit/` declares the rest, what it compares
and who decides (`commit/request_steps.py`).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, TypeGuard, assert_never, get_args

import msgspec

from holdfast.model.access.identity import Identity
from holdfast.model.access.rights import Permission
from holdfast.model.kinds.lease import lease_name
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import DeviceShare, Pending, Process, Replica
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner, reservation_name
from holdfast.model.lifecycle import CONTROLLERS, EVICTORS, MOVERS, Actor, Cause, Stage, State
from holdfast.model.meta import Object
from holdfast.model.nodes.fence import HeldTimes
from holdfast.model.quarantine import Quarantined
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Refusal
from holdfast.model.registry import kind_of


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


def target(replica: Replica) -> Target:
    """The target of a request: this replica, at the transition number that the caller saw."""
    return Target(
        replica.namespace, replica.name, replica.metadata.uid, replica.status.transition_number
    )


class Declared(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a type of request declares beside its fields.

    senders: the actors whose built-in roles permit it, and OPERATOR or USER if people may send it.
    needs: the permission of its sender; None if the request names its verb and resource itself.
    is_lifeline: running work depends on it: it goes first under overload, in a call of its own.
    is_recorded: whether the audit has an entry for it, under the name of its type.
    operation: the sender's own id of what it does, a field in most; "" here where it needs none.
    creates_subject: whether its subject exists once it has taken effect, and perhaps not before. A
        snapshot without such an object has not caught up; without any other it may have, since the
        object may be gone since.
    """

    # The first two have no default: a request without them fails the import of the built-in roles.
    senders: ClassVar[tuple[Actor, ...]]
    needs: ClassVar[Permission | None]
    is_lifeline: ClassVar[bool] = False
    is_recorded: ClassVar[bool] = True
    creates_subject: ClassVar[bool] = False

    def subject(self) -> Get | None:
        """The read of the one object that it changes and that remembers its operation, if any."""
        return None

    def permissions(self) -> tuple[Permission, ...]:
        """All permissions that its sender must have: one for each thing that it does."""
        return () if self.needs is None else (self.needs,)


class TypedRequest(Declared, frozen=True, tag=True):
    """A request that components send as it is, tagged with the name of its type."""

    needs: ClassVar[Permission]

    def _permission(self, namespace: str, name: str = "") -> Permission:
        needs = self.needs
        return Permission(needs.verb, needs.resource, needs.subresource, namespace, name)


class ReplicaRequest(TypedRequest, frozen=True):
    """A request about one replica, which an agent may send only if it sees the replica."""

    target: Target

    def subject(self) -> Get:
        return Get("replicas", self.target.name, self.target.namespace)

    def permissions(self) -> tuple[Permission, ...]:
        return (self._permission(self.target.namespace, self.target.name),)


class ReservationRequest(TypedRequest, frozen=True):
    """A request about one reservation."""

    namespace: str
    reservation: str
    uid: str

    def subject(self) -> Get:
        return Get("reservations", self.reservation, self.namespace)

    def permissions(self) -> tuple[Permission, ...]:
        return (self._permission(self.namespace, self.reservation),)


class LeaseRequest(TypedRequest, frozen=True):
    """A request of a process about the lease of its scope."""

    senders = (Actor.SCHEDULER, Actor.AUTHORITY, *CONTROLLERS)
    needs = Permission("update", "leases")
    is_lifeline = True


class Bind(ReplicaRequest, frozen=True):
    """Bind a pending or reserved replica to a node.

    If `devices` is None, the commit chooses them. `node_revision` is the last write of the node
    that the proposal saw.
    """

    senders = (Actor.SCHEDULER,)
    needs = Permission("create", "replicas", "binding")

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
    node_revision: int = 0


class BindTogether(TypedRequest, frozen=True):
    """Bind all of these or none, in one transaction."""

    senders = (Actor.SCHEDULER,)
    needs = Permission("create", "replicas", "binding")

    binds: tuple[Bind, ...]
    operation: str = ""

    def subject(self) -> Get | None:
        return self.binds[0].subject() if self.binds else None

    def permissions(self) -> tuple[Permission, ...]:
        return tuple(permission for bind in self.binds for permission in bind.permissions())


class Reserve(ReplicaRequest, frozen=True):
    """Reserve a place for a pending replica until a deadline: Pending to Reserved."""

    senders = (Actor.SCHEDULER,)
    needs = Permission("create", "replicas", "reservation")

    node: str
    node_uid: str
    term: Term
    deadline: datetime
    intent: Intent = Intent.BIND
    operation: str = ""
    devices: tuple[DeviceShare, ...] | None = None
    gang: str = ""
    snapshot_age_ms: int = 0


class Unreserve(ReplicaRequest, frozen=True):
    """Release a reserved place: Reserved to Pending."""

    senders = (Actor.SCHEDULER, Actor.REPAIR)
    needs = Permission("delete", "replicas", "reservation")

    reason: str
    term: Term | None = None
    operation: str = ""


class HoldCapacity(TypedRequest, frozen=True):
    """Hold capacity for an owner and an intent, without a specific replica: recovery, gangs.

    controller:reserves may repeat it for a recovery: then the reservation holds exactly these open
    claims from now on, until the later deadline.
    """

    senders = (Actor.SCHEDULER, Actor.RESERVES)
    needs = Permission("create", "reservations")
    creates_subject = True

    namespace: str
    owner: ReservationOwner
    intent: Intent
    claims: tuple[Claim, ...]
    deadline: datetime
    term: Term
    min_available: int = 0
    operation: str = ""

    def subject(self) -> Get:
        return Get("reservations", reservation_name(self.owner.name, self.intent), self.namespace)

    def permissions(self) -> tuple[Permission, ...]:
        return (self._permission(self.namespace),)


class CommitGang(ReservationRequest, frozen=True):
    """Commit a gang whose members all have places, so that they can be bound."""

    senders = (Actor.SCHEDULER,)
    needs = Permission("update", "reservations")

    term: Term
    operation: str = ""


class DropReservation(ReservationRequest, frozen=True):
    """Release everything that a reservation still holds."""

    senders = (Actor.SCHEDULER, Actor.REPAIR, Actor.RESERVES, Actor.GARBAGE)
    needs = Permission("delete", "reservations")

    reason: str
    term: Term | None = None
    operation: str = ""


class Evict(ReplicaRequest, frozen=True):
    """Stop running work on purpose, for one of the causes, inside its disruption budget.

    With `idle` only if it is not ready at the commit, whatever the caller has seen.
    """

    senders = (*EVICTORS, Actor.OPERATOR)
    needs = Permission("create", "replicas", "eviction")

    cause: Cause
    evidence: str = ""
    term: Term | None = None
    operation: str = ""
    idle: bool = False


class PromisedPlace(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A place that a preemption promises to a pending replica."""

    target: Target
    node: str
    node_uid: str
    devices: tuple[DeviceShare, ...] | None = None


class StopAndReserve(ReplicaRequest, frozen=True):
    """The first half of a preemption: stop the victims and promise their place, atomically.

    `members` are the places of the other members, if the first is one of a gang.
    """

    senders = (Actor.SCHEDULER,)
    needs = Permission("create", "replicas", "reservation")

    node: str
    node_uid: str
    victims: tuple[Target, ...]
    term: Term
    deadline: datetime
    devices: tuple[DeviceShare, ...] | None = None
    snapshot_age_ms: int = 0
    operation: str = ""
    members: tuple[PromisedPlace, ...] = ()

    @property
    def places(self) -> tuple[PromisedPlace, ...]:
        """All places that it promises."""
        first = PromisedPlace(self.target, self.node, self.node_uid, self.devices)
        return (first, *self.members)

    def permissions(self) -> tuple[Permission, ...]:
        stops = (
            Permission("create", "replicas", "eviction", victim.namespace, victim.name)
            for victim in self.victims
        )
        promises = (self._permission(it.target.namespace, it.target.name) for it in self.places)
        return (*promises, *stops)


class Move(ReplicaRequest, frozen=True):
    """Any other transition of the lifecycle table.

    `incarnation` is the incarnation of the reporting agent's node, and `installation` the id of its
    data directory; `mark` is the mark under which a node was out of contact or fenced; `word` is an
    operator's reason.
    """

    senders = MOVERS
    needs = Permission("update", "replicas", "state")

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


class ReportStage(ReplicaRequest, frozen=True):
    """Progress without a change of ownership: queued, starting, ready, serving.

    `version` is the resourceVersion of the replica that the report rests on: a replica may become
    ready more than once, and a delayed copy must not report it again.
    """

    senders = (Actor.AGENT, Actor.SCHEDULER, Actor.ENDPOINTS)
    needs = Permission("update", "replicas", "stage")

    stage: Stage
    incarnation: int | None = None
    process: Process | None = None
    operation: str = ""
    version: str = ""
    term: Term | None = None


class ReportPending(ReplicaRequest, frozen=True):
    """The scheduler reports why a replica waits, for the replica at this resourceVersion."""

    senders = (Actor.SCHEDULER,)
    needs = Permission("update", "replicas", "pending")

    pending: Pending
    operation: str = ""
    version: str = ""
    term: Term | None = None


class RegisterNode(TypedRequest, frozen=True):
    """An agent registers its node: the machine and, after a fence, the work that still runs on it.

    The node's metadata holds the uid and the resourceVersion that the agent has seen; both are
    empty if it saw no such node. `holds` is the timing that its work uses, in case the plane's
    changed.
    """

    senders = (Actor.AGENT,)
    needs = Permission("create", "nodes", "registration")

    node: Node
    running: tuple[str, ...] = ()
    operation: str = ""
    holds: HeldTimes | None = None

    def subject(self) -> Get:
        return Get("nodes", self.node.name)

    def permissions(self) -> tuple[Permission, ...]:
        return (self._permission("", self.node.name),)


class NodeAction(StrEnum):
    """What controller:nodes may do to a node."""

    SUSPECT = "Suspect"
    TRUST = "Trust"
    MARK = "Mark"
    CLEAR = "Clear"
    FENCE = "Fence"
    LOSE = "Lose"


class JudgeNode(TypedRequest, frozen=True):
    """Change the phase of a node. Clearing and fencing name the number of the mark.

    `waited_ms` is how long a fence waited since the mark was seen; None means the time that the
    servers' own settings require. `version` is the resourceVersion of the node that the decision
    rests on: any later change, such as a renewed contact, makes the request void. `approval` is the
    override that allows it although most of the node's zone is silent, if that is the reason.
    """

    senders = (Actor.NODES,)
    needs = Permission("update", "nodes", "phase")
    is_lifeline = True

    node: str
    uid: str
    word: NodeAction
    term: Term
    mark: int = 0
    reason: str = ""
    operation: str = ""
    waited_ms: int | None = None
    version: str = ""
    approval: str = ""

    def subject(self) -> Get:
        return Get("nodes", self.node)

    def permissions(self) -> tuple[Permission, ...]:
        return (self._permission("", self.node),)


class AcquireLease(LeaseRequest, frozen=True):
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

    def subject(self) -> Get:
        return Get("leases", lease_name(self.scope))


class RenewLease(LeaseRequest, frozen=True):
    """Renew a lease.

    `number` grows with every renewal that the holder sends, so that a delayed one does not make a
    stopped holder look alive. The audit records the takeover, with the number of renewals.
    """

    is_recorded = False

    term: Term
    operation: str = ""
    address: str = ""
    number: int = 0
    version: str = ""

    def subject(self) -> Get:
        return Get("leases", lease_name(self.term.scope))


class ReleaseLease(LeaseRequest, frozen=True):
    """Release a lease, so that another process need not wait."""

    term: Term
    operation: str = ""

    def subject(self) -> Get:
        return Get("leases", lease_name(self.term.scope))


class RetireLease(TypedRequest, frozen=True):
    """Delete a lease without recent renewals, as it was last seen. Its epoch is never reused."""

    senders = (Actor.AUTHORITY,)
    needs = Permission("delete", "leases")
    operation: ClassVar[str] = ""

    scope: str
    seen_epoch: int
    seen_renewals: int

    def subject(self) -> Get:
        return Get("leases", lease_name(self.scope))


class ObjectWrite(Declared, frozen=True):
    """An ordinary create, update, patch or delete. Its handler knows the object, so it authorizes
    the sender; who writes which field is declared with the kind.
    """

    senders: ClassVar[tuple[Actor, ...]] = ()
    needs = None


class Create(ObjectWrite, frozen=True):
    """Create an object. Here and below, `term` is a controller's lease; people have none."""

    creates_subject = True

    object: Object
    manager: str = ""
    dry_run: bool = False
    operation: str = ""
    term: Term | None = None

    def subject(self) -> Get:
        return Get(kind_of(self.object).plural, self.object.name, self.object.namespace)


class Update(ObjectWrite, frozen=True):
    """Replace spec and metadata, or the status alone.

    An empty resourceVersion matches any. Only people may leave it empty.
    """

    object: Object
    subresource: str = ""
    manager: str = ""
    dry_run: bool = False
    operation: str = ""
    term: Term | None = None

    def subject(self) -> Get:
        return Get(kind_of(self.object).plural, self.object.name, self.object.namespace)


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


class Patch(ObjectWrite, frozen=True):
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

    def subject(self) -> Get:
        return Get(self.plural, self.name, self.namespace)


class Propagation(StrEnum):
    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class Remove(ObjectWrite, frozen=True):
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

    def subject(self) -> Get:
        return Get(self.plural, self.name, self.namespace)


class ForgetOperations(TypedRequest, frozen=True):
    """Delete operations that are kept apart from their objects, if their retention time is over.

    Each is named by its key in the store without the prefix.
    """

    senders = (Actor.AUTHORITY, Actor.GARBAGE)
    needs = Permission("delete", "operations")
    operation: ClassVar[str] = ""

    operations: tuple[str, ...]
    term: Term | None = None


class QuarantineRecord(Declared, frozen=True):
    """Quarantine a record, as it was found. Only servers send this, to themselves."""

    senders = (Actor.AUTHORITY,)
    needs = Permission("create", "quarantine")
    operation: ClassVar[str] = ""

    record: Quarantined


class RepairAction(StrEnum):
    # Write the sums of the objects into a ledger.
    RECOUNT = "Recount"
    # Write the record of an earlier revision.
    RESTORE = "Restore"
    # Write nothing: the record is right.
    RELEASE = "Release"


class RepairRecord(Declared, frozen=True):
    """Repair a quarantined record, at an operator's request.

    A server computes the value and sends this in the operator's name; no client can send it. `seen`
    is the revision of the record at that time; `value` is None for a release.
    """

    senders = (Actor.OPERATOR,)
    needs = Permission("update", "quarantine")
    operation: ClassVar[str] = ""

    key: str
    action: RepairAction
    seen: int
    word: str
    value: Any = None
    dry_run: bool = False


class RaiseFormat(Declared, frozen=True):
    """Raise the format of the plane's records, at an operator's request.

    `to` is one more than the format that the plane has, so that a second copy is refused.
    """

    senders = (Actor.OPERATOR,)
    needs = Permission("update", "upgrade")
    operation: ClassVar[str] = ""

    to: int
    word: str


# Every request that the authority decides. A request that is missing here can be neither sent nor
# decided: mypy refuses both.
Request = (
    Bind
    | BindTogether
    | Reserve
    | Unreserve
    | HoldCapacity
    | CommitGang
    | DropReservation
    | Evict
    | StopAndReserve
    | Move
    | ReportStage
    | ReportPending
    | RegisterNode
    | JudgeNode
    | AcquireLease
    | RenewLease
    | ReleaseLease
    | RetireLease
    | Create
    | Update
    | Patch
    | Remove
    | ForgetOperations
    | QuarantineRecord
    | RepairRecord
    | RaiseFormat
)


REQUESTS: tuple[type[Request], ...] = get_args(Request)
LIFELINES = tuple(request for request in REQUESTS if request.is_lifeline)
_REQUESTS = frozenset(REQUESTS)


def is_request(body: object) -> TypeGuard[Request]:
    """Whether the authority decides this."""
    return type(body) in _REQUESTS


def under_term(request: Request, term: Term) -> Request:
    """The request under this term of its sender's lease, if it can have one and names none."""
    match request:
        case (
            Create()
            | Update()
            | Patch()
            | Remove()
            | Move()
            | Evict()
            | Unreserve()
            | DropReservation()
            | ReportStage()
            | ReportPending()
            | ForgetOperations()
        ):
            return request if request.term else msgspec.structs.replace(request, term=term)
        case (
            # Their term is required, or a part of them has one.
            Bind()
            | BindTogether()
            | Reserve()
            | StopAndReserve()
            | HoldCapacity()
            | CommitGang()
            | JudgeNode()
            # Who sends these acts without a lease, or is about to take or end one.
            | LeaseRequest()
            | RetireLease()
            | RegisterNode()
            | QuarantineRecord()
            | RepairRecord()
            | RaiseFormat()
        ):
            return request
        case _:
            assert_never(request)


def is_dry_run(request: Request) -> bool:
    """Whether the request only asks what would happen."""
    return isinstance(request, Create | Update | Patch | Remove | RepairRecord) and request.dry_run


class Forward(msgspec.Struct, frozen=True):
    """A request that another server received and authenticated. Only servers may send it.

    `epoch` is the epoch of the receiver's lease `authority`. Under any other epoch the receiver
    does not decide: the sender may have forwarded the request to the next holder by then.
    """

    identity: Identity
    request: Request
    epoch: int = 0


class TermRequest(msgspec.Struct, frozen=True):
    """A request that may be decided only under this term of a lease that its server holds."""

    request: Request
    term: Term


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
