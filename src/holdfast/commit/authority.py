"""The authority: a machine that decides requests in order and commits them in groups.

Requests wait in a queue. One group at a time is decided, each request on what the ones before it
will have written. The group is one transaction that compares every record that any of its decisions
read. When it commits, all callers get their answers. When a compare fails, the refusal brings the
current records, and the group is decided again; after three tries it is halved, so that under
contention some request always gets through. When the answer is lost, the authority asks for the
fate of the transaction by its token before it does anything else.

Its memory is only a cache: it may crash after any effect, and any number of authorities may run
over one store. `server.py` makes one of them the usual one, for speed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from holdfast.commit.ages import Ages, RevisionAges
from holdfast.commit.context import Context, PlaneSettings, ReplayableRng
from holdfast.commit.dispatch import Approval, decide
from holdfast.commit.draft import UNCOMMITTED, CommitGroup, Draft, NotLoaded, SeenRecords
from holdfast.commit.flow.rates import ExhaustedBudgets
from holdfast.commit.leases import is_current
from holdfast.commit.objects.audit_entries import mutation
from holdfast.commit.quarantine_repair import BROKEN, Doubt, doubt_of
from holdfast.commit.record_encoding import with_version
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.audit.audit_records import Mutation
from holdfast.model.errors import (
    HoldfastError,
    Invalid,
    OutcomeUnknown,
    RecordUnreadable,
    Unavailable,
    invariant,
)
from holdfast.model.machine import (
    Answer,
    Answered,
    Asked,
    Effects,
    FateOf,
    Reply,
    Rng,
    Stimulus,
    Tokens,
    Txn,
    Wake,
    Withdrawn,
    Woken,
)
from holdfast.model.plane_format import FORMAT, PlaneFormat, too_new
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import (
    Accepted,
    RepairRecord,
    Request,
    Term,
    TermRequest,
    Verdict,
    is_dry_run,
    is_request,
)
from holdfast.model.time import Instant
from holdfast.model.transaction import (
    ABSENT,
    NEVER,
    Committed,
    Compare,
    CompareFailed,
    TokenApplied,
    Transaction,
)

# Each refused group brings fresher records, so a fourth conflict means contention: make the group
# smaller.
GROUP_TRIES_MAX = 3
# A decision reads a few layers of records, each naming the next; more would be a loop.
LOAD_PASSES_MAX = 24
# A request that arrives during the first load of a group may join it; a later one waits for the
# next group. Otherwise a steady stream of new requests, each with something new to read, would keep
# the first from ever being decided.
JOINING_PASSES_MAX = 1
# The pause before asking again for the fate of a transaction, and the maximum number of tries.
FATE_RETRY_MS = 200
FATE_TRIES_MAX = 25
QUEUE_MAX = 20_000
_FATE = "fate"
_FORMAT = keys.plane_format()


class GroupLimits(msgspec.Struct, frozen=True):
    """The size limits of a group. By default etcd takes 128 compares and operations a transaction.

    A group writes at most one record more than it compares: the audit stamp. One of the compares is
    the plane's format.
    """

    requests_max: int = 256
    compares_max: int = 1_000


_UNNAMED = who.server("unnamed")
DEFAULT_SETTINGS = PlaneSettings()
DEFAULT_LIMITS = GroupLimits()


class WaitingRequest(msgspec.Struct, frozen=True, gc=False):
    """A request in the queue. `under` is the term that its decision has to compare, if any.

    `sent_before` says that it was part of a transaction whose answer was lost. If it fails after
    that, it may have been done the first time.
    """

    call: int
    identity: Identity
    request: Request
    luck: ReplayableRng
    sent_before: bool = False
    under: Term | None = None


class NoLongerLeader(msgspec.Struct, frozen=True):
    """No ruling: another server decides this now."""


Ruling = Approval | Refusal | Doubt | NoLongerLeader


class _Flight(msgspec.Struct):
    """A group whose transaction is in flight."""

    call: int
    token: str
    group: CommitGroup
    members: list[tuple[WaitingRequest, Ruling]]
    fate_tries: int = 0
    # Its members that are not retried if this transaction does not commit.
    withdrawn: frozenset[int] = frozenset()

    def members_to_retry(self) -> list[WaitingRequest]:
        """The members to decide again, in order, once it is known not to have committed."""
        return [it for it, _ in self.members if it.call not in self.withdrawn]


class Authority:
    """See the module's docstring. The shell sends `answers` to the callers."""

    def __init__(
        self,
        rng: Rng,
        tokens: Tokens,
        settings: PlaneSettings = DEFAULT_SETTINGS,
        limits: GroupLimits = DEFAULT_LIMITS,
        identity: Identity = _UNNAMED,
    ) -> None:
        """`identity` is that of the server, which puts records into quarantine."""
        self._identity = identity
        self._rng, self._tokens = rng, tokens
        self._settings, self._limits = settings, limits
        # Set by a server, which knows since when this authority is the only one.
        self.ages: Ages | None = None
        # When this server saw which revision of the store.
        self.revisions = RevisionAges()
        self._view = SeenRecords()
        self._line: deque[WaitingRequest] = deque()
        self._flight: _Flight | None = None
        self._loading: tuple[int, tuple[str, ...]] | None = None
        self._passes = 0
        self._gathered = 0
        self._tries = 0
        self._group_max = limits.requests_max
        self._calls = 0
        # The refusals for exhausted budgets; the owner may pass one that others also count in.
        self.exhausted = ExhaustedBudgets()
        # How many decisions met a wrong record.
        self.doubts = 0

    def step(self, stimulus: Stimulus, now: Instant) -> Effects:
        """Take in a request, or the outcome of a transaction."""
        effects: Effects = []
        match stimulus:
            case Asked():
                effects += self._enqueue(stimulus)
            case Answered():
                effects += self._answered(stimulus, now)
            case Woken(name=name) if name == _FATE:
                effects += self._ask_fate()
            case Withdrawn(calls=calls):
                self._withdraw(frozenset(calls))
            case _:
                pass
        return effects + self._advance(now)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self._line and self._flight is None and self._loading is None

    @property
    def in_flight(self) -> int:
        """How many requests the transaction decides that is on its way to the store."""
        return len(self._flight.members) if self._flight is not None else 0

    def _enqueue(self, asked: Asked) -> Effects:
        if len(self._line) >= QUEUE_MAX:
            return [
                Answer(
                    asked.call,
                    Unavailable(f"the queue is full: {QUEUE_MAX} requests wait; retry later"),
                )
            ]
        sender = asked.sender
        identity = sender if isinstance(sender, Identity) else Identity(name=sender)
        request, under = asked.body, None
        if isinstance(request, TermRequest):
            under = request.term
            request = request.request
        if not is_request(request):
            unknown = f"unknown request type {type(request).__name__}"
            return [Answer(asked.call, Refusal(Reason.INVALID, unknown))]
        self._line.append(
            WaitingRequest(asked.call, identity, request, ReplayableRng(self._rng), under=under)
        )
        return []

    def _withdraw(self, calls: frozenset[int]) -> None:
        """Drop calls that no caller waits for any more: none of them is decided from now on.

        What is in flight to the store may take effect; if it does not, it is not sent again.
        """
        self._line = deque([it for it in self._line if it.call not in calls])
        if self._flight is not None:
            self._flight.withdrawn |= calls

    def next_call(self) -> int:
        """A call number for an own call, or for one that a server makes on its own behalf."""
        # Negative, so that own call numbers never collide with those of incoming requests.
        self._calls -= 1
        return self._calls

    # Deciding ------------------------------------------------------------------------------------

    def _advance(self, now: Instant) -> Effects:
        """Start groups until one is in flight or the queue is empty."""
        effects: Effects = []
        while self._line and self._flight is None and self._loading is None:
            effects += self._start(now)
        return effects

    def _start(self, now: Instant) -> Effects:
        group = CommitGroup(self._view)
        members: list[tuple[WaitingRequest, Ruling]] = []
        missing: dict[str, None] = {}
        most = max(1, self._limits.compares_max - 1)
        size = self._group_max
        if self._passes > JOINING_PASSES_MAX:
            size = min(size, self._gathered)
        while self._line and len(members) < size and len(missing) < most:
            waiting = self._line[0]
            luck = waiting.luck.again()
            context = Context(
                waiting.identity, now, luck, self._settings, self.ages, self.revisions
            )
            draft = Draft(group)
            try:
                outcome, did = _ruling(draft, context, waiting)
            except NotLoaded as needed:
                missing.update(dict.fromkeys(needed.missing))
                # Go on, to learn what the others need too; nothing of this pass is kept.
                members.append((waiting, Approval()))
                self._line.popleft()
                continue
            if members and draft.is_heavier_than(most):
                break
            self._line.popleft()
            if not isinstance(outcome, Approval) or is_dry_run(waiting.request):
                draft.refuse()
            else:
                if did is not None:
                    group.mutations.append(did)
                draft.accept()
            members.append((waiting, outcome))
        if (group.compares or group.writes) and self._view.get(_FORMAT) is None:
            # Read once per process; then each transaction compares it, and its refusal brings any
            # change.
            missing[_FORMAT] = None
        if missing:
            return self._load(members, tuple(missing))
        self._passes = 0
        closed = self.closed_error()
        if closed and not all(_mends_format(waiting) for waiting, _ in members):
            # The request that repairs the format is decided again, without the others.
            mending = [waiting for waiting, _ in members if _mends_format(waiting)]
            self._line.extendleft(reversed(mending))
            rest = [waiting for waiting, _ in members if not _mends_format(waiting)]
            return [_failure(waiting, closed) for waiting in rest]
        return self._send(group, members, now)

    def closed_error(self) -> Unavailable | None:
        """Why this version may not write to the plane, as far as this server knows; None if it
        may.
        """
        seen = self._view.get(_FORMAT)
        if seen is None or seen.data is None:
            return None
        try:
            why = too_new(self._view.value(_FORMAT, seen).format)
        except RecordUnreadable as error:
            # Waiting does not repair it, and clients recognize that by the code.
            message = f"{error.message}; repair it with `holdfast repair restore {_FORMAT}`"
            return Unavailable(message, code=Reason.RECORD_UNREADABLE)
        return Unavailable(why) if why else None

    def _load(
        self, members: list[tuple[WaitingRequest, Ruling]], missing: tuple[str, ...]
    ) -> Effects:
        """Read what the group needs in one transaction that cannot commit, and decide it again."""
        self._passes += 1
        invariant(self._passes <= LOAD_PASSES_MAX, f"a decision never stops reading: {missing}")
        self._line.extendleft(waiting for waiting, _ in reversed(members))
        self._gathered = len(members)
        wanted = missing[: self._limits.compares_max]
        call = self.next_call()
        self._loading = (call, wanted)
        return [Txn(call, Transaction(tuple(Compare(key, NEVER) for key in wanted), ()))]

    def _send(
        self, group: CommitGroup, members: list[tuple[WaitingRequest, Ruling]], now: Instant
    ) -> Effects:
        if group.compares or group.writes:
            self._rest_on_format(group)
        transaction = group.transaction(now.wall_ms)
        if not transaction.compares and not transaction.writes:
            return self._answers(members, 0, now)
        call, token = self.next_call(), self._tokens.new_token()
        self._flight = _Flight(call, token, group, members)
        return [Txn(call, transaction, token)]

    def _rest_on_format(self, group: CommitGroup) -> None:
        """Compare the plane's format, and write it where there is none yet."""
        seen = self._view.get(_FORMAT)
        group.compares[_FORMAT] = seen.modified if seen is not None else ABSENT
        if group.writes and (seen is None or seen.data is None):
            group.writes[_FORMAT] = PlaneFormat(FORMAT)

    # What came of it -----------------------------------------------------------------------------

    def _answered(self, answered: Answered, now: Instant) -> Effects:
        if isinstance(answered.body, Committed | CompareFailed):
            self.revisions.observe(answered.body.revision, now)
        if self._loading is not None and answered.call == self._loading[0]:
            return self._loaded(answered.body)
        flight = self._flight
        if flight is None or answered.call != flight.call:
            return []
        if flight.fate_tries:
            # Unavailable then refers to the question, not to the transaction.
            return self._fate(flight, answered.body, now)
        match answered.body:
            case Committed(revision=revision):
                return self._committed(flight, revision, now)
            case CompareFailed():
                return self._refused(flight, answered.body)
            case Invalid():
                return self._too_large(flight, answered.body)
            case Unavailable():
                self._flight = None
                return self._fail(flight, answered.body)
            case _:
                return self._ask_fate()

    def _loaded(self, body: Reply) -> Effects:
        loading = self._loading
        self._loading = None
        if loading is None or not isinstance(body, CompareFailed):
            return self._give_up()
        for key, record in zip(loading[1], body.current, strict=True):
            self._view.learn(key, record)
        return []

    def _give_up(self) -> Effects:
        """Answer Unavailable to every waiting caller because the store cannot be read; callers
        decide whether to retry.
        """
        line, self._line = self._line, deque()
        self._passes = 0
        error = Unavailable("the store cannot be read now; retry later")
        return [_failure(waiting, error) for waiting in line]

    def _committed(self, flight: _Flight, revision: int, now: Instant) -> Effects:
        self._flight = None
        self._tries = 0
        self._group_max = min(self._limits.requests_max, self._group_max * 2)
        flight.group.record_commit(revision)
        return self._answers(flight.members, revision, now)

    def _refused(self, flight: _Flight, refused: CompareFailed) -> Effects:
        self._flight = None
        for key, record in zip(flight.group.compares, refused.current, strict=True):
            self._view.learn(key, record)
        self._line.extendleft(reversed(flight.members_to_retry()))
        self._tries += 1
        if self._tries >= GROUP_TRIES_MAX:
            self._tries = 0
            self._group_max = max(1, len(flight.members) // 2)
        return []

    def _too_large(self, flight: _Flight, error: Invalid) -> Effects:
        """The store accepts less at once than the limits say: retry with fewer, or refuse the
        single one.
        """
        self._flight = None
        if len(flight.members) == 1:
            refusal = Refusal(Reason.INVALID, error.message, {"code": error.code})
            return [Answer(flight.members[0][0].call, refusal)]
        self._line.extendleft(reversed(flight.members_to_retry()))
        self._group_max = len(flight.members) // 2
        return []

    def _fail(self, flight: _Flight, error: HoldfastError) -> Effects:
        for key in flight.group.compares:
            self._view.forget(key)
        return [_failure(waiting, error) for waiting, _ in flight.members]

    def _answers(
        self, members: Iterable[tuple[WaitingRequest, Ruling]], revision: int, now: Instant
    ) -> Effects:
        answers: Effects = []
        for waiting, outcome in members:
            if isinstance(outcome, NoLongerLeader):
                answers.append(_failure(waiting, Unavailable("another server decides now; retry")))
                continue
            if isinstance(outcome, Doubt):
                self._quarantine(waiting, outcome, now)
            if isinstance(outcome, Refusal):
                self.exhausted.count_refusal(waiting.request, outcome)
            answers.append(Answer(waiting.call, _verdict(outcome, revision)))
        return answers

    def _quarantine(self, waiting: WaitingRequest, doubt: Doubt, now: Instant) -> None:
        """Put a record that the store confirmed to be wrong into quarantine.

        If that fails, or there is no room, the next decision that meets the record tries again.
        """
        self.doubts += 1
        request = doubt.request(waiting.identity, waiting.request, now)
        if request is not None and len(self._line) < QUEUE_MAX:
            luck = ReplayableRng(self._rng)
            self._line.append(WaitingRequest(self.next_call(), self._identity, request, luck))

    # When the answer was lost --------------------------------------------------------------------

    def _ask_fate(self) -> Effects:
        flight = self._flight
        if flight is None:
            return []
        flight.fate_tries += 1
        if flight.fate_tries > FATE_TRIES_MAX:
            self._flight = None
            lost = OutcomeUnknown("the store did not report the outcome of the transaction")
            return self._fail(flight, lost)
        flight.call = self.next_call()
        return [FateOf(flight.call, flight.token)]

    def _fate(self, flight: _Flight, fate: Reply, now: Instant) -> Effects:
        if isinstance(fate, TokenApplied):
            return self._committed(flight, fate.revision, now)
        if isinstance(fate, HoldfastError):
            return [Wake(_FATE, now.monotonic_ms + FATE_RETRY_MS)]
        # It never took effect, or its fate is no longer known. Read everything again and decide
        # again: accepted operations are recorded on the objects themselves.
        self._flight = None
        for key in flight.group.compares:
            self._view.forget(key)
        for waiting in reversed(flight.members_to_retry()):
            self._line.appendleft(msgspec.structs.replace(waiting, sent_before=True))
        return []


def _failure(waiting: WaitingRequest, error: HoldfastError) -> Answer:
    """The answer to a failed request. "It did not happen" is reported only if it cannot have
    happened the first time either.
    """
    if waiting.sent_before and isinstance(error, Unavailable):
        error = OutcomeUnknown(
            f"an earlier try has an unknown outcome; the retry failed: {error.message}"
        )
    return Answer(waiting.call, error)


def _mends_format(waiting: WaitingRequest) -> bool:
    """Whether a request repairs the format of the plane, without which nothing else is written."""
    return isinstance(waiting.request, RepairRecord) and waiting.request.key == _FORMAT


def _ruling(
    draft: Draft, context: Context, waiting: WaitingRequest
) -> tuple[Ruling, Mutation | None]:
    """The ruling on one request, and its audit entry.

    A decision has no state of its own, so a failure inside it concerns this request alone. The view
    may mix records of different revisions, so the store confirms them before the caller gets an
    answer.
    """
    try:
        if waiting.under is not None and not is_current(draft, waiting.under):
            return NoLongerLeader(), None
        outcome = decide(draft, context, waiting.request)
        if isinstance(outcome, Refusal):
            return outcome, None
        return outcome, mutation(draft, context.identity, waiting.request, outcome)
    except BROKEN as error:
        return doubt_of(error, draft), None


def _verdict(outcome: Approval | Refusal | Doubt, revision: int) -> Verdict:
    if isinstance(outcome, Refusal):
        return outcome
    if isinstance(outcome, Doubt):
        return outcome.refusal()
    return Accepted(
        revision=revision,
        objects=tuple(
            with_version(obj, revision if at == UNCOMMITTED else at)
            for obj, at in zip(outcome.objects, outcome.revisions, strict=True)
        ),
        replayed=outcome.replayed,
        warnings=outcome.warnings,
        created=outcome.created,
    )
