"""Selectors hold for what they say, in objects as in query strings."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import Invalid
from holdfast.model.selection.selector_text import (
    TEXT_MAX,
    label_selector_text,
    parse_label_selector,
)
from holdfast.model.selection.selectors import (
    Expression,
    LabelSelector,
    SelectorOperator,
    holds,
    selects,
)
from tests.yardstick import assert_cheap

KEYS = st.sampled_from(["app", "zone", "in", "example.com/tier", "n"])
VALUES = st.sampled_from(["", "web", "a", "b.c", "7", "33", "012", "x7"])
LABELS = st.dictionaries(KEYS, VALUES)
NUMBERS = st.integers(-99, 99).map(str)


def expression(operator: SelectorOperator) -> st.SearchStrategy[Expression]:
    if operator in (SelectorOperator.EXISTS, SelectorOperator.DOES_NOT_EXIST):
        return st.builds(Expression, KEYS, st.just(operator))
    if operator in (SelectorOperator.GT, SelectorOperator.LT):
        return st.builds(Expression, KEYS, st.just(operator), st.tuples(NUMBERS))
    values = st.lists(VALUES, min_size=1, max_size=3, unique=True).map(tuple)
    return st.builds(Expression, KEYS, st.just(operator), values)


EXPRESSIONS = st.sampled_from(list(SelectorOperator)).flatmap(expression)
SELECTORS = st.builds(LabelSelector, LABELS, st.lists(EXPRESSIONS, max_size=4).map(tuple))


@given(SELECTORS, LABELS)
def test_a_selector_holds_when_each_part_does(
    selector: LabelSelector, labels: dict[str, str]
) -> None:
    """All labels and all expressions; an empty selector takes everything."""
    parts = [LabelSelector(match_labels={k: v}) for k, v in selector.match_labels.items()]
    parts += [LabelSelector(match_expressions=(e,)) for e in selector.match_expressions]
    assert selects(selector, labels) == all(selects(part, labels) for part in parts)
    assert selects(LabelSelector(), labels)


@given(KEYS, st.lists(VALUES, max_size=3), LABELS)
def test_opposites_never_both_hold(key: str, values: list[str], labels: dict[str, str]) -> None:
    """In and NotIn, Exists and DoesNotExist divide all objects between them."""
    for yes, no in (
        (SelectorOperator.IN, SelectorOperator.NOT_IN),
        (SelectorOperator.EXISTS, SelectorOperator.DOES_NOT_EXIST),
    ):
        one = holds(Expression(key, yes, tuple(values)), labels)
        assert one != holds(Expression(key, no, tuple(values)), labels)


@given(KEYS, st.text(max_size=4), st.dictionaries(KEYS, st.text(max_size=4)))
def test_comparisons_are_total(key: str, bound: str, labels: dict[str, str]) -> None:
    """Whatever the texts are, at most one of "more" and "less" holds and nothing is raised."""
    more = holds(Expression(key, SelectorOperator.GT, (bound,)), labels)
    less = holds(Expression(key, SelectorOperator.LT, (bound,)), labels)
    assert not (more and less)


@pytest.mark.parametrize(
    "have, bound, more",
    [("8", "7", True), ("7", "7", False), ("-1", "-2", True), ("10", "9", True)],
)
def test_labels_are_compared_as_integers(have: str, bound: str, more: bool) -> None:
    """10 is more than 9, though its text sorts before."""
    assert holds(Expression("n", SelectorOperator.GT, (bound,)), {"n": have}) is more


@pytest.mark.parametrize("text", ["", " 1", "1_0", "１", "+1", "1.0", "-", "9" * 19])
def test_what_is_no_plain_integer_compares_to_nothing(text: str) -> None:
    """Python's int() would take some of these."""
    assert not holds(Expression("n", SelectorOperator.GT, ("0",)), {"n": text})
    assert not holds(Expression("n", SelectorOperator.LT, (text,)), {"n": "0"})


