"""C6.8 and INV12: what is held or promised is taken by its owner, in time, and by nobody else."""

from __future__ import annotations

from datetime import timedelta

from holdfast.model.kinds.replica import Binding, Replica
from holdfast.model.kinds.reservation import Intent, Reservation, ReservationPhase
from holdfast.model.ledger import NodeLedger
from holdfast.model.lifecycle import State
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.books import Books
from holdfast.sim.worlds.authority.census import SETTINGS
from holdfast.sim.worlds.authority.laws import same, steps_of

_READY = (ReservationPhase.COMMITTED, ReservationPhase.CONSUMED)


class Claimed(Checker):
    """Bindings out of reservations, and promises to preemptions."""

    invariants = ("INV1", "INV4", "INV12", "C6.8", "GANG")

    def __init__(self, books: Books) -> None:
        self.books = books

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.books.changed("objects/replicas/"):
            if new is None or new.status.binding is None or not new.status.binding.reservation:
                continue
            moves = steps_of(old if same(old, new) else None, new)
            if any(record.to is State.BOUND for record in moves):
                self._consumed(new, new.status.binding)
        for key, old, new in self.books.changed("ledgers/node/"):
            if old is not None and new is not None and self.books.is_sound(key):
                self._promised(old, new)

    def _consumed(self, replica: Replica, binding: Binding) -> None:
        name = binding.reservation
        key = f"objects/reservations/{replica.namespace}/{name}"
        found: list[Reservation] = self.books.versions(key)
        mine = (replica.metadata.uid, replica.spec.workload_uid)
        owned = [held for held in found if held.spec.owner.uid in mine]
        if not owned:
            self.violated("C6.8", f"{replica.name} was bound out of {name}, which is not its own")
        early = timedelta(milliseconds=SETTINGS.skew_ms)
        at = binding.at
        if at is not None and all(at > held.spec.deadline - early for held in owned):
            self.violated("INV12", f"{replica.name} was bound out of {name} after its deadline")
        gang = owned[-1].spec.intent is Intent.GANG
        if gang and not any(held.status.phase in _READY for held in owned):
            self.violated("GANG", f"{replica.name} was bound before its gang was complete")

    def _promised(self, old: NodeLedger, new: NodeLedger) -> None:
        """Nobody takes what victims make free for somebody else."""
        for resource, used in new.used.items():
            promised = sum(amounts.get(resource, 0) for amounts in new.promised.values())
            open_ = max(0, promised - new.leaving.get(resource, 0))
            if used > old.used.get(resource, 0) and open_:
                room = max(ledger.allocatable.get(resource, 0) for ledger in (old, new))
                if used + open_ > room:
                    what = f"{used} {resource} taken, {open_} promised of {room}"
                    self.violated("C6.8", f"{new.gate.uid}: {what}")
        for device, slot in new.devices.items():
            before = old.devices.get(device)
            if before is None or not slot.promised or before.promised != slot.promised:
                continue
            if any(share > before.owners.get(who, 0) for who, share in slot.owners.items()):
                self.violated("C6.8", f"{device} is promised to {slot.promised}, and was taken")
