"""Heartbeat digests: servers exchange which nodes they heard, each with its age."""

from __future__ import annotations

import random
from typing import Any

from holdfast.commit.heartbeat_intake import Renewals
from holdfast.commit.server import UNKNOWN_MAX_MS, AuthorityServer, Presence
from holdfast.model.access import identity as who
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.lease import Lease
from holdfast.model.machine import Answer, Answered, Ask, Asked, Range, Started, Wake, Woken
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import (
    HeartbeatQuery,
    HeartbeatReport,
    NodeUse,
    Renew,
    SeenUse,
    server_lease_ms,
    server_scope,
)
from holdfast.model.refusal import Reason
from holdfast.model.requests import AcquireLease, ReleaseLease, RenewLease, RetireLease, Term
from holdfast.model.time import Instant
from tests.plane import NODES, Plane, accepted, refused

TIMING = FenceTiming()
LEASE_MS = server_lease_ms(TIMING)
LEASE_KEY = "objects/leases/server-one"


class Servers:
    """The hearing of several servers over one store; their calls reach each other at once."""

    def __init__(self, *names: str) -> None:
        self.plane = Plane()
        self.node = self.plane.node("node-a")
        self.now_ms = 0
        self.ears = {name: Renewals(name, TIMING, life=f"{name}-1") for name in names}
        self.cut: set[frozenset[str]] = set()
        self.terms: dict[str, Term] = {}
        for name in names:
            self.lease(name)
        for name in names:
            self.feed(name, Started({}))
        self.round()

    def lease(self, name: str, life: str = "") -> Lease:
        request = AcquireLease(
            server_scope(name), LEASE_MS, instance=life or f"{name}-1", address=f"https://{name}"
        )
        lease: Lease = accepted(self.plane.ask(who.server(name), request))
        self.terms[name] = Term(lease.spec.scope, lease.spec.epoch)
        return lease

    def feed(self, name: str, stimulus: Any) -> list[Any]:
        """One step of a server, and what follows from it at once; the answers to others."""
        answers: list[Any] = []
        for effect in self.ears[name].step(stimulus, Instant(self.now_ms, 0)):
            match effect:
                case Answer():
                    answers.append(effect.body)
                case Range():
                    page = self.plane.store.range(effect.start, effect.end, limit=effect.limit)
                    answers += self.feed(name, Answered(effect.call, page))
                case Ask():
                    self.feed(name, Answered(effect.call, self.asked(name, effect.to)))
                case Wake():
                    pass
        return answers

    def asked(self, by: str, to: str) -> Any:
        if frozenset((by, to)) in self.cut:
            return OutcomeUnknown("no way")
        (answer,) = self.feed(to, Asked(1, who.server(by), HeartbeatQuery()))
        return answer

    def round(self, times: int = 2) -> None:
        for _ in range(times):
            for name in self.ears:
                if name in self.terms:
                    accepted(self.plane.ask(who.server(name), RenewLease(self.terms[name])))
                self.feed(name, Woken("digests"))

    def renew(self, at: str, use: NodeUse | None = None) -> Any:
        life = (self.node.metadata.uid, self.node.status.incarnation)
        renew = Renew("node-a", *life, use=use)
        (answer,) = self.feed(at, Asked(2, who.agent("node-a"), renew))
        return answer

    def heard(self, at: str) -> HeartbeatReport:
        (answer,) = self.feed(at, Asked(3, NODES, HeartbeatQuery()))
        assert isinstance(answer, HeartbeatReport)
        return answer


def test_each_server_answers_for_all() -> None:
    """A controller needs to ask one of them only. [H3]"""
    servers = Servers("one", "two")
    servers.now_ms = 5_000
    assert servers.renew("two").phase.value == "Ready"
    servers.now_ms = 6_000
    servers.round()
    servers.now_ms = 8_000
    heard = servers.heard("one")
    assert heard.ages_ms == {"node-a": 3_000}
    assert [(it.server, it.life, it.age_ms) for it in heard.words] == [("two", "two-1", 2_000)]
    assert heard.words[0].listening_ms == 8_000
    assert heard.roster is not None
    assert [(it.server, it.address) for it in heard.roster.servers] == [
        # The renewals of this page name no address.
        ("one", ""),
        ("two", ""),
    ]


def test_each_server_knows_what_a_node_uses_by_its_latest_sample() -> None:
    """A sample that came earlier and is learned later never replaces a newer one. [D6]"""
    servers = Servers("one", "two")
    servers.now_ms = 5_000
    servers.renew("two", NodeUse(100, 10))
    servers.now_ms = 6_000
    servers.round()
    assert servers.heard("one").used == {"node-a": SeenUse(1_000, 100, 10)}
    servers.renew("one", NodeUse(300, 30))
    servers.now_ms = 7_000
    servers.round()
    for server in ("one", "two"):
        assert servers.heard(server).used == {"node-a": SeenUse(1_000, 300, 30)}


def test_two_that_cannot_reach_each_other_get_heartbeats_over_a_third() -> None:
    """[H3, E4]"""
    servers = Servers("one", "two", "three")
    servers.cut = {frozenset(("one", "two"))}
    servers.now_ms = 10_000
    servers.renew("two")
    servers.round()
    heard = servers.heard("one")
    assert heard.ages_ms == {"node-a": 0}
    assert {it.server: it.age_ms for it in heard.words} == {"three": 0, "two": 0}


