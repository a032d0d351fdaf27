"""A hub that starts reads the recent history from the store, so that watchers can resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.model.errors import Expired, Unavailable
from holdfast.model.machine import Asked, Changed, Range, Started, Unwatch, Watch, Woken
from holdfast.model.read_requests import Reach
from holdfast.model.registry import kind_named
from holdfast.model.time import Instant
from holdfast.observe import watch_hub as hub_module
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watch_hub import WatchHub
from tests.unit.observe.hub_rig import HubRig
from tests.unit.observe.test_resumption import crowded
from tests.unit.observe.test_watch_hub import workload

WORKLOAD = kind_named("Workload")


@pytest.fixture
def rig() -> HubRig:
    return HubRig().start()


def before_each_read(rig: HubRig, act: Callable[[Range], Any]) -> None:
    """Let something happen just before the store answers each read of the hub."""
    answer = rig.answer_range

    def act_first(effect: Range) -> Any:
        instead = act(effect)
        return instead if instead is not None else answer(effect)

    rig.answer_range = act_first  # type: ignore[method-assign]


@pytest.mark.parametrize("labels", ["", "app=web"])
def test_a_restarted_hub_sends_the_same_from_every_version(rig: HubRig, labels: str) -> None:
    """With the object before each change: what left a selection, and the last state of what was
    deleted. [INV10, C8]"""
    before = crowded(rig)
    rig.put(workload("a", count=4, app="web"))
    rig.put(workload("a", count=5))
    rig.deliver()
    since = rig.events(rig.resume("Workload", before, labels=labels))
    versions = [before, *(obj["metadata"]["resourceVersion"] for _, obj in since)]
    whole = [rig.events(rig.resume("Workload", it, labels=labels)) for it in versions]
    rig.start()
    again = [rig.events(rig.resume("Workload", it, labels=labels)) for it in versions]
    assert again == whole
    assert rig.hub.outlived == 0


def test_what_is_further_back_than_the_recent_history_is_listed_again(rig: HubRig) -> None:
    """The window is bounded after a restart as before. [INV10]"""
    for count in range(1, 11):
        rig.put(workload("a", count=count))
    rig.start(recent=4)
    assert len(rig.events(rig.open("Workload", since=6))) == 4
    assert isinstance(rig.ended[rig.open("Workload", since=5)], Expired)


@pytest.mark.parametrize("compacted", range(1, 11))
def test_the_oldest_revision_that_the_store_still_has_is_found(rig: HubRig, compacted: int) -> None:
    """Wherever it is, with a few requests. [INV10]"""
    for count in range(1, 11):
        rig.put(workload("a", count=count))
    rig.store.compact(compacted)
    asked: list[Range] = []
    before_each_read(rig, asked.append)
    rig.start()
    assert len(rig.events(rig.open("Workload", since=compacted))) == 10 - compacted
    assert len(asked) <= 8
    if compacted > 1:
        assert isinstance(rig.ended[rig.open("Workload", since=compacted - 1)], Expired)


def test_history_that_is_compacted_under_the_list_is_given_up(rig: HubRig) -> None:
    """The present is listed instead, and nothing is missing or sent twice. [INV10]"""
    rig.put(*(workload(f"w{number}") for number in range(hub_module.LOAD_PAGE + 1)))
    for count in range(1, 6):
        rig.put(workload("w0", count=count))

    def compact(effect: Range) -> None:
        if effect.limit == hub_module.LOAD_PAGE and effect.at == 1:
            rig.store.compact(4)

    before_each_read(rig, compact)
    rig.start()
    assert rig.hub.revision == rig.store.revision
    assert rig.hub.count(WORKLOAD) == hub_module.LOAD_PAGE + 1
    assert isinstance(rig.ended[rig.open("Workload", since=4)], Expired)
    assert rig.names(rig.open("Workload", since=rig.hub.revision)) == []


def test_history_that_is_compacted_before_it_is_followed_is_given_up(rig: HubRig) -> None:
    """[INV10]"""
    for count in range(1, 6):
        rig.put(workload("a", count=count))
    rig.hub = WatchHub(rig.presentation)
    rig.feed(Started({}))
    assert not rig.hub.is_ready
    rig.store.compact(5)
    rig.deliver()
    assert rig.hub.is_ready
    assert rig.hub.revision == 5
    assert isinstance(rig.ended[rig.open("Workload", since=4)], Expired)


def test_a_hub_is_not_ready_before_it_has_reached_the_present(rig: HubRig) -> None:
    """No reader sees the state of a while ago. [INV10]"""
    for count in range(1, 6):
        rig.put(workload("a", count=count))
    rig.hub = WatchHub(rig.presentation)
    rig.feed(Asked(7, "reader", Reach(0)))
    rig.feed(Started({}))
    first = rig.store.changes("", after=1, upto=3)
    assert rig.watch is not None
    rig.feed(Changed(rig.watch.watch, first))
    assert not rig.hub.is_ready
    assert rig.answers == {}
    assert isinstance(rig.ended[rig.open("Workload")], Unavailable)
    rig.deliver()
    assert rig.answers == {7: 5}
    (entry,) = rig.hub.select(ObjectSelection(WORKLOAD))
    assert entry.revision == 5


def test_a_store_out_of_reach_is_asked_again(rig: HubRig) -> None:
    """From the beginning: the present may have changed by then. [C8]"""
    rig.put(workload("a"))
    failing = [True, False, True, False, False, True]

    def fail(effect: Range) -> Unavailable | None:
        return Unavailable("away") if failing and failing.pop(0) else None

    before_each_read(rig, fail)
    rig.start()
    for count in range(2, 5):
        rig.put(workload("a", count=count))
        rig.feed(Woken("load"))
    rig.deliver()
    assert rig.hub.is_ready
    assert rig.hub.revision == rig.store.revision
    assert len(rig.events(rig.open("Workload", since=1))) == 3


def test_more_changes_than_a_list_would_take_are_not_read(
    rig: HubRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start is delayed by a bounded number of changes. [INV10]"""
    monkeypatch.setattr(hub_module, "RECENT_CHANGES_MAX", 20)
    for count in range(1, 6):
        rig.put(*(workload(f"w{number}", count=count) for number in range(10)))
    rig.hub = WatchHub(rig.presentation)
    rig.feed(Started({}))
    assert rig.watch is not None
    number = rig.watch.watch
    batch = rig.store.changes("", after=1, upto=4)
    effects = rig.hub.step(Changed(number, batch), Instant(0, 0))
    assert effects[0] == Unwatch(number)
    assert isinstance(effects[1], Range)
    assert effects[1].at is None
    rig.feed(Changed(number, rig.store.changes("", after=4)))
    assert not rig.hub.is_ready


def test_a_hub_that_loses_its_place_later_never_becomes_older(rig: HubRig) -> None:
    """Permissions are read from it also while it lists again. [INV10]"""
    for count in range(1, 6):
        rig.put(workload("a", count=count))
    rig.deliver()
    asked: list[Range] = []
    before_each_read(rig, asked.append)
    rig.lose(Expired("compacted"))
    assert [effect.at for effect in asked] == [None]
    assert rig.hub.revision == 5
    assert isinstance(rig.watch, Watch)
