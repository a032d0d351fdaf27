"""Planted bugs on the node: in the agent, in the shim, and in the answers of servers to it."""

from __future__ import annotations

from holdfast.agent.runtime_protocol import Extend
from holdfast.sim.cell import Cell
from holdfast.sim.mutants import rewrite, swap
from holdfast.sim.planes.process_table import Processes
from holdfast.sim.planes.simulated_shim import Shim
from tests.sim.end_to_end.planting import AGENT, COMMIT, MARKED_EARLY, SHIM, bug


def _extend_always(self: Processes, cell: Cell, effect: Extend) -> None:
    """A method in place of `Processes._extend` that extends also what is being stopped."""
    for held in self.table(cell.host).values():
        if held.shim.deadline_ms is not None and held.is_running:
            held.shim = Shim(effect.deadline_ms, held.shim.grace_ms)
            self._world.timers.cancel(cell.host, held.death)
            self._arm(cell.host, held)


DEADLINES = (
    bug(
        "no-deadline",
        "work is started without a deadline; the agent is trusted to stop it",
        rewrite(AGENT + "next_step:_launch", "None if is_kept else view.deadline_ms", "None"),
    ),
    bug(
        "grace-of-the-template",
        "work that is cut off gets the grace of its template, however long the fence waits",
        MARKED_EARLY,
        rewrite(
            AGENT + "next_step:_launch",
            "grace_ms if is_kept else min(grace_ms, view.grace_max_ms)",
            "grace_ms",
        ),
    ),
    bug(
        "deadline-ignored-by-the-shim",
        "the deadline's alarm fires and the work is not stopped",
        rewrite(
            SHIM + "_strike",
            "if not held.is_running:",
            "if not (held.is_running and held.is_stopping):",
        ),
    ),
    bug(
        "stopping-taken-back",
        "a renewal that arrives while work is being stopped lets it continue",
        swap(SHIM + "_extend", _extend_always),
    ),
    bug(
        "renewed-without-reading",
        "a server answers renewals from its first read of the node",
        rewrite(
            COMMIT + "heartbeat_intake:Renewals._renewed",
            "read = self._by_node.get(renew.node)",
            "old = vars(self).setdefault('_old', {}).get(renew.node)\n"
            "    if old is not None:\n"
            "        verdict = self._verdict(old, renew)\n"
            "        it = _Waiting(asked.call, renew, now.monotonic_ms, False)\n"
            "        self._hear(it, verdict, now)\n"
            "        return [Answer(asked.call, verdict)]\n"
            "    read = self._by_node.get(renew.node)",
        ),
        rewrite(
            COMMIT + "heartbeat_intake:Renewals._read",
            "effects: Effects = []",
            "if node is not None:\n"
            "        vars(self).setdefault('_old', {})[read.node] = node\n"
            "    effects: Effects = []",
        ),
    ),
)

LIVES = (
    bug(
        "nothing-adopted",
        "an agent that starts ignores what its predecessor left running",
        rewrite(
            AGENT + "replica_workers:ReplicaWorkers.take_inventory", "in inventory.items:", "in ():"
        ),
    ),
    bug(
        "status-before-start",
        "a replica is reported Running when its start is requested",
        rewrite(
            AGENT + "next_step:_begin",
            "case WorkPhase.RUNNING:",
            "case WorkPhase.RUNNING | WorkPhase.LAUNCHING:",
        ),
    ),
    bug(
        "released-before-the-exit",
        "work counts as stopped as soon as its stop was requested",
        rewrite(
            AGENT + "next_step:stop",
            "return Halt(attempt, grace_ms) if grace_ms < work.halt_grace_ms else Wait()",
            "return None",
        ),
    ),
    bug(
        "exit-reported-too-early",
        "a shim reports the exit of the work when it has sent the signal",
        rewrite(
            SHIM + "_signal",
            "stubborn = self._is",
            "why = Process(reason=held.shim.reason)\n"
            "    for cell in host.cells:\n"
            "        self._tell(host, cell, Exited(held.launch.attempt, why))\n"
            "    stubborn = self._is",
        ),
    ),
)
