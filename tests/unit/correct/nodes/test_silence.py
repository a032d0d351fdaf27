"""Silence counts only as far as the reports of all live servers reach."""

from __future__ import annotations

from holdfast.correct.nodes.silence import FORGET_MS, FRESH_MS, GONE_PERIODS, NodeSilence
from holdfast.model.nodes.fence import FenceTiming, greatest_timing
from holdfast.model.nodes.heartbeat import HeartbeatReport, ServerLease, ServerReport, ServerRoster
from tests.unit.correct.views import node, view

LONG_MS = 10_000_000
TIMING = FenceTiming()
LEASE_MS = 15_000
GONE_MS = GONE_PERIODS * TIMING.renew_every_ms
STEP_MS = 2_000


def report(server: str = "s1", listening_ms: int = LONG_MS, **ages_ms: int) -> HeartbeatReport:
    """The answer of a server that knows of no other, as those of earlier versions."""
    return HeartbeatReport(server, listening_ms, ages_ms, TIMING)


def poll(silence: NodeSilence, until_ms: int, *servers: str, **ages: int) -> int:
    """Ask these servers again and again; what they say of a node does not change."""
    for now_ms in range(0, until_ms + 1, STEP_MS):
        for server in servers:
            silence.take_answer(report(server, **ages), now_ms, now_ms)
    return until_ms


