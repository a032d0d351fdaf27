"""What `holdfast status` calls wrong, and what it only shows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.cli.health_report import (
    PlaneFacts,
    ReportLine,
    ServerHealth,
    report_lines,
    span,
    verdict,
)
from holdfast.cli.status import readyz_checks
from holdfast.host.audit.status_route import AuditStatus
from holdfast.model.audit.audit_records import Head
from holdfast.model.kinds.lease import Lease, LeaseSpec, lease_name
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.workload import Progress, Workload, WorkloadStatus
from holdfast.model.lifecycle import State
from holdfast.model.meta import Condition, ConditionStatus, ObjectMeta
from holdfast.model.nodes.fence import FenceTiming, greatest_timing, timing_record
from holdfast.model.nodes.heartbeat import HeartbeatReport, ServerLease, ServerReport, ServerRoster
from holdfast.model.nodes.installations import MAY_STILL_RUN
from holdfast.model.plane import Plane, PlaneRole
from holdfast.model.pulse import Beat, Pulse, Pulses, ReceivedPulse
from tests.unit.correct.views import at, node, replaced, replica, workload

GOOD = {"ping": True, "store": True, "hub": True, "shutdown": True}
URL = "https://127.0.0.1:6443"


def felt(process: str, *beats: Beat, age_ms: int = 1_000, **more: Any) -> ReceivedPulse:
    return ReceivedPulse(f"system:{process}", age_ms, Pulse(process, beats, **more))


TEAM = felt("controllers main", Beat("controller:nodes", 2), Beat("controller:workload", 4))
PLACING = felt("scheduler main", Beat("scheduler:main", 1))


def plane(*pulses: ReceivedPulse, listening_ms: int = 60_000, **more: Any) -> PlaneFacts:
    """A plane of which all is well but for what a test says."""
    told = (Pulses("one", listening_ms, pulses or (TEAM, PLACING)),)
    given: dict[str, Any] = {"servers": (ServerHealth(URL, 3, GOOD),), "nodes": (node(),), **more}
    return PlaneFacts(pulses=told, workloads=given.pop("workloads", ()), **given)


def wrong(facts: PlaneFacts) -> list[tuple[str, str]]:
    lines = report_lines(facts)
    assert bool(verdict(lines)) is not any(it.wrong for it in lines)
    return [(it.part, it.name) for it in lines if it.wrong]


def of(facts: PlaneFacts, part: str) -> list[ReportLine]:
    return [it for it in report_lines(facts) if it.part == part]


def test_a_plane_of_which_all_works_is_called_so() -> None:
    """[H3]"""
    assert wrong(plane()) == []
    assert verdict(report_lines(plane())) == "Everything works."
    assert [it.name for it in of(plane(), "controller")] == ["nodes", "workload"]
    assert "epoch 4" in of(plane(), "controller")[1].more


def test_the_plane_is_shown_and_servers_of_different_planes_are_wrong() -> None:
    """One line for the plane that all servers name; a server of an older version names none."""
    eu = Plane("eu", PlaneRole.REGION, "eu-central")
    older = Pulses("two", 60_000, (TEAM, PLACING))
    of_eu = msgspec.structs.replace(older, server="one", plane=eu)
    facts = msgspec.structs.replace(plane(), pulses=(of_eu, older))
    assert of(facts, "plane") == [ReportLine("plane", "eu", "region", "region eu-central")]
    assert wrong(facts) == []
    other = msgspec.structs.replace(older, plane=Plane("us"))
    facts = msgspec.structs.replace(facts, pulses=(of_eu, other))
    assert wrong(facts) == [("plane", "eu"), ("plane", "us")]
    assert "only two: start all" in of(facts, "plane")[1].wrong


@pytest.mark.parametrize(
    "server, part",
    [
        (ServerHealth(URL, error="refused"), "server"),
        (ServerHealth(URL, 3, {**GOOD, "hub": False}), "server"),
        (ServerHealth(URL, 3, {**GOOD, "store": False}), "store"),
    ],
    ids=["silent", "behind", "without-store"],
)
def test_a_server_that_is_of_no_use_is_wrong(server: ServerHealth, part: str) -> None:
    """[H3]"""
    assert [it for it, _ in wrong(plane(servers=(server,)))] == [part]


def stuck(overdue_ms: int) -> ReceivedPulse:
    beats = Beat("controller:nodes", 2), Beat("controller:workload", 4, overdue_ms=overdue_ms)
    return felt("controllers main", *beats)


@pytest.mark.parametrize(
    "pulse, names",
    [
        (stuck(50_000), []),
        (stuck(70_000), ["workload"]),
        (felt("controllers main", Beat("controller:nodes", 2), picture_ms=40_000), ["nodes"]),
        (felt("controllers main", Beat("controller:nodes", 2), Beat("controller:x")), ["x"]),
        (felt("controllers main", Beat("controller:nodes", 2), age_ms=20_000), ["nodes", "-"]),
    ],
    ids=["busy", "stuck", "blind", "no-leader", "silent"],
)
def test_a_controller_that_does_not_get_on_is_wrong(pulse: ReceivedPulse, names: list[str]) -> None:
    """[H3]"""
    assert [name for part, name in wrong(plane(pulse, PLACING)) if part == "controller"] == names


def test_a_standby_is_not_missed_and_the_latest_term_counts() -> None:
    """Of two processes one acts for each controller."""
    old = felt("controllers a", Beat("controller:nodes", 2), age_ms=12_000)
    new = felt("controllers b", Beat("controller:nodes", 3))
    idle = felt("controllers c", Beat("controller:nodes"))
    facts = plane(old, new, idle, PLACING)
    assert wrong(facts) == []
    (line,) = of(facts, "controller")
    assert "controllers b" in line.more


def test_a_server_that_has_just_begun_to_listen_reports_no_silence() -> None:
    """And says that it cannot know yet, not that all is well. [H4]"""
    early = plane(felt("x"), listening_ms=3_000)
    assert wrong(early) == []
    assert verdict(report_lines(early)).startswith("Too early to say")
    missed = wrong(plane(felt("x"), listening_ms=30_000))
    assert missed == [("scheduler", "-"), ("controller", "-")]


TIMING = FenceTiming()


def heard_by(name: str, *servers: ServerLease, **idle_ms: int) -> HeartbeatReport:
    return HeartbeatReport(
        name, 60_000, {"node-a": 1_000}, TIMING, roster=ServerRoster(500, servers, idle_ms)
    )


def lease_of(server: str, life: str = "a", address: str = "") -> ServerLease:
    return ServerLease(server, life, 1, 9, 15_000, address or f"https://{server}:6443")


def test_a_server_that_is_gone_is_named_though_the_kubeconfig_does_not_name_it() -> None:
    """Two of three are gone for good: one that answers does not make a plane. [H3]"""
    all_three = [lease_of(name) for name in ("one", "two", "three")]
    gone = plane(heartbeats=(heard_by("one", *all_three, one=0, two=15_000, three=3_600_000),))
    assert wrong(gone) == [("server", "two"), ("server", "three")]
    two = next(it for it in report_lines(gone) if it.name == "two")
    assert "15 s" in two.wrong
    assert "start it again" in two.wrong
    assert verdict(report_lines(gone)) == ""
    alive = plane(heartbeats=(heard_by("one", *all_three, one=0, two=14_999, three=1),))
    assert wrong(alive) == []
    assert [it.state for it in of(alive, "server")] == ["ready", "alive", "alive"]


def test_a_server_that_stopped_in_order_is_shown_and_one_that_was_asked_is_shown_once() -> None:
    """[H3]"""
    left = (lease_of("one"), lease_of("two", life=""), lease_of("three", address=f"{URL}9/"))
    silent = (ServerHealth(URL, 3, GOOD), ServerHealth(f"{URL}9", error="no answer"))
    facts = plane(heartbeats=(heard_by("one", *left, two=60_000, three=60_000),), servers=silent)
    assert wrong(facts) == [("server", f"{URL}9")]
    assert [it.state for it in of(facts, "server")] == ["ready", "silent", "stopped"]


def component(scope: str, holder: str = "system:x") -> Lease:
    spec = LeaseSpec(scope=scope, holder=holder, instance="main" if holder else "")
    return Lease(ObjectMeta(name=lease_name(scope)), spec=spec)


def test_a_component_that_held_a_lease_and_is_silent_is_named() -> None:
    """Also after the servers were started again and never received its pulse. [H3]"""
    held = (
        component("controller:nodes"),
        component("controller:drain"),
        component("scheduler:gpu"),
        component("scheduler:old", holder=""),
        component("authority"),
    )
    facts = plane(leases=held)
    assert wrong(facts) == [("controller", "drain"), ("scheduler", "gpu")]
    drain = next(it for it in report_lines(facts) if it.name == "drain")
    assert drain.wrong == "no process acts for it; the last one was main: start it again"
    assert wrong(plane(leases=held, listening_ms=3_000)) == []


def test_every_node_that_is_not_there_is_named() -> None:
    """However many a zone has. [H3]"""
    dark = tuple(node(f"n{number}", NodePhase.SUSPECT) for number in range(20))
    (line,) = [it for it in report_lines(plane(nodes=(node("well"), *dark))) if it.wrong]
    assert all(it.name in line.wrong for it in dark)


def test_nodes_are_counted_by_phase_with_the_most_silent() -> None:
    """All but Ready is wrong, and so is a plane without nodes. [H3]"""
    timing = FenceTiming()
    reports = (
        HeartbeatReport("a", 9, {"n1": 9_000, "n2": 2_000}, timing),
        HeartbeatReport("b", 9, {"n1": 3_000}, timing),
    )
    nodes: tuple[Node, ...] = (node("n1"), node("n2"), node("n3", NodePhase.UNKNOWN))
    facts = plane(nodes=nodes, heartbeats=reports)
    ready, lost = of(facts, "nodes")
    assert (ready.name, ready.state, ready.wrong) == ("2 nodes", "Ready", "")
    assert "3 s ago" in ready.more
    assert lost.wrong == "1 node Unknown: n3"
    assert wrong(plane(nodes=())) == [("nodes", "0 nodes")]


@pytest.mark.parametrize("factor", [1, 10])
def test_a_ready_node_that_missed_a_renewal_is_named_before_it_is_suspected(factor: int) -> None:
    """By the plane's own timing; by whichever server received it last. [H3]"""
    timing = FenceTiming(self_stop_after_ms=30_000 * factor, fence_after_ms=900_000)
    late_ms = timing.renew_every_ms * 3 // 2

    def facts(*ages: int, **more: Any) -> PlaneFacts:
        reports = tuple(
            HeartbeatReport(f"s{number}", 10 * late_ms, {"n1": age_ms, "n2": 1}, timing, **more)
            for number, age_ms in enumerate(ages)
        )
        return plane(nodes=(node("n1"), node("n2")), heartbeats=reports)

    assert wrong(facts(late_ms)) == []
    assert wrong(facts(late_ms + 1, 5)) == []
    (line,) = [it for it in report_lines(facts(late_ms + 1_000, late_ms + 5_000)) if it.wrong]
    assert (line.part, line.name, line.state) == ("nodes", "1 node", "silent")
    assert f"heartbeat received from n1 for {span(late_ms + 1_000)};" in line.wrong
    assert "n2" not in line.wrong
    # Another server began to listen a moment ago, and it may have received the heartbeats before.
    young = ServerReport("s9", "b", 100, late_ms, timing)
    early = facts(late_ms + 1, words=(young,))
    assert wrong(early) == []
    assert verdict(report_lines(early)).startswith("Too early to say")


