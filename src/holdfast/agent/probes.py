"""What the answers of work to its probes mean: whether it has started, is ready, and lives.

`Work` keeps one `ProbeHealth` for each attempt that runs; `crew` performs what is due and hands in what
came back, and `tend` acts on the verdicts. Nothing here knows how a probe is performed.

The start-up probe holds back the others until it has succeeded once. The readiness probe decides
nothing but the stage: its failing is ambiguous and never ends work. The liveness probe, and a
start-up probe that has failed for good, end the attempt.
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
# A start-up probe that fails so often in a row is worth a word; to fail now and then is its nature.
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
        # How often in a row it went as it went last.
        self.was_ok, self.run = False, 0
        self.message = ""

    def heard(self, ok: bool, message: str, now_ms: int) -> None:
        """An answer; it counts for the next period even when it took longer than one."""
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
        """`was_ready`: an earlier life of the agent has reported this attempt as ready, and nobody
        has asked since. `spread` keeps the probes of all work that was found at once apart: it is
        the part of a period by which the first ones are late.
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

    # What to ask ---------------------------------------------------------------------------------

    def _asked(self) -> list[tuple[Check, ProbeTally]]:
        """The probes that count now, without those whose answer is awaited."""
        startup = self._tallies.get(Check.STARTUP)
        is_starting = startup is not None and not startup.verdict
        return [
            (kind, tally)
            for kind, tally in self._tallies.items()
            if (kind is Check.STARTUP) is is_starting and not tally.is_asking
        ]

    @property
    def next_ms(self) -> int | None:
        """When the next probe is due; None while only answers are awaited."""
        if self.ill:
            return None
        return min((tally.next_ms for _, tally in self._asked()), default=None)

    def due(self, now_ms: int) -> list[tuple[Check, Probe]]:
        """The probes to perform now. Each is asked once until it is answered."""
        found = []
        for kind, tally in [] if self.ill else self._asked():
            if tally.next_ms <= now_ms:
                tally.is_asking, tally.sent_ms = True, now_ms
                found.append((kind, tally.spec))
        return found

    def heard(self, kind: Check, ok: bool, message: str, now_ms: int) -> None:
        """What came of one. An answer that nobody waits for says nothing."""
        tally = self._tallies.get(kind)
        if tally is not None and tally.is_asking:
            tally.heard(ok, message, now_ms)

    # What it means -------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        gates = (self._tallies.get(Check.STARTUP), self._tallies.get(Check.READINESS))
        return all(tally is None or tally.verdict is True for tally in gates)

    @property
    def ill(self) -> str:
        """Why this attempt has to end; empty when it has not."""
        for kind, word in ((Check.STARTUP, STARTUP_FAILED), (Check.LIVENESS, LIVENESS_FAILED)):
            tally = self._tallies.get(kind)
            if tally is not None and tally.verdict is False:
                return f"{word}: {tally.message}"
        return ""

    @property
    def complaint(self) -> str:
        """Why it is not ready, once there is something to tell."""
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
    """The one thing that a probe or a pre-stop does."""
    return spec.exec or spec.http or (spec.tcp if isinstance(spec, Probe) else None)


def resolved(action: Action, process: Process) -> Action | None:
    """The action with the number that a named port got; None when the work has no such port."""
    if isinstance(action, ExecAction) or isinstance(action.port, int):
        return action
    number = process.addresses.get(action.port, "").rpartition(":")[2]
    if not number.isdigit():
        return None
    return msgspec.structs.replace(action, port=int(number))


def unknown_port(action: Action) -> str:
    """What to say of a port that the work does not have."""
    what = "http" if isinstance(action, HttpAction) else "tcp"
    return f"{what}: the work has no port {getattr(action, 'port', '')!r}"
