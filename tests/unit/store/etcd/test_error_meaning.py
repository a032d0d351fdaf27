"""Which errors are certain: a wrong "certainly not" would let a caller write twice."""

from __future__ import annotations

import pytest

from holdfast.model.errors import Expired, Forbidden, Invalid, OutcomeUnknown, Unavailable
from holdfast.store.etcd.error_meaning import (
    FAULTS,
    ErrorMeaning,
    classify,
    error_for,
    is_members_fault,
)

# Seen when members die, stop, pause or fill up under a transaction, or read in etcd's source as
# coming after the proposal. All of these may have been applied.
DOUBTFUL = [
    ("DEADLINE_EXCEEDED", "Deadline Exceeded"),
    ("CANCELLED", "Locally cancelled by application!"),
    ("UNAVAILABLE", "Socket closed"),
    ("UNAVAILABLE", "recvmsg:Connection reset by peer"),
    ("UNAVAILABLE", "keepalive watchdog timeout"),
    ("UNAVAILABLE", "GOAWAY received"),
    ("UNAVAILABLE", "etcdserver: request timed out"),
    (
        "UNAVAILABLE",
        "etcdserver: request timed out, possibly due to previous leader failure",
    ),
    ("UNAVAILABLE", "etcdserver: request timed out, possibly due to connection lost"),
    ("UNAVAILABLE", "etcdserver: server stopped"),
    ("UNAVAILABLE", "etcdserver: leader changed"),
    # The member that finds its quota exceeded while applying has applied.
    ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded"),
    ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (9 vs. 4)"),
    ("DATA_LOSS", "etcdserver: corrupt cluster"),
    ("UNKNOWN", "raft: stopped"),
    ("INTERNAL", "stream terminated by RST_STREAM"),
    ("UNAVAILABLE", ""),
]

CERTAIN = {
    ErrorMeaning.NOT_SENT: Unavailable,
    ErrorMeaning.TURNED_AWAY: Unavailable,
    ErrorMeaning.LOGIN: Unavailable,
    ErrorMeaning.DENIED: Forbidden,
    ErrorMeaning.MALFORMED: Invalid,
    ErrorMeaning.TOO_LARGE: Invalid,
    ErrorMeaning.COMPACTED: Expired,
    ErrorMeaning.FUTURE: Expired,
}


@pytest.mark.parametrize("code, text", DOUBTFUL)
def test_what_may_have_been_applied_is_an_unknown_outcome(code: str, text: str) -> None:
    """A lost answer is never reported as "did not happen" [N1.1]."""
    kind = classify(code, text)
    assert kind is ErrorMeaning.DOUBT
    assert isinstance(error_for(kind, text, writes=True), OutcomeUnknown)
    assert isinstance(error_for(kind, text, writes=False), Unavailable)
    assert is_members_fault(kind)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.text)
def test_only_the_exact_code_and_text_are_certain(fault: object) -> None:
    """Something that merely looks similar proves nothing."""
    from holdfast.store.etcd.error_meaning import EtcdError

    assert isinstance(fault, EtcdError)
    assert fault.kind is not ErrorMeaning.DOUBT
    assert fault.why
    assert classify(fault.code, fault.text) is fault.kind
    assert classify("UNKNOWN", fault.text) is ErrorMeaning.DOUBT
    assert classify(fault.code, "x" + fault.text) is ErrorMeaning.DOUBT
    longer = classify(fault.code, fault.text + ", possibly")
    assert longer is (fault.kind if fault.is_beginning else ErrorMeaning.DOUBT)


def test_every_kind_says_what_the_caller_does_next() -> None:
    assert {fault.kind for fault in FAULTS} == set(CERTAIN)
    for kind, error in CERTAIN.items():
        assert type(error_for(kind, "", writes=True)) is error
        assert type(error_for(kind, "", writes=False)) is error
    assert error_for(ErrorMeaning.TOO_LARGE, "", writes=True).code == "TransactionTooLarge"
