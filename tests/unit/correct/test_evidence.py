"""Silence counts only from when somebody was listening."""

from __future__ import annotations

from holdfast.correct.evidence import FRESH_MS, SERVER_GONE_MS, Evidence
from holdfast.model.fence import FenceTiming
from holdfast.model.heartbeat import Heard

LONG_MS = 10_000_000


def heard(server: str = "s1", listening_ms: int = LONG_MS, **ages_ms: int) -> Heard:
    return Heard(server, listening_ms, ages_ms, FenceTiming())


def poll(
    evidence: Evidence, until_ms: int, *servers: str, step_ms: int = 2_000, **ages: int
) -> int:
    """Ask these servers again and again; what they say of a node does not change."""
    for now_ms in range(0, until_ms + 1, step_ms):
        for server in servers:
            evidence.heard(server, heard(server, **ages), now_ms, now_ms)
    return until_ms


def test_silence_counts_from_the_first_answer_and_not_from_the_servers_memory() -> None:
    """A new controller has to listen itself, however long the node was silent before. [H4, E4]"""
    evidence = Evidence()
    now_ms = poll(evidence, 20_000, "s1", n1=LONG_MS)
    assert evidence.silence_ms("n1", 0, now_ms) == 20_000


def test_a_node_that_any_server_heard_is_not_silent() -> None:
    """Agents speak to one server, not to all. [H3]"""
    evidence = Evidence()
    for now_ms in range(0, 40_001, 2_000):
        evidence.heard("s1", heard("s1", n1=LONG_MS), now_ms, now_ms)
        evidence.heard("s2", heard("s2", n1=500), now_ms, now_ms)
    assert evidence.silence_ms("n1", 0, 40_000) == 500


def test_an_old_answer_proves_no_silence_after_it() -> None:
    """What is known ends when the last answer was asked for. [E4]"""
    evidence = Evidence()
    poll(evidence, 20_000, "s1")
    assert evidence.silence_ms("n1", 0, 20_000 + FRESH_MS) == 20_000
    assert evidence.silence_ms("n1", 0, 20_001 + FRESH_MS) == 0


def test_a_server_that_began_anew_has_heard_nobody_before() -> None:
    """Whom its last life heard after our last question, nobody knows. [H4]"""
    evidence = Evidence()
    poll(evidence, 20_000, "s1")
    evidence.heard("s1", heard("s1", listening_ms=1_000), 24_000, 24_000)
    assert evidence.silence_ms("n1", 0, 24_000) == 1_000


def test_another_server_behind_the_same_address_counts_as_a_new_one() -> None:
    """Its memory is its own. [H4]"""
    evidence = Evidence()
    poll(evidence, 20_000, "s1")
    evidence.heard("s1", heard("other", listening_ms=3_000), 22_000, 22_000)
    assert evidence.silence_ms("n1", 0, 22_000) == 3_000


def test_nobody_is_silent_while_most_servers_give_no_answer() -> None:
    """We are the likelier culprit. [E4, N3]"""
    evidence = Evidence()
    evidence.unheard("s2", 0)
    evidence.unheard("s3", 0)
    now_ms = poll(evidence, 100_000, "s1")
    assert not evidence.is_listening(now_ms)
    assert evidence.silence_ms("n1", 0, now_ms) == 0


def test_one_of_two_servers_is_enough_after_a_while() -> None:
    """Waiting for a server that died would be waiting for ever. [I3]"""
    evidence = Evidence()
    evidence.unheard("s2", 0)
    now_ms = poll(evidence, 100_000, "s1")
    assert evidence.silence_ms("n1", 0, now_ms) == 100_000 - SERVER_GONE_MS


def test_silence_counts_anew_after_a_time_of_deafness() -> None:
    """Whoever could not hear us could perhaps not hear the nodes either. [E4]"""
    evidence = Evidence()
    poll(evidence, 20_000, "s1")
    for now_ms in (60_000, 62_000, 64_000):
        evidence.heard("s1", heard("s1"), now_ms, now_ms)
        assert evidence.silence_ms("n1", 0, now_ms) == now_ms - 60_000


def test_a_lost_server_gives_its_agents_time_to_find_another() -> None:
    """Silence counts again from a while after its last answer. [H4]"""
    evidence = Evidence()
    poll(evidence, 20_000, "s1", "s2", "s3")
    for now_ms in range(22_000, 100_001, 2_000):
        for server in ("s1", "s2"):
            evidence.heard(server, heard(server), now_ms, now_ms)
        evidence.unheard("s3", now_ms)
        lost_ms = now_ms - 20_000
        expected = 20_000 if lost_ms <= FRESH_MS else max(0, lost_ms - SERVER_GONE_MS)
        assert evidence.silence_ms("n1", 0, now_ms) == expected


def test_a_node_that_was_never_heard_is_silent_since_it_is_known() -> None:
    """Not since the controller began. [H4]"""
    evidence = Evidence()
    now_ms = poll(evidence, 20_000, "s1")
    assert evidence.silence_ms("late", 15_000, now_ms) == 5_000


def test_the_most_patient_timing_counts_where_servers_differ() -> None:
    """A fence that is too late costs time, one that is too early costs a duplicate. [C6.4]"""
    evidence = Evidence()
    assert evidence.timing is None
    patient = FenceTiming(self_stop_after_ms=60_000, fence_after_ms=99_000)
    evidence.heard("s1", Heard("s1", 1, {}, patient), 0, 0)
    evidence.heard("s2", heard("s2"), 0, 0)
    assert evidence.timing == patient


def test_nodes_that_are_gone_are_forgotten() -> None:
    """Memory is bounded by the nodes there are. [I1]"""
    evidence = Evidence()
    evidence.heard("s1", heard(n1=0, n2=0), 5, 5)
    evidence.forget_all_but({"n2"})
    assert (evidence.heard_ms("n1"), evidence.heard_ms("n2")) == (None, 5)
