"""Copies of one request that arrive at any time, and how they may be decided.

A `Case` is a plane on which a request is accepted, and steps that others take: most of them undo
what the request did. `Walk` plays one order of the steps and lets copies arrive at every position
of it, in each way in which servers can decide them:

    alone    one copy, by a server that has just started and knows nothing
    batch    several copies at once, decided in one group and committed by one transaction
    again    by the server that accepted the first copy, on what it remembers
    paused   decided at one position, by a server that is paused before it writes; its transaction
             reaches the store at the same position or at any later one

A copy that changes nothing leaves the store as it was, so whatever follows is the same with it and
without it. Therefore it is enough to choose the copy that takes effect first, in every way and at
every position, and to let all other copies arrive after it: this covers every interleaving of
three copies, and of more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.commit.authority import Authority
from holdfast.commit.record_encoding import decode
from holdfast.model import keys
from holdfast.model.access.identity import Identity
from holdfast.model.machine import Asked as AskedOf
from holdfast.model.machine import FateOf, Txn
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, RenewLease
from holdfast.model.transaction import Committed, Put, Transaction
from holdfast.store.contract import KEY_END
from tests.furnished import Furnished

COPIES = 3

Asked = tuple[Identity, Any]
Step = Callable[[Furnished], None]


class Case(msgspec.Struct, frozen=True):
    """How a request comes about on a furnished plane, and what others do after it."""

    name: str
    request: type[Any]
    begin: Callable[[Furnished], Asked]
    steps: tuple[Step, ...]
    # Whether the request finds all as it wants to have it. Then its copies may change nothing.
    finds_it_so: bool = False


class Begun(msgspec.Struct, frozen=True):
    """A plane on which the request was sent and has not arrived yet."""

    case: Case
    it: Furnished
    identity: Identity
    request: Any


class First(msgspec.Struct, frozen=True):
    """Which copy is to take effect first: how it is decided, and where.

    `decided` and `arrives` differ only for a server that was paused between the two positions.
    """

    way: str
    decided: int
    arrives: int


class Paused(msgspec.Struct, eq=False):
    """A server that has decided a copy, with its transaction on the way to the store."""

    authority: Authority
    work: list[Any]
    answers: dict[int, Any]
    decided: int


def begin(case: Case) -> Begun:
    it = Furnished()
    # One check at the end of each walk is enough: no step mends what another has broken.
    it.check = lambda: None  # type: ignore[method-assign]
    identity, request = case.begin(it)
    return Begun(case, it, identity, it.plane.grounded(identity, request))


def fork(it: Furnished) -> Furnished:
    """A plane of its own that goes on from here."""
    plane = copy.copy(it.plane)
    plane.store = it.plane.store.copy()
    plane.transactions = []
    plane.repeated = dict(it.plane.repeated)
    twin = copy.copy(it)
    twin.plane = plane
    twin.terms = dict(it.terms)
    fresh(twin)
    return twin


def fresh(it: Furnished) -> None:
    """Another server decides what comes next. It has no record in memory, and draws other uids.

    It has been there for long, so that it knows how old revisions are.
    """
    revisions = copy.deepcopy(it.plane.authority.revisions)
    it.plane.seed += 1
    it.plane.authority = it.plane.new_authority()
    it.plane.authority.revisions = revisions


def contents(it: Furnished) -> dict[str, tuple[int, bytes]]:
    """All that the store holds, but for what is written down for the audit."""
    records = it.plane.store.range("", KEY_END).records
    return {r.key: (r.modified, r.value) for r in records if not r.key.startswith(keys.AUDIT)}


def firsts(steps: int) -> Iterator[First]:
    """Every copy that may be the first to take effect in a walk of this many steps."""
    for at in range(steps + 1):
        yield First("alone", at, at)
        yield First("batch", at, at)
        for arrives in range(at, steps + 1):
            yield First("paused", at, arrives)


def few_firsts(steps: int) -> Iterator[First]:
    """One of each sort, and a copy alone at every position."""
    for at in range(steps + 1):
        yield First("alone", at, at)
    yield First("batch", 0, 0)
    yield First("paused", 0, 0)
    if steps:
        yield First("paused", 0, steps)


class Walk:
    """One order of the steps, with one copy that takes effect first and all others after it."""

    def __init__(
        self, begun: Begun, steps: Sequence[Step], first: First, *, is_thorough: bool
    ) -> None:
        """If it is thorough, copies arrive in every way everywhere. Otherwise only some do: servers
        are paused before the first step alone, and no batch comes after a step.
        """
        self.it = fork(begun.it)
        self.begun, self.steps, self.first = begun, steps, first
        self._is_thorough = is_thorough
        self._paused: list[Paused] = []
        self._held: Paused | None = None
        self._warm: Authority | None = None
        # Whether a copy was accepted, so that none may change anything any more.
        self.is_accepted = False
        # What came of the copy that was to be the first.
        self.answers: list[Any] = []
        self.effects = 0
        # How many copies were at most decided together.
        self.together = 0

    def play(self) -> None:
        """Raises AssertionError if a second copy takes effect."""
        count = len(self.steps)
        for at in range(count + 1):
            self._pause(at)
            if at == self.first.arrives:
                self._first()
                if not self.is_accepted:
                    # Nothing has changed, so a walk that begins elsewhere tells the rest.
                    return
            if self.is_accepted:
                self._others(at)
            if at < count:
                fresh(self.it)
                self.steps[at](self.it)
        if not self.it.plane.damaged:
            del self.it.check
            self.it.check()

    # The first copy ------------------------------------------------------------------------------

    def _first(self) -> None:
        before, committed = contents(self.it), []
        self.it.plane.spoil = lambda effect: self._commit(effect, committed)
        self.answers = self._decide_first()
        self.it.plane.spoil = None
        has_changed = contents(self.it) != before
        self.is_accepted = any(isinstance(answer, Accepted) for answer in self.answers)
        self.effects = self._effects(committed)
        assert self.effects <= 1, f"{self.effects} copies of one group took effect"
        assert has_changed or not self.effects
        assert self.is_accepted or not has_changed

    def _decide_first(self) -> list[Any]:
        match self.first.way:
            case "alone":
                return self._alone()
            case "batch":
                return self._deliver(COPIES)
            case _:
                assert self._held is not None
                return [self._wake(self._held)]

    def _commit(self, effect: Txn | FateOf, committed: list[Transaction]) -> Any:
        """Perform a transaction, and note it if it commits."""
        if not isinstance(effect, Txn):
            return None
        self.together = max(self.together, self.it.plane.authority.in_flight)
        answer = self.it.plane.store.txn(effect.transaction, token=effect.token)
        if isinstance(answer, Committed):
            committed.append(effect.transaction)
        return answer

    def _effects(self, transactions: Sequence[Transaction]) -> int:
        """How many copies these transactions say to have changed something."""
        if isinstance(self.begun.request, RenewLease):
            # Renewals are not audited. Each that is accepted writes.
            return sum(isinstance(answer, Accepted) for answer in self.answers)
        writes = [write for it in transactions for write in it.writes]
        stamps = [it for it in writes if isinstance(it, Put) and it.key == keys.audit_stamp()]
        return sum(len(decode(stamp.key, stamp.value).mutations) for stamp in stamps)

    # Those that come after it --------------------------------------------------------------------

    def _others(self, at: int) -> None:
        """Let a copy arrive in every way. None of them may change anything."""
        self._unchanged(at, "alone", self._alone)
        if self._is_thorough or at == self.first.arrives:
            self._unchanged(at, "batch", lambda: self._deliver(COPIES - 1))
            self._unchanged(at, "again", self._again)
        for paused in {it.decided: it for it in self._paused}.values():
            self._paused.remove(paused)
            self._unchanged(at, f"paused at {paused.decided}", lambda it=paused: [self._wake(it)])

    def _unchanged(self, at: int, way: str, deliver: Callable[[], list[Any]]) -> None:
        before = contents(self.it)
        answers = deliver()
        if contents(self.it) != before:
            steps = [getattr(step, "__name__", "step") for step in self.steps[:at]]
            raise AssertionError(
                f"after {self.first} was answered {self.answers}, a copy that arrived at {at} "
                f"({way}, after {steps}) took effect as well: {answers}"
            )

    # Ways of deciding ----------------------------------------------------------------------------

    def _alone(self) -> list[Any]:
        fresh(self.it)
        answers = self._deliver(1)
        if self._warm is None:
            self._warm = self.it.plane.authority
        return answers

    def _again(self) -> list[Any]:
        now = self.it.plane.authority
        assert self._warm is not None
        self.it.plane.authority = self._warm
        answers = self._deliver(1)
        self.it.plane.authority = now
        return answers

    def _deliver(self, copies: int) -> list[Any]:
        """Deliver copies that arrive together, as they were sent, and not as they would be now."""
        plane = self.it.plane
        if copies > 1:
            fresh(self.it)
        plane.grounds = False
        answers = plane.ask_all(*[(self.begun.identity, self.begun.request)] * copies)
        plane.grounds = True
        assert all(isinstance(answer, Accepted | Refusal) for answer in answers), answers
        return answers

    def _pause(self, at: int) -> None:
        """Let servers decide a copy here that wake up later."""
        if self.first.way == "paused" and at == self.first.decided:
            self._held = self._decided(at)
        if self._is_thorough or at == 0:
            wakes = range(max(at, self.first.arrives), len(self.steps) + 1)
            self._paused += [self._decided(at) for _ in wakes]

    def _decided(self, at: int) -> Paused:
        """A server that loads what it needs, decides, and has not written yet."""
        fresh(self.it)
        plane = self.it.plane
        asked = AskedOf(1, self.begun.identity, self.begun.request)
        paused = Paused(plane.authority, [asked], {}, at)
        while paused.work:
            effects = plane.authority.step(paused.work.pop(0), plane.now)
            if any(isinstance(effect, Txn) and effect.token for effect in effects):
                paused.work = effects
                break
            plane.perform(effects, paused.work, paused.answers)
        fresh(self.it)
        return paused

    def _wake(self, paused: Paused) -> Any:
        """What becomes of a copy when the transaction of its server reaches the store at last."""
        plane = self.it.plane
        held, paused.work = paused.work, []
        plane.perform(held, paused.work, paused.answers)
        while paused.work:
            effects = paused.authority.step(paused.work.pop(0), plane.now)
            plane.perform(effects, paused.work, paused.answers)
        return paused.answers[1]