def test_a_ready_node_that_never_renewed_is_named_once_servers_listened_for_long_enough() -> None:
    """[H3]"""
    late_ms = TIMING.renew_every_ms * 3 // 2
    early, late = (
        plane(heartbeats=(HeartbeatReport("one", listening_ms, {}, TIMING),))
        for listening_ms in (late_ms, late_ms + 1_000)
    )
    assert wrong(early) == []
    assert verdict(report_lines(early)).startswith("Too early to say")
    (line,) = [it for it in report_lines(late) if it.wrong]
    assert "heartbeat received from node-a for 16 s or more;" in line.wrong
    dark = plane(nodes=(node("n1", NodePhase.SUSPECT),), heartbeats=late.heartbeats)
    assert [it.state for it in of(dark, "nodes")] == ["Suspect"]


def out_of_sight(ordinal: int, node_name: str, ms: int, **more: Any) -> Any:
    said = {"status": ConditionStatus.TRUE, "last_transition_time": at(ms), **more}
    conditions = (Condition(MAY_STILL_RUN, **said),)
    return replica(State.UNKNOWN, ordinal, node=node_name, conditions=conditions)


def test_the_machines_on_which_copies_may_still_run_are_named_with_the_replicas() -> None:
    """Which replica, which machine, since when; and what to do. [H3]"""
    seen = out_of_sight(3, "node-c", 0, status=ConditionStatus.FALSE)
    copies = (out_of_sight(0, "node-b", 60_000), out_of_sight(1, "node-b", 0), seen)
    facts = plane(replicas=(*copies, replica(State.FAILED, 2), out_of_sight(4, "node-d", 0)))
    assert wrong(facts) == [("copies", "of node node-b"), ("copies", "of node node-d")]
    line = of(facts, "copies")[0]
    assert line.more == "acme/web-0-0, acme/web-1-0"
    assert "the machine that was node node-b in incarnation 1" in line.wrong
    assert f"since {at(0):%Y-%m-%dT%H:%M:%SZ}: acme/web-0-0, acme/web-1-0;" in line.wrong
    assert "kubectl delete replica" in line.wrong


