"""What is done to a world, as data: faults that strike it and acts of its users.

A plan is drawn from a seed by `draw`, or written by hand, or saved by a failing run and made
smaller by `shrink`. Whatever disturbs a run is either in its plan or drawn from the seed's streams,
so (world, seed, plan) is all it takes to repeat it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.model.errors import invariant
from holdfast.sim.randomness import between, pick, stream, waiting_time

HOUR_MS = 3_600_000
# A plan beyond this is a mistake in its hazards, not a test.
_FAULTS_MAX = 100_000


class Fault(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, order=True
):
    """One fault. What target, peer and amount mean is the kind's business (see `faults`).

    With `nth` it strikes not by the clock but at that very point, counted from the beginning: the
    nth effect of a machine, the nth revision of a store, the nth delivery of a watch.
    """

    at_ms: int
    kind: str
    target: str = ""
    peer: str = ""
    for_ms: int = 0
    amount: int = 0
    nth: int = 0


class Act(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a user does: the machine of this name is prompted with the body, which is JSON."""

    at_ms: int
    target: str
    body: Any


class Prompted(msgspec.Struct, frozen=True):
    """The stimulus of an act. Only machines that stand for people take it."""

    body: Any


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that is done to one run. After `faults_ms` all faults are healed."""

    faults_ms: int
    settle_ms: int
    faults: tuple[Fault, ...] = ()
    acts: tuple[Act, ...] = ()

    def size(self) -> int:
        return len(self.faults) + len(self.acts)


class Hazard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a kind of fault strikes, how long and how hard.

    `only` and `peers` narrow the targets to names that begin so; "*" as a peer stands for everyone
    else. `share` is the part of all seeds that see this hazard at all: seeds with few kinds of
    faults reach states that the others, busy recovering, never do. With `amounts` each fault has
    one of these instead of something between the two bounds of `amount`. With `alone` no two faults
    of this kind last at the same time.
    """

    kind: str
    per_hour: float
    for_ms: tuple[int, int] = (0, 0)
    amount: tuple[int, int] = (0, 0)
    only: str = ""
    peers: str = ""
    share: float = 0.6
    amounts: tuple[int, ...] = ()
    alone: bool = False


# How far calendars are wrong: a time zone's worth of minutes, a day, a board without a battery.
CALENDAR_STEPS_MS = tuple(
    sign * step for step in (300_000, 86_400_000, 40 * 86_400_000) for sign in (1, -1)
)


def calendar_steps(per_hour: float, only: str = "", *, share: float = 0.6) -> Hazard:
    """The calendar of one computer at a time is set wrong, and after a while right again."""
    for_ms = 1_000, 60_000
    return Hazard(
        "clock_step",
        per_hour,
        for_ms,
        only=only,
        share=share,
        amounts=CALENDAR_STEPS_MS,
        alone=True,
    )


class Aim(msgspec.Struct, frozen=True):
    """What a kind of fault can strike in a world: these names, or with `paired` two of them."""

    names: tuple[str, ...]
    paired: bool


def draw(
    seed: int,
    hazards: Sequence[Hazard],
    aims: Mapping[str, Aim],
    *,
    faults_ms: int,
    settle_ms: int,
    acts: Sequence[Act] = (),
) -> Plan:
    """Draw a plan. `aims` has what each kind of fault can strike."""
    faults: list[Fault] = []
    for hazard in hazards:
        faults.extend(_strikes(seed, hazard, aims[hazard.kind], faults_ms))
    for kind in dict.fromkeys(hazard.kind for hazard in hazards if hazard.alone):
        faults = _one_at_a_time(kind, sorted(faults))
    invariant(len(faults) <= _FAULTS_MAX, f"the hazards make {len(faults)} faults in one run")
    # Sorted by content, not by hazard, so that the order of a world's hazards does not matter.
    return Plan(faults_ms, settle_ms, tuple(sorted(faults)), tuple(acts))


def _one_at_a_time(kind: str, faults: list[Fault]) -> list[Fault]:
    """Without the faults of a kind that begin while another one of it lasts."""
    kept: list[Fault] = []
    free_ms = 0
    for fault in faults:
        if fault.kind == kind:
            if fault.at_ms < free_ms:
                continue
            free_ms = fault.at_ms + fault.for_ms
        kept.append(fault)
    return kept


def _strikes(seed: int, hazard: Hazard, aim: Aim, until_ms: int) -> list[Fault]:
    names = [name for name in aim.names if name.startswith(hazard.only)]
    rng = stream(seed, f"plan/{hazard.kind}/{hazard.only}/{hazard.peers}")
    if rng.random() >= hazard.share or not names or hazard.per_hour <= 0:
        return []
    faults = []
    at_ms = waiting_time(rng, HOUR_MS / hazard.per_hour)
    while at_ms < until_ms:
        target = pick(rng, names)
        faults.append(
            Fault(
                at_ms=int(at_ms),
                kind=hazard.kind,
                target=target,
                peer=_peer(rng, hazard, aim, target) if aim.paired else "",
                # A fault that outlasts its phase is healed at the end of it.
                for_ms=min(between(rng, *hazard.for_ms), until_ms - int(at_ms)),
                amount=_amount(rng, hazard),
            )
        )
        at_ms += waiting_time(rng, HOUR_MS / hazard.per_hour)
    return faults


def _amount(rng: Random, hazard: Hazard) -> int:
    return pick(rng, hazard.amounts) if hazard.amounts else between(rng, *hazard.amount)


def _peer(rng: Random, hazard: Hazard, aim: Aim, target: str) -> str:
    """Half of all pairs are one against everyone; the rest single out two."""
    others = [name for name in aim.names if name != target and name.startswith(hazard.peers)]
    if rng.random() < 0.5 or not others:
        return "*"
    return pick(rng, others)


# Requests that take effect long after their senders have turned to other things.
#
# Every world with servers has these hazards: what a paused server held comes when it wakes, and
# what a network held comes whenever it likes, longer after than any time-out, once or beside the
# first.

# So long a server stands still: longer than any time-out, and than most leases.
PAUSED_MS = (20_000, 60_000)


def late_requests(share: float) -> Hazard:
    """What a network held, in this part of all seeds: for worlds that pause servers themselves."""
    return Hazard("late", 60, for_ms=(2_000, 60_000), amount=(20, 300), share=share)


def lateness(share: float) -> tuple[Hazard, ...]:
    """These hazards in this part of all seeds."""
    return (
        Hazard("pause", 60, for_ms=PAUSED_MS, amount=(1, 40), only="server", share=share),
        late_requests(share),
    )


LATENESS = lateness(0.5)
# For worlds that have another matter, and show it best where nothing else goes wrong.
SELDOM_LATE = lateness(0.25)
