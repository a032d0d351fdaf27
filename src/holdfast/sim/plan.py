"""A plan as data: the faults that strike a world and the acts of its users.

A plan is drawn from a seed by `draw`, written by hand, or saved by a failing run and made smaller
by `shrink`. Everything that disturbs a run is either in its plan or drawn from the seed's streams,
so (world, seed, plan) is enough to repeat it.
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
    """One fault. Its kind defines what target, peer and amount mean (see `faults`).

    With `nth` it strikes not at a time but at a point, counted from the start of the run: the nth
    effect of a machine, the nth revision of a store, the nth delivery of a watch.
    """

    at_ms: int
    kind: str
    target: str = ""
    peer: str = ""
    for_ms: int = 0
    amount: int = 0
    nth: int = 0


class Act(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An act of a user: the machine of this name is prompted with the body, which is JSON."""

    at_ms: int
    target: str
    body: Any


class Prompted(msgspec.Struct, frozen=True):
    """The stimulus of an act. Only machines that simulate users take it."""

    body: Any


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All faults and acts of one run. After `faults_ms` all faults are healed."""

    faults_ms: int
    settle_ms: int
    faults: tuple[Fault, ...] = ()
    acts: tuple[Act, ...] = ()

    def size(self) -> int:
        return len(self.faults) + len(self.acts)


class Hazard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a kind of fault strikes, for how long and how hard.

    `only` and `peers` restrict the targets to names with this prefix, in whatever plane; "*" as a
    peer means all others. `share` is the part of all seeds that have this hazard at all: seeds with
    few kinds of faults reach states that the others, busy recovering, never reach. With `amounts`
    each fault has one of these values instead of one between the two bounds of `amount`. With
    `alone` no two faults of this kind are active at the same time.
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


# How far a wall clock is wrong: some minutes, a day, a board without a battery.
CALENDAR_STEPS_MS = tuple(
    sign * step for step in (300_000, 86_400_000, 40 * 86_400_000) for sign in (1, -1)
)


def calendar_steps(per_hour: float, only: str = "", *, share: float = 0.6) -> Hazard:
    """The wall clock of one computer at a time is set wrong, and corrected after a while."""
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
    """The targets of a kind of fault in a world: these names, or with `paired` two of them."""

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
    """Draw a plan. `aims` has the possible targets of each kind of fault."""
    faults: list[Fault] = []
    for hazard in hazards:
        faults.extend(_strikes(seed, hazard, aims[hazard.kind], faults_ms))
    for kind in dict.fromkeys(hazard.kind for hazard in hazards if hazard.alone):
        faults = _one_at_a_time(kind, sorted(faults))
    invariant(len(faults) <= _FAULTS_MAX, f"the hazards make {len(faults)} faults in one run")
    # Sorted by content, not by hazard, so that the order of a world's hazards does not matter.
    return Plan(faults_ms, settle_ms, tuple(sorted(faults)), tuple(acts))


def _one_at_a_time(kind: str, faults: list[Fault]) -> list[Fault]:
    """Remove the faults of a kind that begin while another one of it is active."""
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
    names = [name for name in aim.names if _begins(name, hazard.only)]
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


def _begins(name: str, prefix: str) -> bool:
    """Whether a name begins so, or does after the name of its plane, as in `eu/server-1`."""
    return name.startswith(prefix) or name.partition("/")[2].startswith(prefix)


def _amount(rng: Random, hazard: Hazard) -> int:
    return pick(rng, hazard.amounts) if hazard.amounts else between(rng, *hazard.amount)


def _peer(rng: Random, hazard: Hazard, aim: Aim, target: str) -> str:
    """Half of all pairs are one host against all others; the rest are two hosts."""
    others = [name for name in aim.names if name != target and _begins(name, hazard.peers)]
    if rng.random() < 0.5 or not others:
        return "*"
    return pick(rng, others)


# Requests that take effect long after their senders stopped waiting for them.
#
# Every world with servers has these hazards: a paused server handles a request when it resumes, and
# a network delivers one later than any time-out, as the only copy or as a second one.

# How long a server is paused: longer than any time-out, and than most leases.
PAUSED_MS = (20_000, 60_000)


def late_requests(share: float) -> Hazard:
    """Late copies from the network, in this share of seeds: for worlds that pause servers."""
    return Hazard("late", 60, for_ms=(2_000, 60_000), amount=(20, 300), share=share)


def lateness(share: float) -> tuple[Hazard, ...]:
    """Paused servers and late copies, in this share of all seeds."""
    return (
        Hazard("pause", 60, for_ms=PAUSED_MS, amount=(1, 40), only="server", share=share),
        late_requests(share),
    )


LATENESS = lateness(0.5)
# For worlds whose own faults show best where little else goes wrong.
SELDOM_LATE = lateness(0.25)
