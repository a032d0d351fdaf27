"""Makes a failing plan small, so that a person can read why it fails.

This is delta debugging: leave out parts of the faults and acts, halves first and single ones last,
and keep each plan that still breaks the same invariant. Then phases and durations are cut. A run
with fewer faults draws differently from the seed's streams, so this is a search, not a proof: the
result is small, not smallest, and always a plan that was seen to fail.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.sim.plan import Act, Fault, Plan
from holdfast.sim.run import BrokenInvariant, Report, Scenario, run

# A plan with more entries than this after the search counts as one that could not be shrunk.
ENTRIES_GOAL = 50
# Runs that a search may cost.
RUNS_MAX = 400

Entry = Fault | Act
Trial = Callable[[Plan], BrokenInvariant | None]


class Shrunk(msgspec.Struct, frozen=True):
    """The smallest failing plan found, and what the search cost."""

    plan: Plan
    broken: BrokenInvariant
    runs: int

    def reached_goal(self) -> bool:
        return self.plan.size() <= ENTRIES_GOAL


def shrink(
    scenario: Scenario,
    seed: int,
    plan: Plan,
    broken: BrokenInvariant,
    *,
    runs_max: int = RUNS_MAX,
    runner: Callable[[Scenario, int, Plan], Report] | None = None,
) -> Shrunk:
    """Search for a small plan that breaks the same invariant under the same seed."""

    def trial(candidate: Plan) -> BrokenInvariant | None:
        if runner is not None:
            return runner(scenario, seed, candidate).broken
        return run(scenario, seed, candidate, tell=False).broken

    search = _Search(trial, plan, broken, runs_max)
    search.cut_end()
    search.leave_out()
    search.shorten()
    search.leave_out()
    search.cut_end()
    # After a fix this plan is replayed to the end, which needs the whole time to settle.
    whole = msgspec.structs.replace(search.plan, settle_ms=plan.settle_ms)
    return Shrunk(whole, search.broken, search.runs)


class _Search:
    def __init__(self, trial: Trial, plan: Plan, broken: BrokenInvariant, runs_max: int) -> None:
        self._trial = trial
        self._runs_max = runs_max
        self.plan = plan
        self.broken = broken
        self.runs = 0

    def _accept(self, candidate: Plan) -> bool:
        """Try a plan and keep it if it breaks the same invariant."""
        if self.runs >= self._runs_max or candidate == self.plan:
            return False
        self.runs += 1
        broken = self._trial(candidate)
        if broken is None or broken.invariant != self.broken.invariant:
            return False
        self.plan, self.broken = candidate, broken
        return True

    def cut_end(self) -> None:
        """Drop what comes after the violation: it cannot have caused it."""
        plan, end_ms = self.plan, self.broken.at_ms
        if end_ms >= plan.faults_ms:
            # Broken in the time to settle: every fault may matter, the rest of that time does not.
            settle_ms = min(plan.settle_ms, end_ms - plan.faults_ms + 1)
            self._accept(msgspec.structs.replace(plan, settle_ms=settle_ms))
            return
        self._accept(
            Plan(
                faults_ms=end_ms + 1,
                settle_ms=0,
                faults=tuple(fault for fault in plan.faults if fault.at_ms <= end_ms),
                acts=tuple(act for act in plan.acts if act.at_ms <= end_ms),
            )
        )

    def leave_out(self) -> None:
        """Leave out consecutive entries, long stretches first."""
        length = max(1, len(self._entries()) // 2)
        while self.runs < self._runs_max:
            removed = self._leave_out_runs_of(length)
            if length == 1 and not removed:
                return
            length = length if removed and length == 1 else max(1, length // 2)

    def _leave_out_runs_of(self, length: int) -> bool:
        removed = False
        start = 0
        while start < len(self._entries()):
            entries = self._entries()
            if self._accept(self._with(entries[:start] + entries[start + length :])):
                removed = True
            else:
                start += length
        return removed

    def shorten(self) -> None:
        """Halve durations while it still fails: a long fault hides which part of it matters."""
        for place in range(len(self._entries())):
            entry = self._entries()[place]
            while isinstance(entry, Fault) and entry.for_ms > 1:
                entry = msgspec.structs.replace(entry, for_ms=entry.for_ms // 2)
                entries = self._entries()
                if not self._accept(self._with([*entries[:place], entry, *entries[place + 1 :]])):
                    break

    def _entries(self) -> list[Entry]:
        return [*self.plan.faults, *self.plan.acts]

    def _with(self, entries: list[Entry]) -> Plan:
        return msgspec.structs.replace(
            self.plan,
            faults=tuple(entry for entry in entries if isinstance(entry, Fault)),
            acts=tuple(entry for entry in entries if isinstance(entry, Act)),
        )
