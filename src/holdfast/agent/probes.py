"""What probe results mean: whether the work has started, is ready, and is alive.

`ReplicaWork` keeps one `ProbeHealth` for each running attempt; `replica_workers` runs the probes
that are due and passes the results in, and `next_step` acts on the verdicts. Nothing here knows how
a probe is performed.

The start-up probe holds the others back until it has succeeded once. The readiness probe decides
only the stage: its failure is ambiguous and never ends work. The liveness probe, and a start-up
probe that has reached its failure threshold, end the attempt.
"""

from __future__ import annotations

import msgspec

from holdfast.agent.runtime_protocol import Action, Check
from holdfast.model.kinds.replica import Process
from holdfast.model.kinds.template import ExecAction, HttpAction, PreStop, Probe, Probes

# `Process.reason` begins with one of these.
NOT_READY = "NotReady"
STARTUP_FAILED = "StartupProbeFailed"
LIVENESS_FAILED = "LivenessProbeFailed"
# A start-up probe that fails this often in a row is reported; a few failures are normal.
STARTUP_COMPLAINT_AFTER = 3
MESSAGE_MAX = 256


class ProbeTally:
    """One probe of one attempt. `verdict` is None until a threshold is reached."""

    __slots__ = ("is_asking", "message", "next_ms", "run", "sent_ms", "spec", "verdict", "was_ok")

    def __init__(self, spec: Probe, first_ms: int, verdict: bool | None) -> None:
        self.spec = spec
        self.next_ms = first_ms
        self.sent_ms = first_ms
        self.is_asking = False
        self.verdict = verdict
        # The number of equal results in a row.
        self.was_ok, self.run = False, 0
        self.message = ""

    def take_result(self, ok: bool, message: str, now_ms: int) -> None:
        """Count a result; the next probe is due a period after this one was sent, or now."""
        self.is_asking = False
        self.next_ms = max(now_ms, self.sent_ms + self.spec.period_seconds * 1_000)
        self.run = self.run + 1 if ok is self.was_ok and self.run else 1
        self.was_ok, self.message = ok, "" if ok else message[:MESSAGE_MAX]
        wanted = self.spec.success_threshold if ok else self.spec.failure_threshold
        if self.run >= wanted:
            self.verdict = ok


class ProbeHealth:
    """See the module's docstring. Times are readings of the machine's monotonic clock."""

    def __init__(
        self, probes: Probes, started_ms: int, *, was_ready: bool = False, spread: float = 0.0
    ) -> None:
        """`was_ready`: an earlier process of the agent has reported this attempt as ready, and no
        probe ran since. `spread` spreads the first probes of all work that was found at once: it is
        the fraction of a period by which they are delayed.
        """
        self._tallies: dict[Check, ProbeTally] = {}
        known = True if was_ready else None
        specs = (
            (Check.STARTUP, probes.startup, known),
            (Check.READINESS, probes.readiness, known),
            (Check.LIVENESS, probes.liveness, None),
        )
        for kind, spec, verdict in specs:
            if spec is not None:
                late_ms = int(spread * spec.period_seconds * 1_000)
                first_ms = started_ms + spec.initial_delay_seconds * 1_000 + late_ms
                self._tallies[kind] = ProbeTally(spec, first_ms, verdict)

    # Probes to run -------------------------------------------------------------------------------

    def _asked(self) -> list[tuple[Check, ProbeTally]]:
        """The probes that count now, without those whose result is awaited."""
        startup = self._tallies.get(Check.STARTUP)
        is_starting = startup is not None and not startup.verdict
        return [
            (kind, tally)
            for kind, tally in self._tallies.items()
            if (kind is Check.STARTUP) is is_starting and not tally.is_asking
        ]

    @property
    def next_ms(self) -> int | None:
        """When the next probe is due; None while only results are awaited."""
        if self.ill:
            return None
        return min((tally.next_ms for _, tally in self._asked()), default=None)

    def due(self, now_ms: int) -> list[tuple[Check, Probe]]:
        """The probes to run now. Each runs once until its result arrives."""
        found = []
        for kind, tally in [] if self.ill else self._asked():
            if tally.next_ms <= now_ms:
                tally.is_asking, tally.sent_ms = True, now_ms
                found.append((kind, tally.spec))
        return found

    def take_result(self, kind: Check, ok: bool, message: str, now_ms: int) -> None:
        """Count a result. A result that is not awaited is ignored."""
        tally = self._tallies.get(kind)
        if tally is not None and tally.is_asking:
            tally.take_result(ok, message, now_ms)

    # Verdicts ------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        gates = (self._tallies.get(Check.STARTUP), self._tallies.get(Check.READINESS))
        return all(tally is None or tally.verdict is True for tally in gates)

    @property
    def ill(self) -> str:
        """Why this attempt has to end; empty when it has not."""
        for kind, reason in ((Check.STARTUP, STARTUP_FAILED), (Check.LIVENESS, LIVENESS_FAILED)):
            tally = self._tallies.get(kind)
            if tally is not None and tally.verdict is False:
                return f"{reason}: {tally.message}"
        return ""

    @property
    def complaint(self) -> str:
        """Why it is not ready, once there is something to report."""
        for kind in (Check.STARTUP, Check.READINESS):
            tally = self._tallies.get(kind)
            if tally is None or tally.verdict is True:
                continue
            needed = tally.spec.failure_threshold
            if kind is Check.STARTUP:
                needed = min(needed, STARTUP_COMPLAINT_AFTER)
            if tally.was_ok or tally.run < needed:
                return ""
            return f"{NOT_READY}: {kind.value} probe: {tally.message}"
        return ""


def action_of(spec: Probe | PreStop) -> Action | None:
    """The one action of a probe or a pre-stop hook."""
    return spec.exec or spec.http or (spec.tcp if isinstance(spec, Probe) else None)


def with_port_number(action: Action, process: Process) -> Action | None:
    """The action with the number of a named port; None when the work has no such port."""
    if isinstance(action, ExecAction) or isinstance(action.port, int):
        return action
    number = process.addresses.get(action.port, "").rpartition(":")[2]
    if not number.isdigit():
        return None
    return msgspec.structs.replace(action, port=int(number))


def unknown_port(action: Action) -> str:
    """The message about a port that the work does not have."""
    what = "http" if isinstance(action, HttpAction) else "tcp"
    port = "" if isinstance(action, ExecAction) else action.port
    return f"{what}: the work has no port {port!r}"
