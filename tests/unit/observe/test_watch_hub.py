"""The watch hub: which events each watcher gets, in which order, and when a watch fails. [C8]"""

from __future__ import annotations

import msgspec
import pytest

from holdfast.commit.record_encoding import with_version
from holdfast.model import keys
from holdfast.model.encoding.resource_versions import complete_version, object_version
from holdfast.model.encoding.wire import encode
from holdfast.model.errors import Expired, Unavailable
from holdfast.model.kinds.replica import Binding, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.machine import Asked, Changed, Taken, Woken
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.read_requests import Reach
from holdfast.model.registry import kind_named
from holdfast.model.selection.field_selector import parse_field_selector
from holdfast.model.transaction import Put, Transaction
from holdfast.observe import watch_hub, watchers
from holdfast.observe.bookmarks import (
    BOOKMARK_EVERY_MS,
    BOOKMARK_PAUSE_MS,
    BOOKMARK_SPREAD_MS,
    BOOKMARKS_AT_ONCE_MIN,
    FREQUENT_STREAMS_MAX,
)
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watch_events import AGENT_BOOKMARK_MS, COMPONENT_BOOKMARK_MS
from holdfast.observe.watch_hub import FEW_EVENTS, SOON_MS, TICK_MS
from tests.unit.observe.hub_rig import HubRig

WORKLOAD = kind_named("Workload")


def workload(name: str, namespace: str = "acme", count: int = 1, **labels: str) -> Workload:
    meta = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", labels=labels)
    spec = WorkloadSpec(template=Template(command=("sleep",)), replicas=count)
    return Workload(meta, spec=spec)


def replica(name: str, node: str = "") -> Replica:
    meta = ObjectMeta(name=name, namespace="acme", uid=f"uid-{name}")
    spec = ReplicaSpec(
        workload="web", workload_uid="u", ordinal=0, template=Template(command=("sleep",))
    )
    binding = Binding(node=node, node_uid="n") if node else None
    return Replica(meta, spec=spec, status=ReplicaStatus(binding=binding))


@pytest.fixture
def rig() -> HubRig:
    return HubRig().start()


def test_bytes_equal_the_encoding_of_the_versioned_object(rig: HubRig) -> None:
    """A read needs no decoding: the revision stands where the encoder would have put it."""
    objects: list[Object] = [workload("web", app="x"), Tenant(ObjectMeta(name="t", uid="u"))]
    revision = rig.put(*objects)
    rig.deliver()
    for obj in objects:
        kind = kind_named(type(obj).__name__)
        entry = rig.hub.get(kind, obj.namespace, obj.name)
        assert entry is not None
        assert entry.data == encode(with_version(obj, revision))


def test_an_object_without_uid_gets_its_revision_too(rig: HubRig) -> None:
    """Nothing relies on the uid but the place of the version."""
    revision = rig.put(Tenant(ObjectMeta(name="t")))
    rig.deliver()
    entry = rig.hub.get(kind_named("Tenant"), "", "t")
    assert entry is not None
    decoded = msgspec.json.decode(entry.data, type=Tenant)
    assert decoded.metadata.resource_version == object_version(revision)


def test_what_was_there_before_the_start_is_listed_in_the_order_of_the_keys() -> None:
    """A first page from the hub and a second one from the store fit together. [C8]"""
    rig = HubRig()
    objects = [workload(n, ns) for ns in ("b", "a", "a-b") for n in ("y", "x", "x-1")]
    rig.put(*objects)
    rig.start()
    rig.put(workload("w", "a"))
    rig.deliver()
    listed = [f"{e.namespace}/{e.name}" for e in rig.hub.select(ObjectSelection(WORKLOAD))]
    prefix = keys.kind_prefix(WORKLOAD)
    page = rig.store.range(prefix, keys.after_prefix(prefix))
    assert listed == [record.key.removeprefix(prefix) for record in page.records]
    assert rig.hub.count(WORKLOAD) == 10
    assert rig.hub.count(WORKLOAD, "a") == 4


def test_a_watch_without_revision_starts_with_the_current_objects(rig: HubRig) -> None:
    """Then it goes on with what changes. [C8]"""
    rig.put(workload("web"))
    rig.deliver()
    stream = rig.open("Workload", bookmarks=True, marks_list_end=True)
    assert rig.names(stream) == [("ADDED", "web"), ("BOOKMARK", "")]
    rig.put(workload("web", count=2))
    rig.deliver()
    rig.delete(workload("web"))
    rig.deliver()
    rig.tick()
    assert rig.names(stream) == [("MODIFIED", "web"), ("DELETED", "web")]


