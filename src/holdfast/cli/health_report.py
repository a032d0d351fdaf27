"""How a plane is doing, judged from what its servers say: the lines of `holdfast status`.

`status` gathers the facts. A part is wrong when nobody would expect it to mend itself soon, or when
it keeps others from working; work of users that waits or fails is shown, and is no fault of the
plane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.explain.actors import PICTURE_MS, SILENT_MS
from holdfast.host.audit.standing import AuditStatus
from holdfast.model.fence import exceeds, fence_wait_ms, greatest_timing, timing_of
from holdfast.model.heartbeat import HeartbeatReport, ServerLease, ServerRoster, server_scope
from holdfast.model.installations import MAY_STILL_RUN, machine_of
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.meta import Condition, ConditionStatus, condition
from holdfast.model.pulse import Beat, Pulses, ReceivedPulse
from holdfast.model.quarantine import Quarantine

# Who was not heard of yet by servers that have not listened for long enough.
NOT_YET = "not yet"
# A key that is due for longer is stuck: pauses after failures are half a minute at most.
OVERDUE_MS = 60_000
# An error that is older is no news.
ERROR_MS = 60_000
# A server that should write is replaced by another before that.
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
    """All that was found out. What may not be asked, or was not answered, is None."""

    servers: tuple[ServerHealth, ...]
    pulses: tuple[Pulses, ...] | None = None
    heard: tuple[HeartbeatReport, ...] | None = None
    nodes: tuple[Node, ...] | None = None
    workloads: tuple[Workload, ...] | None = None
    # Those that are in trouble; `status` does not ask for the many that are not.
    replicas: tuple[Replica, ...] | None = None
    audit: tuple[AuditStatus, ...] | None = None
    leases: tuple[Lease, ...] | None = None
    quarantine: tuple[Quarantine, ...] | None = None
    # Why something is None: what, and the sentence.
    unknown: dict[str, str] = {}


class ReportLine(msgspec.Struct, frozen=True):
    """One part of the plane. `wrong` says what is wrong with it, if anything is."""

    part: str
    name: str
    state: str
    more: str = ""
    wrong: str = ""


def judged(facts: PlaneFacts) -> list[ReportLine]:
    """All lines, in the order in which a person reads them."""
    return [
        *_servers(facts.servers),
        *_servers_by_lease(facts.servers, facts.heard or ()),
        *(_components(facts.pulses, facts.leases or ()) if facts.pulses is not None else ()),
        *(_nodes(facts.nodes, facts.heard or ()) if facts.nodes is not None else ()),
        *(_unheard(facts.nodes or (), facts.heard or ())),
        *(_timings(facts.nodes or (), facts.heard or ())),
        *_copies(facts.replicas or ()),
        *(_work(facts.workloads) if facts.workloads is not None else ()),
        *(_audit(facts.audit) if facts.audit is not None else ()),
        *(_quarantine(facts.quarantine) if facts.quarantine is not None else ()),
        *(ReportLine("unknown", what, "?", why) for what, why in facts.unknown.items()),
    ]


def verdict(lines: Sequence[ReportLine]) -> str:
    """One sentence; empty when something is wrong."""
    if any(line.wrong for line in lines):
        return ""
    if any(line.state == NOT_YET for line in lines):
        return "It is too early to say: the servers have just begun to listen. Ask again soon."
    parts = Counter(line.part for line in lines)
    if parts["unknown"]:
        return "What can be seen works; some of it may not be asked as who you are."
    return "Everything works."


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
        lost = "" if good else "the server cannot reach it: nothing new is decided, work runs on"
        yield ReportLine("store", f"of {server.url}", "reached" if good else "away", "", lost)


def _servers_by_lease(
    asked: Sequence[ServerHealth], heard: Sequence[HeartbeatReport]
) -> Iterable[ReportLine]:
    """The servers that were not asked, since the kubeconfig does not name them: each is known to
    the others by its lease."""
    rosters = [it.roster for it in heard if it.roster is not None]
    if not rosters:
        return
    roster = min(rosters, key=lambda it: it.age_ms)
    answered, urls = {it.server for it in heard}, {it.url.rstrip("/") for it in asked}
    expired = roster.expired()
    for lease in roster.servers:
        if lease.server not in answered and lease.address.rstrip("/") not in urls:
            yield _by_lease(lease, roster, expired)


def _by_lease(lease: ServerLease, roster: ServerRoster, expired: Mapping[str, int]) -> ReportLine:
    name, where = lease.server, lease.address or "no address"
    if not lease.life:
        return ReportLine("server", name, "stopped", f"{where}; it gave its lease back")
    if name in expired:
        since = f"it has not renewed its lease for {span(expired[name])}, and no longer counts"
        removal = f"`holdfast delete lease {lease_name(server_scope(name))}` removes it"
        next_step = f"start it again; if it is gone for good, {removal}"
        return ReportLine("server", name, "gone", where, f"{since}; {next_step}")
    renewed = span(roster.idle_ms.get(name, 0))
    return ReportLine("server", name, "alive", f"{where}; it renewed its lease {renewed} ago")


# Schedulers and controllers -----------------------------------------------------------------------


def _components(pulses: Sequence[Pulses], leases: Sequence[Lease]) -> Iterable[ReportLine]:
    """Each scope once: who acts for it, and how that one is doing. One whose lease was not given
    back should be there."""
    held = {it.spec.scope: it for it in leases if _is_component(it) and it.spec.holder}
    felt = _latest(pulses)
    fresh = {who: it for who, it in felt.items() if it.age_ms <= SILENT_MS}
    acting: dict[str, tuple[ReceivedPulse, Beat]] = {}
    for it in fresh.values():
        for beat in it.pulse.beats:
            if beat.epoch and beat.epoch >= acting.get(beat.scope, (it, Beat("-")))[1].epoch:
                acting[beat.scope] = it, beat
    known = {beat.scope for it in felt.values() for beat in it.pulse.beats}
    scopes = sorted(known | held.keys())
    # A server that has just begun to listen cannot know who is silent.
    is_early = max((it.listening_ms for it in pulses), default=0) < SILENT_MS
    for scope in scopes:
        part, _, name = scope.partition(":")
        if scope in acting:
            yield _acting(part, name, *acting[scope])
        elif is_early:
            yield ReportLine(part, name, NOT_YET, "no process has said yet that it holds its lease")
        else:
            is_missed = scope in held or part != "scheduler"
            wrong = _missed(held.get(scope)) if is_missed else ""
            yield ReportLine(
                part, name, "silent", "no process that is heard holds its lease", wrong
            )
    for part in ("scheduler", "controller"):
        if any(scope.startswith(f"{part}:") for scope in acting):
            continue
        if is_early:
            yield ReportLine(part, "-", NOT_YET, "none was heard of yet")
        else:
            yield ReportLine(part, "-", "none", "none was heard of lately", f"no {part} works")


def _is_component(lease: Lease) -> bool:
    return lease.spec.scope.startswith(("scheduler:", "controller:"))


def _missed(lease: Lease | None) -> str:
    """What to do about a scope that nobody acts for."""
    wrong = "no process acts for it"
    if lease is None:
        return f"{wrong}; start one"
    return f"{wrong}; {lease.spec.instance or lease.spec.holder} did last: start it again"


def _latest(pulses: Sequence[Pulses]) -> Mapping[tuple[str, str], ReceivedPulse]:
    """The youngest pulse of each process, of all that the servers have felt."""
    found: dict[tuple[str, str], ReceivedPulse] = {}
    for it in sorted((felt for one in pulses for felt in one.felt), key=lambda it: -it.age_ms):
        found[it.sender, it.pulse.process] = it
    return found


def _acting(part: str, name: str, felt: ReceivedPulse, beat: Beat) -> ReportLine:
    words = [f"epoch {beat.epoch}", f"{beat.waiting} waiting"]
    if beat.overdue_ms > 1_000:
        words.append(f"oldest {span(beat.overdue_ms)}")
    if beat.looked_ago_ms is not None:
        words.append(f"looked {span(beat.looked_ago_ms + felt.age_ms)} ago")
    errors = sum(beat.refused.values()) + beat.down + beat.unknown
    if errors:
        words.append(f"{errors} of {beat.sent} requests failed")
    if beat.last_error_ago_ms is not None and beat.last_error_ago_ms <= ERROR_MS:
        words.append(f"{span(beat.last_error_ago_ms)} ago: {beat.last_error}")
    wrong = ""
    if beat.overdue_ms > OVERDUE_MS:
        wrong = f"something has waited for {span(beat.overdue_ms)}"
    elif felt.pulse.picture_ms > PICTURE_MS:
        age = span(felt.pulse.picture_ms)
        wrong = f"what it knows is {age} old, so it does nothing"
    where = f"{felt.pulse.process}, heard {span(felt.age_ms)} ago"
    return ReportLine(part, name, "acts", f"{where}: {', '.join(words)}", wrong)


# Nodes and work -----------------------------------------------------------------------------------


def _ages_ms(heard: Sequence[HeartbeatReport]) -> dict[str, int]:
    """How long ago each node was heard, by whichever server heard it last."""
    ages: dict[str, int] = {}
    for one in heard:
        for name, age_ms in one.ages_ms.items():
            ages[name] = min(age_ms, ages.get(name, age_ms))
    return ages


def _nodes(nodes: Sequence[Node], heard: Sequence[HeartbeatReport]) -> Iterable[ReportLine]:
    ages = _ages_ms(heard)
    by_phase = {phase: [it.name for it in nodes if it.status.phase is phase] for phase in _PHASES}
    for phase, names in by_phase.items():
        if not names:
            continue
        known = [ages[name] for name in names if name in ages]
        more = _named(names)
        if known:
            more += f"; the most silent was heard {span(max(known))} ago"
        cordoned = [it.name for it in nodes if it.spec.cordoned and it.status.phase is phase]
        if cordoned:
            more += f"; cordoned: {_named(cordoned)}"
        is_well = phase is NodePhase.READY
        count = _counted(len(names), "node")
        # All of them by name: each should be there, and is not.
        wrong = "" if is_well else f"{count} {phase.value}: {', '.join(names)}"
        yield ReportLine("nodes", count, phase.value, more, wrong)
    if not nodes:
        yield ReportLine("nodes", "0 nodes", "none", "", "there is no node")


def _unheard(nodes: Sequence[Node], heard: Sequence[HeartbeatReport]) -> Iterable[ReportLine]:
    """The nodes that are Ready and have missed a renewal, before controller:nodes suspects them.

    A healthy agent is heard once in every period, so one and a half of them are one missed; the
    controller waits for two. Nobody knows what a server heard before it began to listen.
    """
    if not heard:
        return
    timing = greatest_timing(heard[0].timing, *(it.timing for it in heard[1:]))
    late_ms = timing.renew_every_ms * 3 // 2
    listening_ms = min(word.listening_ms for it in heard for word in it.all_words())
    ages = _ages_ms(heard)
    ready = [it.name for it in nodes if it.status.phase is NodePhase.READY]
    silent = {it: ages.get(it) for it in ready if ages.get(it, late_ms + 1) > late_ms}
    if not silent:
        return
    count = _counted(len(silent), "node")
    every = f"agents renew every {span(timing.renew_every_ms)}"
    if listening_ms <= late_ms:
        more = f"{_named(list(silent))}: not heard since the servers began to listen; {every}"
        yield ReportLine("nodes", count, NOT_YET, more)
        return
    names = ", ".join(
        f"{name} for {span(min(age, listening_ms))}"
        if age is not None
        else f"{name} for {span(listening_ms)} or more"
        for name, age in silent.items()
    )
    wrong = f"no server that answers has heard {names}; look at the agent and its network"
    yield ReportLine("nodes", count, "not heard", f"Ready so far; {every}", wrong)


def _copies(replicas: Sequence[Replica]) -> Iterable[ReportLine]:
    """The machines on which copies of `keep` work may still run, unseen. Each machine is named."""
    found: dict[str, list[tuple[Replica, Condition]]] = {}
    for it in replicas:
        said = condition(it.status.conditions, MAY_STILL_RUN)
        if said is None or said.status is not ConditionStatus.TRUE or it.status.binding is None:
            continue
        found.setdefault(machine_of(it.status.binding), []).append((it, said))
    for machine, copies in found.items():
        count = "a copy" if len(copies) == 1 else f"copies of {len(copies)} replicas"
        since = min((at for _, it in copies if (at := it.last_transition_time)), default=None)
        when = f" since {since:%Y-%m-%dT%H:%M:%SZ}" if since is not None else ""
        names = [f"{it.namespace}/{it.name}" for it, _ in copies]
        binding = copies[0][0].status.binding
        wrong = (
            f"{count} may still run on {machine}{when}: {', '.join(names)}; what is not wanted any "
            "more stops once that machine is in contact again. If the machine is gone for good, an "
            "administrator's `kubectl delete replica NAME --force --grace-period=0` says so"
        )
        node = binding.node if binding is not None else "-"
        yield ReportLine("copies", f"of node {node}", "may still run", _named(names), wrong)


def _timings(nodes: Sequence[Node], heard: Sequence[HeartbeatReport]) -> Iterable[ReportLine]:
    """The nodes that are fenced by longer times than are set now.

    A node that is cut off cannot say so itself: its agent would have to register for that.
    """
    if not heard:
        return
    wanted = greatest_timing(heard[0].timing, *(it.timing for it in heard[1:]))
    pending = {
        it.name: fence_wait_ms(it.status.timing, wanted)
        for it in nodes
        if (held := timing_of(it.status.timing)) is not None and exceeds(held, wanted)
    }
    if not pending:
        return
    longest = span(max(pending.values()))
    more = (
        f"{_named(list(pending))}: work there was started under longer times than are set now; "
        f"until it has ended they are fenced by those, up to {longest} after the mark"
    )
    yield ReportLine("timing", _counted(len(pending), "node"), "pending", more)


def _work(workloads: Sequence[Workload]) -> Iterable[ReportLine]:
    reasons: Counter[str] = Counter()
    for it in workloads:
        reasons.update(it.status.progress.pending_reasons)
    queued = sum(it.status.progress.queued for it in workloads)
    said = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
    yield ReportLine("queue", f"{queued} waiting", "-" if not queued else "waits", said)
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


def _audit(told: Sequence[AuditStatus]) -> Iterable[ReportLine]:
    """One line: of all servers the one that has seen it come furthest knows best."""
    best = max(told, key=lambda it: (it.head.number, it.head.revision, it.writing))
    name = _counted(best.head.number, "record")
    if best.standstill_ms <= AUDIT_STILL_MS:
        more = f"by {best.head.by or 'nobody yet'}, up to revision {best.head.revision}"
        yield ReportLine("audit", name, "written", more)
        return
    errors = [f"{it.server}: {it.error}" for it in told if it.error]
    still = f"{span(best.standstill_ms)} without a record, {best.lag} revisions wait"
    yield ReportLine("audit", name, "stands still", _named(errors), still)


def _quarantine(told: Sequence[Quarantine]) -> Iterable[ReportLine]:
    """Nothing if all is well; a line for each record that is not."""
    found = {it.key: f"{it.reason}: {it.message}" for one in told for it in one.records}
    for one in told:
        found.update((key, f"damaged: {why}") for key, why in one.unreadable.items())
    for key, what in list(found.items())[:NAMES_MAX]:
        wrong = f"{what}; `holdfast repair show {key}` tells more"
        yield ReportLine("record", key, "quarantined", "", wrong)
    if len(found) > NAMES_MAX:
        more = f"and {len(found) - NAMES_MAX} more; `holdfast repair list` names all"
        yield ReportLine("record", "others", "quarantined", "", more)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def span(ms: int) -> str:
    """A length of time as people say it."""
    if ms < 60_000:
        return f"{ms / 1_000:.0f} s"
    return f"{ms // 60_000} min" if ms < 7_200_000 else f"{ms // 3_600_000} h"
