"""A component's cache: how it starts, continues, starts over, and finds lost events."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest

from holdfast.model.encoding.resource_versions import complete_version, object_version
from holdfast.model.errors import Expired, InvariantBroken, Unavailable
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.machine import Ended, Leave, Open, Pushed, Started, Wake, Woken
from holdfast.model.meta import ObjectMeta
from holdfast.model.time import Instant
from holdfast.observe.cache import (
    RETRY_MAX_MS,
    RETRY_MIN_MS,
    Cache,
    ObjectChange,
    is_for_cache_only,
)
from holdfast.observe.indexer import Index
from holdfast.observe.informer import BEHIND_SHELL_MS, LIST_MAX_MS, SILENCE_MS, STEADY_MS
from holdfast.observe.watch_events import (
    LIST_ENDS,
    LISTED,
    SERVERS,
    Departed,
    Follow,
    Present,
    Reached,
    read_line,
)

RESYNC_MS = 20_000


def tenant(name: str, revision: int, uid: str = "u") -> Tenant:
    return Tenant(ObjectMeta(name=name, uid=f"{name}-{uid}", generation=revision))


def present(name: str, revision: int, uid: str = "u") -> Present[Tenant]:
    return Present(tenant(name, revision, uid), revision)


def departed(name: str, revision: int) -> Departed[Tenant]:
    return Departed(tenant(name, revision), revision)


def list_end(revision: int, listed: int | None = None) -> Reached:
    return Reached(revision, ends_list=True, listed=listed)


def test_the_caches_of_two_planes_in_one_machine_do_not_mix() -> None:
    """Each has its address, its wake-up and its streams, and says of what plane a change is."""
    numbers = itertools.count(1)
    own, other = (
        Cache(
            [Follow("tenants"), Follow("nodes")],
            random.Random(5),
            resync_ms=RESYNC_MS,
            plane=plane,
            numbers=numbers,
        )
        for plane in ("", "globe")
    )

    def step(stimulus: Any) -> tuple[list[Any], list[ObjectChange]]:
        told = [cache.step(stimulus, Instant(1_000, 0)) for cache in (own, other)]
        return [it for one in told for it in one.effects], [
            it for one in told for it in one.changes
        ]

    effects, _ = step(Started({}))
    opened = {it.stream: (it.to, it.body.plural) for it in effects if isinstance(it, Open)}
    assert opened == {
        1: ("servers", "tenants"),
        2: ("servers", "nodes"),
        3: ("globe/servers", "tenants"),
        4: ("globe/servers", "nodes"),
    }
    wakes = [it.name for it in effects if isinstance(it, Wake)]
    assert wakes == ["cache", "cache/globe"]
    assert all(is_for_cache_only(Woken(name)) for name in wakes)
    assert not is_for_cache_only(Woken("cachet"))
    _, changes = step(Pushed(3, (present("acme", 7), list_end(7))))
    assert [(it.plane, it.object.name) for it in changes] == [("globe", "acme")]
    assert (own.get("tenants", "", "acme"), other.get("tenants", "", "acme").name) == (None, "acme")
    step(Ended(3, Unavailable("gone")))
    assert list(own.troubles()) == []
    assert list(other.troubles()) == ["tenants"]


class Rig:
    """A cache of one kind, and the streams that it has open."""

    def __init__(self, *plurals: str) -> None:
        follows = [Follow(plural) for plural in plurals or ("tenants",)]
        self.cache = Cache(follows, random.Random(5), resync_ms=RESYNC_MS)
        self.now_ms = 1_000
        self.streams: dict[int, Follow] = {}
        self.wake_ms = 0
        self.opened_ms: list[int] = []

    def step(self, stimulus: Any) -> list[ObjectChange]:
        received = self.cache.step(stimulus, Instant(self.now_ms, 0))
        for effect in received.effects:
            match effect:
                case Open(stream=stream, to=to, body=body):
                    assert to == SERVERS
                    self.streams[stream] = body
                    self.opened_ms.append(self.now_ms)
                case Leave(stream=stream):
                    del self.streams[stream]
                case Wake(name="cache", at_ms=at_ms):
                    self.wake_ms = at_ms
        return received.changes

    def push(self, *events: Any, stream: int | None = None) -> list[ObjectChange]:
        return self.step(Pushed(stream or min(self.streams), events))

    def end(self, body: Any = None, stream: int | None = None) -> list[ObjectChange]:
        number = stream or min(self.streams)
        del self.streams[number]
        return self.step(Ended(number, body))

    def wake(self) -> None:
        self.now_ms = self.wake_ms
        self.step(Woken("cache"))

    def wake_until(self, count: int) -> None:
        """Sleep until `count` streams are open."""
        for _ in range(10):
            if len(self.streams) == count:
                return
            self.wake()
            if len(self.streams) < count and self.streams:
                self.push()
        assert len(self.streams) == count

    def resync(self) -> int:
        """Sleep until the resync lists. Returns its stream."""
        self.wake_until(2)
        return max(self.streams)

    @property
    def names(self) -> dict[str, int]:
        return {it.name: it.metadata.generation for it in self.cache.all("tenants")}

    @property
    def age_ms(self) -> int:
        return self.cache.age_ms(Instant(self.now_ms, 0))


@pytest.fixture
def rig() -> Rig:
    """A cache that knows `a` and `b` as of revision 5."""
    rig = Rig()
    rig.step(Started({}))
    rig.push(present("a", 2), present("b", 4), list_end(5, 2))
    return rig


def test_nothing_is_shown_before_the_first_list_is_complete() -> None:
    """[C8]"""
    rig = Rig("tenants", "nodes")
    rig.step(Started({}))
    assert [it.since for it in rig.streams.values()] == [None, None]
    assert rig.push(present("a", 2), stream=1) == []
    assert (rig.names, rig.cache.revision) == ({}, 0)
    changes = rig.push(list_end(5), stream=1)
    assert changes == [ObjectChange("tenants", None, tenant("a", 2))]
    assert not rig.cache.is_ready
    rig.push(list_end(7), stream=2)
    assert rig.cache.is_ready
    assert rig.cache.revision == 5
    assert rig.cache.count("nodes") == 0


def test_changes_follow_and_repetitions_are_left_out(rig: Rig) -> None:
    """[C8, INV10]"""
    changes = rig.push(present("a", 6), departed("b", 7), present("a", 6), present("b", 4))
    assert changes == [
        ObjectChange("tenants", tenant("a", 2), tenant("a", 6)),
        ObjectChange("tenants", tenant("b", 4), None),
    ]
    assert rig.names == {"a": 6}
    assert rig.cache.get("tenants", "", "b") is None


def test_a_broken_stream_resumes_after_the_last_complete_revision(rig: Rig) -> None:
    """One revision may change many objects. [C8]"""
    rig.push(present("c", 8))
    assert rig.cache.revision == 7
    rig.end(Unavailable("broken"))
    assert rig.cache.troubles() == {"tenants": "broken"}
    rig.wake_until(1)
    assert next(iter(rig.streams.values())).since == 7
    assert rig.push(present("c", 8), present("d", 8), Reached(9)) == [
        ObjectChange("tenants", None, tenant("d", 8))
    ]
    assert rig.cache.revision == 9
    assert rig.cache.troubles() == {}


def test_after_expired_it_lists_again_and_shows_the_old_snapshot_meanwhile(rig: Rig) -> None:
    """[C8]"""
    rig.end(Expired("gone"))
    rig.wake_until(1)
    assert next(iter(rig.streams.values())).since is None
    assert rig.push(present("a", 9), present("c", 8)) == []
    assert rig.names == {"a": 2, "b": 4}
    rig.push(list_end(10))
    assert rig.names == {"a": 9, "c": 8}
    assert (rig.cache.missed, rig.cache.relists) == (0, 1)


@pytest.mark.parametrize(
    "end",
    [list_end(4, 1), list_end(9, 2), Reached(9), departed("b", 9)],
    ids=["of the past", "not whole", "without its end", "without its end, and going on"],
)
def test_an_unusable_list_changes_nothing_and_is_requested_again(rig: Rig, end: Any) -> None:
    """[C8, INV10]"""
    rig.end(Expired("gone"))
    rig.wake_until(1)
    assert rig.push(present("a", 2), end) == []
    assert rig.streams == {}
    assert rig.names == {"a": 2, "b": 4}
    rig.wake_until(1)
    assert next(iter(rig.streams.values())).since is None


def test_a_list_from_before_a_partly_delivered_revision_is_rejected(rig: Rig) -> None:
    """[INV10]"""
    rig.push(departed("b", 6))
    rig.end(Expired("gone"))
    rig.wake_until(1)
    assert rig.push(present("a", 2), present("b", 4), list_end(5, 2)) == []
    assert rig.names == {"a": 2}


def test_a_resync_finds_what_was_lost_and_counts_it(rig: Rig) -> None:
    """A Present and a Departed were lost. [SC15, C7.7, E1]"""
    rig.push(Reached(9))
    resync = rig.resync()
    assert rig.streams[resync].since is None
    changes = rig.push(present("a", 2), present("c", 7), list_end(9, 2), stream=resync)
    assert changes == [
        ObjectChange("tenants", tenant("b", 4), None),
        ObjectChange("tenants", None, tenant("c", 7)),
    ]
    assert rig.cache.missed == 2
    assert resync not in rig.streams


def test_a_resync_is_over_within_its_period(rig: Rig) -> None:
    """[SC15]"""
    start_ms = rig.now_ms
    rig.resync()
    assert RESYNC_MS / 2 <= rig.now_ms - start_ms <= RESYNC_MS


def test_a_stream_that_breaks_often_does_not_put_the_resync_off(rig: Rig) -> None:
    """[SC15]"""
    start_ms = rig.now_ms
    while rig.now_ms - start_ms < RESYNC_MS and len(rig.streams) < 2:
        if rig.streams and rig.now_ms - rig.opened_ms[-1] > 1_000:
            rig.end(Unavailable("broken"))
        rig.now_ms += 100
        if rig.wake_ms <= rig.now_ms:
            rig.step(Woken("cache"))
            if rig.streams:
                rig.push()
    assert len(rig.streams) == 2


def test_what_a_resync_shows_before_the_stream_is_not_lost(rig: Rig) -> None:
    """The list is ahead: what the stream delivers later is not shown twice nor undone. [SC15]"""
    resync = rig.resync()
    rig.push(present("a", 6), present("c", 8), list_end(9, 2), stream=resync)
    assert rig.names == {"a": 6, "c": 8}
    assert rig.cache.revision == 9
    late = [present("a", 6), present("b", 7), departed("b", 8), present("c", 8), Reached(9)]
    assert [it for events in late for it in rig.push(events)] == []
    assert rig.cache.missed == 0
    assert rig.push(present("a", 10)) == [ObjectChange("tenants", tenant("a", 6), tenant("a", 10))]


def test_what_the_stream_passes_without_delivering_was_lost(rig: Rig) -> None:
    """[SC15]"""
    resync = rig.resync()
    rig.push(present("a", 6), present("c", 8), list_end(9, 2), stream=resync)
    rig.push(present("c", 8), present("d", 10))
    assert rig.cache.missed == 2


def test_a_resync_brings_back_nothing_that_the_stream_removed(rig: Rig) -> None:
    """The list was read before. [INV10]"""
    resync = rig.resync()
    rig.push(departed("b", 8), present("c", 8))
    rig.push(present("a", 2), present("b", 4), list_end(7, 2), stream=resync)
    assert rig.names == {"a": 2, "c": 8}
    assert rig.cache.missed == 0


def test_a_resync_of_a_server_that_is_behind_is_refused_and_tried_again(rig: Rig) -> None:
    """[INV10]"""
    rig.push(departed("b", 6))
    resync = rig.resync()
    assert rig.push(present("a", 2), present("b", 4), list_end(5, 2), stream=resync) == []
    assert list(rig.streams) == [1]
    assert rig.resync() > resync
    assert rig.cache.missed == 0


def test_a_resync_never_leads_behind_the_one_before(rig: Rig) -> None:
    """The second server is behind the first one, and so is the stream. [INV10]"""
    resync = rig.resync()
    rig.push(present("a", 6), list_end(9, 1), stream=resync)
    resync = rig.resync()
    assert rig.push(present("a", 2), present("b", 4), list_end(8, 2), stream=resync) == []
    assert rig.names == {"a": 6}


def test_an_expired_stream_ends_the_resync_too(rig: Rig) -> None:
    """[C8]"""
    rig.resync()
    rig.end(Expired("gone"))
    assert rig.streams == {}
    rig.wake_until(1)
    assert next(iter(rig.streams.values())).since is None


def test_a_resync_that_ends_early_is_tried_again(rig: Rig) -> None:
    """[C7.6]"""
    resync = rig.resync()
    rig.push(present("a", 2), stream=resync)
    rig.end(Unavailable("broken"), stream=resync)
    assert rig.resync() > resync


def test_a_stream_that_stays_behind_a_list_is_left_for_another(rig: Rig) -> None:
    """[C7.7]"""
    resync = rig.resync()
    rig.push(present("a", 6), list_end(9, 1), stream=resync)
    start_ms = rig.now_ms
    while 1 in rig.streams:
        rig.wake()
        for stream in [it for it in rig.streams if it != 1]:
            rig.end(Unavailable("broken"), stream=stream)
        if 1 in rig.streams:
            rig.push(stream=1)
    assert rig.now_ms - start_ms <= SILENCE_MS
    # The next one is given as long.
    while 5 not in [it.since for it in rig.streams.values()]:
        rig.wake()
    start_ms, stream = rig.now_ms, max(rig.streams)
    while stream in rig.streams and rig.now_ms - start_ms < SILENCE_MS:
        rig.push(stream=stream)
        rig.wake()
    assert rig.now_ms - start_ms >= SILENCE_MS


def test_a_silent_stream_is_left_and_the_age_says_how_long_it_was(rig: Rig) -> None:
    """[C7.6, H3]"""
    rig.push()
    start_ms = rig.now_ms
    while 1 in rig.streams:
        rig.wake()
    assert rig.now_ms - start_ms == SILENCE_MS == rig.age_ms
    while 5 not in [it.since for it in rig.streams.values()]:
        rig.wake()
    assert rig.age_ms > SILENCE_MS
    rig.push(stream=max(rig.streams))
    assert rig.age_ms == 0


WITHIN_MS = 2_500
LIMIT_MS = 2 * WITHIN_MS + BEHIND_SHELL_MS


def _silence_of(rig: Rig, stream: int) -> int:
    """How long a stream was silent when it was left."""
    start_ms = rig.now_ms
    while stream in rig.streams:
        rig.wake()
    return rig.now_ms - start_ms


def test_a_server_that_says_when_it_speaks_next_is_left_soon_after(rig: Rig) -> None:
    """A hung server costs a few seconds and not the longest silence. [C7.6]"""
    rig.push(Reached(6, within_ms=WITHIN_MS))
    assert _silence_of(rig, 1) == LIMIT_MS
    # The stream after it, at a server that did not even begin, is given twice the time: where all
    # servers are slow, moving on is no help.
    rig.wake_until(1)
    assert _silence_of(rig, max(rig.streams)) == 2 * LIMIT_MS
    for _ in range(5):
        rig.wake_until(1)
        silence_ms = _silence_of(rig, max(rig.streams))
    assert silence_ms == 8 * LIMIT_MS
    # One that was well for a while has the usual time again.
    rig.wake_until(1)
    stream = max(rig.streams)
    for _ in range(1 + STEADY_MS // WITHIN_MS):
        rig.push(Reached(7, within_ms=WITHIN_MS), stream=stream)
        rig.now_ms += WITHIN_MS
    rig.push(Reached(8, within_ms=WITHIN_MS), stream=stream)
    assert _silence_of(rig, stream) == LIMIT_MS


def test_a_server_that_does_not_say_when_it_speaks_next_has_the_longest_silence(rig: Rig) -> None:
    """One of another version, after one that said so. [C7.6]"""
    rig.push(Reached(6, within_ms=WITHIN_MS))
    rig.push(Reached(7))
    assert _silence_of(rig, 1) == SILENCE_MS


def test_a_machine_does_not_take_its_own_pause_for_the_silence_of_a_server(rig: Rig) -> None:
    """What arrived while the machine stood still is read after its wake-up. [C7.6]"""
    rig.push(Reached(6, within_ms=WITHIN_MS))
    rig.now_ms = rig.wake_ms + 60_000
    rig.step(Woken("cache"))
    assert 1 in rig.streams
    assert _silence_of(rig, 1) == LIMIT_MS, "but a silence after it counts"


def test_an_incomplete_list_does_not_lower_the_age_and_may_not_take_for_ever() -> None:
    """[C7.6, H3]"""
    rig = Rig()
    rig.step(Started({}))
    start_ms = rig.now_ms
    while 1 in rig.streams:
        if rig.wake_ms > rig.now_ms + SILENCE_MS // 3:
            rig.now_ms += SILENCE_MS // 3
            rig.push(present("a", 2))
            assert rig.age_ms == rig.now_ms - start_ms
        else:
            rig.wake()
    assert rig.now_ms - start_ms == LIST_MAX_MS


def test_pauses_grow_until_a_stream_was_well_for_a_while(rig: Rig) -> None:
    """A server that ends each stream right after its list is not asked again without pause. [E5]"""
    pauses = []
    for _ in range(10):
        rig.end(Expired("too slow"))
        ended_ms = rig.now_ms
        rig.wake_until(1)
        pauses.append(rig.now_ms - ended_ms)
        rig.push(present("a", 2), list_end(9))
    assert pauses[0] <= RETRY_MIN_MS
    assert RETRY_MAX_MS / 2 <= pauses[-1] <= RETRY_MAX_MS
    rig.now_ms += 10_000
    rig.push(Reached(10))
    rig.end(None)
    ended_ms = rig.now_ms
    rig.wake_until(1)
    assert rig.now_ms - ended_ms <= RETRY_MIN_MS


def test_what_was_replaced_under_its_name_is_gone_and_then_new(rig: Rig) -> None:
    """[C8]"""
    assert rig.push(present("a", 6, "other")) == [
        ObjectChange("tenants", tenant("a", 2), None),
        ObjectChange("tenants", None, tenant("a", 6, "other")),
    ]


def test_indexes_follow_changes_and_come_before_the_first_object(rig: Rig) -> None:
    with pytest.raises(InvariantBroken):
        rig.cache.index(Index("tenants", "late", lambda it: [it.name]))
    fresh = Rig()
    odd = Index("tenants", "odd", lambda it: ["odd"] if it.metadata.generation % 2 else [])
    fresh.cache.index(odd)
    fresh.step(Started({}))
    fresh.push(present("b", 3), present("a", 1), list_end(5))
    assert [it.name for it in fresh.cache.found(odd, "odd")] == ["a", "b"]
    fresh.push(present("a", 6), departed("b", 7))
    assert fresh.cache.found(odd, "odd") == []


def test_events_of_closed_streams_and_stimuli_of_others_change_nothing(rig: Rig) -> None:
    """[C8]"""
    for stimulus in (Pushed(99, (present("z", 9),)), Ended(99, None), Woken("other")):
        received = rig.cache.step(stimulus, Instant(rig.now_ms, 0))
        assert (received.effects, received.changes) == ([], [])


def line(kind: str, obj: Any) -> bytes:
    return msgspec.json.encode({"type": kind, "object": obj})


def test_lines_of_a_watch_are_read_as_events_of_the_stores_revisions() -> None:
    """[C8]"""
    meta = {"name": "a", "resourceVersion": object_version(7)}
    body = {"kind": "Tenant", "apiVersion": "holdfast.dev/v1", "metadata": meta}
    added = read_line(Tenant, line("ADDED", body))
    assert isinstance(added, Present)
    assert (added.revision, added.object.name) == (7, "a")
    gone = read_line(Tenant, line("DELETED", body))
    assert isinstance(gone, Departed)
    marks = {LIST_ENDS: "true", LISTED: "3"}
    end = {"metadata": {"resourceVersion": complete_version(9), "annotations": marks}}
    assert read_line(Tenant, line("BOOKMARK", end)) == Reached(9, True, 3)
    assert read_line(Tenant, line("ERROR", {"code": 410})) == b'{"code":410}'


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b'{"type":"ADDED"}',
        line("ADDED", {"metadata": {"name": "a"}}),
        line("ADDED", {"metadata": {"name": "a", "resourceVersion": "7"}}),
        line("BOOKMARK", {"metadata": {"resourceVersion": "8"}}),
        line("MOVED", {"metadata": {"name": "a", "resourceVersion": "8"}}),
    ],
)
def test_a_line_that_no_server_of_ours_would_send_is_a_fault(text: bytes) -> None:
    with pytest.raises(Unavailable):
        read_line(Tenant, text)