def test_a_lowered_timing_is_pending_on_nodes_whose_work_holds_more() -> None:
    """Also on one that is cut off and says nothing; it is no fault."""
    short = FenceTiming(grace_ms=1_000)
    held = timing_record(greatest_timing(FenceTiming(grace_ms=20_000)), 1)
    nodes = (node("a"), replaced(node("b"), status=replaced(node("b").status, timing=held)))
    reports = (HeartbeatReport("one", 60_000, {}, short),)
    (line,) = of(plane(nodes=nodes, heartbeats=reports), "timing")
    assert (line.name, line.state, line.wrong) == ("1 node", "pending", "")
    assert line.more.startswith("b: ")
    long = (HeartbeatReport("one", 60_000, {}, FenceTiming(grace_ms=20_000)),)
    assert of(plane(nodes=nodes, heartbeats=long), "timing") == []


def test_work_that_waits_is_shown_and_is_no_fault_of_the_plane() -> None:
    """[A11]"""
    progress = Progress(desired=3, ready=1, queued=2, pending_reasons={"NodeFull": 2})
    short: Workload = replaced(
        workload(3), status=msgspec.structs.replace(workload().status, progress=progress)
    )
    facts = plane(workloads=(short,))
    assert wrong(facts) == []
    (queue,), (work,) = of(facts, "queue"), of(facts, "work")
    assert (queue.name, queue.more) == ("2 waiting", "NodeFull 2")
    assert (work.state, work.more) == ("short", "acme/web 1 of 3 ready")
    dark = replaced(short, status=_counting(Progress(desired=3, ready=1, unknown=2)))
    (work,) = of(plane(workloads=(dark,)), "work")
    assert (work.state, work.more) == ("short", "acme/web 1 of 3 ready and 2 unknown")


