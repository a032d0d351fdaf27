"""Whether the component that owns the next step is active: its lease, and its pulses.

`explain_replica.py` calls `owner_activity`. Each controller acts under the lease `controller:NAME`,
a scheduler under `scheduler:…`. A pulse that names the epoch shows that the holder works. Without
pulses, the lease shows when it was last renewed, by the authority's clock.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.explain.answer import EvidenceItem
from holdfast.explain.evidence import ReplicaFacts, revision_of
from holdfast.model.kinds.lease import Lease
from holdfast.model.lifecycle import Actor
from holdfast.model.pulse import Beat, ReceivedPulse
from holdfast.model.time import Instant, wall_ms

# Three missed pulses in a row.
SILENT_MS = 16_000
# Components do not act on an older snapshot.
PICTURE_MS = 30_000
# A holder renews its lease three times per duration. After this many durations without a renewal,
# the lease has no active holder.
LIVES_MAX = 2


class OwnerActivity(msgspec.Struct, frozen=True):
    """Whether an owner is active, with the evidence. `acts` is None where that is unknown."""

    acts: bool | None
    signs: tuple[EvidenceItem, ...] = ()


def owner_activity(facts: ReplicaFacts, owner: str, now: Instant) -> OwnerActivity:
    """Returns whether the owner of the next step is active. Agents and people have no lease."""
    if owner != Actor.SCHEDULER and not owner.startswith("controller:"):
        return OwnerActivity(None)
    felt = [it for it in _beats(facts, owner) if it[1].epoch]
    if felt:
        signs = tuple(_felt(it, beat) for it, beat in felt)
        return OwnerActivity(any(_works(it) for it, _ in felt), signs)
    leases = [it for it in facts.stored.all(Lease) if _is_of(it.spec.scope, owner)]
    signs = tuple(_leased(it, now) for it in leases)
    return OwnerActivity(any(_is_held(it, now) for it in leases), signs)


def _is_of(scope: str, owner: str) -> bool:
    """Whether a lease belongs to the owner. Any scheduler may be the one a replica waits for."""
    return scope.startswith("scheduler:") if owner == Actor.SCHEDULER else scope == owner


def _beats(facts: ReplicaFacts, owner: str) -> Iterable[tuple[ReceivedPulse, Beat]]:
    """The latest beat of each process about this owner."""
    found: dict[tuple[str, str], tuple[ReceivedPulse, Beat]] = {}
    received = sorted((it for one in facts.pulses for it in one.felt), key=lambda it: -it.age_ms)
    for it in received:
        for beat in it.pulse.beats:
            if _is_of(beat.scope, owner):
                found[it.pulse.process, beat.scope] = it, beat
    return found.values()


def _works(felt: ReceivedPulse) -> bool:
    return felt.age_ms <= SILENT_MS and felt.pulse.picture_ms <= PICTURE_MS


def _felt(felt: ReceivedPulse, beat: Beat) -> EvidenceItem:
    says = f"epoch {beat.epoch}, snapshot {felt.pulse.picture_ms} ms old"
    if beat.overdue_ms:
        says += f", oldest key overdue by {beat.overdue_ms} ms"
    return EvidenceItem(f"{beat.scope} in {felt.pulse.process}", says, age_ms=felt.age_ms)


def _age_ms(lease: Lease, now: Instant) -> int | None:
    renewed = lease.spec.renewed or lease.spec.acquired
    return max(0, now.wall_ms - wall_ms(renewed)) if renewed is not None else None


def _is_held(lease: Lease, now: Instant) -> bool:
    age_ms = _age_ms(lease, now)
    is_young = age_ms is not None and age_ms <= lease.spec.duration_ms * LIVES_MAX
    return bool(lease.spec.holder) and is_young


def _leased(lease: Lease, now: Instant) -> EvidenceItem:
    spec = lease.spec
    says = f"held by {spec.holder} in epoch {spec.epoch}" if spec.holder else "not held"
    return EvidenceItem(f"lease {spec.scope}", says, revision_of(lease), _age_ms(lease, now))
