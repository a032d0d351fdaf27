"""Cron: what a text means, and what is refused."""

from __future__ import annotations

import pytest

from holdfast.model.errors import Invalid
from holdfast.model.workload.cron import ALIASES, parse


@pytest.mark.parametrize(
    "text, expected",
    [
        ("* * * * *", (60, 24, 31, 12, 7)),
        ("*/15 0-6 1,15 * 1-5", (4, 7, 2, 12, 5)),
        ("5/20 * ? JAN-mar ?", (3, 24, 31, 3, 7)),
        ("0 0 * * 7", (1, 1, 31, 12, 1)),
        ("0 0 * * 0,7", (1, 1, 31, 12, 1)),
        ("0 0 * * fri-sun", (1, 1, 31, 12, 3)),
        ("0 0 * * 5-7", (1, 1, 31, 12, 3)),
        ("0 0 29 2 *", (1, 1, 1, 1, 7)),
        ("  1,2-4/2   3 * * *  ", (3, 1, 31, 12, 7)),
        ("0 0 31 2 mon", (1, 1, 1, 1, 1)),
    ],
)
def test_a_text_allows_a_bounded_number_of_values_in_each_field(
    text: str, expected: tuple[int, ...]
) -> None:
    schedule = parse(text)
    found = (schedule.minutes, schedule.hours, schedule.days, schedule.months, schedule.weekdays)
    assert tuple(len(values) for values in found) == expected


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_means_its_five_fields(alias: str) -> None:
    assert parse(alias) == parse(ALIASES[alias])
    assert parse(alias.upper()) == parse(alias)


@pytest.mark.parametrize(
    "text, rule",
    [
        ("", "five fields"),
        ("* * * *", "this has 4"),
        ("0 * * * * *", "this has 6"),
        ("@reboot", "one of @yearly"),
        ("@every 5m", "one of @yearly"),
        ("TZ=UTC 0 0 * * *", "this has 6"),
        ("60 * * * *", "the minute must be within 0-59"),
        ("* 24 * * *", "the hour must be within 0-23"),
        ("* * 0 * *", "the day of the month must be within 1-31"),
        ("* * * 13 *", "the month must be within 1-12"),
        ("* * * * 8", "the day of the week must be within 0-7"),
        ("* * * foo *", "the month must be within 1-12"),
        ("mon * * * *", "the minute must be within 0-59"),
        ("*/0 * * * *", "steps of at least 1"),
        ("5-1 * * * *", "ends before it starts"),
        ("* * * * sat-mon", "ends before it starts"),
        ("*-5 * * * *", "range that starts with *"),
        ("? * * * *", "cannot be ?"),
        ("1, * * * *", "the minute must be numbers"),
        (",1 * * * *", "the minute must be numbers"),
        ("-1 * * * *", "the minute must be numbers"),
        ("1.5 * * * *", "the minute must be numbers"),
        ("* * L * *", "the day of the month must be numbers"),
        ("* * * * 1#2", "the day of the week must be numbers"),
        ("H * * * *", "the minute must be numbers"),
        ("٥ * * * *", "plain ASCII"),
        ("0 0 30 2 *", "a day that its months have"),
        ("0 0 31 4,6,9,11 *", "a day that its months have"),
        ("0," * 200 + "0 * * * *", "at most 256"),
    ],
)
def test_what_is_not_a_schedule_is_refused_with_the_rule(text: str, rule: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(text)
    assert any(rule in error.rule for error in refused.value.errors), refused.value.errors


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(Invalid) as refused:
        parse("60 24 0 13 8")
    assert len(refused.value.errors) == 5
