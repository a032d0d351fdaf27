"""What happened in a run: a checker that only counts.

A world in which an event never happens proves nothing about it. The tests add up the counts of
many seeds and compare them with what must occur.
"""

from __future__ import annotations

from typing import Any

from holdfast.commit.authority import GroupLimits
from holdfast.commit.context import PlaneSettings
from holdfast.commit.server import AuthorityServer
from holdfast.model.machine import Answer, Answered, Ask
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Forward
from holdfast.model.time import Instant
from holdfast.model.transaction import CompareFailed, Forgotten, NotApplied, TokenApplied
from holdfast.sim.cell import Seat
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.checkers.permitted_changes import same, steps_of
from holdfast.sim.planes.facts import AcknowledgedRequest, ServerOutcome, StateFact
from holdfast.sim.world import World

# Short enough that the garbage controller has operations to remove within a run.
SETTINGS = PlaneSettings(operations_kept_ms=60_000)
# Small enough that queues are longer than a group.
LIMITS = GroupLimits(requests_max=12, compares_max=120)


class CountedServer(AuthorityServer):
    """The product's server. It also states what happened in it as facts."""

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat.name, seat.rng, seat.tokens, SETTINGS, LIMITS)

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        most = self._authority._group_max
        effects = super().step(stimulus, now)
        seen = dict.fromkeys(_outcome(stimulus))
        for effect in effects:
            if isinstance(effect, Ask) and isinstance(effect.body, Forward):
                seen["forwarded"] = None
            elif isinstance(effect, Answer) and isinstance(effect.body, Refusal):
                seen[f"refused {effect.body.reason.value}"] = None
        if self._authority._group_max < most:
            seen["group halved"] = None
        return [*effects, *(StateFact(ServerOutcome(what)) for what in seen)]


def _outcome(stimulus: Any) -> tuple[str, ...]:
    match stimulus:
        case Answered(body=TokenApplied() | NotApplied() | Forgotten() as fate):
            return (f"fate {type(fate).__name__}",)
        case Answered(body=CompareFailed()):
            return ("group refused",)
    return ()


class AuthorityCensus(Checker):
    """Counts by name: accepted requests, refusals, transitions, takeovers, transaction fates."""

    def __init__(self, store_copy: StoreCopy) -> None:
        self.store_copy = store_copy
        self.counts: dict[str, int] = {}

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, ServerOutcome):
            self._count(fact.what)
        elif isinstance(fact, AcknowledgedRequest):
            how = "repeated" if fact.answer.replayed else "accepted"
            self._count(f"{how} {type(fact.request).__name__}")

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.store_copy.changed("objects/replicas/"):
            if new is None:
                continue
            for record in steps_of(old if same(old, new) else None, new):
                self._count(f"move {record.from_state} -> {record.to}")
                if record.reason == "OperatorsWord":
                    self._count(record.evidence)
        for _, old, new in self.store_copy.changed("epochs/"):
            if old is not None and new is not None and old.holder != new.holder:
                self._count("takeover")
        for _, old, new in self.store_copy.changed("objects/reservations/"):
            if new is not None and (old is None or old.status.phase is not new.status.phase):
                self._count(f"{new.spec.intent.value} {new.status.phase.value}")
                self._count(f"{new.status.phase.value} because {new.status.reason}")
