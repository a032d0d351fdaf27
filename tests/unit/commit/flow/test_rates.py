"""Rate limits of tenants."""

from __future__ import annotations

from holdfast.commit.flow.rates import BURST_S, TENANTS_MAX, Rate, Rates


def test_a_tenant_gets_its_rate_and_a_burst_and_no_more() -> None:
    """Ten seconds at any pressure bring the rate times ten and the burst. [B6]"""
    rates, rate = Rates(), Rate(100)
    allowed = sum(rates.take("acme", rate, now_ms) == 0 for now_ms in range(10_000))
    assert abs(allowed - 100 * (10 + BURST_S)) <= 1


def test_a_refusal_says_when_the_request_would_have_been_allowed() -> None:
    """And not earlier than that. [B6]"""
    rates, rate = Rates(), Rate(10)
    while not (wait_ms := rates.take("acme", rate, 0)):
        pass
    assert wait_ms == 100
    assert rates.take("acme", rate, wait_ms - 1) > 0
    assert rates.take("acme", rate, wait_ms) == 0


def test_tenants_do_not_use_up_each_others_rates() -> None:
    """Each has its own. [B6, G1]"""
    rates, rate = Rates(), Rate(1)
    while not rates.take("acme", rate, 0):
        pass
    assert rates.take("other", rate, 0) == 0


def test_a_rate_that_is_changed_counts_at_once() -> None:
    """A tenant that was ahead of a low rate is hardly ahead of a high one. [B6]"""
    rates = Rates()
    while not rates.take("acme", Rate(1), 0):
        pass
    assert not any(rates.take("acme", Rate(1_000), 0) for _ in range(100))
    assert rates.take("acme", Rate(1), 0) > 0


def test_no_rate_means_any_number() -> None:
    """And costs no memory. [B6]"""
    rates = Rates()
    assert not any(rates.take("acme", Rate(), 0) for _ in range(1_000))
    assert len(rates) == 0


def test_what_a_batch_brings_counts_as_well() -> None:
    """A thousand objects in one body are a thousand. [B6]"""
    rates, rate = Rates(), Rate(100)
    assert rates.take("acme", rate, 0) == 0
    rates.charge("acme", rate, 999, 0)
    assert 7_000 < rates.take("acme", rate, 0) < 9_000


def test_what_is_remembered_is_bounded() -> None:
    """However many tenants there are. [B6]"""
    rates, rate = Rates(), Rate(1)
    for number in range(TENANTS_MAX + 500):
        rates.take(f"t{number}", rate, 0)
    assert len(rates) <= TENANTS_MAX
