"""Whether whoever makes the next move is there to make it: leases, and what processes say.

Each controller acts under the lease `controller:NAME`, a scheduler under `scheduler:…`. A pulse
that names the epoch says that its holder works; without pulses the lease itself tells when it was
last renewed, by the authority's clock.
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

# Three pulses in a row that did not come.
SILENT_MS = 16_000
# Nothing is done on a picture that is older.
PICTURE_MS = 30_000
# A lease is renewed three times in its life. Nobody has held on to one that is this many lives old.
LIVES_MAX = 2


class OwnerActivity(msgspec.Struct, frozen=True):
    """Whether somebody acts for an owner; None where that cannot be told."""

    acts: bool | None
    signs: tuple[EvidenceItem, ...] = ()


def owner_activity(facts: ReplicaFacts, owner: str, now: Instant) -> OwnerActivity:
    """How the owner of a move is doing. Agents and people have no lease."""
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
    """Any scheduler may be the one that a replica waits for."""
    return scope.startswith("scheduler:") if owner == Actor.SCHEDULER else scope == owner


def _beats(facts: ReplicaFacts, owner: str) -> Iterable[tuple[ReceivedPulse, Beat]]:
    """The youngest word of each process about this owner."""
    found: dict[tuple[str, str], tuple[ReceivedPulse, Beat]] = {}
    heard = sorted((it for one in facts.pulses for it in one.felt), key=lambda it: -it.age_ms)
    for it in heard:
        for beat in it.pulse.beats:
            if _is_of(beat.scope, owner):
                found[it.pulse.process, beat.scope] = it, beat
    return found.values()


def _works(felt: ReceivedPulse) -> bool:
    return felt.age_ms <= SILENT_MS and felt.pulse.picture_ms <= PICTURE_MS


def _felt(felt: ReceivedPulse, beat: Beat) -> EvidenceItem:
    says = f"epoch {beat.epoch}, its picture is {felt.pulse.picture_ms} ms old"
    if beat.overdue_ms:
        says += f", something has waited for {beat.overdue_ms} ms"
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
    says = f"held by {spec.holder} in epoch {spec.epoch}" if spec.holder else "held by nobody"
    return EvidenceItem(f"lease {spec.scope}", says, revision_of(lease), _age_ms(lease, now))
