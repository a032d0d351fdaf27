"""Heartbeats: renewals are answered from young reads only, and the nodes heard are remembered."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.commit import heartbeat_intake
from holdfast.commit.heartbeat_intake import (
    FORGET_AFTER_MS,
    READS_MAX,
    WAITING_PER_NODE_MAX,
    Renewals,
)
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.node import NodePhase
from holdfast.model.machine import Answer, Answered, Asked, Range, Started
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import (
    HeartbeatQuery,
    HeartbeatReport,
    NodeUse,
    ProgressNote,
    ProgressNotes,
    Renew,
    Renewed,
    ReplicaUse,
    SeenUse,
    WorkProgress,
)
from holdfast.model.refusal import Reason
from holdfast.model.requests import JudgeNode, NodeAction
from holdfast.model.time import Instant
from tests.plane import ADMIN, NODES, Plane, accepted, refused

TIMING = FenceTiming()
AGENT = who.agent("node-a")
WINDOW_MS = TIMING.ack_window_ms


class HeartbeatRig:
    """One server's renewals over a real store; the test decides when a read comes back."""

    def __init__(self) -> None:
        self.plane = Plane()
        self.node = self.plane.node("node-a")
        self.machine = Renewals("one", TIMING)
        self.now_ms = 0
        self.answers: dict[int, Any] = {}
        self.reads: list[tuple[int, Any]] = []
        self.calls = 0
        self.feed(Started({}))

    def feed(self, stimulus: Any) -> None:
        for effect in self.machine.step(stimulus, Instant(self.now_ms, 0)):
            match effect:
                case Answer(call=call, body=body):
                    self.answers[call] = body
                case Range(start=start) if start.startswith("objects/leases/"):
                    # Which servers there are is no question of this page.
                    pass
                case Range(call=call, start=start, end=end):
                    # A read shows what was there when it was sent, however late it comes back.
                    self.reads.append((call, self.plane.store.range(start, end)))

    def ask(self, body: Any, sender: str | Identity = AGENT) -> int:
        self.calls += 1
        self.feed(Asked(self.calls, sender, body))
        return self.calls

    def come_back(self, body: Any = None) -> None:
        """The oldest read that is on its way comes back."""
        call, page = self.reads.pop(0)
        self.feed(Answered(call, body if body is not None else page))

    def renew(self, **more: Any) -> Renew:
        life = {"uid": self.node.metadata.uid, "incarnation": self.node.status.incarnation}
        return Renew("node-a", **(life | more))

    def heard(self) -> HeartbeatReport:
        answer = self.answers[self.ask(HeartbeatQuery(), NODES)]
        assert isinstance(answer, HeartbeatReport)
        return answer

    def mark(self) -> None:
        term = self.plane.term(NODES, "controller:nodes")
        for word in (NodeAction.SUSPECT, NodeAction.MARK):
            judge = JudgeNode("node-a", self.node.metadata.uid, word, term)
            accepted(self.plane.ask(NODES, judge))


@pytest.fixture
def rig() -> HeartbeatRig:
    return HeartbeatRig()


def test_a_renewal_is_acknowledged_from_a_read_of_its_node(rig: HeartbeatRig) -> None:
    """[H3, SC6]"""
    call = rig.ask(rig.renew())
    assert call not in rig.answers
    rig.now_ms = WINDOW_MS
    rig.come_back()
    answer = rig.answers[call]
    assert answer.acknowledges(rig.renew())
    assert (answer.phase, answer.mark, answer.timing) == (NodePhase.READY, 0, TIMING)


def test_a_marked_node_is_not_acknowledged(rig: HeartbeatRig) -> None:
    """[SC6, INV2]"""
    rig.mark()
    call = rig.ask(rig.renew())
    rig.come_back()
    answer = rig.answers[call]
    assert not answer.acknowledges(rig.renew())
    assert answer.mark == 1


def test_no_answer_ever_rests_on_a_read_that_was_sent_longer_ago_than_the_window(
    rig: HeartbeatRig,
) -> None:
    """The mark came after the read was sent: an answer without one must be in time. [INV2, SC6]"""
    call = rig.ask(rig.renew())
    rig.mark()
    rig.now_ms = WINDOW_MS + 1
    rig.come_back()
    assert call not in rig.answers
    rig.come_back()
    assert rig.answers[call].mark == 1


def test_a_store_that_stays_too_slow_is_unavailable(rig: HeartbeatRig) -> None:
    """[C7.6, INV2]"""
    call = rig.ask(rig.renew())
    for _ in range(READS_MAX):
        rig.now_ms += WINDOW_MS + 1
        rig.come_back()
    assert isinstance(rig.answers[call], Unavailable)
    assert not rig.reads
    assert rig.heard().ages_ms == {}


@pytest.mark.parametrize("error", [Unavailable("down"), OutcomeUnknown("lost")])
def test_a_failed_read_is_unavailable_to_all_waiting_renewals(
    rig: HeartbeatRig, error: Exception
) -> None:
    """[C7.6]"""
    calls = [rig.ask(rig.renew()), rig.ask(rig.renew())]
    rig.come_back(error)
    assert all(isinstance(rig.answers[call], Unavailable) for call in calls)


def test_renewals_of_one_node_share_a_read_that_lets_them_run_on(rig: HeartbeatRig) -> None:
    first = rig.ask(rig.renew())
    rig.now_ms = 100
    second = rig.ask(rig.renew())
    assert len(rig.reads) == 1
    rig.come_back()
    assert all(rig.answers[call].acknowledges(rig.renew()) for call in (first, second))


