"""Leader election: what a component believes, and what was acknowledged to it."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.lease import Lease, LeaseSpec
from holdfast.model.lease_takeover import LEASE_MS, RENEWALS_PER_LEASE
from holdfast.model.meta import ObjectMeta
from holdfast.model.observation_age import OBSERVATION_AGE_MAX_MS
from holdfast.model.plane_format import VERSION
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, AcquireLease, ReleaseLease, RenewLease, Term
from holdfast.model.time import Instant
from holdfast.observe.leader_election import LeaderElection

SCOPE = "controller:nodes"
ME, OTHER = "system:controller:nodes", "system:controller:other"


class Authority:
    """The lease of one scope, with the rules that the commit has for it."""

    def __init__(self) -> None:
        self.spec: LeaseSpec | None = None
        self.epoch = 0

    def answer(self, request: Any, identity: str) -> Any:
        spec = self.spec
        match request:
            case Get():
                return GetResult(self.lease() if spec is not None else None, 1)
            case AcquireLease():
                seen = (request.seen_epoch, request.seen_renewals)
                if spec is not None and spec.holder and (spec.epoch, spec.renewals) != seen:
                    return Refusal(Reason.LEASE_HELD, "it moved")
                self.epoch += 1
                self.spec = LeaseSpec(
                    SCOPE, identity, self.epoch, request.duration_ms, instance=request.instance
                )
            case RenewLease(term=term) | ReleaseLease(term=term):
                if spec is None or (spec.epoch, spec.holder) != (term.epoch, identity):
                    return Refusal(Reason.STALE_EPOCH, "stale")
                holder = identity if isinstance(request, RenewLease) else ""
                more = {"holder": holder, "renewals": spec.renewals + 1}
                self.spec = msgspec.structs.replace(spec, **more)
        return Accepted(1, (self.lease(),))

    def lease(self) -> Lease:
        assert self.spec is not None
        return Lease(ObjectMeta(name="controller-nodes"), spec=self.spec)


def turn(election: LeaderElection, authority: Authority, now_ms: int) -> list[Any]:
    """Send everything that is due at a moment, answered at once. Returns the requests."""
    sent: list[Any] = []
    request: Any = election.due(Instant(now_ms, 0))
    while request is not None:
        sent.append(request)
        answer = authority.answer(request, election.identity)
        request = election.answered(request, answer, now_ms, Instant(now_ms, 0))
    return sent


def held(authority: Authority, identity: str = ME) -> LeaderElection:
    election = LeaderElection(SCOPE, identity)
    turn(election, authority, 0)
    assert election.term is not None
    return election


def test_a_free_lease_is_taken_at_once_and_renewed_three_times_in_its_life() -> None:
    """[K3]"""
    authority = Authority()
    election = held(authority)
    assert election.term == Term(SCOPE, 1)
    assert turn(election, authority, LEASE_MS // 3 - 1) == []
    assert turn(election, authority, LEASE_MS // 3) == [
        RenewLease(Term(SCOPE, 1), number=1, version=VERSION)
    ]
    assert election.next_ms == 2 * (LEASE_MS // 3)


def test_each_renewal_says_how_old_an_observation_may_be() -> None:
    """A changed setting of the plane reaches the holder with its next renewal. [C9]"""
    election, authority = LeaderElection(SCOPE, ME), Authority()
    turn(election, authority, 0)
    assert election.observation_age_max_ms == OBSERVATION_AGE_MAX_MS
    assert authority.spec is not None
    authority.spec = msgspec.structs.replace(authority.spec, observation_age_max_ms=7_000)
    turn(election, authority, LEASE_MS // RENEWALS_PER_LEASE)
    assert election.observation_age_max_ms == 7_000


def test_a_silent_holder_is_replaced_only_after_its_duration_on_our_own_clock() -> None:
    """[K3, SC7]"""
    authority = Authority()
    held(authority, OTHER)
    election = LeaderElection(SCOPE, ME)
    start_ms = 1_000_000
    taken_ms = None
    for now_ms in range(start_ms, start_ms + 3 * LEASE_MS, 500):
        turn(election, authority, now_ms)
        if election.term is not None:
            taken_ms = taken_ms or now_ms
    assert taken_ms is not None
    assert LEASE_MS <= taken_ms - start_ms <= LEASE_MS + LEASE_MS // 3 + 500
    assert election.term == Term(SCOPE, 2)


def test_a_holder_that_renews_is_never_replaced() -> None:
    """[K3]"""
    authority = Authority()
    holder, election = held(authority, OTHER), LeaderElection(SCOPE, ME)
    for now_ms in range(0, 10 * LEASE_MS, 1_000):
        turn(holder, authority, now_ms)
        turn(election, authority, now_ms)
    assert election.term is None
    assert holder.term == Term(SCOPE, 1)


def test_the_lease_of_our_earlier_run_is_taken_over_at_once() -> None:
    """[K3, C7.4]"""
    authority = Authority()
    held(authority)
    assert held(authority).term == Term(SCOPE, 2)


def test_two_processes_under_one_name_do_not_take_it_from_each_other_for_ever() -> None:
    """[K3, V4]"""
    authority = Authority()
    twins = [held(authority), held(authority)]
    for now_ms in range(1_000, 10 * LEASE_MS, 1_000):
        for election in twins:
            turn(election, authority, now_ms)
    assert authority.epoch == 2
    assert [it.term for it in twins] == [None, Term(SCOPE, 2)]


def test_another_process_of_the_same_identity_is_waited_for() -> None:
    """[K3]"""
    authority = Authority()
    turn(LeaderElection(SCOPE, ME, instance="one"), authority, 0)
    second = LeaderElection(SCOPE, ME, instance="two")
    turn(second, authority, 0)
    assert second.term is None
    turn(LeaderElection(SCOPE, ME, instance="one"), authority, 0)
    assert authority.epoch == 2


def test_a_lost_answer_leaves_the_term_but_acknowledges_nothing() -> None:
    """[K3]"""
    authority = Authority()
    election = held(authority)
    for now_ms in (5_000, 10_000, 15_000):
        request = election.due(Instant(now_ms, 0))
        election.answered(request, OutcomeUnknown("lost"), now_ms, Instant(now_ms, 0))
    assert election.term == Term(SCOPE, 1)
    assert election.is_acknowledged(Instant(LEASE_MS - 1, 0))
    assert not election.is_acknowledged(Instant(LEASE_MS, 0))


def test_an_acquisition_whose_answer_was_lost_is_found_and_taken_again() -> None:
    """[SC7, N1.1]"""
    authority, election = Authority(), LeaderElection(SCOPE, ME)
    now = Instant(0, 0)
    get = election.due(now)
    acquire = election.answered(get, authority.answer(get, ME), 0, now)
    authority.answer(acquire, ME)
    assert election.answered(acquire, OutcomeUnknown("lost"), 0, now) is None
    assert election.term is None
    turn(election, authority, election.next_ms)
    assert election.term == Term(SCOPE, 2)


def test_a_refusal_ends_the_term_but_contention_and_faults_do_not() -> None:
    """[K3, INV7]"""
    election = held(Authority())
    for answer in (Unavailable("down"), Refusal(Reason.CONTENTION, "busy")):
        election.answered(RenewLease(Term(SCOPE, 1)), answer, 0, Instant(0, 0))
        assert election.term == Term(SCOPE, 1)
    no = Refusal(Reason.STALE_EPOCH, "stale")
    election.answered(RenewLease(Term(SCOPE, 1)), no, 0, Instant(0, 0))
    assert election.term is None
    assert not election.is_acknowledged(Instant(0, 0))


def test_a_late_answer_about_an_ended_term_changes_nothing() -> None:
    """[INV7]"""
    authority = Authority()
    election = held(authority)
    renew = election.due(Instant(5_000, 0))
    accepted = authority.answer(renew, ME)
    election.lost()
    election.answered(renew, accepted, 5_000, Instant(5_000, 0))
    assert election.term is None


def test_a_released_lease_is_free_for_the_next_one_at_once() -> None:
    """[K3]"""
    authority = Authority()
    election = held(authority)
    release = election.release()
    assert release == ReleaseLease(Term(SCOPE, 1))
    assert election.release() is None
    assert not election.is_acknowledged(Instant(0, 0))
    authority.answer(release, ME)
    assert held(authority, OTHER).term == Term(SCOPE, 2)


FATES = st.sampled_from(["delivered", "delivered", "delivered", "answer lost", "not sent"])


@given(
    turns=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9_000), FATES), max_size=80),
    rates=st.tuples(st.integers(95, 105), st.integers(95, 105)),
)
@settings(deadline=None)
def test_a_takeover_follows_a_whole_duration_without_a_renewal(
    turns: list[tuple[int, int, str]], rates: tuple[int, int]
) -> None:
    """Two contenders, clocks that run at different rates, lost answers. [K3, INV7]"""
    authority = Authority()
    pair = (LeaderElection(SCOPE, ME), LeaderElection(SCOPE, OTHER))
    at_ms, moved_ms = 0, 0
    for who, pause_ms, fate in turns:
        at_ms += pause_ms
        election, now = pair[who], Instant(at_ms * rates[who] // 100, 0)
        request: Any = election.due(now)
        while request is not None:
            before = authority.spec
            answer: Any = Unavailable("not sent")
            if fate != "not sent":
                answer = authority.answer(request, election.identity)
            if authority.spec is not before:
                if before is not None and before.holder not in ("", election.identity):
                    own_ms = (at_ms - moved_ms) * rates[who] // 100 + 1
                    assert own_ms >= before.duration_ms
                moved_ms = at_ms
            if fate == "answer lost":
                answer = OutcomeUnknown("lost")
            request = election.answered(request, answer, now.monotonic_ms, now)
        terms = {it.term.epoch for it in pair if it.term is not None}
        assert not terms or max(terms) <= authority.epoch


def test_a_standby_looks_three_times_per_lease_and_when_it_would_be_free() -> None:
    """Answers take a moment; the takeover does not wait for another look because of that. [K3]"""
    authority, slow_ms = Authority(), 40
    held(authority, OTHER)
    election = LeaderElection(SCOPE, ME)
    looks: list[int] = []
    now_ms = 0
    while election.term is None and now_ms < 3 * LEASE_MS:
        request: Any = election.due(Instant(now_ms, 0))
        if isinstance(request, Get):
            looks.append(now_ms)
        while request is not None:
            answered_ms = now_ms + slow_ms
            answer = authority.answer(request, ME)
            request = election.answered(request, answer, now_ms, Instant(answered_ms, 0))
        now_ms += 10
    assert looks == [0, LEASE_MS // 3, 2 * LEASE_MS // 3, LEASE_MS + slow_ms]


def test_a_lease_may_be_renewed_a_little_early_together_with_others() -> None:
    election = held(Authority())
    early_ms = LEASE_MS // RENEWALS_PER_LEASE - 1_000
    assert election.due(Instant(early_ms, 0)) is None
    assert election.due(Instant(early_ms, 0), early_ms=999) is None
    assert election.due(Instant(early_ms, 0), early_ms=1_000) == RenewLease(
        Term(SCOPE, 1), number=1, version=VERSION
    )
