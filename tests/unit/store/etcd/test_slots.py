"""The slots of one client: a slot never serves two tokens whose outcomes are open."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.model.errors import Invalid, Unavailable
from holdfast.model.transaction import ABSENT, Forgotten, NotApplied, TokenApplied
from holdfast.store.etcd.slots import (
    FATES_MAX,
    SLOTS_AT_ONCE,
    SLOTS_MAX,
    EtcdToken,
    Ring,
    TokenSlot,
    parse,
)

CLIENT = "0123456789abcdef"


def test_tokens_are_read_back_and_nothing_else_is() -> None:
    token = Ring(CLIENT).issue()
    assert parse(str(token)) == token
    for text in (f"{CLIENT}-1024-1", f"{CLIENT}-0-0", f"{CLIENT}-01-1", f"{CLIENT}-0-1 ", "0-1"):
        with pytest.raises(Invalid):
            parse(text)


@pytest.mark.parametrize(
    "value, fate",
    [
        (b"6", None),
        (b"6!", None),
        (b"7", TokenApplied(99)),
        (b"7!", NotApplied()),
        (b"8", Forgotten()),
        (b"8!", Forgotten()),
    ],
)
def test_what_a_slot_proves_about_a_token(value: bytes, fate: object) -> None:
    """Numbers in a slot only grow, so each value decides one way [INV3]."""
    assert TokenSlot(value, 99).fate(EtcdToken(CLIENT, 0, 7)) == fate


def test_when_all_is_in_doubt_no_token_is_issued() -> None:
    """Bounded: rather no new transaction than an old one whose fate is lost."""
    ring = Ring(CLIENT)
    tokens = [ring.issue() for _ in range(SLOTS_MAX)]
    for token in tokens:
        ring.sending(token)
        ring.lost(token)
    with pytest.raises(Unavailable):
        ring.issue()
    assert ring.oldest_doubt(SLOTS_MAX - 1) == tokens[0]
    ring.settled(tokens[5], NotApplied(), 77)
    assert ring.issue().slot == tokens[5].slot
    assert ring.oldest_doubt(SLOTS_MAX - 1) is None


def test_a_token_that_was_never_used_gives_way_in_the_end() -> None:
    """Its slot then shows a greater number, which makes a late use safe, though unknown."""
    ring = Ring(CLIENT)
    idle = ring.issue()
    others = [ring.issue() for _ in range(SLOTS_MAX - 1)]
    assert ring.holds(idle)
    heir = ring.issue()
    assert heir.slot == idle.slot
    assert not ring.holds(idle)
    assert all(ring.holds(token) for token in others)


def test_an_applied_token_stays_readable_for_a_while() -> None:
    """Another client that asks later still finds it in its slot."""
    ring = Ring(CLIENT)
    first = ring.issue()
    ring.settled(first, TokenApplied(1), 1)
    slots = []
    for i in range(SLOTS_AT_ONCE - 1):
        token = ring.issue()
        slots.append(token.slot)
        ring.settled(token, TokenApplied(i), i)
    assert first.slot not in slots


class Rings(RuleBasedStateMachine):
    """Any order of answers, losses and questions."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(CLIENT)
        self.open: dict[EtcdToken, str] = {}
        self.settled: list[EtcdToken] = []
        self.revision = 1

    @rule()
    def issue(self) -> None:
        token = self.ring.issue()
        assert not any(token.slot == other.slot for other in self.open)
        assert all(token.number > other.number for other in (*self.open, *self.settled))
        assert not self.ring.was_sent(token)
        self.open[token] = "held"

    @precondition(lambda self: self.open)
    @rule(data=st.data(), how=st.sampled_from(("refused", "lost", "applied", "withdrawn")))
    def answer(self, data: st.DataObject, how: str) -> None:
        token = data.draw(st.sampled_from(sorted(self.open)))
        self.revision += 1
        if how in {"refused", "lost", "applied"}:
            self.ring.sending(token)
        if how == "refused":
            self.ring.refused(token, self.revision)
            self.open[token] = "held"
            assert self.ring.usable(token, SLOTS_MAX) == self.revision
        elif how == "lost":
            self.ring.lost(token)
            self.open[token] = "doubt"
        else:
            fate = TokenApplied(self.revision) if how == "applied" else NotApplied()
            self.ring.settled(token, fate, self.revision)
            assert self.ring.known_fate(token) == fate
            del self.open[token]
            self.settled.append(token)

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def late_answer(self, data: st.DataObject) -> None:
        """A second request of a settled token fails late: it must not take the slot away."""
        token = data.draw(st.sampled_from(self.settled))
        self.ring.lost(token)
        self.ring.refused(token, 0)
        assert not self.ring.holds(token)
        # What its slot holds now belongs to another: taking it would let the token apply again.
        assert self.ring.usable(token, SLOTS_MAX) == ABSENT

    @invariant()
    def open_tokens_keep_their_slots(self) -> None:
        assert all(self.ring.holds(token) for token in self.open)
        doubts = [token for token, state in self.open.items() if state == "doubt"]
        oldest = self.ring.oldest_doubt(0)
        assert (oldest in doubts) if doubts else oldest is None

    @invariant()
    def only_used_slots_are_made(self) -> None:
        assert len(self.ring.missing()) <= SLOTS_MAX


TestRings = Rings.TestCase


def test_outcomes_are_remembered_up_to_a_bound() -> None:
    ring = Ring(CLIENT)
    tokens = []
    for i in range(2 * FATES_MAX):
        tokens.append(ring.issue())
        ring.settled(tokens[-1], TokenApplied(i), i)
    assert ring.known_fate(tokens[0]) is None
    known = [ring.known_fate(token) for token in tokens[FATES_MAX:]]
    assert known == [TokenApplied(i) for i in range(FATES_MAX, 2 * FATES_MAX)]
