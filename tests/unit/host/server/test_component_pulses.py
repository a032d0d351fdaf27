"""Pulses of components: kept in memory, bounded, and exported to Prometheus."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.host.component import pulse_sender
from holdfast.host.component.pulse_sender import PulseSender, pulse_of
from holdfast.host.process import clock
from holdfast.host.process.metrics import Metrics
from holdfast.host.server import component_pulses
from holdfast.host.server.component_pulses import BACKLOG_MAX_MS, FORGET_AFTER_MS, ComponentPulses
from holdfast.model.errors import Unavailable
from holdfast.model.pulse import (
    Backlog,
    Beat,
    FreeCapacity,
    PendingCount,
    Pulse,
    TenantStanding,
)
from tests.patience import STORY_S

WORK = Beat("controller:workload", 3, 7, 40, 5, 1_500, 9, 6, 1, 0, {"Conflict": 2}, "Conflict: x")


class _Clock:
    """The clock of this computer, set by the test."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.ms


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(component_pulses, "clock", made)
    return made


def test_the_last_pulse_of_each_process_is_kept_for_a_while(time: _Clock) -> None:
    """An ended one is shown for ten minutes, so that people see that it did. [H3]"""
    book = ComponentPulses("one")
    book.take("a", Pulse("controllers main"))
    time.ms += 5_000
    book.take("a", Pulse("controllers main", (WORK,)))
    book.take("b", Pulse("scheduler main"))
    time.ms += 1_000
    shown = book.recent_pulses()
    assert (shown.server, shown.listening_ms) == ("one", 6_000)
    assert [(it.sender, it.age_ms, it.pulse.beats) for it in shown.felt] == [
        ("a", 1_000, (WORK,)),
        ("b", 1_000, ()),
    ]
    time.ms += FORGET_AFTER_MS
    assert book.recent_pulses().felt == ()