@given(SELECTORS, LABELS)
def test_a_selector_survives_its_text(selector: LabelSelector, labels: dict[str, str]) -> None:
    """What is written for a query string selects the same when it is read again."""
    again = parse_label_selector(label_selector_text(selector))
    assert selects(again, labels) == selects(selector, labels)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", ()),
        ("  ", ()),
        ("a", [("a", "Exists", ())]),
        ("!a", [("a", "DoesNotExist", ())]),
        ("a=b", [("a", "In", ("b",))]),
        ("a==b", [("a", "In", ("b",))]),
        ("a!=b", [("a", "NotIn", ("b",))]),
        ("a=", [("a", "In", ("",))]),
        ("a in (x, y)", [("a", "In", ("x", "y"))]),
        ("a notin (x)", [("a", "NotIn", ("x",))]),
        ("a in ()", [("a", "In", ("",))]),
        ("a in (,x)", [("a", "In", ("", "x"))]),
        ("in in (in)", [("in", "In", ("in",))]),
        ("n>7,n<-9", [("n", "Gt", ("7",)), ("n", "Lt", ("-9",))]),
        (" x.io/y = web , ! b ", [("x.io/y", "In", ("web",)), ("b", "DoesNotExist", ())]),
        ("a=b,a=c", [("a", "In", ("b",)), ("a", "In", ("c",))]),
    ],
)
def test_a_query_string_is_read_as_kubernetes_does(
    text: str, expected: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    """kubectl's -l arrives in this form."""
    found = parse_label_selector(text).match_expressions
    assert [(e.key, e.operator.value, e.values) for e in found] == list(expected)


@pytest.mark.parametrize(
    "text, says",
    [
        (",", "a label or '!' at the start"),
        ("a,", 'after ","; found the end'),
        ("a,,b", 'after ","; found ","'),
        ("a=b c", "must have ',' after \"b\""),
        ("=b", "a label or '!'"),
        ("a in x", "must have '('"),
        ("a in (x", "must have ')'"),
        ("a near (x)", "must have =, !=, in, notin, < or >"),
        ("!", "a label after"),
        ("a>", "a number"),
        ("a>x", "exactly one whole number"),
        ("a=b=c", "must have ','"),
        ("-a=b", "labelSelector[0].key"),
        ("a=b/c", "labelSelector[0].values[0]"),
        ("a=" + "x" * 64, "at most 63 characters"),
        ("\u0430pp=x", "labelSelector[0].key"),
        ("a\u00a0=x", "labelSelector[0].key"),
        ("a=\x1b[31m", "\\u001b"),
        (",".join(f"a{i}" for i in range(65)), "must have at most 64 items"),
        (f"a in ({','.join(f'v{i}' for i in range(257))})", "must have at most 256 items"),
        ("a" * (TEXT_MAX + 1), f"must be at most {TEXT_MAX} characters"),
        ("(" * TEXT_MAX, "a label or '!'"),
    ],
)
def test_a_wrong_query_string_says_what_is_wrong(text: str, says: str) -> None:
    """Instead of selecting everything or nothing."""
    with pytest.raises(Invalid) as caught:
        parse_label_selector(text)
    assert says in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 1000
    assert caught.value.errors[0].path.startswith("labelSelector")


@given(st.text("ab=!,()<> \\inot/.", max_size=20) | st.text(max_size=20))
def test_any_query_string_is_read_or_refused(text: str) -> None:
    """What is read can be written and read again, with the same meaning."""
    try:
        selector = parse_label_selector(text)
    except Invalid:
        return
    assert parse_label_selector(label_selector_text(selector)) == selector


@pytest.mark.parametrize("end", ["", "a", "("])
def test_a_flood_of_blanks_costs_no_more_than_their_number(end: str) -> None:
    """Read as often as there are blanks, this would take seconds."""
    text = (" " * TEXT_MAX)[len(end) :] + end
    found: Any = None

    def read() -> None:
        nonlocal found
        with suppress(Invalid):
            found = parse_label_selector(text)

    assert_cheap(read, 1_000_000)
    assert (found is None) == (end == "(")
