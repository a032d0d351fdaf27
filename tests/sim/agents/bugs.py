"""Bugs planted in agents: in what they start, ask, stop, keep and tell."""

from __future__ import annotations

from typing import Any

from holdfast.agent.probes import LIVENESS_FAILED, STARTUP_FAILED, ProbeHealth
from holdfast.agent.runtime_protocol import Check
from holdfast.sim.mutants import Mutant, Plant, rewrite, swap

_WORLD = "holdfast.sim.worlds.agents.scenario:"
AGENTS, AWAY, STOPPING = f"{_WORLD}AGENTS", f"{_WORLD}AWAY", f"{_WORLD}STOPPING"
PORTS = f"{_WORLD}PORTS"
AGENT = "holdfast.agent."
TABLE = "holdfast.sim.worlds.end_to_end.process_table:Processes."
SHIM = "holdfast.sim.worlds.end_to_end.simulated_shim:Shim."


def bug(name: str, mistake: str, *plants: Plant, world: str = AGENTS) -> Mutant:
    return Mutant(name, mistake, world, plants)


def benign(name: str, change: str, *plants: Plant, world: str = AGENTS) -> Mutant:
    return Mutant(name, change, world, plants, benign=True)


def _ill_when_unready(health: ProbeHealth) -> str:
    for kind, word in (
        (Check.STARTUP, STARTUP_FAILED),
        (Check.READINESS, LIVENESS_FAILED),
        (Check.LIVENESS, LIVENESS_FAILED),
    ):
        tally = health._tallies.get(kind)
        if tally is not None and tally.verdict is False:
            return f"{word}: {tally.message}"
    return ""


def _ready_for_ever(health: Any) -> bool:
    gates = (health._tallies.get(Check.STARTUP), health._tallies.get(Check.READINESS))
    is_ready = all(tally is None or tally.verdict is True for tally in gates)
    health.was_ready = is_ready or getattr(health, "was_ready", False)
    return bool(health.was_ready)


def _open_repr(sealed: Any) -> str:
    return f"Sealed({sealed.values})"


STARTS = (
    bug(
        "pauses-never-grow",
        "work that ends again and again is started after the same short pause each time",
        rewrite(AGENT + "work:ReplicaWork.ended", "self.crashes += 1", "pass"),
    ),
    bug(
        "pause-in-seconds",
        "milliseconds are taken for seconds: a start waits for a thousand times its pause",
        rewrite(
            AGENT + "work:ReplicaWork.ended",
            "self.resume_ms = now_ms + self.pause_ms",
            "self.resume_ms = now_ms + self.pause_ms * 1_000",
        ),
    ),
    bug(
        "killed-counts-as-done",
        "work that was killed has no exit code, and so no bad one: it has succeeded",
        rewrite(
            AGENT + "work:outcome", "process.exit_code != 0", "process.exit_code not in (0, None)"
        ),
    ),
    bug(
        "never-means-on-failure",
        "work that is never to be restarted is, when it failed",
        rewrite(
            AGENT + "work:outcome",
            "return State.FAILED if has_failed",
            "return None if has_failed",
        ),
    ),
    bug(
        "secret-kept-for-the-next-start",
        "a Secret is read for the first start and used for all that follow",
        rewrite(AGENT + "work:ReplicaWork.launching", "self.secrets.clear()", "pass"),
    ),
)

PROBES = (
    bug(
        "liveness-not-heeded",
        "work that does not live any more is left as it is",
        rewrite(AGENT + "next_step:_look_after", "health.ill and view.is_clear", "False"),
    ),
    bug(
        "one-failure-is-enough",
        "work is ended by the first question that it does not answer",
        rewrite(
            AGENT + "probes:ProbeTally.take_result", "else self.spec.failure_threshold", "else 1"
        ),
    ),
    bug(
        "unready-is-restarted",
        "work that is not ready is ended like work that does not live",
        swap(AGENT + "probes:ProbeHealth.ill", property(_ill_when_unready)),
    ),
    bug(
        "asked-before-it-has-started",
        "the liveness probe does not wait for the start-up probe",
        rewrite(
            AGENT + "probes:ProbeHealth._asked",
            "if (kind is Check.STARTUP) is is_starting and not tally.is_asking",
            "if (kind is not Check.STARTUP or is_starting) and not tally.is_asking",
        ),
    ),
    bug(
        "adopted-and-never-asked",
        "an agent that starts does not probe the work that it finds",
        rewrite(
            AGENT + "work:ReplicaWork.watch",
            "or replica is None:",
            "or replica is None or self.is_adopted:",
        ),
    ),
    bug(
        "once-ready-always-ready",
        "work that has been ready once is told as ready for as long as it runs",
        swap(AGENT + "probes:ProbeHealth.is_ready", property(_ready_for_ever)),
    ),
)

