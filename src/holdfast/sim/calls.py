"""Ask and Answer over the simulated network.

Each Ask gets exactly one answer unless its asker crashes: the answer, or OutcomeUnknown after the
time-out, because the asker cannot tell a lost request from a lost answer. Only a refused connection
(the other computer is up, the machine on it is not) is Unavailable.

A time-out goes on the heap only when it may be needed: on a path with faults, when the machine
asked did not answer at once, or when its answer would arrive too late. Most calls never need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.model.errors import OutcomeUnknown, Unavailable, unreachable
from holdfast.model.machine import Answer, Answered, Ask, Asked, Txn
from holdfast.sim.cell import CallInFlight, Cell, Host
from holdfast.sim.event_engine import Handler
from holdfast.sim.lives import Lives
from holdfast.sim.randomness import pick

# A store's read changes nothing, so its loss is Unavailable, not OutcomeUnknown.
_MAY_HAVE_HAPPENED = (Ask, Txn)


class Calls:
    """Performs Ask and Answer, and settles calls of every kind."""

    def __init__(self, world: Lives) -> None:
        self.world = world
        self._balanced: dict[str, tuple[str, ...]] = {}
        self._rng = world.rng("balance")
        # Bound once: these are posted all the time.
        self._arrive_handler: Handler = self._arrive
        self._settle_handler: Handler = self._settle
        self._time_out_handler: Handler = self._time_out
        world.perform(Ask, self._ask)
        world.perform(Answer, self._answer)
        world.crash_hooks.append(self._forget)

    def balance(self, name: str, members: Sequence[str]) -> None:
        """Let an address stand for several machines; each Ask goes to one of them at random."""
        self._balanced[name] = tuple(members)

    def find(self, address: str, asker: Cell) -> Cell | None:
        """The machine behind an address: in the plane of the asker, or else in the world."""
        cell = self._find(asker.prefix + address)
        return self._find(address) if cell is None and asker.prefix else cell

    def _find(self, name: str) -> Cell | None:
        cell = self.world.cells.get(name)
        if cell is None and name in self._balanced:
            cell = self.world.cells.get(pick(self._rng, self._balanced[name]))
        return cell

    def open(self, cell: Cell, effect: Any) -> CallInFlight:
        """Start a call of any kind."""
        number = effect.call
        if number in cell.calls:
            unreachable(f"{cell.name} reuses call {number} in flight")
        call = CallInFlight(cell, effect, self.world.now_us + effect.timeout_ms * 1000)
        cell.calls[number] = call
        return call

    def _ask(self, cell: Cell, ask: Ask) -> None:
        call = self.open(cell, ask)
        target = self.find(ask.to, cell)
        if target is None:
            self.reply(call, Unavailable(f"{ask.to} is not known"), cell.host)
            return
        if not cell.identity_at(target):
            self.reply(call, Unavailable(f"{cell.name} has no credentials for {ask.to}"), cell.host)
            return
        world = self.world
        path = world.network.path(cell.host, target.host)
        if path.trouble is None:
            at_us = world.now_us + path.delay_us()
            world.post(at_us, self._arrive_handler, call, target)
            if at_us >= call.deadline_us:
                self.arm(call)
            return
        trouble = path.trouble
        arrivals = list(world.network.arrivals(path, trouble, world.now_us))
        late_us = world.network.late_copy(path, trouble, world.now_us)
        if late_us is not None:
            arrivals.append(late_us)
        call.copies = len(arrivals)
        for at_us in arrivals:
            world.post(at_us, self._arrive_handler, call, target)
        self.arm(call)

    def _arrive(self, number: int, call: CallInFlight, target: Cell) -> None:
        asker = call.asker
        if self.lost_on_the_way(asker.host, target.host):
            self.arm(call)
        elif target.machine is None:
            self._refuse(call, target)
        else:
            # A request that arrives twice is two requests to its target, as on a real network.
            target.inbound[number] = call
            call.at = (target, number)
            sender = asker.identity_at(target)
            if call.effect.sender and target.prefix == asker.prefix:
                sender = call.effect.sender
            self.world.hand(target, Asked(number, sender, call.effect.body))
            if number in target.inbound:
                self.arm(call)

    def _refuse(self, call: CallInFlight, target: Cell) -> None:
        if call.copies > 1:
            # Unavailable says that it did not happen, and another copy is still under way.
            self.arm(call)
        else:
            self.reply(call, Unavailable(f"{target.name} refused the connection"), target.host)

    def lost_on_the_way(self, source: Host, target: Host) -> bool:
        """Whether a message that arrives now is lost: the path is cut, or the target is off."""
        if not target.up:
            return True
        path = source.paths.get(target.name)
        return path is not None and path.trouble is not None and path.trouble.cut

    def _answer(self, cell: Cell, answer: Answer) -> None:
        call = cell.inbound.pop(answer.call, None)
        # The asker may have given up already; the answering machine cannot know that.
        if call is not None:
            self.reply(call, answer.body, cell.host)

    def reply(self, call: CallInFlight, body: Any, source: Host) -> None:
        """Send the answer of a call of any kind back to its asker."""
        world = self.world
        path = world.network.path(source, call.asker.host)
        if path.trouble is None:
            at_us = world.now_us + path.delay_us()
        else:
            # When an answer arrives twice, the second copy finds the call settled.
            arrivals = world.network.arrivals(path, path.trouble, world.now_us)
            at_us = arrivals[0] if arrivals else call.deadline_us
        if at_us < call.deadline_us:
            call.source = source
            world.post(at_us, self._settle_handler, call, body)
        else:
            self.arm(call)

    def _settle(self, _number: int, call: CallInFlight, body: Any) -> None:
        asker, number = call.asker, call.number
        if asker.calls.get(number) is not call:
            return
        if self.lost_on_the_way(call.source, asker.host):
            self.arm(call)
            return
        del asker.calls[number]
        self.world.hand(asker, Answered(number, body))

    def arm(self, call: CallInFlight) -> None:
        """Schedule the time-out, so that the asker gets an answer by its deadline at the latest."""
        if not call.armed:
            call.armed = True
            at_us = max(call.deadline_us, self.world.now_us)
            self.world.post(at_us, self._time_out_handler, call, None)

    def _time_out(self, _number: int, call: CallInFlight, _: None) -> None:
        asker = call.asker
        if call.at is not None:
            call.at[0].inbound.pop(call.at[1], None)
        if asker.calls.get(call.number) is call:
            del asker.calls[call.number]
            self.world.hand(asker, Answered(call.number, _timeout_error(call)))

    def _forget(self, cell: Cell) -> None:
        """A crash drops its own calls; the callers it owed an answer see a broken connection."""
        cell.calls.clear()
        owed, cell.inbound = cell.inbound, {}
        for call in owed.values():
            if cell.host.up:
                error = OutcomeUnknown(f"{cell.name} broke the connection")
                self.reply(call, error, cell.host)


def _timeout_error(call: CallInFlight) -> OutcomeUnknown | Unavailable:
    effect = call.effect
    name = type(effect).__name__
    message = f"no answer to {name} {call.number} within {effect.timeout_ms} ms"
    if isinstance(effect, _MAY_HAVE_HAPPENED):
        return OutcomeUnknown(message)
    return Unavailable(message)