def _counting(progress: Progress) -> WorkloadStatus:
    return msgspec.structs.replace(workload().status, progress=progress)


def test_what_may_not_be_asked_is_said_and_is_not_wrong() -> None:
    facts = PlaneFacts((ServerHealth(URL, 3, GOOD),), unknown={"pulses": "not for you"})
    lines = report_lines(facts)
    assert ("unknown", "pulses") in [(it.part, it.name) for it in lines]
    assert "may not read" in verdict(lines)


def test_the_checks_of_a_server_are_read_one_by_one() -> None:
    """[H3]"""
    text = "[+]ping ok\n[-]store failed\nreadyz check failed\n"
    assert readyz_checks(text) == {"ping": True, "store": False}


def test_an_audit_that_stands_still_is_wrong_and_one_that_is_written_is_shown() -> None:
    """Of several servers the one that knows most is believed."""
    head = Head(number=7, revision=70, by="one")
    fine = plane(audit=(AuditStatus("one", head, writing=True), AuditStatus("two", Head(number=3))))
    (line,) = of(fine, "audit")
    assert (line.name, line.state, line.more) == (
        *("7 records", "written"),
        "by one, up to revision 70",
    )
    assert wrong(fine) == []
    still = AuditStatus("one", head, lag=12, standstill_ms=61_000, error="No space left on device")
    (line,) = of(plane(audit=(still,)), "audit")
    assert line.wrong == "no record for 1 min, 12 revisions wait"
    assert line.more == "one: No space left on device"
