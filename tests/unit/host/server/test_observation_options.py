"""The greatest age of an observation on a server's command line."""

from __future__ import annotations

import argparse

import pytest

from holdfast.host.server.observation_options import age_max_ms_of, check
from holdfast.host.server.server_options import add_options
from holdfast.model.errors import Invalid
from holdfast.model.observation_age import OBSERVATION_AGE_MAX_MS


def given(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return age_max_ms_of(parser.parse_args(arguments))


def test_the_age_is_a_setting_with_a_default() -> None:
    """[C9]"""
    assert given() == OBSERVATION_AGE_MAX_MS
    assert given("--observation-age-max", "7.5") == 7_500


@pytest.mark.parametrize("value", ["4.9", "301", "0", "-1", "nan", "inf", "soon", "1e400"])
def test_an_age_with_which_no_plane_can_work_is_refused(value: str) -> None:
    with pytest.raises(Invalid, match=r"^--observation-age-max: "):
        given(f"--observation-age-max={value}")


def test_an_age_from_elsewhere_is_checked_as_well() -> None:
    with pytest.raises(Invalid, match="must be from 5 to 300 seconds"):
        check(1)