def test_a_refusal_never_rests_on_a_read_that_is_older_than_the_request(rig: HeartbeatRig) -> None:
    """The agent may rest on something newer, such as its own registration."""
    early = rig.ask(rig.renew(incarnation=7))
    late = rig.ask(rig.renew(incarnation=7))
    rig.come_back()
    assert rig.answers[early].incarnation == rig.node.status.incarnation
    assert late not in rig.answers
    rig.come_back()
    assert isinstance(rig.answers[late], Renewed)


@pytest.mark.parametrize("life", [{"uid": "another"}, {"incarnation": 99}])
def test_another_incarnation_is_answered_and_does_not_count_as_renewed(
    rig: HeartbeatRig, life: dict[str, Any]
) -> None:
    """[H5, C6.4]"""
    call = rig.ask(rig.renew(**life))
    rig.come_back()
    assert rig.answers[call].uid == rig.node.metadata.uid
    assert not rig.answers[call].acknowledges(rig.renew(**life))
    assert rig.heard().ages_ms == {}


def test_a_node_without_a_record_is_refused_and_not_remembered(rig: HeartbeatRig) -> None:
    call = rig.ask(Renew("ghost", "u", 1), who.agent("ghost"))
    rig.come_back()
    refused(rig.answers[call], Reason.NODE_MISSING)
    assert rig.heard().ages_ms == {}


@pytest.mark.parametrize(
    "sender, reason",
    [
        (who.agent("node-b"), Reason.NOT_OWNER),
        ("system:node:node-b", Reason.NOT_OWNER),
        (ADMIN, Reason.NOT_ALLOWED),
        (NODES, Reason.NOT_ALLOWED),
        ("", Reason.NOT_ALLOWED),
    ],
)
def test_only_a_nodes_own_agent_renews_it(rig: HeartbeatRig, sender: Any, reason: Reason) -> None:
    """[C6.7]"""
    refused(rig.answers[rig.ask(rig.renew(), sender)], reason)
    assert not rig.reads


def test_of_components_only_controller_nodes_learns_which_nodes_renewed(
    rig: HeartbeatRig,
) -> None:
    """People ask only if their roles allow it."""
    strangers = (who.agent("node-a"), who.controller("repair"), who.scheduler("one"))
    for sender in (*strangers, "system:anonymous"):
        refused(rig.answers[rig.ask(HeartbeatQuery(), sender)], Reason.NOT_ALLOWED)
    assert isinstance(rig.answers[rig.ask(HeartbeatQuery(), ADMIN)], HeartbeatReport)


def test_ages_count_from_when_the_renewal_came_and_say_how_long_we_listen(
    rig: HeartbeatRig,
) -> None:
    """[H3]"""
    rig.now_ms = 1_000
    rig.ask(rig.renew())
    rig.now_ms = 1_500
    rig.come_back()
    rig.now_ms = 4_000
    assert rig.heard() == HeartbeatReport("one", 4_000, {"node-a": 3_000}, TIMING, heard=1)


def test_the_last_report_of_an_agent_is_returned_with_its_age(rig: HeartbeatRig) -> None:
    """Until it has nothing more to report, or stops reporting it. [M2, SC4]"""
    said = ProgressNotes((ProgressNote("u", WorkProgress.RUNS),))
    rig.ask(rig.renew(said=said))
    rig.come_back()
    assert rig.heard().said == {"node-a": said}
    rig.ask(rig.renew())
    rig.come_back()
    assert rig.heard().said == {}


def test_the_last_sample_of_what_a_node_uses_is_returned_with_its_age(rig: HeartbeatRig) -> None:
    """Single replicas only of the node that is asked for; nothing is written. [D6]"""
    one = ReplicaUse("u", 250, 4_096)
    rig.ask(rig.renew(use=NodeUse(250, 4_096, "proc", (one,))))
    rig.come_back()
    rig.now_ms += 7_000
    # A renewal without a new sample keeps the last one.
    rig.ask(rig.renew())
    rig.come_back()
    report = rig.heard()
    assert report.used == {"node-a": SeenUse(7_000, 250, 4_096)}
    assert report.replicas == ()
    assert rig.answers[rig.ask(HeartbeatQuery("node-a"), ADMIN)].replicas == (one,)
    assert rig.answers[rig.ask(HeartbeatQuery("node-b"), ADMIN)].replicas == ()
    rig.now_ms += FORGET_AFTER_MS
    assert rig.heard().used == {}


def test_a_node_that_did_not_renew_for_an_hour_is_forgotten(rig: HeartbeatRig) -> None:
    """With what it reported."""
    rig.ask(rig.renew(said=ProgressNotes(more=1)))
    rig.come_back()
    rig.now_ms = FORGET_AFTER_MS - 1
    assert list(rig.heard().ages_ms) == ["node-a"]
    rig.now_ms = FORGET_AFTER_MS
    assert rig.heard().ages_ms == {}
    assert rig.heard().said == {}


def test_waiting_renewals_are_bounded(rig: HeartbeatRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """[C7.6]"""
    calls = [rig.ask(rig.renew()) for _ in range(WAITING_PER_NODE_MAX + 1)]
    assert isinstance(rig.answers[calls[-1]], Unavailable)
    monkeypatch.setattr(heartbeat_intake, "WAITING_MAX", WAITING_PER_NODE_MAX)
    call = rig.ask(Renew("node-b", "u", 1), who.agent("node-b"))
    assert isinstance(rig.answers[call], Unavailable)
    rig.come_back()
    assert all(rig.answers[it].acknowledges(rig.renew()) for it in calls[:-1])
    rig.ask(Renew("node-b", "u", 1), who.agent("node-b"))
    assert len(rig.reads) == 1


def test_anything_else_is_refused(rig: HeartbeatRig) -> None:
    refused(rig.answers[rig.ask("hello")], Reason.INVALID)
