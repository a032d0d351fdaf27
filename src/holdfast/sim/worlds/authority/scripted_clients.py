"""A scripted client: reads the store, decides, asks a server, and reads again.

It is level-triggered and keeps little state: each round starts from a snapshot. The operation id of
a request follows from its intent, so the client can repeat it after any loss. Occasionally the
client decides on an old snapshot on purpose, as with a stale cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from holdfast.commit.record_encoding import decode_or_none, with_version
from holdfast.model import keys
from holdfast.model.errors import Unavailable, invariant
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.kinds.replica import Replica
from holdfast.model.machine import Answered, Ask, Range, Started, Wake, Woken
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import (
    Accepted,
    AcquireLease,
    Create,
    Patch,
    ReleaseLease,
    Remove,
    RenewLease,
    ReportPending,
    ReportStage,
    Target,
    Term,
    Update,
)
from holdfast.model.time import Instant
from holdfast.model.transaction import Record
from holdfast.sim.cell import Seat
from holdfast.sim.plan import Prompted
from holdfast.sim.planes.facts import AcknowledgedRequest, DeniedRequest, StateFact
from holdfast.sim.planes.shared_names import CLIENT_SERVERS

ObjectT = TypeVar("ObjectT", bound=Object)

# Objects are immutable and a revision identifies content, so all clients share one decoding.
_DECODED_MAX = 20_000
_decoded: dict[tuple[str, int, bytes], Any] = {}


def value_of(key: str, modified: int, value: bytes) -> Any:
    name = (key, modified, value)
    found = _decoded.get(name)
    if found is None:
        if len(_decoded) >= _DECODED_MAX:
            _decoded.clear()
        found = decode_or_none(Record(key, value, modified, modified))
        if isinstance(found, Object):
            found = with_version(found, modified)
        _decoded[name] = found
    return found


class ObjectSnapshot:
    """All objects as of one revision, by kind and key."""

    def __init__(self, revision: int, values: Iterable[tuple[str, Any]]) -> None:
        self.revision = revision
        self._values: dict[type[Any], dict[str, Any]] = {}
        for key, value in values:
            self._values.setdefault(type(value), {})[key] = value

    def all(self, struct: type[ObjectT]) -> Iterable[ObjectT]:
        """All objects of a kind, in the order of their keys."""
        return self._values.get(struct, {}).values()

    def keyed(self, struct: type[Any]) -> dict[str, Any]:
        """All records of a kind by key, for records that do not carry their own."""
        return self._values.get(struct, {})

    def get(self, struct: type[ObjectT], namespace: str, name: str) -> ObjectT | None:
        found = self.keyed(struct)
        return found.get(keys.object_key(kind_of_struct(struct), namespace, name))


# With the short timeout a client never learns the fate of a transaction whose answer was lost.
IMPATIENT_MS, PATIENT_MS = 3_000, 20_000
# Requests of one client in flight at once.
ASKS_MAX = 12
# One read in this many is skipped, and the client decides on its previous snapshot.
STALE_ONE_IN = 5
# One renewal in this many is replaced by a release of the lease.
RELEASE_ONE_IN = 60
# The prompt to all clients after the faults: start nothing new, finish what there is.
REST = {"do": "rest"}
FIRST_LIFE = 1
TERMED = (Create, Update, Patch, Remove, ReportStage, ReportPending)


def target(replica: Replica) -> Target:
    """The replica as the snapshot shows it."""
    return Target(
        replica.namespace, replica.name, replica.metadata.uid, replica.status.transition_number
    )


def operation_id_of(replica: Replica, intent: str, who: str) -> str:
    """The operation id of an intent about a replica at its current transition."""
    return f"{who}/{replica.metadata.uid}/{replica.status.transition_number}/{intent}"


class ScriptedClient:
    """Subclasses give the requests in `next_requests`, and may use the answers in `on_answer`."""

    period_ms = 3_000
    # The scope of the lease to hold, for clients that need one.
    scope = ""
    lease_ms = 8_000
    # The range that it reads: all objects, and in some subclasses more.
    first_key = keys.OBJECTS
    end_key = keys.after_prefix(keys.OBJECTS)

    def __init__(self, seat: Seat, identity: str) -> None:
        self.rng = seat.rng
        self.identity = identity
        self._term: Term | None = None
        self._renewals = 0
        self.snapshot: ObjectSnapshot | None = None
        self.resting = False
        self._calls = 0
        self._reading: int | None = None
        self._asked: dict[int, Any] = {}
        self._first_life = seat.life == FIRST_LIFE
        self._sent: dict[str, int] = {}
        self._lease_seen: tuple[int, int, int] | None = None

    # For subclasses ------------------------------------------------------------------------------

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterable[Any]:
        """The requests to send, given a snapshot."""
        raise NotImplementedError

    def on_answer(self, request: Any, answer: Any) -> None:
        """Takes an answer: a verdict, or an error as a value."""

    def on_prompt(self, body: dict[str, Any]) -> None:
        """Takes a prompt of the script."""

    @property
    def term(self) -> Term:
        """The term of the lease that it holds. `next_requests` is called only while it has one."""
        invariant(self._term is not None, f"{self.identity} acts without a lease")
        return self._term or Term("", 0)

    def chance(self, one_in: int) -> bool:
        return self.rng.random() * one_in < 1

    def whim(self, one_in: int) -> bool:
        """Whether to deviate from the regular course; never while resting."""
        return self.chance(one_in) and not self.resting

    def pick(self, options: list[Any]) -> Any:
        return options[int(self.rng.random() * len(options))]

    # The machine ---------------------------------------------------------------------------------

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        match stimulus:
            case Started() | Woken(name="round"):
                return self._round(now)
            case Answered(call=call) if call == self._reading:
                return self._take_snapshot(stimulus.body, now)
            case Answered(call=call) if call in self._asked:
                return self._answered(self._asked.pop(call), stimulus.body)
            case Prompted(body=body) if body == REST:
                self.resting = True
            case Prompted(body=body):
                self.on_prompt(body)
        return []

    def _round(self, now: Instant) -> list[Any]:
        jitter = int(self.rng.random() * self.period_ms / 2)
        wake = Wake("round", now.monotonic_ms + self.period_ms + jitter)
        if self.snapshot is not None and self.chance(STALE_ONE_IN):
            return [wake, *self._ask(self._all_requests(self.snapshot, now))]
        self._reading = self._call()
        return [wake, Range(self._reading, self.first_key, self.end_key)]

    def _take_snapshot(self, page: Any, now: Instant) -> list[Any]:
        self._reading = None
        records = getattr(page, "records", None)
        if records is None:
            return []
        seen = ((r.key, value_of(r.key, r.modified, r.value)) for r in records)
        self.snapshot = ObjectSnapshot(page.revision, seen)
        return self._ask(self._all_requests(self.snapshot, now))

    def _all_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        if self.scope:
            yield from self._lease_requests(snapshot, now)
            if self._term is None:
                return
        yield from self.next_requests(snapshot, now)

    def _ask(self, requests: Iterable[Any]) -> list[Any]:
        effects = []
        for wanted in requests:
            if len(self._asked) >= ASKS_MAX:
                break
            request = self._under_term(wanted)
            call = self._call()
            self._asked[call] = request
            operation = getattr(request, "operation", "")
            if operation:
                self._sent[operation] = self._sent.get(operation, 0) + 1
            timeout_ms = PATIENT_MS if self.chance(2) else IMPATIENT_MS
            effects.append(Ask(call, CLIENT_SERVERS, request, timeout_ms))
        return effects

    def _under_term(self, request: Any) -> Any:
        """The request with the term of the held lease, for object requests and reports."""
        if self._term is None or not isinstance(request, TERMED) or request.term is not None:
            return request
        return msgspec.structs.replace(request, term=self._term)

    def _answered(self, request: Any, answer: Any) -> list[Any]:
        if isinstance(request, AcquireLease | RenewLease):
            self._lease_answered(answer)
        if isinstance(request, ReleaseLease):
            self._term = None
        self.on_answer(request, answer)
        if isinstance(answer, Accepted):
            return [StateFact(AcknowledgedRequest(self.identity, request, answer))]
        operation = getattr(request, "operation", "")
        if operation and isinstance(answer, Refusal | Unavailable):
            once = self._first_life and self._sent.get(operation) == 1
            return [StateFact(DeniedRequest(self.identity, request, answer, once))]
        return []

    def _call(self) -> int:
        self._calls += 1
        return self._calls

    # The lease -----------------------------------------------------------------------------------

    def _lease_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        """Renews the held lease, or takes over one that was not renewed for its duration on this
        client's clock."""
        if self._term is not None:
            given_back = self.whim(RELEASE_ONE_IN)
            self._renewals += 1
            renewal = RenewLease(self._term, number=self._renewals)
            yield ReleaseLease(self._term) if given_back else renewal
            return
        lease = snapshot.get(Lease, "", lease_name(self.scope))
        if lease is None:
            yield AcquireLease(self.scope, self.lease_ms)
            return
        if not lease.spec.holder:
            free = lease.spec
            yield AcquireLease(self.scope, self.lease_ms, free.epoch, free.renewals)
            return
        spec, seen = lease.spec, self._lease_seen
        if seen is None or seen[:2] != (spec.epoch, spec.renewals):
            self._lease_seen = (spec.epoch, spec.renewals, now.monotonic_ms)
            return
        if spec.holder == self.identity or now.monotonic_ms - seen[2] >= spec.duration_ms:
            yield AcquireLease(self.scope, self.lease_ms, spec.epoch, spec.renewals)

    def _lease_answered(self, answer: Any) -> None:
        if isinstance(answer, Accepted):
            for lease in answer.objects:
                if isinstance(lease, Lease):
                    self._term = Term(self.scope, lease.spec.epoch)
                    self._renewals = max(self._renewals, lease.spec.renewals)
        elif isinstance(answer, Refusal) and answer.reason is not Reason.CONTENTION:
            self._term, self._renewals = None, 0
            self._lease_seen = None
