"""A stock client resumes a watch from the version of the last event that it saw.

Group commit puts many objects into one revision, and the stream may break between any two lines.
"""

from __future__ import annotations

import pytest

from holdfast.model.encoding.resource_versions import complete_version, object_version
from holdfast.model.errors import Expired, Unavailable
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.observe import watchers
from tests.unit.observe.hub_rig import HubRig
from tests.unit.observe.test_watch_hub import replica, workload


@pytest.fixture
def rig() -> HubRig:
    return HubRig().start()


def crowded(rig: HubRig) -> str:
    """A few revisions with several changes each; the version of the list before them."""
    rig.put(workload("a"), workload("b"), workload("gone"))
    rig.deliver()
    before = complete_version(rig.hub.revision)
    rig.put(workload("c"), workload("a", count=2), workload("x", "other"), replica("r"))
    rig.put(workload("single"))
    rig.put(workload("d"), workload("e"))
    rig.change(workload("f"), workload("a", count=3), gone=(workload("gone"),))
    rig.put(workload("x", "other", count=3))
    rig.deliver()
    return before


def test_a_stream_broken_after_any_line_misses_nothing_and_repeats_its_own_revision_only(
    rig: HubRig,
) -> None:
    """A revision of which the watch selects one change is not repeated at all. [INV10, C8]"""
    before = crowded(rig)
    whole = rig.received(rig.resume("Workload", before, namespace="acme"))
    assert [kind for kind, _, _ in whole] == [
        *("ADDED", "MODIFIED"),
        "ADDED",
        *("ADDED", "ADDED"),
        *("ADDED", "MODIFIED", "DELETED"),
    ]
    for seen in range(1, len(whole) + 1):
        version = whole[seen - 1][2]
        of_it = [line for line in whole if line[2] == version]
        first = whole.index(of_it[0])
        again = first if len(of_it) > 1 else first + 1
        resumed = rig.received(rig.resume("Workload", version, namespace="acme"))
        assert resumed == whole[again:], f"broken after line {seen}"


def test_a_list_and_a_bookmark_repeat_nothing(rig: HubRig) -> None:
    """They are about whole revisions. [INV10]"""
    before = crowded(rig)
    whole = rig.received(rig.resume("Workload", before))
    versions = sorted({int(version) for _, _, version in whole})
    for version in versions:
        resumed = rig.received(rig.resume("Workload", str(version + 1)))
        assert resumed == [line for line in whole if int(line[2]) > version]


def test_what_is_repeated_is_counted_by_what_the_watch_selects(rig: HubRig) -> None:
    """Nine other changes in the same revision do not concern the watcher of one. [INV10]"""
    for node in ("n1", "n2"):
        rig.put(*(replica(f"{node}-{i}", node) for i in range(5)))
    last = rig.put(replica("n1-0", "n2"), replica("n2-0", "n1"), replica("n2-1", "n3"))
    rig.deliver()
    version = object_version(last)

    def received(fields: str) -> list[tuple[str, str, str]]:
        return rig.received(rig.resume("Replica", version, fields=fields))

    assert received("metadata.name=n1-0") == []
    assert received("status.binding.node=n3") == []
    assert received("status.binding.node=n1") == [
        ("DELETED", "n1-0", version),
        ("ADDED", "n2-0", version),
    ]
    assert [name for _, name, _ in received("")] == ["n1-0", "n2-0", "n2-1"]


def test_a_version_whose_revision_has_left_the_window_is_too_old(rig: HubRig) -> None:
    """Half of a revision may have been dropped, and then its changes are not known. [INV10]"""
    rig.start(events_max=4)
    one = rig.put(workload("a"), workload("b"), workload("c"))
    two = rig.put(workload("d"), workload("e"))
    rig.deliver()
    assert isinstance(rig.ended[rig.resume("Workload", object_version(one))], Expired)
    assert [n for _, n, _ in rig.received(rig.resume("Workload", complete_version(one)))] == [
        "d",
        "e",
    ]
    assert [n for _, n, _ in rig.received(rig.resume("Workload", object_version(two)))] == [
        "d",
        "e",
    ]
    # What was never in the window is not known to have been one change either.
    rig.lose(Expired("compacted"))
    assert isinstance(rig.ended[rig.resume("Workload", object_version(two))], Expired)
    assert rig.received(rig.resume("Workload", complete_version(two))) == []


def test_an_event_of_a_revision_that_has_not_arrived_here_has_to_wait(rig: HubRig) -> None:
    """Its reader saw it at a faster server; whether there was more is not known here. [INV10]"""
    ahead = rig.put(workload("a"), workload("b"))
    assert isinstance(rig.ended[rig.resume("Workload", object_version(ahead))], Unavailable)
    rig.deliver()
    assert len(rig.received(rig.resume("Workload", object_version(ahead)))) == 2


def test_an_initial_list_that_breaks_resumes_from_its_last_object(
    rig: HubRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are sent in the order of their revisions, so what is missing is newer. [INV10, C8]"""
    monkeypatch.setattr(watchers, "PIECE_BYTES", 1)
    rig.put(workload("z"), workload("y"))
    rig.put(workload("b"), workload("a"))
    rig.put(workload("z", count=2))
    rig.put(workload("m"), workload("n"))
    rig.deliver()
    whole = rig.received(rig.open("Workload"))
    assert [name for _, name, _ in whole] == ["y", "a", "b", "z", "m", "n"]
    for seen in range(1, len(whole) + 1):
        received = whole[:seen] + rig.received(rig.resume("Workload", whole[seen - 1][2]))
        assert {name for _, name, _ in received} == {name for _, name, _ in whole}
        latest = {name: version for _, name, version in received}
        assert latest == {name: version for _, name, version in whole}


def test_a_bookmark_never_leads_a_reader_back(rig: HubRig) -> None:
    """One that listed at a faster server would receive again what it has seen. [INV10]"""
    rig.put(workload("a"))
    rig.deliver()
    ahead = rig.put(workload("b"))
    stream = rig.resume("Workload", complete_version(ahead), bookmarks=True)
    rig.bookmark()
    assert rig.received(stream) == []
    rig.deliver()
    rig.bookmark()
    assert rig.received(stream) == [("BOOKMARK", "", complete_version(ahead))]


def test_bookmarks_are_about_everything_not_only_about_what_is_watched(rig: HubRig) -> None:
    """[C8]"""
    stream = rig.resume("Workload", complete_version(0), bookmarks=True)
    rig.put(Tenant(ObjectMeta(name="t", uid="u")), Tenant(ObjectMeta(name="s", uid="v")))
    rig.deliver()
    rig.bookmark()
    assert rig.received(stream) == [("BOOKMARK", "", complete_version(rig.hub.revision))]
