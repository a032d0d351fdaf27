"""A simulated world: machines on computers, a network between them, stores, faults.

A scenario builds one by adding stores, machines and checkers; `run` then applies a plan and lets
time pass. Worlds extend it in four ways: `perform` for effects of their own, `fact` for ground
truth that checkers see, `Host.things` for what a computer holds besides machines (with
`power_hooks` and `crash_hooks`), and `faults.add` for faults of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.sim.calls import Calls
from holdfast.sim.faults import Faults
from holdfast.sim.lives import Lives
from holdfast.sim.plan import Act, Plan, Prompted
from holdfast.sim.storage import SimStore, Storage
from holdfast.sim.streams import Deliveries, Streams, Watches
from holdfast.sim.virtual_clock import WALL_ORIGIN_US
from holdfast.store.memory import Keyspace


class World(Lives):
    """The simulated world that a scenario builds."""

    def __init__(
        self,
        seed: int,
        *,
        origin_us: int = WALL_ORIGIN_US,
        full_trace: bool = False,
        keep_text: bool = False,
    ) -> None:
        super().__init__(seed, origin_us=origin_us, full_trace=full_trace, keep_text=keep_text)
        self.calls = Calls(self)
        self.deliveries = Deliveries(self)
        self.streams = Streams(self, self.calls, self.deliveries)
        self.storage = Storage(self, self.calls)
        self.watches = Watches(self, self.storage, self.calls, self.deliveries)
        self.faults = Faults(self)

    @property
    def stores(self) -> dict[str, SimStore]:
        return self.storage.stores

    def add_store(
        self,
        name: str = "store",
        *,
        host: str | None = None,
        keyspace: Keyspace | None = None,
        raw_watches: bool = False,
    ) -> SimStore:
        """Add a store; machines added with `store=name` use it. `keyspace` is its initial state.

        Without `host` it gets a computer of the same name. With `raw_watches` its watches are those
        of a raw store, in which faults lose, repeat and deliver old changes.
        """
        return self.storage.add(name, host=host, keyspace=keyspace, raw_watches=raw_watches)

    def balance(self, address: str, members: Sequence[str]) -> None:
        """Let an address stand for several machines; each Ask or Open goes to one at random."""
        self.calls.balance(address, members)

    def follow(self, plan: Plan) -> None:
        """Put all faults and acts of a plan on the heap."""
        for fault in plan.faults:
            self.faults.schedule(fault)
        for act in plan.acts:
            self.post(self.now_us + act.at_ms * 1000, self._act, act, None)

    def _act(self, _number: int, act: Act, _: None) -> None:
        cell = self.cells[act.target]
        if cell.machine is None:
            # A user whose program is down tries again shortly; the act is not lost.
            self.post(self.now_us + 1_000_000, self._act, act, None)
        else:
            self.hand(cell, Prompted(act.body))

    def calm(self) -> None:
        """Heal all faults, and tell the checkers that the time to settle begins."""
        self.faults.heal_all()
        self.note("calm")
        for checker in self.checkers:
            checker.on_calm(self)

    def end(self) -> None:
        """Let the checkers do their final checks."""
        for checker in self.checkers:
            checker.at_end(self)
