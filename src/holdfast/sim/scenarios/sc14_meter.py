"""Counts requests and answers of the retry storm by second and class, as evidence.

`CountedMachine` wraps components and tenants, so that a request counts when it is sent, whether or
not a server ever handles it. They are the product's own machines and do not know of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.commit.flow.overload import Overloaded
from holdfast.model.errors import HoldfastError, OutcomeUnknown
from holdfast.model.machine import Answered, Ask, Open
from holdfast.model.nodes.heartbeat import HeartbeatQuery, Renew, Renewed
from holdfast.model.read_requests import Get
from holdfast.model.requests import AcquireLease, RenewLease
from holdfast.model.time import Instant
from holdfast.observe.watch_events import Follow
from holdfast.sim.cell import Factory, Seat, SimulatedMachine
from holdfast.sim.check import Checker
from holdfast.sim.planes.process_table import ProcessEnded, ProcessStarted
from holdfast.sim.world import World

RENEWAL, LEASE, SYSTEM, TENANT = "renewal", "lease", "system", "tenant"
# Watch streams, the lists of resyncs beside them, and those of the lists that come sooner than the
# resync period allows.
STREAM, RESYNC_LIST, EARLY_LIST = "stream", "resync list", "early resync list"
SERVED, REFUSED, FAILED, UNKNOWN = "served", "refused", "failed", "unknown"
SECOND_US = 1_000_000
# Resyncs come after half of their period at the earliest; the shortest period is a minute.
RHYTHM_MIN_US = 30 * SECOND_US


class StormMeter(Checker):
    """Counts by second and by class. As a checker it also receives facts about processes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.offered: Counter[tuple[str, int]] = Counter()
        # When each stream was opened.
        self.opened_us: list[int] = []
        # When each component last listed each kind.
        self._listed_us: dict[tuple[str, str], int] = {}
        self.outcomes: Counter[tuple[str, str, int]] = Counter()
        # How long answers took, in milliseconds, by the second of the request.
        self.took_ms: dict[tuple[str, int], list[int]] = {}
        self.intents: Counter[tuple[str, int]] = Counter()
        self.intent_ms: dict[int, list[int]] = {}
        # When each agent's lease was last acknowledged.
        self.acknowledged_us: dict[str, int] = {}
        self.running: set[tuple[str, int]] = set()
        # What was wrong in each second after the store's return.
        self.problems: dict[int, str] = {}

    @property
    def now_us(self) -> int:
        return self._world.now_us

    @property
    def second(self) -> int:
        return self._world.now_us // SECOND_US

    # Requests ------------------------------------------------------------------------------------

    def count_request(self, kind: str) -> None:
        self.offered[kind, self.second] += 1

    def count_stream(self, who: str, body: Follow) -> None:
        if not body.is_list:
            self.count_request(STREAM)
            self.opened_us.append(self.now_us)
            return
        self.count_request(RESYNC_LIST)
        last_us = self._listed_us.get((who, body.plural))
        self._listed_us[who, body.plural] = self.now_us
        if last_us is not None and self.now_us - last_us < RHYTHM_MIN_US:
            self.count_request(EARLY_LIST)

    def count_answer(self, kind: str, who: str, ask: Ask, body: Any, sent_us: int) -> None:
        """Count an answer; an acknowledged renewal is the agent's permission to continue."""
        second = sent_us // SECOND_US
        self.outcomes[kind, _outcome(body), second] += 1
        self.took_ms.setdefault((kind, second), []).append((self.now_us - sent_us) // 1_000)
        renew = ask.body
        if isinstance(renew, Renew) and isinstance(body, Renewed) and body.acknowledges(renew):
            self.acknowledged_us[who] = self.now_us

    # Intents of tenants --------------------------------------------------------------------------

    def begin_intent(self) -> None:
        self.intents["begun", self.second] += 1

    def intent_succeeded(self, began_us: int) -> None:
        second = began_us // SECOND_US
        self.intents["succeeded", second] += 1
        self.intent_ms.setdefault(second, []).append((self.now_us - began_us) // 1_000)

    def intent_failed(self, began_us: int) -> None:
        self.intents["failed", began_us // SECOND_US] += 1

    # Processes -----------------------------------------------------------------------------------

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, ProcessStarted):
            self.running.add((fact.uid, fact.number))
        elif isinstance(fact, ProcessEnded):
            self.running.discard((fact.uid, fact.number))

    # Queries -------------------------------------------------------------------------------------

    def offered_per_s(self, begin_s: int, end_s: int, *kinds: str) -> float:
        """Requests per second in this period, of these classes or of all but streams and lists."""
        wanted = kinds or (RENEWAL, LEASE, SYSTEM, TENANT)
        count = sum(
            number
            for (kind, second), number in self.offered.items()
            if begin_s <= second < end_s and kind in wanted
        )
        return count / (end_s - begin_s)

    def share(self, kind: str, outcome: str, begin_s: int, end_s: int) -> float:
        """The share of answered requests of this period with this outcome."""
        counts: Counter[str] = Counter()
        for (of, came, second), number in self.outcomes.items():
            if of == kind and begin_s <= second < end_s:
                counts[came] += number
        whole = sum(counts.values())
        return counts[outcome] / whole if whole else 0.0

    def latency_ms(self, kind: str, share: float, begin_s: int, end_s: int) -> int:
        """The latency quantile of the requests of this period."""
        every = sorted(
            took
            for (of, second), all_of in self.took_ms.items()
            if of == kind and begin_s <= second < end_s
            for took in all_of
        )
        return every[min(len(every) - 1, int(share * len(every)))] if every else 0

    def opened_at_once(self, from_s: int, within_us: int) -> int:
        """The most streams opened within `within_us`, from a second on."""
        times = [at for at in self.opened_us if at >= from_s * SECOND_US]
        most, first = 0, 0
        for last, at in enumerate(times):
            while at - times[first] >= within_us:
                first += 1
            most = max(most, last - first + 1)
        return most

    def intents_per_s(self, begin_s: int, end_s: int) -> float:
        """Intents per second that tenants began, however many requests they took."""
        count = sum(
            n for (what, at), n in self.intents.items() if what == "begun" and begin_s <= at < end_s
        )
        return count / (end_s - begin_s)

    def intent_success_share(self, begin_s: int, end_s: int) -> float:
        """The share of intents of this period that succeeded."""
        begun, done = (
            sum(n for (what, at), n in self.intents.items() if what == it and begin_s <= at < end_s)
            for it in ("begun", "succeeded")
        )
        return done / begun if begun else 0.0

    def intent_latency_ms(self, share: float, begin_s: int, end_s: int) -> int:
        every = sorted(
            it for at, all_of in self.intent_ms.items() if begin_s <= at < end_s for it in all_of
        )
        return every[min(len(every) - 1, int(share * len(every)))] if every else 0


class CountedMachine:
    """A machine that steps another and counts its requests."""

    __slots__ = ("_asked", "_is_tenant", "_meter", "_who", "machine")

    def __init__(
        self, who: str, machine: SimulatedMachine, meter: StormMeter, *, is_tenant: bool
    ) -> None:
        self.machine = machine
        self._who, self._meter, self._is_tenant = who, meter, is_tenant
        self._asked: dict[int, tuple[str, Ask, int]] = {}

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        if type(stimulus) is Answered:
            asked = self._asked.pop(stimulus.call, None)
            if asked is not None:
                kind, ask, sent_us = asked
                self._meter.count_answer(kind, self._who, ask, stimulus.body, sent_us)
        effects: Sequence[Any] = self.machine.step(stimulus, now)
        for effect in effects:
            if type(effect) is Ask:
                kind = TENANT if self._is_tenant else _kind(effect.body)
                self._asked[effect.call] = (kind, effect, self._meter.now_us)
                self._meter.count_request(kind)
            elif type(effect) is Open and isinstance(effect.body, Follow):
                self._meter.count_stream(self._who, effect.body)
        return effects


def count_requests(
    make: Factory, meter: StormMeter, *, is_tenant: bool = False
) -> Callable[[Seat], CountedMachine]:
    """A factory of machines whose requests are counted."""
    return lambda seat: CountedMachine(seat.name, make(seat), meter, is_tenant=is_tenant)


def _kind(body: Any) -> str:
    if isinstance(body, Renew):
        return RENEWAL
    is_lease = isinstance(body, RenewLease | AcquireLease | HeartbeatQuery)
    is_look = isinstance(body, Get) and body.plural == "leases"
    return LEASE if is_lease or is_look else SYSTEM


def _outcome(body: Any) -> str:
    if isinstance(body, Overloaded):
        return REFUSED
    if isinstance(body, OutcomeUnknown):
        return UNKNOWN
    return FAILED if isinstance(body, HoldfastError) else SERVED
