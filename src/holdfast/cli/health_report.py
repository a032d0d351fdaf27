"""The health of a plane as its servers report it: the lines of `holdfast status`.

`status` gathers the facts. A part is wrong when it is not expected to recover soon by itself, or
when it keeps other parts from working. Users' work that waits or fails is shown, but is not a fault
of the plane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.explain.actors import PICTURE_MS, SILENT_MS
from holdfast.host.audit.status_route import AuditStatus
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.meta import Condition, ConditionStatus, condition
from holdfast.model.nodes.fence import exceeds, fence_wait_ms, greatest_timing, timing_of
from holdfast.model.nodes.heartbeat import HeartbeatReport, ServerLease, ServerRoster, server_scope
from holdfast.model.nodes.installations import MAY_STILL_RUN, machine_of
from holdfast.model.plane import Plane
from holdfast.model.pulse import Beat, Pulses, ReceivedPulse
from holdfast.model.quarantine import Quarantine

# The state of a part that sent nothing yet to servers that have not listened for long enough.
NOT_YET = "not yet"
# A key that is due for longer is stuck: backoff after failures is half a minute at most.
OVERDUE_MS = 60_000
# An older error is not shown.
ERROR_MS = 60_000
# Another server takes over the audit writer's lease before this time.
AUDIT_STILL_MS = 30_000
NAMES_MAX = 5

_PHASES = tuple(NodePhase)


class ServerHealth(msgspec.Struct, frozen=True):
    """One server: its checks by name, or why it did not answer."""

    url: str
    took_ms: int = 0
    checks: dict[str, bool] = {}
    error: str = ""


class PlaneFacts(msgspec.Struct, frozen=True):
    """The answers of all servers. What the user may not read, or was not answered, is None."""

    servers: tuple[ServerHealth, ...]
    pulses: tuple[Pulses, ...] | None = None
    heartbeats: tuple[HeartbeatReport, ...] | None = None
    nodes: tuple[Node, ...] | None = None
    workloads: tuple[Workload, ...] | None = None
    # Only those in trouble; `status` does not read the others.
    replicas: tuple[Replica, ...] | None = None
    audit: tuple[AuditStatus, ...] | None = None
    leases: tuple[Lease, ...] | None = None
    quarantine: tuple[Quarantine, ...] | None = None
    # Why a field is None: its name, and the message.
    unknown: dict[str, str] = {}


class ReportLine(msgspec.Struct, frozen=True):
    """One part of the plane. `wrong` says what is wrong with it, if anything is."""

    part: str
    name: str
    state: str
    more: str = ""
    wrong: str = ""


def report_lines(facts: PlaneFacts) -> list[ReportLine]:
    """All lines, in the order in which they are shown."""
    return [
        *_planes(facts.pulses or ()),
        *_servers(facts.servers),
        *_servers_by_lease(facts.servers, facts.heartbeats or ()),
        *(_components(facts.pulses, facts.leases or ()) if facts.pulses is not None else ()),
        *(_nodes(facts.nodes, facts.heartbeats or ()) if facts.nodes is not None else ()),
        *(_silent_nodes(facts.nodes or (), facts.heartbeats or ())),
        *(_timings(facts.nodes or (), facts.heartbeats or ())),
        *_copies(facts.replicas or ()),
        *(_work(facts.workloads) if facts.workloads is not None else ()),
        *(_audit(facts.audit) if facts.audit is not None else ()),
        *(_quarantine(facts.quarantine) if facts.quarantine is not None else ()),
        *(ReportLine("unknown", what, "?", why) for what, why in facts.unknown.items()),
    ]


def verdict(lines: Sequence[ReportLine]) -> str:
    """The verdict in one sentence; empty when something is wrong."""
    if any(line.wrong for line in lines):
        return ""
    if any(line.state == NOT_YET for line in lines):
        return "Too early to say: the servers have just started to listen. Try again in a moment."
    parts = Counter(line.part for line in lines)
    if parts["unknown"]:
        return "All visible parts work; you may not read the health of some parts."
    return "Everything works."


def _planes(answers: Sequence[Pulses]) -> Iterable[ReportLine]:
    """The plane that the servers serve, by their own word: one, unless their options differ."""
    servers: dict[Plane, list[str]] = {}
    for answer in answers:
        if answer.plane is not None:
            servers.setdefault(answer.plane, []).append(answer.server)
    for plane, names in servers.items():
        few = f"not all servers serve it, only {', '.join(names[:NAMES_MAX])}"
        advice = "start all with the same --plane, --plane-role and --plane-region"
        wrong = f"{few}: {advice}" if len(servers) > 1 else ""
        more = f"region {plane.region}" if plane.region else ""
        yield ReportLine("plane", plane.name, plane.role.value, more, wrong)


# Servers and their store --------------------------------------------------------------------------


def _servers(servers: Iterable[ServerHealth]) -> Iterable[ReportLine]:
    for server in servers:
        if server.error:
            yield ReportLine("server", server.url, "silent", server.error, "it does not answer")
            continue
        failed = [name for name, good in server.checks.items() if not good and name != "store"]
        wrong = f"its checks fail: {', '.join(failed)}" if failed else ""
        state = "ready" if not failed else "not ready"
        yield ReportLine("server", server.url, state, f"answers in {server.took_ms} ms", wrong)
        good = server.checks.get("store", False)
        lost = "" if good else "the server cannot reach it: no changes until then, work continues"
        yield ReportLine("store", f"of {server.url}", "reached" if good else "away", "", lost)


def _servers_by_lease(
    asked: Sequence[ServerHealth], reports: Sequence[HeartbeatReport]
) -> Iterable[ReportLine]:
    """The servers that the kubeconfig does not name: the others know each by its lease."""
    rosters = [it.roster for it in reports if it.roster is not None]
    if not rosters:
        return
    roster = min(rosters, key=lambda it: it.age_ms)
    answered, urls = {it.server for it in reports}, {it.url.rstrip("/") for it in asked}
    expired = roster.expired_servers()
    for lease in roster.servers:
        if lease.server not in answered and lease.address.rstrip("/") not in urls:
            yield _by_lease(lease, roster, expired)


def _by_lease(lease: ServerLease, roster: ServerRoster, expired: Mapping[str, int]) -> ReportLine:
    name, where = lease.server, lease.address or "no address"
    if not lease.life:
        return ReportLine("server", name, "stopped", f"{where}; it gave its lease back")
    if name in expired:
        since = f"it has not renewed its lease for {span(expired[name])}"
        removal = f"`holdfast delete lease {lease_name(server_scope(name))}` removes it"
        next_step = f"start it again; if it is gone for good, {removal}"
        return ReportLine("server", name, "gone", where, f"{since}; {next_step}")
    renewed = span(roster.idle_ms.get(name, 0))
    return ReportLine("server", name, "alive", f"{where}; it renewed its lease {renewed} ago")


# Schedulers and controllers -----------------------------------------------------------------------


def _components(pulses: Sequence[Pulses], leases: Sequence[Lease]) -> Iterable[ReportLine]:
    """Each scope once: which process acts for it, and its health. A scope whose lease was not
    released should have one."""
    held = {it.spec.scope: it for it in leases if _is_component(it) and it.spec.holder}
    latest = _latest(pulses)
    fresh = {who: it for who, it in latest.items() if it.age_ms <= SILENT_MS}
    acting: dict[str, tuple[ReceivedPulse, Beat]] = {}
    for it in fresh.values():
        for beat in it.pulse.beats:
            if beat.epoch and beat.epoch >= acting.get(beat.scope, (it, Beat("-")))[1].epoch:
                acting[beat.scope] = it, beat
    known = {beat.scope for it in latest.values() for beat in it.pulse.beats}
    scopes = sorted(known | held.keys())
    # A server that has just started to listen cannot know which process is silent.
    is_early = max((it.listening_ms for it in pulses), default=0) < SILENT_MS
    for scope in scopes:
        part, _, name = scope.partition(":")
        if scope in acting:
            yield _acting(part, name, *acting[scope])
        elif is_early:
            yield ReportLine(
                part, name, NOT_YET, "no process has reported yet that it holds its lease"
            )
        else:
            is_missed = scope in held or part != "scheduler"
            wrong = _missed(held.get(scope)) if is_missed else ""
            yield ReportLine(
                part, name, "silent", "no process reports that it holds its lease", wrong
            )
    for part in ("scheduler", "controller"):
        if any(scope.startswith(f"{part}:") for scope in acting):
            continue
        if is_early:
            yield ReportLine(part, "-", NOT_YET, "none has reported yet")
        else:
            yield ReportLine(part, "-", "none", "none has reported recently", f"no {part} works")


def _is_component(lease: Lease) -> bool:
    return lease.spec.scope.startswith(("scheduler:", "controller:"))


def _missed(lease: Lease | None) -> str:
    """What to do about a scope without an acting process."""
    wrong = "no process acts for it"
    if lease is None:
        return f"{wrong}; start one"
    return f"{wrong}; the last one was {lease.spec.instance or lease.spec.holder}: start it again"


def _latest(pulses: Sequence[Pulses]) -> Mapping[tuple[str, str], ReceivedPulse]:
    """The youngest pulse of each process, of all that the servers have received."""
    found: dict[tuple[str, str], ReceivedPulse] = {}
    for it in sorted((it for one in pulses for it in one.felt), key=lambda it: -it.age_ms):
        found[it.sender, it.pulse.process] = it
    return found


def _acting(part: str, name: str, received: ReceivedPulse, beat: Beat) -> ReportLine:
    details = [f"epoch {beat.epoch}", f"{beat.waiting} waiting"]
    if beat.overdue_ms > 1_000:
        details.append(f"oldest {span(beat.overdue_ms)}")
    if beat.looked_ago_ms is not None:
        details.append(f"looked {span(beat.looked_ago_ms + received.age_ms)} ago")
    errors = sum(beat.refused.values()) + beat.down + beat.unknown
    if errors:
        details.append(f"{errors} of {beat.sent} requests failed")
    if beat.last_error_ago_ms is not None and beat.last_error_ago_ms <= ERROR_MS:
        details.append(f"{span(beat.last_error_ago_ms)} ago: {beat.last_error}")
    wrong = ""
    if beat.overdue_ms > OVERDUE_MS:
        wrong = f"its oldest item has waited for {span(beat.overdue_ms)}"
    elif received.pulse.picture_ms > PICTURE_MS:
        age = span(received.pulse.picture_ms)
        wrong = f"its cache is {age} old, so it does nothing"
    where = f"{received.pulse.process}, last pulse {span(received.age_ms)} ago"
    return ReportLine(part, name, "acts", f"{where}: {', '.join(details)}", wrong)


# Nodes and work -----------------------------------------------------------------------------------


def _ages_ms(reports: Sequence[HeartbeatReport]) -> dict[str, int]:
    """How long ago any server last received a heartbeat of each node."""
    ages: dict[str, int] = {}
    for one in reports:
        for name, age_ms in one.ages_ms.items():
            ages[name] = min(age_ms, ages.get(name, age_ms))
    return ages


def _nodes(nodes: Sequence[Node], reports: Sequence[HeartbeatReport]) -> Iterable[ReportLine]:
    ages = _ages_ms(reports)
    by_phase = {phase: [it.name for it in nodes if it.status.phase is phase] for phase in _PHASES}
    for phase, names in by_phase.items():
        if not names:
            continue
        known = [ages[name] for name in names if name in ages]
        more = _named(names)
        if known:
            more += f"; oldest heartbeat {span(max(known))} ago"
        cordoned = [it.name for it in nodes if it.spec.cordoned and it.status.phase is phase]
        if cordoned:
            more += f"; cordoned: {_named(cordoned)}"
        is_well = phase is NodePhase.READY
        count = _counted(len(names), "node")
        # Name all of them: each should be ready, and is not.
        wrong = "" if is_well else f"{count} {phase.value}: {', '.join(names)}"
        yield ReportLine("nodes", count, phase.value, more, wrong)
    if not nodes:
        yield ReportLine("nodes", "0 nodes", "none", "", "there is no node")


def _silent_nodes(
    nodes: Sequence[Node], reports: Sequence[HeartbeatReport]
) -> Iterable[ReportLine]:
    """The nodes that are Ready and have missed a heartbeat, before controller:nodes suspects them.

    A healthy agent sends one heartbeat per period, so a silence of one and a half periods is one
    missed heartbeat; the controller waits for two. What a server received before it started is
    unknown.
    """
    if not reports:
        return
    timing = greatest_timing(reports[0].timing, *(it.timing for it in reports[1:]))
    late_ms = timing.renew_every_ms * 3 // 2
    listening_ms = min(report.listening_ms for it in reports for report in it.all_words())
    ages = _ages_ms(reports)
    ready = [it.name for it in nodes if it.status.phase is NodePhase.READY]
    silent = {it: ages.get(it) for it in ready if ages.get(it, late_ms + 1) > late_ms}
    if not silent:
        return
    count = _counted(len(silent), "node")
    every = f"agents send a heartbeat every {span(timing.renew_every_ms)}"
    if listening_ms <= late_ms:
        more = f"{_named(list(silent))}: no heartbeat since the servers started; {every}"
        yield ReportLine("nodes", count, NOT_YET, more)
        return
    names = ", ".join(
        f"{name} for {span(min(age, listening_ms))}"
        if age is not None
        else f"{name} for {span(listening_ms)} or more"
        for name, age in silent.items()
    )
    wrong = f"no heartbeat received from {names}; check the agent and its network"
    yield ReportLine("nodes", count, "silent", f"Ready so far; {every}", wrong)


def _copies(replicas: Sequence[Replica]) -> Iterable[ReportLine]:
    """The machines on which copies of `keep` work may still run unobserved, each by name."""
    found: dict[str, list[tuple[Replica, Condition]]] = {}
    for it in replicas:
        known = condition(it.status.conditions, MAY_STILL_RUN)
        if known is None or known.status is not ConditionStatus.TRUE or it.status.binding is None:
            continue
        found.setdefault(machine_of(it.status.binding), []).append((it, known))
    for machine, copies in found.items():
        count = "a copy" if len(copies) == 1 else f"copies of {len(copies)} replicas"
        since = min((at for _, it in copies if (at := it.last_transition_time)), default=None)
        when = f" since {since:%Y-%m-%dT%H:%M:%SZ}" if since is not None else ""
        names = [f"{it.namespace}/{it.name}" for it, _ in copies]
        binding = copies[0][0].status.binding
        wrong = (
            f"{count} may still run on {machine}{when}: {', '.join(names)}; unwanted copies stop "
            "once that machine is in contact again. If the machine is gone for good, an "
            "administrator confirms that with `kubectl delete replica NAME --force "
            "--grace-period=0`"
        )
        node = binding.node if binding is not None else "-"
        yield ReportLine("copies", f"of node {node}", "may still run", _named(names), wrong)


def _timings(nodes: Sequence[Node], reports: Sequence[HeartbeatReport]) -> Iterable[ReportLine]:
    """The nodes that are still fenced by longer times than the present settings.

    A disconnected node cannot report that itself: its agent would have to register.
    """
    if not reports:
        return
    wanted = greatest_timing(reports[0].timing, *(it.timing for it in reports[1:]))
    pending = {
        it.name: fence_wait_ms(it.status.timing, wanted)
        for it in nodes
        if (held := timing_of(it.status.timing)) is not None and exceeds(held, wanted)
    }
    if not pending:
        return
    longest = span(max(pending.values()))
    more = (
        f"{_named(list(pending))}: work there was started under longer fence times than the "
        f"present ones, which apply until it has ended: up to {longest} after the mark"
    )
    yield ReportLine("timing", _counted(len(pending), "node"), "pending", more)


def _work(workloads: Sequence[Workload]) -> Iterable[ReportLine]:
    reasons: Counter[str] = Counter()
    for it in workloads:
        reasons.update(it.status.progress.pending_reasons)
    queued = sum(it.status.progress.queued for it in workloads)
    counts = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
    yield ReportLine("queue", f"{queued} waiting", "-" if not queued else "waits", counts)
    served = (WorkloadType.SERVICE, WorkloadType.PER_NODE)
    services = [it for it in workloads if it.spec.type in served]
    short = [it for it in services if it.status.progress.ready < it.status.progress.desired]
    more = _named([_short_of(it) for it in short])
    yield ReportLine(
        "work", _counted(len(services), "service"), "short" if short else "whole", more
    )
    others = len(workloads) - len(services)
    if others:
        yield ReportLine("work", _counted(others, "job"), "-")


def _short_of(workload: Workload) -> str:
    progress = workload.status.progress
    unknown = f" and {progress.unknown} unknown" if progress.unknown else ""
    of = f"{progress.ready} of {progress.desired} ready{unknown}"
    return f"{workload.namespace}/{workload.name} {of}"


# The audit ----------------------------------------------------------------------------------------


def _audit(answers: Sequence[AuditStatus]) -> Iterable[ReportLine]:
    """One line, from the server that knows the highest record."""
    best = max(answers, key=lambda it: (it.head.number, it.head.revision, it.writing))
    name = _counted(best.head.number, "record")
    if best.standstill_ms <= AUDIT_STILL_MS:
        more = f"by {best.head.by or 'no server yet'}, up to revision {best.head.revision}"
        yield ReportLine("audit", name, "written", more)
        return
    errors = [f"{it.server}: {it.error}" for it in answers if it.error]
    still = f"no record for {span(best.standstill_ms)}, {best.lag} revisions wait"
    yield ReportLine("audit", name, "stands still", _named(errors), still)


def _quarantine(answers: Sequence[Quarantine]) -> Iterable[ReportLine]:
    """A line for each record in quarantine."""
    found = {it.key: f"{it.reason}: {it.message}" for one in answers for it in one.records}
    for one in answers:
        found.update((key, f"damaged: {why}") for key, why in one.unreadable.items())
    for key, what in list(found.items())[:NAMES_MAX]:
        wrong = f"{what}; `holdfast repair show {key}` shows details"
        yield ReportLine("record", key, "quarantined", "", wrong)
    if len(found) > NAMES_MAX:
        more = f"and {len(found) - NAMES_MAX} more; `holdfast repair list` shows all"
        yield ReportLine("record", "others", "quarantined", "", more)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def span(ms: int) -> str:
    """A duration in the unit that people use for it."""
    if ms < 60_000:
        return f"{ms / 1_000:.0f} s"
    return f"{ms // 60_000} min" if ms < 7_200_000 else f"{ms // 3_600_000} h"