STOPS = (
    bug(
        "no-farewell",
        "work is stopped without being told to say farewell",
        rewrite(AGENT + "next_step:_end", "= pre_stop_hook(work, replica),", "= None,"),
    ),
    bug(
        "farewell-not-awaited",
        "work is told to say farewell, and stopped in the same breath",
        rewrite(
            AGENT + "replica_workers:ReplicaWorkers._prepare_stop",
            "WorkPhase.LEAVING, step.probe is None",
            "WorkPhase.LEAVING, True",
        ),
    ),
    bug(
        "a-second-grace",
        "work that has said farewell has its whole grace once more",
        rewrite(
            AGENT + "next_step:stop",
            "min(max(0, work.stop_by_ms - now_ms), grace_ms)",
            "grace_ms",
        ),
    ),
    bug(
        "kept-work-has-a-deadline",
        "work that is to be kept is started with a deadline like any other",
        rewrite(
            AGENT + "next_step:_launch", "None if is_kept else view.deadline_ms", "view.deadline_ms"
        ),
    ),
    bug(
        "stopped-under-a-mark",
        "an agent that sees a mark on its node stops its work at once",
        rewrite(
            AGENT + "next_step:_return",
            "    if not view.is_clear:\n        return WAIT",
            "    if not view.is_clear:\n        return stop(work, 0, view.now_ms) or WAIT",
        ),
    ),
    bug(
        "stop-outlives-the-deadline",
        "a shim that was told to stop takes the time it was given, also when the deadline strikes",
        rewrite(
            SHIM + "_settle_end",
            "self.kill_ms = min(self.kill_ms, self.deadline_ms + self.grace_ms)",
            "pass",
        ),
        world=STOPPING,
    ),
    bug(
        "asked-again-asked-for-longer",
        "a shim that is told a second time to stop begins the grace anew",
        rewrite(SHIM + "stop", "if self.asked_ms is None or end_ms < self.asked_ms:", "if True:"),
        world=STOPPING,
    ),
)

TOLD = (
    bug(
        "never-cleared-away",
        "what a replica left on its node stays there for ever",
        rewrite(AGENT + "replica_workers:ReplicaWorkers._clear", "out.append(clear)", "pass"),
    ),
    bug(
        "inventory-of-the-first-attempt",
        "whoever looks around finds the first attempt of each replica, not the latest",
        rewrite(
            TABLE + "_report_inventory",
            "known.launch.attempt.number < attempt.number",
            "known.launch.attempt.number > attempt.number",
        ),
    ),
    bug(
        "inventory-of-what-runs",
        "whoever looks around does not see what has ended",
        rewrite(
            TABLE + "_report_inventory",
            "for held in latest.values()",
            "for held in latest.values() if held.is_running",
        ),
    ),
    bug(
        "lack-tells-what-there-is",
        "a start that lacks a key of a Secret says what the Secret has instead",
        rewrite(
            AGENT + "secret_values:lacking",
            "has no key {ref.key!r}",
            "has no key {ref.key!r} but {secret.data}",
        ),
    ),
    bug(
        "launch-shown-in-the-trace",
        "a launch is written to the trace with the values of its Secrets",
        swap(AGENT + "runtime_protocol:SecretValues.__repr__", _open_repr),
    ),
    bug(
        "addresses-told-at-once",
        "the addresses of work are told as soon as it runs, whoever listens there",
        rewrite(AGENT + "status_reports:_opened", " if name not in work.unopened", ""),
        world=PORTS,
    ),
    bug(
        "late-listener-never-told",
        "work that is ready opens one more port, and its address is not told",
        rewrite(
            AGENT + "next_step:_look_after",
            "is_known_ready and known.addresses == published_addresses(work, replica)",
            "is_known_ready",
        ),
        world=PORTS,
    ),
)
