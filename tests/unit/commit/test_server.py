"""Which server decides: the holder of the lease, and any server when the holder is unreachable."""

from __future__ import annotations

import random
from typing import Any

from holdfast.commit.authority import QUEUE_MAX
from holdfast.commit.record_encoding import decode
from holdfast.commit.server import AuthorityServer
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.lease_takeover import LEASE_MS
from holdfast.model.machine import (
    Answer,
    Answered,
    Ask,
    Asked,
    Range,
    Started,
    Txn,
    Wake,
    Withdrawn,
    Woken,
)
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, AcquireLease, Create, Forward
from holdfast.model.time import Instant
from holdfast.store.memory import Keyspace
from tests.plane import ADMIN, START_WALL_MS, accepted, refused


class Servers:
    """Several servers over one store, driven by hand; time passes when the test says so."""

    def __init__(self, *names: str) -> None:
        self.store = Keyspace()
        self.now_ms = 0
        self.asks: list[Ask] = []
        self.alive: dict[str, AuthorityServer] = {}
        self.deaf: dict[str, Exception] = {}
        self._calls = 0
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        self.alive[name] = AuthorityServer(name, random.Random(name), self.store)
        self._feed(name, Started({}))

    def pass_time(self, ms: int) -> None:
        """Let every server tick as its lease wants."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + LEASE_MS // 3)
            for name in self.alive:
                self._feed(name, Woken("lease"))

    def ask(self, name: str, request: Any, identity: Identity = ADMIN) -> Any:
        self._calls += 1
        call = self._calls
        return self._feed(name, Asked(call, identity, request))[call]

    def tenant(self, via: str, name: str) -> Any:
        return self.ask(via, Create(Tenant(ObjectMeta(name=name))))

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, START_WALL_MS + self.now_ms)

    def holders(self) -> list[str]:
        return [name for name, server in self.alive.items() if server.term is not None]

    def _feed(self, name: str, stimulus: Any) -> dict[int, Any]:
        work, answers = [stimulus], {}
        while work:
            for effect in self.alive[name].step(work.pop(0), self.now):
                match effect:
                    case Answer(call=call, body=body):
                        answers[call] = body
                    case Txn():
                        outcome = self.store.txn(effect.transaction, token=effect.token)
                        work.append(Answered(effect.call, outcome))
                    case Range():
                        page = self.store.range(effect.start, effect.end, limit=effect.limit)
                        work.append(Answered(effect.call, page))
                    case Ask():
                        work.append(Answered(effect.call, self._forward(name, effect)))
                    case Wake():
                        pass
        return answers

    def _forward(self, sender: str, ask: Ask) -> Any:
        self.asks.append(ask)
        if ask.to in self.deaf:
            return self.deaf[ask.to]
        if ask.to not in self.alive:
            return Unavailable(f"{ask.to} is gone")
        return self.ask(ask.to, ask.body, who.server(sender))


def test_the_first_becomes_the_usual_one_and_the_others_forward_to_it() -> None:
    servers = Servers("a", "b", "c")
    assert servers.holders() == ["a"]
    accepted(servers.tenant("b", "acme"))
    assert [ask.to for ask in servers.asks] == ["a"]
    assert accepted(servers.tenant("a", "globex")) is not None
    assert len(servers.asks) == 1


def test_a_server_decides_by_itself_when_the_holder_cannot_be_reached() -> None:
    """Compares make that safe; the lease is only for speed. [K1, K2]"""
    servers = Servers("a", "b")
    del servers.alive["a"]
    accepted(servers.tenant("b", "acme"))
    assert isinstance(servers.tenant("b", "globex"), Accepted)


def test_a_forwarded_request_whose_answer_is_lost_is_not_decided_again() -> None:
    """It may have happened over there. [N1.1]"""
    servers = Servers("a", "b")
    servers.deaf["a"] = OutcomeUnknown("no answer")
    assert isinstance(servers.tenant("b", "acme"), OutcomeUnknown)
    assert servers.store.get("objects/tenants/acme") is None


def test_a_silent_holder_delays_only_the_first_requests() -> None:
    """The next requests are decided here, until it is time to try the holder again. [C7.5]"""
    servers = Servers("a", "b")
    servers.deaf["a"] = OutcomeUnknown("no answer")
    servers.tenant("b", "acme")
    accepted(servers.tenant("b", "acme"))
    accepted(servers.tenant("b", "globex"))
    assert len(servers.asks) == 1
    servers.pass_time(LEASE_MS // 3)
    del servers.deaf["a"]
    accepted(servers.tenant("b", "initech"))
    assert len(servers.asks) == 2


def test_another_takes_over_when_the_holder_stops_renewing() -> None:
    """It waits for the whole duration on its own clock, and the epoch grows. [K3]"""
    servers = Servers("a", "b")
    servers.pass_time(LEASE_MS * 3)
    assert servers.holders() == ["a"]
    del servers.alive["a"]
    servers.pass_time(LEASE_MS - 1)
    assert servers.holders() == []
    servers.pass_time(LEASE_MS)
    assert servers.holders() == ["b"]
    term = servers.alive["b"].term
    assert term is not None
    assert term.epoch == 2


def test_a_restarted_server_takes_its_own_lease_at_once() -> None:
    """Not itself either: that request would go in a circle. [K2]"""
    servers = Servers("a", "b")
    servers.start("a")
    assert servers.holders() == ["a"]
    accepted(servers.tenant("a", "acme"))
    assert servers.asks == []


def test_only_a_server_may_speak_for_others() -> None:
    servers = Servers("a")
    tenant = Create(Tenant(ObjectMeta(name="acme")))
    refused(servers.ask("a", Forward(ADMIN, tenant), who.agent("a")), Reason.NOT_ALLOWED)
    accepted(servers.ask("a", Forward(ADMIN, tenant, 1), who.server("b")))


def test_a_forwarded_request_is_decided_under_the_lease_alone() -> None:
    """The server that forwarded it to a paused holder has turned to the next one since: what the
    first one decides after that would be decided twice. [K2, K3, INV7]
    """
    servers = Servers("a", "b")
    late = Forward(ADMIN, Create(Tenant(ObjectMeta(name="acme"))), 1)
    paused = servers.alive.pop("a")
    servers.pass_time(LEASE_MS * 3)
    assert servers.holders() == ["b"]
    servers.alive["a"] = paused
    assert paused.term is not None
    assert isinstance(servers.ask("a", late, who.server("b")), Unavailable)
    # Neither does the one that leads now: it was not asked under its own lease.
    assert isinstance(servers.ask("b", late, who.server("a")), Unavailable)
    assert servers.store.get("objects/tenants/acme") is None


def test_a_forward_that_reaches_another_server_than_the_holder_is_not_decided_there() -> None:
    """The epoch is the current one, so that the commit alone would let it pass. [K2, K3, INV7]"""
    servers = Servers("a", "b")
    assert servers.holders() == ["a"]
    meant_for_a = Forward(ADMIN, Create(Tenant(ObjectMeta(name="acme"))), 1)
    assert isinstance(servers.ask("b", meant_for_a, who.server("c")), Unavailable)
    assert servers.store.get("objects/tenants/acme") is None
    accepted(servers.ask("a", meant_for_a, who.server("c")))


def test_what_was_withdrawn_is_not_decided_here_when_it_comes_back_from_the_holder() -> None:
    """[N1.1]"""
    servers = Servers("a", "b")
    b = servers.alive["b"]
    (ask,) = b.step(Asked(1, ADMIN, Create(Tenant(ObjectMeta(name="acme")))), servers.now)
    b.step(Withdrawn((1,)), servers.now)
    assert b.step(Answered(ask.call, Unavailable("not here")), servers.now) == []


def test_a_forwarded_request_is_forwarded_once() -> None:
    """Two servers that each take the other for the holder must not play ball."""
    servers = Servers("a")
    tenant = Create(Tenant(ObjectMeta(name="acme")))
    twice = Forward(ADMIN, Forward(ADMIN, tenant, 1), 1)
    refused(servers.ask("a", twice, who.server("b")), Reason.INVALID)
    assert servers.asks == []


def test_a_forwarded_caller_is_judged_by_its_own_identity() -> None:
    """A server lends its own permissions to no caller."""
    servers = Servers("a", "b")
    anonymous = Identity(name="system:anonymous")
    answer = servers.ask("b", Create(Tenant(ObjectMeta(name="acme"))), anonymous)
    refused(answer, Reason.UNAUTHENTICATED)
    assert [ask.to for ask in servers.asks] == ["a"]


def test_a_holder_that_slept_steps_down_at_its_next_renewal() -> None:
    """[K2, K3]"""
    servers = Servers("a", "b")
    sleeper = servers.alive.pop("a")
    servers.pass_time(LEASE_MS * 2)
    servers.alive["a"] = sleeper
    assert servers.holders() == ["b", "a"]
    servers.pass_time(LEASE_MS // 3)
    assert servers.holders() == ["b"]
    # Even in between, what both decide is safe: the compares see to that.
    accepted(servers.tenant("a", "acme"))
    refused(servers.tenant("b", "acme"), Reason.EXISTS)


def test_a_silent_holder_costs_one_wait_until_its_lease_moves_again() -> None:
    """Not one wait for every few seconds of its silence."""
    servers = Servers("a", "b")
    servers.pass_time(LEASE_MS)
    sleeper = servers.alive.pop("a")
    servers.deaf["a"] = OutcomeUnknown("silence")
    assert isinstance(servers.tenant("b", "first"), OutcomeUnknown)
    for number in range(4):
        accepted(servers.tenant("b", f"later-{number}"))
        servers.pass_time(LEASE_MS // 3)
        if number == 1:
            assert servers.holders() == [], "the lease lasts still"
    assert [ask.to for ask in servers.asks] == ["a"]
    # It is asked again once it has renewed.
    servers = Servers("a", "b")
    servers.pass_time(LEASE_MS)
    servers.deaf["a"] = OutcomeUnknown("silence")
    servers.tenant("b", "first")
    del servers.deaf["a"]
    servers.pass_time(LEASE_MS)
    accepted(servers.tenant("b", "second"))
    assert [ask.to for ask in servers.asks] == ["a", "a"]
    assert sleeper.term is not None


def test_what_waits_for_the_holder_is_bounded() -> None:
    servers = Servers("a", "b")
    server, now = servers.alive["b"], Instant(0, START_WALL_MS)
    request = Create(Tenant(ObjectMeta(name="acme")))
    for call in range(1, QUEUE_MAX + 1):
        (effect,) = server.step(Asked(call, ADMIN, request), now)
        assert isinstance(effect, Ask)
    (effect,) = server.step(Asked(QUEUE_MAX + 1, ADMIN, request), now)
    assert isinstance(effect, Answer)
    assert isinstance(effect.body, Unavailable)


def test_a_server_that_listens_says_so_with_its_next_renewal_and_when_it_takes_over() -> None:
    servers = Servers("a", "b")
    servers.alive["a"].address = "https://a:1"
    servers.alive["b"].address = "https://b:2"

    def address() -> str:
        record = servers.store.get("objects/leases/authority")
        assert record is not None
        return str(decode(record.key, record.value).spec.address)

    assert address() == ""
    servers.pass_time(LEASE_MS)
    assert address() == "https://a:1"
    del servers.alive["a"]
    servers.pass_time(3 * LEASE_MS)
    assert servers.holders() == ["b"]
    assert address() == "https://b:2"


def test_a_closed_server_changes_nothing_and_keeps_its_leases() -> None:
    """For every caller, including a server that forwards; the leader must not change because of
    it.
    """
    servers = Servers("one", "two")
    servers.pass_time(LEASE_MS)
    (holder,) = servers.holders()
    closed = servers.alive[holder]
    closed.closed = lambda: "nothing is changed while the audit is behind"
    asked = Create(Tenant(ObjectMeta(name="a")))
    for request, identity in ((asked, ADMIN), (Forward(ADMIN, asked, 1), who.server("two"))):
        answer = servers.ask(holder, request, identity)
        assert isinstance(answer, Unavailable)
        assert answer.message == "nothing is changed while the audit is behind"
    scheduler = who.scheduler("one")
    assert accepted(servers.ask(holder, AcquireLease("scheduler:one", 1_000), scheduler))
    servers.pass_time(5 * LEASE_MS)
    assert servers.holders() == [holder]
    closed.closed = str
    assert accepted(servers.tenant(holder, "a"))
