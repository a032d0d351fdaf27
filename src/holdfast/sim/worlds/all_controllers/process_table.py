"""Process tables on which work also ends by itself, as its command says.

`piece MS CODE TIMES`: it runs for MS milliseconds and then succeeds, except for the first TIMES
runs of its place, which exit with CODE. How often a place has ended, and how, is the ground truth
for the account of a job.
"""

from __future__ import annotations

import msgspec

from holdfast.model.nodes.fence import FenceTiming
from holdfast.sim.cell import Cell, Host
from holdfast.sim.planes.process_table import HeldProcess, Processes
from holdfast.sim.world import World

COMMAND = "piece"

# A tenant and a replica's name without its incarnation.
Place = tuple[str, str]


class PlaceEnds(msgspec.Struct):
    """How the work of one place has ended so far."""

    done: int = 0
    failed: int = 0


def piece(ms: int, code: int = 1, times: int = 0) -> tuple[str, ...]:
    """The command of work that ends by itself."""
    return COMMAND, str(ms), str(code), str(times)


def place_of(namespace: str, name: str) -> Place:
    """The place of a replica of this name."""
    return namespace, name.rpartition("-")[0]


class FinishingProcesses(Processes):
    """See the module's docstring."""

    def __init__(self, world: World, timing: FenceTiming) -> None:
        super().__init__(world, timing)
        self.ends: dict[Place, PlaceEnds] = {}

    def _exec(self, number: int, cell: Cell, held: HeldProcess) -> None:
        super()._exec(number, cell, held)
        command = held.launch.template.command
        if held.is_running and command[:1] == (COMMAND,):
            self._after(cell.host, int(command[1]), self._finish, cell, held)

    def _finish(self, _number: int, cell: Cell, held: HeldProcess) -> None:
        if held.is_running and not held.is_stopping:
            _, _, code, times = held.launch.template.command
            ends = self.of(held)
            self._end(cell.host, held, "Exited", code=int(code) if ends.failed < int(times) else 0)

    def of(self, held: HeldProcess) -> PlaceEnds:
        """How the place of an attempt has ended so far."""
        place = place_of(held.launch.namespace, held.launch.name)
        return self.ends.setdefault(place, PlaceEnds())

    def _end(
        self,
        host: Host,
        held: HeldProcess,
        why: str,
        *,
        signal: int | None = None,
        code: int | None = None,
    ) -> None:
        if held.is_running and why == "Exited" and code == 0:
            self.of(held).done += 1
        elif held.is_running and why in ("Exited", "ShimDied"):
            self.of(held).failed += 1
        super()._end(host, held, why, signal=signal, code=code)
