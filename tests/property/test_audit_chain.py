"""Whatever is done to a chain of audit records, it is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.audit.audit_records import Mutation, encode, line_of, make_record
from holdfast.model.audit.chain import ChainVerifier
from tests.audit_chains import chain, head_at, lines

COUNT = 30
CHAIN = chain(COUNT)
LINES = lines(CHAIN)
HEAD = head_at(CHAIN[-1])
places = st.integers(0, COUNT - 1)


def is_whole(forged: list[bytes]) -> bool:
    judge = ChainVerifier()
    judge.part("part", forged)
    return judge.judgement(HEAD).is_whole


@given(st.sets(places, min_size=1))
def test_any_removal_is_found(gone: set[int]) -> None:
    assert not is_whole([line for place, line in enumerate(LINES) if place not in gone])


@given(places, st.data())
def test_any_change_of_any_byte_is_found(place: int, data: st.DataObject) -> None:
    line = bytearray(LINES[place])
    at = data.draw(st.integers(0, len(line) - 1))
    line[at] ^= data.draw(st.integers(1, 255))
    assert not is_whole([*LINES[:place], bytes(line), *LINES[place + 1 :]])


@given(places, places)
def test_any_swap_is_found(one: int, other: int) -> None:
    forged = list(LINES)
    forged[one], forged[other] = forged[other], forged[one]
    assert is_whole(forged) is (one == other)


@given(st.integers(0, COUNT), places, st.booleans())
def test_any_addition_is_found(place: int, like: int, links: bool) -> None:
    """A copy of another record, or one that was made to follow the one before it."""
    added = LINES[like]
    if links:
        before = CHAIN[place - 1] if place else None
        said = encode(Mutation(who="mallory", verb="Create", kind="tokens", name="mine"))
        previous = before.hash if before is not None else "0" * 64
        added = line_of(make_record(place + 1, CHAIN[like].revision, 0, previous, said))
    assert not is_whole([*LINES[:place], added, *LINES[place:]])


@given(places, st.permutations(range(3)))
def test_any_order_of_parts_but_the_right_one_is_found(cut: int, order: list[int]) -> None:
    first, second = sorted((cut, COUNT // 2))
    parts = [LINES[:first], LINES[first:second], LINES[second:]]
    forged = [line for place in order for line in parts[place]]
    assert is_whole(forged) is (forged == LINES)