def test_a_list_alone_ends_by_itself_however_many_pieces_it_takes(rig: HubRig) -> None:
    """Its reader need not break the connection, and nothing is sent or kept after it. [C8]"""
    names = [f"w{number}" for number in range(3_000)]
    rig.put(*map(workload, names))
    rig.deliver()
    stream = rig.open("Workload", marks_list_end=True, ends_with_list=True)
    rig.put(workload("later"))
    rig.deliver()
    received = rig.names(stream)
    assert sorted(name for _, name in received[:-1]) == sorted(names)
    assert received[-1] == ("BOOKMARK", "")
    assert rig.ended == {stream: None}
    assert rig.hub.watchers == 0


def test_a_deletion_carries_the_last_state_at_the_revision_of_the_deletion(rig: HubRig) -> None:
    """A reader goes on from there, and must not see it again. [INV10]"""
    rig.put(workload("web", count=7))
    rig.deliver()
    stream = rig.open("Workload", since=rig.hub.revision)
    revision = rig.delete(workload("web"))
    rig.deliver()
    ((kind, obj),) = rig.events(stream)
    assert kind == "DELETED"
    assert obj["spec"]["replicas"] == 7
    assert obj["metadata"]["resourceVersion"] == object_version(revision)


def test_what_enters_a_selector_is_added_and_what_leaves_it_is_deleted(rig: HubRig) -> None:
    """A client that applies what it receives has exactly what is selected."""
    stream = rig.open("Workload", "acme", labels="app=web", since=0)
    for obj in (
        workload("a", app="db"),
        workload("a", app="web"),
        workload("a", app="web", count=3),
        workload("a", app="db"),
        workload("b", "other", app="web"),
    ):
        rig.put(obj)
        rig.deliver()
    rig.tick()
    assert rig.names(stream) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_an_agent_gets_events_of_its_own_node_only(rig: HubRig) -> None:
    """A replica that moves leaves one watcher and enters another."""
    one = rig.open("Replica", fields="status.binding.node=node-1", since=0)
    two = rig.open("Replica", fields="status.binding.node=node-2", since=0)
    other = rig.open("Replica", fields="status.binding.node!=node-1,spec.ordinal=0", since=0)
    for node in ("", "node-1", "node-2"):
        rig.put(replica("web-0", node))
        rig.deliver()
    rig.tick()
    assert rig.names(one) == [("ADDED", "web-0"), ("DELETED", "web-0")]
    assert rig.names(two) == [("ADDED", "web-0")]
    assert rig.names(other) == [("ADDED", "web-0"), ("DELETED", "web-0"), ("ADDED", "web-0")]


def test_a_watch_goes_on_from_any_revision_of_the_window_without_hole_or_repetition(
    rig: HubRig,
) -> None:
    """Wherever it was broken off, the rest is sent once. [INV10, C8]"""
    revisions = [rig.put(workload(f"w{i}")) for i in range(5)]
    rig.deliver()
    for index, revision in enumerate(revisions):
        stream = rig.open("Workload", since=revision)
        assert rig.names(stream) == [("ADDED", f"w{i}") for i in range(index + 1, 5)]


def test_a_watch_from_before_the_window_has_to_list_again(rig: HubRig) -> None:
    """There is no gap without an error. [INV10]"""
    rig.start(events_max=4)
    first = rig.put(workload("w0"))
    for i in range(1, 8):
        rig.put(workload(f"w{i}"))
    rig.deliver()
    stream = rig.open("Workload", since=first)
    assert isinstance(rig.ended[stream], Expired)
    assert stream not in rig.pushed
    late = rig.open("Workload", since=rig.hub.revision - 1)
    assert rig.names(late) == [("ADDED", "w7")]


def test_a_watch_ahead_of_the_hub_does_not_get_what_its_reader_has_seen(rig: HubRig) -> None:
    """Its reader may have listed from another server that was faster. [INV10]"""
    rig.put(workload("a"))
    seen = rig.put(workload("b"))
    stream = rig.open("Workload", since=seen)
    rig.put(workload("c"))
    rig.deliver()
    assert rig.names(stream) == [("ADDED", "c")]


def test_the_first_event_goes_at_once_and_those_that_follow_go_together(rig: HubRig) -> None:
    """A tick later; and once nothing happens the next first event goes at once again."""
    stream = rig.open("Workload", since=0)
    rig.events(stream)
    rig.put(workload("a"))
    rig.deliver()
    assert rig.names(stream) == [("ADDED", "a")]
    for name in "bc":
        rig.put(workload(name))
        rig.deliver()
    assert rig.names(stream) == []
    rig.tick()
    assert len(rig.pushed[stream]) == 1
    assert rig.names(stream) == [("ADDED", "b"), ("ADDED", "c")]
    rig.tick()
    assert "tick" not in rig.wakes
    rig.put(workload("d"))
    rig.deliver()
    assert rig.names(stream) == [("ADDED", "d")]