class Plane:
    """Servers that exchange their heartbeats, and one controller that asks one of them."""

    def __init__(self, *servers: str) -> None:
        self.silence = NodeSilence()
        self.now_ms = 0
        # Since when each listens, in which life; until when it renews and speaks to the others.
        self.since_ms = dict.fromkeys(servers, -LONG_MS)
        self.lives = dict.fromkeys(servers, "first")
        self.renewed_ms = dict.fromkeys(servers, 0)
        self.said_ms = dict.fromkeys(servers, 0)
        self.dead: set[str] = set()
        self.mute: set[str] = set()
        self.given_back: set[str] = set()
        self.heard_ms: dict[str, int] = {}

    def roster(self) -> ServerRoster:
        leases = [
            ServerLease(
                it,
                "" if it in self.given_back else self.lives[it],
                1,
                self.renewed_ms[it] // 4_000,
                LEASE_MS,
            )
            for it in self.since_ms
        ]
        return ServerRoster(0, tuple(leases))

    def answer(self, by: str) -> HeartbeatReport:
        now_ms = self.now_ms
        reports = tuple(
            ServerReport(it, self.lives[it], now_ms - self.said_ms[it], now_ms - since, TIMING)
            for it, since in self.since_ms.items()
            if it != by
        )
        ages = {node: now_ms - at for node, at in self.heard_ms.items()}
        listening_ms = now_ms - self.since_ms[by]
        return HeartbeatReport(
            by, listening_ms, ages, TIMING, {}, self.lives[by], reports, self.roster()
        )

    def run(self, for_ms: int, *asked: str) -> None:
        """Time passes, and one of these is asked in turn."""
        until_ms = self.now_ms + for_ms
        while self.now_ms < until_ms:
            self.now_ms += STEP_MS
            for it in self.since_ms:
                if it not in self.dead:
                    self.renewed_ms[it] = self.now_ms
                if it not in self.dead | self.mute:
                    self.said_ms[it] = self.now_ms
            by = asked[self.now_ms // STEP_MS % len(asked)]
            self.silence.take_answer(self.answer(by), self.now_ms, self.now_ms)

    def silence_ms(self, node: str = "n1") -> int:
        return self.silence.silence_ms(node, 0, self.now_ms)


# What one answer tells ---------------------------------------------------------------------------


def test_silence_counts_from_the_first_answer_and_not_from_the_servers_memory() -> None:
    """A new controller has to listen itself, however long the node was silent before. [H4, E4]"""
    silence = NodeSilence()
    now_ms = poll(silence, 20_000, "s1", n1=LONG_MS)
    assert silence.silence_ms("n1", 0, now_ms) == 20_000


def test_a_node_that_renewed_at_any_server_is_not_silent() -> None:
    """Agents speak to one server, not to all. [H3]"""
    silence = NodeSilence()
    for now_ms in range(0, 40_001, STEP_MS):
        silence.take_answer(report("s1", n1=LONG_MS), now_ms, now_ms)
        silence.take_answer(report("s2", n1=500), now_ms, now_ms)
    assert silence.silence_ms("n1", 0, 40_000) == 500


def test_an_old_answer_proves_no_silence_after_it() -> None:
    """What is known ends when the last answer was asked for. [E4]"""
    silence = NodeSilence()
    poll(silence, 20_000, "s1")
    assert silence.silence_ms("n1", 0, 20_000 + FRESH_MS) == 20_000
    assert silence.silence_ms("n1", 0, 20_001 + FRESH_MS) == 0


def test_a_restarted_server_has_received_no_heartbeat_before() -> None:
    """The heartbeats of its last life after the last question are unknown. [H4]"""
    silence = NodeSilence()
    poll(silence, 20_000, "s1")
    silence.take_answer(report("s1", listening_ms=1_000), 24_000, 24_000)
    assert silence.silence_ms("n1", 0, 24_000) == 1_000


def test_silence_counts_again_after_a_time_without_reports() -> None:
    """A server that did not receive our question may not receive heartbeats either. [E4]"""
    silence = NodeSilence()
    poll(silence, 20_000, "s1")
    for now_ms in (60_000, 62_000, 64_000):
        silence.take_answer(report("s1"), now_ms, now_ms)
        assert silence.silence_ms("n1", 0, now_ms) == now_ms - 60_000


def test_a_node_that_never_renewed_is_silent_since_it_is_known() -> None:
    """Not since the controller began. [H4]"""
    silence = NodeSilence()
    now_ms = poll(silence, 20_000, "s1")
    assert silence.silence_ms("late", 15_000, now_ms) == 5_000


def test_the_most_patient_timing_counts_where_servers_differ() -> None:
    """A fence that is too late costs time, one that is too early costs a duplicate. [C6.4]"""
    silence = NodeSilence()
    assert silence.timing is None
    patient = FenceTiming(self_stop_after_ms=60_000, fence_after_ms=99_000)
    silence.take_answer(HeartbeatReport("s1", 1, {}, patient), 0, 0)
    silence.take_answer(report("s2"), 0, 0)
    assert silence.timing == patient


def test_nodes_that_are_gone_are_forgotten() -> None:
    """Memory is bounded by the nodes there are."""
    silence = NodeSilence()
    silence.take_answer(report(n1=0, n2=0), 5, 5)
    silence.resync(view(node("n2")))
    assert (silence.heard_ms("n1"), silence.heard_ms("n2")) == (None, 5)


# Which servers there are --------------------------------------------------------------------------


def test_nothing_is_silent_while_the_report_of_a_live_server_is_missing() -> None:
    """The other one renews its lease, and may hear the node. [H4, E4]"""
    plane = Plane("s1", "s2")
    plane.mute = {"s2"}
    plane.run(120_000, "s1")
    assert plane.silence_ms() == 0
    assert not plane.silence.is_listening(plane.now_ms)


def test_one_address_with_several_servers_behind_it_makes_no_node_look_silent() -> None:
    """Each answers for all: it does not matter which one the connection leads to. [H3, H4]"""
    plane = Plane("s1", "s2")
    for _ in range(20):
        # Every server hears a node of its own.
        plane.heard_ms = {"n1": plane.now_ms, "n2": plane.now_ms}
        plane.run(10_000, "s1", "s1", "s1", "s2", "s2")
        assert max(plane.silence_ms("n1"), plane.silence_ms("n2")) <= 10_000
    assert plane.silence_ms("dead") > 100_000


def test_a_server_that_answers_for_itself_alone_says_nothing_of_the_others() -> None:
    """Behind the same address another one answers, and what the first one hears is unknown. [H4]"""
    plane = Plane("s1", "s2")
    plane.run(60_000, "s1", "s2")
    plane.mute = {"s1", "s2"}
    for _ in range(20):
        # What each received itself is in its own answer; nothing comes from the other one.
        plane.run(20_000, "s1")
        assert plane.silence_ms() == 0
        plane.run(20_000, "s2")
        assert plane.silence_ms() == 0


def test_a_server_whose_lease_ran_out_no_longer_counts() -> None:
    """Two of three are gone for good, and a dead node is still found. [I3, H4]"""
    plane = Plane("s1", "s2", "s3")
    plane.run(60_000, "s1", "s2", "s3")
    gone_ms, plane.dead = plane.now_ms, {"s2", "s3"}
    plane.run(10_000, "s1")
    assert plane.silence_ms() == 0
    assert not plane.silence.is_listening(plane.now_ms)
    plane.run(110_000, "s1")
    assert plane.silence_ms() == plane.now_ms - gone_ms - GONE_MS
    assert plane.silence.is_listening(plane.now_ms)


def test_a_lease_that_was_given_back_is_no_loss() -> None:
    """Its agents find another server, and silence counts from then on. [H4]"""
    plane = Plane("s1", "s2")
    plane.run(60_000, "s1")
    gone_ms, plane.dead, plane.given_back = plane.now_ms, {"s2"}, {"s2"}
    plane.run(40_000, "s1")
    assert plane.silence_ms() == plane.now_ms - gone_ms - GONE_MS


def test_an_old_roster_makes_no_server_look_dead() -> None:
    """A lease is judged by reads that were sent since; a server that is cut off from the store
    shows the same one for ever. [E4]"""
    plane = Plane("s1", "s2")
    plane.run(20_000, "s1")
    stale = plane.roster()
    plane.mute, since_ms = {"s2"}, plane.now_ms
    for now_ms in range(since_ms, since_ms + 60_001, STEP_MS):
        old = ServerRoster(now_ms - since_ms, stale.servers)
        answer = HeartbeatReport("s1", LONG_MS, {}, TIMING, {}, "first", (), old)
        plane.silence.take_answer(answer, now_ms, now_ms)
        assert plane.silence.silence_ms("n1", 0, now_ms) <= 20_000
    assert not plane.silence.is_listening(since_ms + 60_000)


def test_a_server_that_joins_is_waited_for_and_then_counts_from_its_beginning() -> None:
    """Before that it received no heartbeat, so it hides none. [H4]"""
    plane = Plane("s1")
    plane.run(60_000, "s1")
    plane.since_ms["s2"], plane.lives["s2"] = plane.now_ms, "first"
    plane.renewed_ms["s2"] = plane.said_ms["s2"] = plane.now_ms
    plane.mute = {"s2"}
    plane.run(20_000, "s1")
    assert plane.silence_ms() == 0
    plane.mute = set()
    plane.run(STEP_MS, "s1")
    assert plane.silence_ms() > 0 or plane.silence.is_listening(plane.now_ms)


def test_a_new_life_of_a_server_is_another_memory() -> None:
    """Its report counts from its start; the report of its last life is not its own. [H4]"""
    plane = Plane("s1", "s2")
    plane.run(60_000, "s1")
    plane.lives["s2"], plane.since_ms["s2"] = "second", plane.now_ms + STEP_MS
    plane.run(10_000, "s1")
    assert plane.silence_ms() == 10_000 - STEP_MS


def test_two_processes_of_one_name_hide_their_heartbeats_from_each_other() -> None:
    """Only the report of the lease holder counts; the other one is no substitute. [H4]"""
    plane = Plane("s1", "s2")
    for turn in range(30):
        plane.lives["s2"] = ("first", "twin")[turn % 2]
        plane.run(4_000, "s1")
        assert plane.silence_ms() <= 4_000


def test_a_server_that_hung_for_a_while_hides_its_nodes_until_it_is_back() -> None:
    """Its agents may have waited for it as long. [E4]"""
    plane = Plane("s1", "s2")
    plane.run(20_000, "s1")
    plane.mute = {"s2"}
    plane.run(40_000, "s1")
    plane.mute = set()
    plane.run(10_000, "s1")
    assert plane.silence_ms() == 10_000 - STEP_MS


def test_addresses_that_do_not_answer_count_only_until_servers_are_known_by_leases() -> None:
    """Servers of an earlier version have no lease: an address of one is waited for, and no longer
    than a lease lasts. [I3]"""
    silence = NodeSilence()
    silence.take_failure("https://two", 0)
    now_ms = poll(silence, 10_000, "s1")
    assert not silence.is_listening(now_ms)
    now_ms = poll(silence, 100_000, "s1")
    assert silence.silence_ms("n1", 0, now_ms) == 100_000 - GONE_MS
    answer = HeartbeatReport("s1", LONG_MS, {}, TIMING, roster=ServerRoster(0, ()))
    silence.take_answer(answer, now_ms + 1, now_ms + 1)
    assert silence.silence_ms("n1", 0, now_ms + 1) == now_ms + 1


def test_a_server_without_a_lease_is_forgotten() -> None:
    """Memory is bounded by the servers there are."""
    silence = NodeSilence()
    slow = FenceTiming(grace_ms=2 * TIMING.grace_ms)
    silence.take_answer(HeartbeatReport("old", LONG_MS, {}, slow), 0, 0)
    roster = ServerRoster(0, (ServerLease("s1", "a", 1, 1, LEASE_MS),))
    for now_ms in range(0, FORGET_MS + 10_000, STEP_MS):
        roster = ServerRoster(0, (ServerLease("s1", "a", 1, now_ms, LEASE_MS),))
        answer = HeartbeatReport("s1", LONG_MS, {}, TIMING, life="a", roster=roster)
        silence.take_answer(answer, now_ms, now_ms)
        if now_ms <= FORGET_MS:
            assert silence.timing == greatest_timing(slow, TIMING)
    assert silence.timing == TIMING
