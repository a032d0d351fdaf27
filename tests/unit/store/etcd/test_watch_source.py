"""The guard: whatever etcd's watch does, ours is ordered, whole and unique, or says it broke."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import Expired
from holdfast.model.transaction import ABSENT, Batch, Change
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd import watch_source as guards
from holdfast.store.etcd.layout import Layout
from holdfast.store.etcd.watch_source import DeliveryGuard, StreamBroken

LAYOUT = Layout("/x/")


def put(key: str, revision: int, version: int = 1, created: int | None = None) -> pb.Event:
    kv = pb.KeyValue(
        key=LAYOUT.record(key),
        value=b"%d" % revision,
        mod_revision=revision,
        create_revision=revision if created is None else created,
        version=version,
    )
    return pb.Event(kind=pb.EVENT_PUT, kv=kv)


def deletion(key: str, revision: int) -> pb.Event:
    kv = pb.KeyValue(key=LAYOUT.record(key), mod_revision=revision)
    return pb.Event(kind=pb.EVENT_DELETE, kv=kv)


def bookmark(prefix: str, revision: int) -> pb.Event:
    kv = pb.KeyValue(key=LAYOUT.bookmark(prefix), mod_revision=revision, version=revision)
    return pb.Event(kind=pb.EVENT_PUT, kv=kv)


def answer(*events: pb.Event, fragment: bool = False) -> pb.WatchResponse:
    return pb.WatchResponse(events=events, fragment=fragment)


def keys(batch: Batch | None) -> list[str]:
    return [] if batch is None else [change.key for change in batch.changes]


def test_what_was_delivered_is_not_delivered_again() -> None:
    """Repeats and journeys back in time are dropped [INV10]."""
    guard = DeliveryGuard(LAYOUT, after=10)
    assert guard.take(answer(put("a", 9), put("b", 10))) is None
    assert guard.take(answer(put("a", 11), put("b", 12))) == Batch(
        12, (Change(11, "a", b"11", 11), Change(12, "b", b"12", 12))
    )
    assert guard.take(answer(put("a", 11), put("b", 12))) is None
    assert keys(guard.take(answer(put("b", 12), put("c", 13)))) == ["c"]


def test_a_revision_in_fragments_is_delivered_whole() -> None:
    """A reader never sees half of a transaction [C8]."""
    guard = DeliveryGuard(LAYOUT, after=1)
    assert keys(guard.take(answer(put("a", 2), put("b", 3), fragment=True))) == ["a"]
    assert guard.take(answer(put("c", 3), fragment=True)) is None
    assert keys(guard.take(answer(put("d", 3)))) == ["b", "c", "d"]
    assert guard.delivered == 3


def test_fragments_of_a_stream_that_died_are_forgotten() -> None:
    guard = DeliveryGuard(LAYOUT, after=1)
    assert guard.take(answer(put("a", 2), fragment=True)) is None
    guard.restart()
    assert keys(guard.take(answer(put("a", 2), put("b", 2)))) == ["a", "b"]


def test_a_stream_that_goes_back_is_broken() -> None:
    guard = DeliveryGuard(LAYOUT, after=1)
    with pytest.raises(StreamBroken):
        guard.take(answer(put("a", 5), put("b", 4)))


def test_the_rest_of_a_revision_that_comes_too_late_is_a_hole() -> None:
    """It cannot be delivered together any more, so the reader must list again [INV10]."""
    guard = DeliveryGuard(LAYOUT, after=1)
    guard.take(answer(put("a", 2)))
    guard.restart()
    with pytest.raises(Expired):
        guard.take(answer(put("a", 2), put("b", 2)))


def test_the_first_overlap_is_not_ours_to_judge() -> None:
    """What lies at the revision of the list was delivered by the list."""
    guard = DeliveryGuard(LAYOUT, after=2)
    assert guard.take(answer(put("a", 2), put("b", 2))) is None


def test_a_bookmark_moves_the_place_and_is_not_a_change() -> None:
    guard = DeliveryGuard(LAYOUT, after=1)
    assert guard.take(answer(bookmark("", 7))) == Batch(7)
    assert keys(guard.take(answer(put("a", 8), bookmark("x", 9)))) == ["a"]
    assert guard.skip_to(12) == Batch(12)
    assert guard.skip_to(11) == Batch(12)
    with pytest.raises(Expired):
        # A bookmark proved that there was nothing up to 12.
        guard.take(answer(put("late", 12)))


@pytest.mark.parametrize(
    "events",
    [
        [put("a", 11), put("a", 13, version=3, created=11)],
        [put("a", 11, version=2, created=2), put("a", 13, version=4, created=2)],
        [put("a", 12, version=2, created=11)],
        [put("a", 11), put("a", 14, version=1)],
        [deletion("a", 11), deletion("a", 13)],
        [deletion("a", 11), put("a", 13, version=2, created=12)],
    ],
    ids=["update", "old-update", "creation", "deletion", "recreation", "after-deletion"],
)
def test_a_lost_event_is_noticed_at_the_next_one_of_its_key(events: list[pb.Event]) -> None:
    """An etcd counts versions, so a hole cannot stay silent for ever [INV10]."""
    guard = DeliveryGuard(LAYOUT, after=10)
    with pytest.raises(Expired) as caught:
        guard.take(answer(*events))
    assert caught.value.code == "WatchHole"


def test_keys_beyond_the_bound_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting must not raise false alarms."""
    monkeypatch.setattr(guards, "VERSIONS_MAX", 4)
    guard = DeliveryGuard(LAYOUT, after=1)
    for i in range(20):
        guard.take(answer(put(f"k{i}", i + 2)))
    updates = [put(f"k{i}", i + 30, version=2, created=i + 2) for i in range(20)]
    assert len(keys(guard.take(answer(*updates)))) == 20


