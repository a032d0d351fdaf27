"""A controller that reads another plane and writes there, beside controllers that do not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.correct.controller import Controller
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.machine import Answered, Ask, Ended, Leave, Open, Pushed
from holdfast.model.meta import ObjectMeta
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.requests import Create
from holdfast.observe.watch_events import Departed, Present, Reached
from tests.plane import Plane
from tests.unit.correct.controller_rig import ADMIN, Rig, is_lease
from tests.unit.correct.copies import GLOBE, THERE, Copies, OnlyHere


class TwoPlanes(Rig):
    """A runner in one plane, and another plane, which refuses what it is not asked at its address.

    In the other plane everything is asked under another identity.
    """

    def __init__(self) -> None:
        self.globe = Plane()
        # Streams there, and the last revision that they delivered.
        self.there: dict[int, int] = {}
        self.asked: list[Ask] = []
        self.is_cut = False
        # Whether the answer to the next write there is lost.
        self.loses = False
        super().__init__([Copies(), OnlyHere()])

    def start(self, controllers: Iterable[Controller] | None = None) -> None:
        self.there = {}
        super().start(controllers)

    def perform(self, effect: Any) -> None:
        match effect:
            case Open(stream=stream, to=to, body=follow) if to == THERE:
                assert stream not in self.streams
                assert stream not in self.there
                if self.is_cut:
                    self.inbox.append(Ended(stream, Unavailable("cut")))
                    return
                self.there[stream] = 0 if follow.since is None else follow.since
                self.tell_there(ends_list=follow.since is None)
            case Leave(stream=stream) if stream in self.there:
                del self.there[stream]
            case Ask(to=to) if to == THERE:
                self.ask_there(effect)
            case _:
                super().perform(effect)

    def tell_there(self, *, ends_list: bool = False) -> None:
        """What has changed in the other plane, down its streams."""
        if self.is_cut:
            return
        for stream, after in list(self.there.items()):
            batch = self.globe.store.changes("objects/tenants/", after=after)
            self.there[stream] = batch.revision
            events = [self._event(it.key, it.revision, it.value) for it in batch.changes]
            reached = Reached(batch.revision, ends_list=ends_list)
            self.inbox.append(Pushed(stream, (*events, reached)))

    def _event(self, key: str, revision: int, value: bytes | None) -> Any:
        tenant = Tenant(ObjectMeta(name=key.rpartition("/")[2], resource_version=f"{revision * 2}"))
        return Present(tenant, revision) if value is not None else Departed(tenant, revision)

    def ask_there(self, ask: Ask) -> None:
        self.asked.append(ask)
        assert not is_lease(ask.body)
        if self.is_cut:
            self.inbox.append(Answered(ask.call, Unavailable("cut")))
            return
        if isinstance(ask.body, Get):
            found = self.globe.store.get(f"objects/tenants/{ask.body.name}")
            tenant = self._event(found.key, found.modified, b"").object if found else None
            answer: Any = GetResult(tenant, self.globe.store.revision)
        else:
            answer = self.globe.ask(ADMIN, ask.body)
            if self.loses:
                answer, self.loses = OutcomeUnknown("lost"), False
        self.inbox.append(Answered(ask.call, answer))
        self.tell_there()

    def creates(self) -> list[str]:
        return [it.body.object.name for it in self.asked if isinstance(it.body, Create)]


@pytest.fixture
def rig() -> TwoPlanes:
    made = TwoPlanes()
    made.plane.tenant("acme")
    return made


def test_a_request_goes_to_its_plane_without_the_term_of_the_own_one(rig: TwoPlanes) -> None:
    """Its sender is the identity of the controller, which the shell maps to one of that plane."""
    rig.run()
    (ask,) = rig.asked
    assert (ask.to, ask.sender) == (THERE, "system:controller:workload")
    assert (ask.body.object.name, ask.body.term) == ("acme", None)
    assert ask.body.operation
    assert rig.globe.read("objects/tenants/acme") is not None
    rig.run(300_000)
    assert rig.creates() == ["acme"]
    assert rig.writes() == []


def test_changes_say_of_which_plane_they_are(rig: TwoPlanes) -> None:
    """And a controller that does not follow that plane sees none of them."""
    rig.run()
    rig.globe.tenant("globex")
    rig.tell_there()
    rig.run()
    copies, only_here = rig.controllers
    assert isinstance(copies, Copies)
    assert isinstance(only_here, OnlyHere)
    assert (GLOBE, "globex") in {(it.plane, it.object.name) for it in copies.changes}
    assert {it.plane for it in only_here.changes} <= {""}


def test_a_plane_that_is_cut_off_stops_nothing_but_the_requests_to_it(rig: TwoPlanes) -> None:
    """The leases stay, and what waits is sent once the plane was listed."""
    rig.is_cut = True
    rig.run(60_000)
    assert rig.asked == []
    assert len(rig.runner.terms()) == 2
    rig.is_cut = False
    rig.run(30_000)
    assert rig.creates() == ["acme"]
    rig.is_cut = True
    rig.run(60_000)
    rig.plane.tenant("globex")
    rig.run(60_000)
    assert rig.creates() == ["acme"], "decided on what is too old"
    rig.is_cut = False
    rig.run(60_000)
    assert rig.creates() == ["acme", "globex"]


def test_a_lost_answer_is_settled_by_reading_in_the_same_plane(rig: TwoPlanes) -> None:
    rig.loses = True
    rig.run(30_000)
    create, read = rig.asked
    assert isinstance(read.body, Get)
    assert (create.to, read.to) == (THERE, THERE)
    assert rig.creates() == ["acme"]
