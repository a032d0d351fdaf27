"""Bugs planted in agents: in starts, probes, stops and reports."""

from __future__ import annotations

from typing import Any

from holdfast.agent.probes import LIVENESS_FAILED, NOT_READY, ProbeHealth
from holdfast.agent.runtime_protocol import Check
from holdfast.sim.mutants import Mutant, Plant, rewrite, swap

_WORLD = "holdfast.sim.worlds.agents.scenario:"
AGENTS, AWAY, STOPPING = f"{_WORLD}AGENTS", f"{_WORLD}AWAY", f"{_WORLD}STOPPING"
PORTS = f"{_WORLD}PORTS"
AGENT = "holdfast.agent."
TABLE = "holdfast.sim.planes.process_table:Processes."
SHIM = "holdfast.sim.planes.simulated_shim:Shim."


def bug(name: str, mistake: str, *plants: Plant, world: str = AGENTS) -> Mutant:
    return Mutant(name, mistake, world, plants)


def benign(name: str, change: str, *plants: Plant, world: str = AGENTS) -> Mutant:
    return Mutant(name, change, world, plants, benign=True)


_ILL = vars(ProbeHealth)["ill"].fget
_IS_READY = vars(ProbeHealth)["is_ready"].fget


def _ill_when_unready(health: ProbeHealth) -> str:
    complaint = health.complaint
    if complaint.startswith(f"{NOT_READY}: {Check.READINESS.value} "):
        return f"{LIVENESS_FAILED}: {complaint}"
    return str(_ILL(health))


def _ready_once_ready(health: Any) -> bool:
    health.was_ready = _IS_READY(health) or getattr(health, "was_ready", False)
    return bool(health.was_ready)


def _open_repr(sealed: Any) -> str:
    return f"Sealed({sealed.values})"


STARTS = (
    bug(
        "pauses-never-grow",
        "work that ends repeatedly is started after the same short pause each time",
        rewrite(AGENT + "work:ReplicaWork.ended", "self.crashes += 1", "pass"),
    ),
    bug(
        "pause-in-seconds",
        "milliseconds are used as seconds: a start waits for a thousand times its pause",
        rewrite(
            AGENT + "work:ReplicaWork.ended",
            "self.resume_ms = now_ms + self.pause_ms",
            "self.resume_ms = now_ms + self.pause_ms * 1_000",
        ),
    ),
    bug(
        "killed-counts-as-done",
        "work that was killed has no exit code, and is reported as Succeeded",
        rewrite(
            AGENT + "work:outcome", "process.exit_code != 0", "process.exit_code not in (0, None)"
        ),
    ),
    bug(
        "never-means-on-failure",
        "work with the policy Never is restarted when it fails",
        rewrite(
            AGENT + "work:outcome",
            "return State.FAILED if has_failed",
            "return None if has_failed",
        ),
    ),
    bug(
        "secret-kept-for-the-next-start",
        "a Secret is read for the first start and used for all later ones",
        rewrite(AGENT + "work:ReplicaWork.forget_inputs", "self.secrets.clear()", "pass"),
    ),
)

PROBES = (
    bug(
        "liveness-not-heeded",
        "work whose liveness probe fails is not restarted",
        rewrite(AGENT + "next_step:_look_after", "health.ill and view.is_clear", "False"),
    ),
    bug(
        "one-failure-is-enough",
        "the first failed probe stops work",
        rewrite(
            AGENT + "probes:ProbeTally.take_result", "else self.spec.failure_threshold", "else 1"
        ),
    ),
    bug(
        "unready-is-restarted",
        "a failed readiness probe stops work like a failed liveness probe",
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
        "an agent that starts does not probe the work that it adopts",
        rewrite(
            AGENT + "work:ReplicaWork.watch",
            "or replica is None:",
            "or replica is None or self.is_adopted:",
        ),
    ),
    bug(
        "once-ready-always-ready",
        "work that was ready once is reported as ready while it runs",
        swap(AGENT + "probes:ProbeHealth.is_ready", property(_ready_once_ready)),
    ),
)

STOPS = (
    bug(
        "no-farewell",
        "work is stopped without its pre-stop hook",
        rewrite(AGENT + "next_step:_end", "= pre_stop_hook(work, replica),", "= None,"),
    ),
    bug(
        "farewell-not-awaited",
        "work is stopped while its pre-stop hook runs",
        rewrite(
            AGENT + "replica_workers:ReplicaWorkers._prepare_stop",
            "WorkPhase.LEAVING, step.probe is None",
            "WorkPhase.LEAVING, True",
        ),
    ),
    bug(
        "a-second-grace",
        "after its pre-stop hook, work gets its whole grace period again",
        rewrite(
            AGENT + "next_step:stop",
            "min(max(0, work.stop_by_ms - now_ms), grace_ms)",
            "grace_ms",
        ),
    ),
    bug(
        "kept-work-has-a-deadline",
        "`keep` work is started with a deadline",
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
        "a shim that was ordered to stop uses its grace period past the deadline",
        rewrite(
            SHIM + "_settle_end",
            "self.kill_ms = min(self.kill_ms, self.deadline_ms + self.grace_ms)",
            "pass",
        ),
        world=STOPPING,
    ),
    bug(
        "asked-again-asked-for-longer",
        "a second order to stop begins the grace period of a shim again",
        rewrite(SHIM + "stop", "if self.asked_ms is None or end_ms < self.asked_ms:", "if True:"),
        world=STOPPING,
    ),
)

REPORTS = (
    bug(
        "never-cleared-away",
        "the leftovers of a replica stay on its node",
        rewrite(AGENT + "replica_workers:ReplicaWorkers._clear", "out.append(clear)", "pass"),
    ),
    bug(
        "inventory-of-the-first-attempt",
        "an inventory has the first attempt of each replica, not the latest",
        rewrite(
            TABLE + "_report_inventory",
            "known.launch.attempt.number < attempt.number",
            "known.launch.attempt.number > attempt.number",
        ),
    ),
    bug(
        "inventory-of-what-runs",
        "an inventory lacks attempts that have ended",
        rewrite(
            TABLE + "_report_inventory",
            "for held in latest.values()",
            "for held in latest.values() if held.is_running",
        ),
    ),
    bug(
        "lack-tells-what-there-is",
        "a start without a key of a Secret reports what the Secret has instead",
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
        "the addresses of work are published before it listens there",
        rewrite(AGENT + "status_reports:_opened", " if name not in work.unopened", ""),
        world=PORTS,
    ),
    bug(
        "late-listener-never-told",
        "ready work opens one more port, and its address is not published",
        rewrite(
            AGENT + "next_step:_look_after",
            "is_known_ready and known.addresses == published_addresses(work, replica)",
            "is_known_ready",
        ),
        world=PORTS,
    ),
)