# Any history, any way of sending it. -------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[list[pb.Event]]:
    """Events by revision, as etcd would number them."""
    versions: dict[str, tuple[int, int]] = {}
    revisions = []
    revision = 1
    for _ in range(draw(st.integers(0, 12))):
        revision += draw(st.integers(1, 3))
        events = []
        for key in draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)):
            version, created = versions.get(key, (0, revision))
            if version and draw(st.booleans()):
                versions.pop(key)
                events.append(deletion(key, revision))
            else:
                versions[key] = (version + 1, created)
                events.append(put(key, revision, version + 1, created))
        revisions.append(events)
    return revisions


def changes_of(history: list[list[pb.Event]]) -> list[Change]:
    return [
        Change(e.kv.mod_revision, LAYOUT.key(e.kv.key), None, ABSENT)
        if e.kind == pb.EVENT_DELETE
        else Change(e.kv.mod_revision, LAYOUT.key(e.kv.key), e.kv.value, e.kv.create_revision)
        for events in history
        for e in events
    ]


def sent(draw: st.DrawFn, history: list[list[pb.Event]], start: int) -> list[pb.WatchResponse]:
    """A stream from a revision on, cut into answers and fragments, with a repeat."""
    events = [e for events in history for e in events if e.kv.mod_revision >= start]
    ends = {events[-1].kv.mod_revision for events in history}
    answers, run = [], []
    for i, event in enumerate(events):
        run.append(event)
        is_last = i + 1 == len(events) or (
            events[i + 1].kv.mod_revision != event.kv.mod_revision and event.kv.mod_revision in ends
        )
        cut = draw(st.sampled_from(("no", "fragment", "answer")))
        if i + 1 == len(events) or (cut == "answer" and is_last):
            answers.append(answer(*run))
            run = []
        elif cut == "fragment":
            answers.append(answer(*run, fragment=True))
            run = []
    if answers and draw(st.booleans()):
        whole = [a for a in answers if not a.fragment]
        answers.append(draw(st.sampled_from(whole)))
    return answers


@given(data=st.data(), history=histories())
def test_any_sending_is_delivered_once_in_order_and_whole(
    data: st.DataObject, history: list[list[pb.Event]]
) -> None:
    """Over streams that die anywhere, each taken up at the last revision delivered [INV10]."""
    guard = DeliveryGuard(LAYOUT, after=1)
    delivered: list[Change] = []
    places: list[int] = []
    for is_last in (False, False, True):
        guard.restart()
        answers = data.draw(st.composite(sent)(history, guard.delivered))
        keep = len(answers) if is_last else data.draw(st.integers(0, len(answers)))
        for response in answers[:keep]:
            batch = guard.take(response)
            if batch is not None:
                delivered += batch.changes
                places.append(batch.revision)
    assert delivered == changes_of(history)
    assert places == sorted(set(places))


@given(data=st.data(), history=histories().filter(lambda h: len(h) > 1))
def test_a_lost_event_is_noticed_unless_nothing_more_is_known_of_its_key(
    data: st.DataObject, history: list[list[pb.Event]]
) -> None:
    """The guard's power and its limit: a deletion does not say which version it ended."""
    events = [e for events in history for e in events]
    lost = data.draw(st.integers(0, len(events) - 1))
    later = [e for e in events[lost + 1 :] if e.kv.key == events[lost].kv.key]
    guard = DeliveryGuard(LAYOUT, after=1)
    try:
        guard.take(answer(*events[:lost], *events[lost + 1 :]))
    except Expired:
        assert later
        return
    assert not later or later[0].kind == pb.EVENT_DELETE
