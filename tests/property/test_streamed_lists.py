"""Watches that begin with a list, in slices: the list is of one moment, and what follows is whole.

Objects change while the list is looked at and told, piece by piece as its reader takes them, while
changes are sent to others in many steps.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.machine import Taken, Woken
from holdfast.observe import entry_table, watch_hub, watchers
from tests.property.test_watch_resumption import Truth, Wishes, commit, wishes
from tests.scale import examples
from tests.unit.observe.hub_rig import HubRig

# By labels, which are at hand, and by nothing.
TEAMS = ("", "red")
steps = st.one_of(
    st.tuples(st.just("commit"), wishes),
    st.tuples(st.just("open"), st.sampled_from(TEAMS)),
    st.tuples(st.just("take"), st.integers(0, 3)),
    st.tuples(st.just("take"), st.integers(0, 3)),
    st.tuples(st.just("send"), st.none()),
    st.tuples(st.just("tick"), st.none()),
    st.tuples(st.just("bookmark"), st.none()),
)


class Reader:
    """Follows one stream, and knows what there was when it was opened."""

    def __init__(self, rig: HubRig, truth: Truth) -> None:
        self.rig, self.truth, self.opened_at = rig, truth, rig.hub.revision
        self.wanted = truth.selected()
        labels = f"team={truth.team}" if truth.team else ""
        self.stream = rig.open("Tenant", labels=labels, bookmarks=True, marks_list_end=True)
        self.received: list[tuple[str, str, str]] = []

    def take(self) -> None:
        """Take the piece that was pushed, if there is one."""
        if self.stream in self.rig.pushed:
            self.received += self.rig.received(self.stream)
            self.rig.feed(Taken(self.stream))

    def check(self) -> None:
        """The list, its end, and then each later change that concerns it, once and in order."""
        end = next(n for n, (kind, _, _) in enumerate(self.received) if kind == "BOOKMARK")
        listed, rest = self.received[:end], self.received[end:]
        assert [kind for kind, _, _ in listed] == ["ADDED"] * len(self.wanted)
        assert {name for _, name, _ in listed} == self.wanted
        versions = [int(version) for _, _, version in self.received]
        assert versions == sorted(versions)
        assert int(rest[0][2]) // 2 == self.opened_at
        events = [(int(at) // 2, kind, name) for kind, name, at in rest if kind != "BOOKMARK"]
        assert events == [
            (revision, kind, name)
            for revision, received in self.truth.events.items()
            for kind, name in received
            if revision > self.opened_at
        ]


def go_on(rig: HubRig, what: str) -> None:
    """Let the hub have a step that it waits for."""
    if what == "send" and rig.wakes.pop("send", None) is not None:
        rig.feed(Woken("send"))
    elif what == "tick" and "tick" in rig.wakes:
        rig.tick()
    elif what == "bookmark":
        rig.bookmark()


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(steps, min_size=4, max_size=40), st.lists(wishes, max_size=3))
def test_a_watch_that_begins_with_a_list_sends_one_revision_and_all_that_follows(
    story: list[tuple[str, Any]], before: list[Wishes]
) -> None:
    """[INV10, C8]"""
    truths = {team: Truth(team) for team in TEAMS}
    rig, readers = HubRig(), list[Reader]()
    for wanted in before:
        commit(rig, list(truths.values()), wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_hub, "SENDS_AT_ONCE_MAX", 1)
        patch.setattr(watchers, "LOOKED_AT_ONCE", 1)
        patch.setattr(entry_table, "CHUNK_MAX", 2)
        rig.start()
        rig.takes = False
        for what, detail in (("open", ""), *story):
            match what:
                case "commit":
                    commit(rig, list(truths.values()), detail)
                    rig.deliver_only()
                case "open":
                    readers.append(Reader(rig, truths[detail]))
                case "take" if detail < len(readers):
                    readers[detail].take()
                case _:
                    go_on(rig, what)
        for _ in range(40):
            rig.continue_sending()
            if "tick" in rig.wakes:
                rig.tick()
            for reader in readers:
                reader.take()
        for reader in readers:
            reader.check()