def test_ticks_are_short_while_little_happens_and_long_while_much_does(rig: HubRig) -> None:
    """A reader that waits for one event does not wait for a batch."""
    stream = rig.open("Workload", since=0)
    rig.events(stream)

    def pause_ms(count: int) -> int:
        for _ in range(count):
            rig.put(workload("a"))
        rig.deliver()
        return rig.wakes["tick"] - rig.now_ms

    assert pause_ms(1) == SOON_MS
    rig.tick()
    rig.now_ms += TICK_MS + 1
    assert pause_ms(FEW_EVENTS + 1) == TICK_MS
    rig.now_ms += TICK_MS + 1
    rig.tick()
    rig.now_ms += TICK_MS + 1
    assert pause_ms(1) == SOON_MS


def test_an_event_is_made_once_for_all_watchers_of_a_form(rig: HubRig) -> None:
    """A thousand watchers cost one encoding."""
    plain = [rig.open("Workload", since=0) for _ in range(20)]
    table = [rig.open("Workload", since=0, form="Table") for _ in range(20)]
    rig.put(workload("a"))
    rig.deliver()
    assert rig.presentation.made == 2
    assert {bytes(rig.pushed[stream][-1]) for stream in plain} == {rig.pushed[plain[0]][-1]}
    assert rig.pushed[table[0]][-1].startswith(b'{"type":"ADDED","object":{"Table":{"kind"')


def test_a_reader_that_takes_nothing_is_dropped_at_a_thousand_events(rig: HubRig) -> None:
    """It has to list again and is counted, and the others continue. [C8, M6]"""
    rig.takes = False
    stream = rig.open("Workload", since=0)
    rig.takes = True
    healthy = rig.open("Workload", since=0)
    for i in range(watchers.QUEUE_EVENTS_MAX):
        rig.put(workload(f"w{i}"))
    rig.deliver()
    assert stream not in rig.ended
    for name in "ab":
        rig.put(workload(name))
    rig.deliver()
    assert isinstance(rig.ended[stream], Expired)
    assert rig.hub.dropped == 1
    rig.tick()
    assert len(rig.names(healthy)) == watchers.QUEUE_EVENTS_MAX + 2
    assert rig.hub.watchers == 1


