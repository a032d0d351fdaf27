"""A stock client over streams that break anywhere: it misses nothing, or has to list again.

The client knows nothing but versions: it lists, watches from the list's version, remembers the
version of the last line that it read, and resumes from there. What it should hear is computed from
the transactions alone.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.encoding.resource_versions import complete_version, object_version
from holdfast.model.errors import Expired
from holdfast.model.kinds.tenant import Tenant, TenantSpec
from holdfast.model.machine import Woken
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import kind_named
from holdfast.model.selection.selector_text import parse_label_selector
from holdfast.observe import watch_hub, watchers
from holdfast.observe.selection import ObjectSelection
from tests.scale import examples
from tests.unit.observe.hub_rig import HubRig

NAMES = ("a", "b", "c", "d")
TEAMS = ("red", "blue")

# What one transaction makes of some of the objects: the team of each, or None where it goes.
Wishes = dict[str, str | None]
wishes = st.dictionaries(st.sampled_from(NAMES), st.sampled_from((*TEAMS, None)), min_size=1)
steps = st.one_of(
    st.tuples(st.just("commit"), wishes),
    st.tuples(st.just("commit"), wishes),
    st.tuples(st.just("read"), st.integers(1, 3)),
    st.tuples(st.just("read and break"), st.integers(1, 3)),
    st.tuples(st.just("read and break"), st.integers(1, 3)),
    st.tuples(st.just("break"), st.none()),
    st.tuples(st.just("bookmark"), st.none()),
    st.tuples(st.just("lose"), st.none()),
)


class Truth:
    """What happened, as far as a selection is concerned, by revision."""

    def __init__(self, team: str) -> None:
        self.team = team
        self.teams: dict[str, str] = {}
        self.events: dict[int, list[tuple[str, str]]] = {}

    def commit(self, revision: int, wanted: Wishes) -> None:
        received = []
        for name, team in wanted.items():
            was, now = self.selects(self.teams.get(name)), self.selects(team)
            if now:
                received.append(("MODIFIED" if was else "ADDED", name))
            elif was:
                received.append(("DELETED", name))
            if team is None:
                self.teams.pop(name, None)
            else:
                self.teams[name] = team
        self.events[revision] = received

    def selects(self, team: str | None) -> bool:
        return team is not None and self.team in ("", team)

    def selected(self) -> set[str]:
        return {name for name, team in self.teams.items() if self.selects(team)}


class StockClient:
    """Lists and watches as any client of Kubernetes does."""

    def __init__(self, rig: HubRig, truth: Truth) -> None:
        self.rig, self.truth = rig, truth
        self.labels = f"team={truth.team}" if truth.team else ""
        self.unread: list[tuple[str, str, str]] = []
        self.list()

    def list(self) -> None:
        labels = parse_label_selector(self.labels)
        found = self.rig.hub.select(ObjectSelection(kind_named("Tenant"), labels=labels))
        self.known = {entry.name for entry in found}
        # Since the list: the revision of each event, and what it was.
        self.events: list[tuple[int, str, str]] = []
        self.version = complete_version(self.rig.hub.revision)
        self.listed_at = self.rig.hub.revision
        self.repeats: dict[int, int] = {}
        self.open()

    def open(self) -> None:
        self.unread.clear()
        self.stream = self.rig.resume("Tenant", self.version, labels=self.labels, bookmarks=True)

    @property
    def has_seen(self) -> int:
        """All up to this revision, whatever it has seen of the next."""
        return (int(self.version) - 1) // 2

    def play(self, what: str, count: Any) -> None:
        """One step of its own."""
        if what == "bookmark":
            self.rig.bookmark()
        if what in ("read", "read and break"):
            self.read(count)
        if what in ("break", "read and break"):
            self.resume()

    def resume(self) -> None:
        """Go on from the last version; what was on its way and not read is lost."""
        self.rig.leave(self.stream)
        if int(self.version) % 2 == 0:
            revision = int(self.version) // 2
            self.repeats[revision] = self.repeats.get(revision, 0) + 1
        self.open()

    def read(self, count: int) -> None:
        """Read this many lines. List again on that error, resume when the stream has ended."""
        self.unread += self.rig.received(self.stream)
        for kind, name, version in self.unread[:count]:
            assert int(version) >= int(self.version), "a watch never goes back"
            self.version = version
            if kind == "BOOKMARK":
                continue
            self.events.append((int(version) // 2, kind, name))
            if kind == "DELETED":
                self.known.discard(name)
            else:
                self.known.add(name)
        del self.unread[:count]
        if not self.unread and isinstance(self.rig.ended.get(self.stream), Expired):
            # Of the last revision that it heard of it may have heard a part only.
            self.check(int(self.version) // 2 - 1)
            self.list()

    def check(self, seen: int) -> None:
        """All was sent in order up to a revision, and nothing twice but what the breaks explain."""
        for revision, events in self.truth.events.items():
            received = [(kind, name) for at, kind, name in self.events if at == revision]
            again = self.repeats.get(revision, 0) if len(events) > 1 else 0
            assert len(received) <= len(events) * (again + 1)
            if self.listed_at < revision <= seen:
                assert received[len(received) - len(events) :] == events
        revisions = [at for at, _, _ in self.events]
        assert revisions == sorted(revisions)


def tenant(name: str, team: str, revision: int) -> Tenant:
    metadata = ObjectMeta(name=name, uid=f"uid-{name}", labels={"team": team})
    return Tenant(metadata, spec=TenantSpec(display_name=f"at {revision}"))


def commit(rig: HubRig, truths: Truth | list[Truth], wanted: Wishes) -> None:
    """One transaction; the deletion of what is not there is no change."""
    received = truths if isinstance(truths, list) else [truths]
    teams = received[0].teams
    wanted = {n: team for n, team in wanted.items() if team is not None or n in teams}
    if not wanted:
        return
    revision = rig.store.revision + 1
    # The store tells of the changes of a transaction in the order of its writes.
    puts = {name: team for name, team in wanted.items() if team is not None}
    gone = {name: None for name in wanted if name not in puts}
    assert revision == rig.change(
        *(tenant(name, team, revision) for name, team in puts.items()),
        gone=tuple(tenant(name, "", revision) for name in gone),
    )
    for truth in received:
        truth.commit(revision, {**puts, **gone})


@settings(max_examples=examples(600), deadline=None)
@given(
    st.sampled_from(("", "red")),
    st.lists(steps, min_size=4, max_size=40),
    st.sampled_from((2, 3, 4, 5, 1_000)),
    st.lists(wishes, max_size=3),
)
def test_a_watch_that_breaks_anywhere_sends_everything_in_order_or_answers_410(
    team: str, steps: list[tuple[str, Any]], window: int, before: list[Wishes]
) -> None:
    """Whatever is repeated belongs to the revision within which the stream broke. [INV10, C8]"""
    rig, truth = HubRig(), Truth(team)
    for wanted in before:
        commit(rig, truth, wanted)
    rig.start(events_max=window)
    client = StockClient(rig, truth)
    for what, detail in steps:
        match what:
            case "commit":
                commit(rig, truth, detail)
                rig.deliver()
                if "tick" in rig.wakes:
                    rig.tick()
            case "lose":
                rig.lose(Expired("compacted"))
            case _:
                client.play(what, detail)
    for _ in range(10):
        if "tick" in rig.wakes:
            rig.tick()
        client.read(1_000)
    client.check(rig.hub.revision)
    assert client.known == truth.selected()


def test_the_client_of_this_test_sees_a_hole_when_there_is_one() -> None:
    """Resumed as if its last event had been all of its revision, it misses the second object.

    [INV10]
    """
    rig, truth = HubRig().start(), Truth("")
    client = StockClient(rig, truth)
    commit(rig, truth, {"a": "red", "b": "red"})
    rig.deliver()
    client.read(1)
    assert client.version == object_version(rig.hub.revision)
    client.version = complete_version(rig.hub.revision)
    client.resume()
    client.read(1_000)
    assert client.known == {"a"}


lives = st.one_of(
    steps,
    st.tuples(st.just("restart"), st.integers(1, 12)),
    st.tuples(st.just("restart"), st.integers(1, 12)),
    st.tuples(st.just("compact"), st.integers(0, 12)),
)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.sampled_from(("", "red")),
    st.lists(lives, min_size=4, max_size=40),
    st.lists(wishes, max_size=3),
)
def test_a_watch_goes_on_over_restarts_of_its_server(
    team: str, steps: list[tuple[str, Any]], before: list[Wishes]
) -> None:
    """Wherever the server is restarted and history is compacted: all is sent, and a client is sent
    back to a list only if the store has forgotten what it missed, or it is not recent. [INV10, C8]
    """
    rig, truth = HubRig(), Truth(team)
    for wanted in before:
        commit(rig, truth, wanted)
    rig.start()
    client = StockClient(rig, truth)
    for what, detail in steps:
        match what:
            case "commit":
                commit(rig, truth, detail)
                # A server that was just restarted is sent as much later as any other.
                if len(detail) != 1:
                    rig.deliver()
            case "compact":
                rig.store.compact(max(rig.store.compacted, rig.store.revision - detail))
            case "restart":
                rig.start(recent=detail)
                client.resume()
                kept = max(1, rig.store.compacted, rig.store.revision - detail)
                if client.has_seen >= kept:
                    assert not isinstance(rig.ended.get(client.stream), Expired)
            case "lose":
                rig.lose(Expired("compacted"))
            case _:
                client.play(what, detail)
        if "tick" in rig.wakes:
            rig.tick()
    for _ in range(10):
        rig.deliver()
        if "tick" in rig.wakes:
            rig.tick()
        client.read(1_000)
    client.check(rig.hub.revision)
    assert client.known == truth.selected()


sliced = st.one_of(
    st.tuples(st.just("commit"), wishes),
    st.tuples(st.just("commit"), wishes),
    st.tuples(st.just("send"), st.none()),
    st.tuples(st.just("send"), st.none()),
    st.tuples(st.just("tick"), st.none()),
    st.tuples(st.just("read"), st.integers(1, 3)),
    st.tuples(st.just("read and break"), st.integers(1, 3)),
    st.tuples(st.just("break"), st.none()),
    st.tuples(st.just("bookmark"), st.none()),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(sliced, st.integers(0, 2)), min_size=4, max_size=40),
    st.lists(wishes, max_size=3),
)
def test_watches_that_get_many_batches_never_go_back(
    steps: list[tuple[tuple[str, Any], int]], before: list[Wishes]
) -> None:
    """A client may come, read, break or get a bookmark between two steps. [INV10, C8]"""
    truths = [Truth(team) for team in ("", "red", "")]
    rig = HubRig()
    for wanted in before:
        commit(rig, truths, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_hub, "SENDS_AT_ONCE_MAX", 1)
        patch.setattr(watchers, "LOOKED_AT_ONCE", 2)
        rig.start()
        clients = [StockClient(rig, truth) for truth in truths]
        for (what, detail), who in steps:
            match what:
                case "commit":
                    commit(rig, truths, detail)
                    rig.deliver_only()
                case "send" if rig.wakes.pop("send", None) is not None:
                    rig.feed(Woken("send"))
                case "tick" if "tick" in rig.wakes:
                    rig.tick()
                case _:
                    clients[who].play(what, detail)
        rig.continue_sending()
        for _ in range(10):
            if "tick" in rig.wakes:
                rig.tick()
            for client in clients:
                client.read(1_000)
        for client in clients:
            client.check(rig.hub.revision)
            assert client.known == client.truth.selected()
