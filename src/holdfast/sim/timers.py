"""Timers on a computer's own clock: those of its machines, and those of the computer itself.

A machine's wake-ups are lost when it crashes and arrive late when it is paused. An alarm belongs to
the computer: something other than the agent must enforce the deadline of a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.model.machine import Wake, Woken
from holdfast.sim.cell import Alarm, Cell, Host
from holdfast.sim.event_engine import Handler

if TYPE_CHECKING:
    from holdfast.sim.lives import Lives


class Timers:
    """Performs Wake, and keeps alarms."""

    def __init__(self, world: Lives) -> None:
        self._world = world
        # Bound once instead of at every post.
        self._ring_handler: Handler = self._ring

    def wake(self, cell: Cell, effect: Wake) -> None:
        world = self._world
        at_us = cell.host.clock.true_us_at(effect.at_ms)
        if at_us < world.now_us:
            at_us = world.now_us
        event = world.post(at_us, self._ring_handler, cell, effect.name)
        cell.timers[effect.name] = (event, effect.at_ms)

    def _ring(self, event: int, cell: Cell, name: str) -> None:
        timer = cell.timers.get(name)
        # Replaced since, or due by true time while the computer's own clock is stopped.
        if timer is None or timer[0] != event or cell.host.clock.stopped:
            return
        del cell.timers[name]
        self._world.hand(cell, Woken(name))

    def alarm(self, host: Host, at_ms: int, handler: Handler, a: Any, b: Any) -> int:
        """Call a handler at a reading of a computer's monotonic clock.

        It follows the clock at any rate, waits while the whole computer is frozen, is independent
        of paused or crashed machines, and is lost when the computer is switched off. Returns its
        number for `cancel`.
        """
        alarm = Alarm(at_ms, handler, a, b)
        self._set(host, alarm)
        alarm.number = alarm.event
        host.alarms[alarm.number] = alarm
        return alarm.number

    def cancel(self, host: Host, number: int) -> None:
        host.alarms.pop(number, None)

    def _set(self, host: Host, alarm: Alarm) -> None:
        at_us = max(self._world.now_us, host.clock.true_us_at(alarm.at_ms))
        alarm.event = self._world.post(at_us, self._sound, host, alarm)

    def _sound(self, event: int, host: Host, alarm: Alarm) -> None:
        due = alarm.event == event and host.alarms.get(alarm.number) is alarm
        if due and not host.frozen:
            del host.alarms[alarm.number]
            alarm.handler(alarm.number, alarm.a, alarm.b)

    def rewind(self, host: Host) -> None:
        """Set all timers of a computer again, after its clock changed its rate or was stopped."""
        for alarm in list(host.alarms.values()):
            self._set(host, alarm)
        for cell in host.cells:
            for name, (_, at_ms) in list(cell.timers.items()):
                self.wake(cell, Wake(name, at_ms))