def test_a_reader_that_takes_nothing_is_dropped_at_four_mebibytes(
    rig: HubRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few large events are as many as a thousand small ones. [C8]"""
    monkeypatch.setattr(watchers, "QUEUE_BYTES_MAX", 2_000)
    rig.takes = False
    stream = rig.open("Workload", since=0)
    for i in range(30):
        rig.put(workload(f"w{i}"))
    rig.deliver()
    assert isinstance(rig.ended[stream], Expired)


def test_a_long_first_list_goes_out_piece_by_piece_and_then_what_changed_meanwhile(
    rig: HubRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is larger than any queue may be, and nothing of it is queued. [C8]"""
    monkeypatch.setattr(watchers, "PIECE_BYTES", 1_000)
    for i in range(50):
        rig.put(workload(f"w{i:02}"))
    rig.deliver()
    rig.takes = False
    stream = rig.open("Workload")
    assert 1 < len(rig.names(stream)) < 20
    rig.put(workload("w00", count=5))
    rig.delete(workload("w49"))
    rig.deliver()
    rig.takes = True
    rig.feed(Taken(stream))
    received = rig.names(stream)
    assert received[-3:] == [("ADDED", "w49"), ("MODIFIED", "w00"), ("DELETED", "w49")]


def test_when_the_store_has_compacted_the_place_all_watchers_list_again(rig: HubRig) -> None:
    """The hub lists again too, and serves what is there then. [INV10, C8]"""
    rig.put(workload("a"))
    rig.deliver()
    stream = rig.open("Workload")
    old = rig.hub.revision
    rig.delete(workload("a"))
    rig.put(workload("b"))
    rig.lose(Expired("compacted"))
    assert isinstance(rig.ended[stream], Expired)
    assert [e.name for e in rig.hub.select(ObjectSelection(WORKLOAD))] == ["b"]
    assert isinstance(rig.ended[rig.open("Workload", since=old)], Expired)
    assert (rig.hub.relists, rig.hub.outlived) == (1, 1)
    again = rig.open("Workload")
    assert rig.names(again) == [("ADDED", "b")]


def test_a_store_out_of_reach_costs_a_watcher_nothing(rig: HubRig) -> None:
    """The hub watches again from where it was. [C8]"""
    stream = rig.open("Workload", since=0)
    rig.put(workload("a"))
    rig.lose(Unavailable("gone"))
    rig.put(workload("b"))
    rig.feed(Woken("rewatch"))
    rig.deliver()
    assert rig.names(stream) == [("ADDED", "a"), ("ADDED", "b")]


def test_a_reader_is_answered_when_the_hub_has_what_it_waits_for(rig: HubRig) -> None:
    """Also when only a ledger moved: the revision is that of the whole store. [C8]"""
    rig.store.txn(Transaction((), (Put("ledgers/node/a", b"{}"),)))
    wanted = rig.store.revision
    rig.feed(Asked(1, "ada", Reach(wanted)))
    assert rig.answers == {}
    rig.deliver()
    assert rig.answers == {1: wanted}
    rig.feed(Asked(2, "ada", Reach(0)))
    assert rig.answers[2] == wanted


def test_bookmarks_carry_the_revision_to_watchers_that_asked(rig: HubRig) -> None:
    """A quiet watch can go on from a recent place."""
    asked = rig.open("Workload", since=0, bookmarks=True)
    silent = rig.open("Workload", since=0)
    rig.put(Tenant(ObjectMeta(name="t", uid="u")))
    rig.deliver()
    rig.bookmark()
    ((kind, obj),) = rig.events(asked)
    version = complete_version(rig.hub.revision)
    assert (kind, obj["metadata"]["resourceVersion"]) == ("BOOKMARK", version)
    assert rig.events(silent) == []


def test_bookmarks_of_streams_opened_together_are_spread_over_time(rig: HubRig) -> None:
    """Each stream has one in time, no turn sends more than its part of them, and they stay spread:
    a burst of bookmarks is a pause for every other request.
    """
    streams = [
        rig.open("Replica", fields=f"status.binding.node=n{number}", bookmarks=True)
        for number in range(600)
    ]
    for stream in streams:
        rig.events(stream)
    opened_ms, turns = rig.now_ms, BOOKMARK_SPREAD_MS // BOOKMARK_PAUSE_MS
    rig.leave(streams[-1])
    received: list[int] = []
    while len(received) < 599:
        rig.bookmark()
        sent = [stream for stream in streams if rig.names(stream)]
        assert len(sent) <= max(BOOKMARKS_AT_ONCE_MIN, -(-600 // turns))
        received += sent
    assert received == streams[:-1]
    assert rig.now_ms - opened_ms <= BOOKMARK_EVERY_MS + BOOKMARK_SPREAD_MS
    # The first to have had one is the first that is due again, and the others follow as before.
    assert rig.wakes["bookmark"] == opened_ms + 2 * BOOKMARK_EVERY_MS
    rig.bookmark()
    assert len([stream for stream in streams if rig.names(stream)]) <= -(-600 // turns)


def test_a_stream_that_asks_for_it_gets_bookmarks_every_few_seconds_and_at_once(
    rig: HubRig,
) -> None:
    """Each bookmark says within which time the next one comes, and it does: that is how a reader
    notices a server that hangs. It begins with one even if nothing happened. [C8]
    """
    rig.bookmark()
    stream = rig.open("Workload", since=0, bookmarks=True, bookmark_ms=COMPONENT_BOOKMARK_MS)
    others = [rig.open("Workload", since=0, bookmarks=True) for _ in range(50)]
    heard_ms, within_ms = rig.now_ms, 0
    for _ in range(40):
        for kind, obj in rig.events(stream):
            assert kind == "BOOKMARK"
            assert not within_ms or rig.now_ms - heard_ms <= within_ms
            heard_ms, within_ms = rig.now_ms, obj["within"]
        rig.bookmark()
    assert within_ms < 2 * COMPONENT_BOOKMARK_MS
    assert rig.now_ms - heard_ms <= within_ms
    received = [obj for it in others for _, obj in rig.events(it)]
    assert received
    assert not any("within" in obj for obj in received), "they did not ask"


def test_a_bounded_number_of_streams_gets_frequent_bookmarks_and_agents_leave_room(
    rig: HubRig,
) -> None:
    """The others learn that theirs come less often. So the cost is bounded, whatever clients ask
    for, and a crowd of nodes does not make controllers blind.
    """
    kinds = {"fields": "metadata.name=n", "bookmarks": True, "since": 0}
    agents = FREQUENT_STREAMS_MAX[AGENT_BOOKMARK_MS]
    crowd = [rig.open("Node", bookmark_ms=AGENT_BOOKMARK_MS, **kinds) for _ in range(agents + 50)]
    last = rig.open("Node", bookmark_ms=1, **kinds)
    promised = [obj["within"] for it in (crowd[0], crowd[-1], last) for _, obj in rig.events(it)]
    frequent_ms, usual_ms, component_ms = promised
    assert component_ms < frequent_ms < 2 * AGENT_BOOKMARK_MS
    assert usual_ms == BOOKMARK_EVERY_MS + BOOKMARK_SPREAD_MS
    rig.events(crowd[1])
    until_ms, sent = rig.now_ms + BOOKMARK_EVERY_MS, 0
    rig.pushed.clear()
    while rig.now_ms < until_ms:
        rig.bookmark()
        turn = sum(map(len, rig.pushed.values()))
        assert turn <= agents / (AGENT_BOOKMARK_MS / 4 / BOOKMARK_PAUSE_MS) + 2 * 50
        sent += turn
        rig.pushed.clear()
    assert sent <= agents * (BOOKMARK_EVERY_MS / AGENT_BOOKMARK_MS + 1) + 200
    # One that leaves makes room for the next.
    rig.leave(crowd[0])
    ((_, obj),) = rig.events(rig.open("Node", bookmark_ms=AGENT_BOOKMARK_MS, **kinds))
    assert obj["within"] == frequent_ms


def test_a_watcher_that_left_costs_nothing_any_more(rig: HubRig) -> None:
    """Neither a queue nor an encoding."""
    stream = rig.open("Workload", "acme", since=0)
    rig.leave(stream)
    rig.put(workload("a"))
    rig.deliver()
    assert rig.names(stream) == []
    assert rig.presentation.made == 0
    assert rig.hub.watchers == 0


def test_a_change_is_decoded_once_however_many_select_by_its_fields(rig: HubRig) -> None:
    """Its previous state was decoded when that was the current one."""
    streams = [rig.open("Workload", fields=f"spec.replicas!={n}") for n in range(20)]
    for count in (30, 31, 32):
        rig.put(workload("a", count=count))
        rig.deliver()
        rig.tick()
    assert [kind for kind, _ in rig.names(streams[0])] == ["ADDED", "MODIFIED", "MODIFIED"]
    assert rig.hub.decodings.made == 3


def test_a_watch_by_fields_and_a_list_by_them_find_the_same(rig: HubRig) -> None:
    """Also of an object that a newer version has written, of which this one knows the fields that
    are asked for: a watch must not say that it is gone. [C8]
    """
    rig.put(workload("a", count=3))
    rig.deliver()
    live = rig.open("Workload", fields="spec.replicas=3")
    later = encode(workload("a", count=3)).replace(b'"spec":{', b'"spec":{"type":"Later",')
    rig.store.txn(Transaction((), (Put(keys.key_of(workload("a")), later),)))
    rig.deliver()
    rig.tick()
    fields = parse_field_selector("spec.replicas=3", WORKLOAD.struct)
    assert [it.name for it in rig.hub.select(ObjectSelection(WORKLOAD, fields=fields))] == ["a"]
    assert [kind for kind, _ in rig.names(live)] == ["ADDED", "MODIFIED"]


def test_what_is_sent_in_many_steps_is_sent_once_and_in_order(
    rig: HubRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher opened in between gets the rest, and no bookmark precedes an event. [INV10, C8]"""
    monkeypatch.setattr(watch_hub, "SENDS_AT_ONCE_MAX", 2)
    streams = [rig.open("Workload", bookmarks=True) for _ in range(5)]
    for stream in streams:
        rig.names(stream)
    first = rig.put(workload("a"), workload("b"))
    rig.put(workload("c"))
    assert rig.watch is not None
    rig.feed(Changed(rig.watch.watch, rig.store.changes("", after=rig.delivered)))
    late, resumed = rig.open("Workload", bookmarks=True), rig.open("Workload", since=0)
    rig.bookmark()
    received = {stream: rig.received(stream) for stream in streams}
    rig.continue_sending()
    rig.tick()
    for stream in streams:
        known = [*received[stream], *rig.received(stream)]
        events = [(kind, name) for kind, name, _ in known if kind != "BOOKMARK"]
        assert events == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]
        early = [version for kind, _, version in received[stream] if kind == "BOOKMARK"]
        assert all(int(version) < int(complete_version(first)) for version in early)
    for stream in (late, resumed):
        assert [name for kind, name in rig.names(stream) if kind == "ADDED"] == ["a", "b", "c"]
