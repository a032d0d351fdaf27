"""Records decisions: each round is recorded when it is decided, and archived when it is complete.

The scheduler opens a round before its first decision and closes it after the last; the binder
reports the outcome of each bind. A round that waits for answers longer than `OPEN_MS` is archived
as it is, and once more when they are all there, under the same name. A scheduler that crashes loses
the rounds that were open; the replicas that they bound still record the binds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.machine import ArchiveRecord
from holdfast.model.requests import Term
from holdfast.model.time import Instant
from holdfast.propose.decision_rounds import (
    ACCEPTED,
    WAITS,
    AssumedMembers,
    Case,
    DecisionRound,
    WaitReason,
)
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import (
    BindGang,
    BindReplica,
    Decision,
    PlacementReport,
    Preempt,
    StayPending,
)
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.queue.scheduling_queue import QueueEntry

# Answers come within a second, or their senders are in trouble.
OPEN_MS = 10_000
# The rounds that may be listed as having assumed placements. More than this many small rounds
# without an answer means deeper trouble; the rest is only counted.
LEFT_MAX = 512
# A refusal is one sentence; the commit's own bound is smaller.
MESSAGE_MAX = 400


class _Open:
    """A round that waits for answers."""

    __slots__ = ("awaited", "due_ms", "round", "size")

    def __init__(self, decided: DecisionRound, due_ms: int) -> None:
        self.round, self.due_ms = decided, due_ms
        self.awaited = self.size = 0


class DecisionRecorder:
    """See the module's docstring. No decision depends on it."""

    def __init__(self, identity: str, fleet: Fleet) -> None:
        self._identity, self._fleet = identity, fleet
        self._sequence = 0
        self._now: _Open | None = None
        # Where the outcomes belong that are awaited: round, case, and index in the case.
        self._awaited: dict[str, tuple[_Open, Case, int]] = {}
        # In the order of time. Rounds that are complete by now are skipped when they are reached.
        self._waiting: deque[_Open] = deque()
        # The round and index of each assumed placement, and the bits of each round.
        self._made: dict[str, tuple[int, int]] = {}
        self._bits: dict[int, int] = {}
        self._epoch = 0
        self._due: list[ArchiveRecord] = []
        fleet.unassumed = []

    def open(
        self, view: FleetSnapshot, term: Term, salt: int, seen: dict[str, int], now: Instant
    ) -> None:
        """Start a round for the decisions that follow."""
        if term.epoch != self._epoch:
            # Assumptions of another epoch belong to rounds that this epoch cannot name.
            self._epoch = term.epoch
            self._made.clear()
            self._bits.clear()
        self._settle_assumptions()
        self._fleet.forgive(now.monotonic_ms)
        self._sequence += 1
        left = tuple(AssumedMembers(sequence, f"{bits:x}") for sequence, bits in self._bits.items())
        named = sum(bits.bit_count() for bits in list(self._bits.values())[:LEFT_MAX])
        decided = DecisionRound(
            scheduler=self._identity,
            scope=term.scope,
            epoch=term.epoch,
            sequence=self._sequence,
            decided_ms=now.wall_ms,
            snapshot_revision=view.revision,
            snapshot_age_ms=view.age_ms,
            snapshot_age_max_ms=view.age_max_ms,
            salt=salt,
            policy=view.policy.name if view.policy is not None else "",
            seen=seen,
            assumed=left[:LEFT_MAX],
            left_out=self._fleet.assumptions - named + self._fleet.promises,
            shunned=self._fleet.shunned_nodes(),
            mixes=self._fleet.pools.begin_round(),
        )
        self._now = _Open(decided, now.monotonic_ms + OPEN_MS)

    def _settle_assumptions(self) -> None:
        """Clear the bits of placements that are no longer assumed."""
        ended, self._fleet.unassumed = self._fleet.unassumed, []
        for uid in ended or ():
            where = self._made.pop(uid, None)
            if where is None:
                continue
            sequence, number = where
            bits = self._bits[sequence] & ~(1 << number)
            if bits:
                self._bits[sequence] = bits
            else:
                del self._bits[sequence]

    def decided(
        self,
        turns: Sequence[tuple[QueueEntry, Replica]],
        found: Sequence[Decision],
        quota: str,
        closed: tuple[str, ...] = (),
    ) -> None:
        """Record the answers to one question of the round, for as many as there are answers."""
        opened, first = self._now, found[0]
        if opened is None or isinstance(first, BindGang):
            return
        asked = turns[: len(found)]
        replicas = [replica for _, replica in asked]
        case = Case(
            replicas[0].namespace,
            [it.metadata.name for it in replicas],
            [entry.uid for entry, _ in asked],
            [entry.number for entry, _ in asked],
            [entry.turns for entry, _ in asked],
            [it.spec.revision for it in replicas],
            [it.metadata.creation_timestamp for it in replicas],
            [it.metadata.generation for it in replicas],
            quota=quota,
            closed=closed,
        )
        before = opened.size
        opened.size += len(asked)
        opened.round.cases.append(case)
        if isinstance(first, StayPending):
            _say_why(case, first.report)
            return
        if isinstance(first, Preempt):
            _say_why(case, first.report)
            if not first.keys:
                # What the store shows of an earlier decision goes on.
                return
            case.waits, case.victims = None, [f"{ns}/{name}" for ns, name in first.keys]
            case.nodes, case.results = [first.node], [""]
            opened.awaited += 1
            self._awaited[case.uids[0]] = opened, case, 0
            return
        case.candidates, case.filtered, case.best = first.candidates, first.reasons, first.best
        case.looked_at = first.candidates + sum(first.reasons.values())
        places = [it for it in found if isinstance(it, BindReplica)]
        case.nodes = [place.node for place in places]
        case.node_revisions = [place.node_revision for place in places]
        if first.held.devices:
            case.devices = [place.held.devices for place in places]
        case.results = [""] * len(places)
        opened.awaited += len(places)
        sequence, bits = opened.round.sequence, self._bits.get(opened.round.sequence, 0)
        for number, uid in enumerate(case.uids):
            self._awaited[uid] = opened, case, number
            self._made[uid] = sequence, before + number
            bits |= 1 << (before + number)
        self._bits[sequence] = bits

    def close(self) -> None:
        """End the round; awaited outcomes come later."""
        opened, self._now = self._now, None
        if opened is None or not opened.round.cases:
            return
        if opened.awaited:
            self._waiting.append(opened)
        else:
            self._due.append(ArchiveRecord(opened.round))

    def settled(self, uid: str, result: str, message: str = "") -> None:
        """Record the outcome of a bind."""
        found = self._awaited.pop(uid, None)
        if found is None:
            return
        opened, case, number = found
        case.results[number] = result
        if message and result != ACCEPTED:
            case.messages[number] = message[:MESSAGE_MAX]
        opened.awaited -= 1
        if not opened.awaited:
            self._due.append(ArchiveRecord(opened.round))

    @property
    def next_ms(self) -> int | None:
        """When a round that waits for answers is archived without them."""
        while self._waiting and not self._waiting[0].awaited:
            self._waiting.popleft()
        return self._waiting[0].due_ms if self._waiting else None

    def due(self, now_ms: int) -> list[ArchiveRecord]:
        """The records to archive now."""
        while (next_ms := self.next_ms) is not None and next_ms <= now_ms:
            self._due.append(ArchiveRecord(_as_it_is(self._waiting.popleft().round)))
        if not self._due:
            return []
        due, self._due = self._due, []
        return due


def _say_why(case: Case, report: PlacementReport) -> None:
    miss = report.nearest_miss
    case.filtered = report.reasons
    case.looked_at = report.nodes
    case.results = [WAITS] * len(case.replicas)
    case.waits = WaitReason(
        report.message,
        report.verdict.value,
        f"node {miss.node}: {miss.message}" if miss is not None else "",
        report.smallest_change,
        report.next_mover,
    )


def _as_it_is(decided: DecisionRound) -> DecisionRound:
    """A copy of a round that will still change: an archived record must not change."""
    cases = [
        msgspec.structs.replace(it, results=list(it.results), messages=dict(it.messages))
        for it in decided.cases
    ]
    return msgspec.structs.replace(decided, cases=cases)