def test_a_digest_ages_with_its_server() -> None:
    """What was received stays known, and no more is claimed than was reported. [E4]"""
    servers = Servers("one", "two")
    servers.now_ms = 5_000
    servers.renew("two")
    servers.round()
    servers.cut = {frozenset(("one", "two"))}
    servers.now_ms = 25_000
    servers.round()
    heard = servers.heard("one")
    assert heard.ages_ms == {"node-a": 20_000}
    assert [it.age_ms for it in heard.words] == [20_000]


def test_a_server_whose_lease_is_not_renewed_is_no_longer_asked() -> None:
    servers = Servers("one", "two")
    del servers.terms["two"]
    asked: list[int] = []
    whom = servers.asked
    servers.asked = lambda by, to: (asked.append(servers.now_ms), whom(by, to))[1]  # type: ignore[method-assign,func-returns-value]
    for servers.now_ms in range(0, 3 * LEASE_MS, 2_500):
        servers.feed("one", Woken("digests"))
    assert max(asked) < LEASE_MS + 2_500


def test_a_roster_says_which_servers_no_longer_count() -> None:
    """Those that neither renewed nor gave back, for as long as their leases last. [H3]"""
    servers = Servers("one", "two", "three")
    accepted(servers.plane.ask(who.server("three"), ReleaseLease(servers.terms.pop("three"))))
    del servers.terms["two"]
    for servers.now_ms in range(0, LEASE_MS + 2_501, 2_500):
        servers.round()
        roster = servers.ears["one"].roster(Instant(servers.now_ms, 0))
        assert roster is not None
        is_gone = servers.now_ms >= LEASE_MS
        assert roster.expired_servers() == ({"two": servers.now_ms} if is_gone else {})


def test_more_leases_than_servers_can_be_prove_nothing() -> None:
    """One that lives may be beyond what is read; nothing is better than half. [E4]"""
    servers = Servers("one")
    servers.now_ms = 1_000
    for number in range(70):
        servers.lease(f"many-{number}")
    servers.feed("one", Woken("digests"))
    roster = servers.heard("one").roster
    assert roster is not None
    assert (roster.age_ms, len(roster.servers)) == (1_000, 1)


def test_no_renewal_is_taken_before_the_others_know_of_the_server() -> None:
    """They would consider nodes silent that only this one hears; but a store that takes no
    writes does not keep work from running on. [H4]
    """
    plane = Plane()
    server = AuthorityServer("one", random.Random(1), plane.store, life="a")
    ear = Renewals("one", TIMING, life="a")
    ear.unready = server.unready
    server.step(Started({}), Instant(0, 0))
    asked = Asked(1, who.agent("n1"), Renew("n1", "u", 0))
    (answer,) = ear.step(asked, Instant(0, 0))
    assert isinstance(answer.body, Unavailable)
    later = Instant(UNKNOWN_MAX_MS, 0)
    assert server.presence is None
    assert [type(it) for it in ear.step(asked, later)] == [Range]


# The lease ---------------------------------------------------------------------------------------


def test_a_server_takes_over_from_its_earlier_life_at_once_and_from_a_twin_never() -> None:
    plane = Plane()
    one = who.server("one")
    first = Presence("one", "a", LEASE_MS)
    request = first.observe_lease(None, "https://one", Instant(0, 0))
    made = plane.ask(one, request)
    first.answered(made)
    second = Presence("one", "b", LEASE_MS)
    request = second.observe_lease(accepted(made).spec, "https://one", Instant(0, 0))
    taken = plane.ask(one, request)
    second.answered(taken)
    assert accepted(taken).spec.instance == "b"
    first.answered(plane.ask(one, first.due("")))
    assert first.term is None
    for at_ms in range(0, 10 * LEASE_MS, 1_000):
        spec = accepted(plane.ask(one, second.due(""))).spec
        assert first.observe_lease(spec, "", Instant(at_ms, 0)) is None
    # The twin has ended.
    spec = plane.read(LEASE_KEY).spec
    assert first.observe_lease(spec, "", Instant(at_ms + 1, 0)) is None
    assert first.observe_lease(spec, "", Instant(at_ms + 1 + LEASE_MS, 0)) is not None


def test_only_the_server_itself_holds_its_lease() -> None:
    """[K1]"""
    plane = Plane()
    request = AcquireLease(server_scope("one"), LEASE_MS)
    for identity in (who.server("two"), NODES, who.scheduler("one"), who.agent("one")):
        refused(plane.ask(identity, request), Reason.NOT_OWNER)
    lease = accepted(plane.ask(who.server("one"), request))
    term = Term(lease.spec.scope, lease.spec.epoch)
    refused(plane.ask(who.server("two"), ReleaseLease(term)), Reason.STALE_EPOCH)


def test_the_lease_of_a_server_that_is_gone_can_be_retired_early() -> None:
    """Servers that come under new names all the time leave no leases without bound."""
    plane = Plane()
    lease = accepted(plane.ask(who.server("one"), AcquireLease(server_scope("one"), LEASE_MS)))
    retire = RetireLease(lease.spec.scope, lease.spec.epoch, lease.spec.renewals)
    refused(plane.ask(who.server("two"), retire), Reason.LEASE_HELD)
    plane.elapsed_ms += 601_000
    plane.ask(who.server("two"), retire)
    assert plane.read(LEASE_KEY) is None
