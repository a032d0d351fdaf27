"""The chain that an audit writer makes, and what the head remembers when another takes over."""

from __future__ import annotations

from holdfast.model import keys
from holdfast.model.audit.audit_records import (
    Gap,
    Head,
    Mutation,
    Stamp,
    encode,
    gap_of,
    mutation_of,
    record_of,
)
from holdfast.model.transaction import Batch, Change
from holdfast.observe.audit_writer.chain_end import ENDED_MAX, Chain, take_over


def stamp(revision: int, *names: str) -> Change:
    said = tuple(Mutation(who="ann", verb="Patch", name=name) for name in names)
    return Change(revision, keys.audit_stamp(), encode(Stamp(1, said)), 1)


def test_what_a_watch_repeats_is_in_the_chain_once() -> None:
    """After a reconnection it may begin earlier than it ended."""
    chain = Chain()
    assert chain.take(Batch(5, (stamp(4, "a"), stamp(5, "b", "c")))) == 5
    assert chain.take(Batch(7, (stamp(5, "b", "c"), stamp(6, "d")))) == 6
    assert chain.take(Batch(9, ())) == 0
    names = [mutation_of(record_of(line)).name for line in chain.waiting]
    assert names == ["a", "b", "c", "d"]
    assert (chain.end.number, chain.end.revision) == (4, 9)


def test_each_record_names_the_hash_before_it_also_of_those_that_are_written_down() -> None:
    chain = Chain()
    chain.take(Batch(2, (stamp(2, "a", "b"),)))
    first, second = map(record_of, chain.waiting)
    assert second.previous == first.hash
    chain.wrote(2, Head(floor=2, ended={"s2": 1}))
    assert chain.waiting == []
    assert (chain.end.floor, chain.end.ended) == (2, {"s2": 1})
    chain.take(Batch(3, (stamp(3, "c"),)))
    assert record_of(chain.waiting[0]).previous == second.hash


def test_a_gap_that_was_agreed_on_comes_first_and_once() -> None:
    chain = Chain()
    chain.begin(Head(number=7, revision=20, gap=Gap(10, 20, 5)))
    chain.take(Batch(21, (stamp(21, "a"),)))
    gap, after = map(record_of, chain.waiting)
    assert (gap.number, gap_of(gap)) == (8, Gap(10, 20, 5))
    assert mutation_of(after).name == "a"
    assert chain.end.gap is None


def test_the_head_remembers_where_a_bounded_number_of_earlier_writers_ended() -> None:
    """Those that ended first are dropped first."""
    head = Head()
    for number in range(ENDED_MAX + 2):
        head = take_over(Head(number, head.hash, by=f"s{number}", ended=head.ended), "next")
    assert head.by == "next"
    assert len(head.ended) == ENDED_MAX
    assert head.ended == {f"s{n}": n for n in range(2, ENDED_MAX + 2)}


def test_where_a_writer_ended_stays_in_the_head_until_it_writes() -> None:
    """It has not yet set aside what it wrote in vain after that."""
    before = Head(number=9, by="s1", ended={"s1": 4})
    assert take_over(before, "s2").ended == {"s1": 4}