def test_no_more_processes_are_kept_than_a_bound(
    time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was silent longest makes room."""
    monkeypatch.setattr(component_pulses, "PROCESSES_MAX", 2)
    book = ComponentPulses("one")
    for name in "abac":
        book.take("x", Pulse(name))
    assert [it.pulse.process for it in book.recent_pulses().felt] == ["a", "c"]


def test_prometheus_reads_them_from_the_server(time: _Clock) -> None:
    """[M6]"""
    book, metrics = ComponentPulses("one"), Metrics()
    book.count(metrics)
    assert "component_epoch{" not in metrics.text()
    book.take("a", Pulse("controllers main", (WORK,), picture_ms=250))
    time.ms += 1_000
    lines = metrics.text().splitlines()
    where = 'component="controller:workload",process="controllers main"'
    for line in (
        'holdfast_component_heartbeat_age_seconds{process="controllers main"} 1',
        'holdfast_component_picture_age_seconds{process="controllers main"} 0.25',
        f"holdfast_component_epoch{{{where}}} 3",
        f"holdfast_component_waiting{{{where}}} 5",
        f"holdfast_component_overdue_seconds{{{where}}} 1.5",
        f"holdfast_component_looks_total{{{where}}} 7",
        f'holdfast_component_requests_total{{{where},outcome="Accepted"}} 6',
        f'holdfast_component_requests_total{{{where},outcome="Conflict"}} 2',
        "# TYPE holdfast_component_requests_total counter",
    ):
        assert line in lines


def scheduler(epoch: int, *waits: PendingCount, scope: str = "one", **more: Any) -> Beat:
    return Beat(f"scheduler:{scope}", epoch, backlog=Backlog(waits, **more))


def test_the_backlog_is_reported_by_the_scheduler_that_acts(time: _Clock) -> None:
    """Of two under one lease the later holder counts; those of different shards are added. A silent
    one reports nothing that may be outdated. [M5, M6]
    """
    book, metrics = ComponentPulses("one"), Metrics()
    book.count(metrics)
    room = FreeCapacity("eu", "eu-a", "", "cpu", 2_500, 500)
    old = scheduler(1, PendingCount("acme", "NodeFull", 9), oldest_ms={"default": 90_000})
    new = scheduler(
        2,
        PendingCount("acme", "NodeFull", 3),
        oldest_ms={"default": 4_000, "high": 500},
        rooms=(room,),
    )
    other = scheduler(
        1, PendingCount("acme", "NodeFull", 2), scope="two", oldest_ms={"default": 6_000}
    )
    book.take("b", Pulse("scheduler b", (new,), relists=4, missed=1))
    book.take("a", Pulse("scheduler a", (old,)))
    book.take("c", Pulse("scheduler c", (other,)))
    lines = metrics.text().splitlines()
    where = 'region="eu",zone="eu-a",pool="",resource="cpu"'
    for line in (
        'holdfast_pending_replicas{tenant="acme",reason="NodeFull"} 5',
        'holdfast_queue_age_seconds{priority_class="default"} 6',
        'holdfast_queue_age_seconds{priority_class="high"} 0.5',
        f"holdfast_capacity_free{{{where}}} 2.5",
        f"holdfast_capacity_fragments{{{where}}} 0.5",
        'holdfast_component_relists_total{process="scheduler b"} 4',
        'holdfast_component_missed_total{process="scheduler b"} 1',
    ):
        assert line in lines
    time.ms += BACKLOG_MAX_MS + 1
    assert "pending_replicas{" not in metrics.text()


class _Snapshot:
    """The part of a cache that a pulse needs."""

    relists, missed = 2, 1

    def age_ms(self, now: Any) -> int:
        return 30


def test_every_server_is_informed_again_and_again_though_one_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[H3]"""
    monkeypatch.setattr(pulse_sender, "PULSE_S", 0.001)
    heard: dict[str, list[Pulse]] = {"up": [], "away": []}
    enough = asyncio.Event()

    async def send(server: str, body: bytes) -> None:
        heard[server].append(msgspec.json.decode(body, type=Pulse))
        if min(len(it) for it in heard.values()) >= 3:
            enough.set()
        if server == "away":
            raise Unavailable("no server is there")

    async def story() -> None:
        snapshot: Any = _Snapshot()
        feel = pulse_of("controllers main", snapshot, lambda now: (WORK,))
        assert feel(clock.now()).up_ms < 60_000
        made = PulseSender(lambda: ("away", "up"), feel, send)
        made.start()
        await enough.wait()
        await made.stop()

    asyncio.run(asyncio.wait_for(story(), STORY_S))
    first = heard["up"][0]
    assert (first.process, first.picture_ms, first.beats) == ("controllers main", 30, (WORK,))
    assert (first.relists, first.missed) == (2, 1)


def test_fairness_figures_come_from_the_scheduler_that_reports_a_tenant(time: _Clock) -> None:
    """And go with it when it falls silent. [G2, G3, M5]"""
    book, metrics = ComponentPulses("one"), Metrics()
    book.count(metrics)
    owed = TenantStanding("acme", 0.25, 0.5, 0.3, 60_000, 1_000)
    rich = TenantStanding("globex", 0.75, 0.5)
    for number, standings in enumerate(((owed,), (rich,))):
        beat = Beat(f"scheduler:shard-{number}-of-2", 1, backlog=Backlog(fairness=standings))
        book.take("s", Pulse(f"scheduler {number}", (beat,)))
    assert book.standings() == {"acme": owed, "globex": rich}
    text = metrics.text()
    assert 'holdfast_fairness_debt{tenant="acme"} 0.25' in text
    assert 'holdfast_fairness_debt{tenant="globex"} -0.25' in text
    assert 'holdfast_fairness_lapsed_seconds{tenant="acme"} 60' in text
    time.ms += BACKLOG_MAX_MS + 1
    assert book.standings() == {}
