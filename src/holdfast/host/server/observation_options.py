"""The greatest age of an observation on the command line of a server.

All servers of a plane must have the same value; `model/observation_age.py` says what it is for.
"""

from __future__ import annotations

import argparse

from holdfast.host.server.client_timeouts import seconds
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.observation_age import (
    AGE_MAX_LEAST_MS,
    AGE_MAX_MOST_MS,
    OBSERVATION_AGE_MAX_MS,
)

OPTION = "observation-age-max"
MEANING = "the greatest age of a snapshot on which schedulers and controllers may act"


def age_max_ms_of(arguments: argparse.Namespace) -> int:
    """Return the greatest age on the command line. Raises Invalid."""
    text = arguments.observation_age_max
    if text is None:
        return OBSERVATION_AGE_MAX_MS
    age_max_ms = round(seconds(f"--{OPTION}", text) * 1_000)
    check(age_max_ms)
    return age_max_ms


def check(age_max_ms: int) -> None:
    """Check that a plane can work with this greatest age. Raises Invalid."""
    if not AGE_MAX_LEAST_MS <= age_max_ms <= AGE_MAX_MOST_MS:
        rule = f"must be from {AGE_MAX_LEAST_MS // 1_000} to {AGE_MAX_MOST_MS // 1_000} seconds"
        error = FieldError(f"--{OPTION}", f"{age_max_ms / 1_000:g}", rule)
        raise Invalid(str(error), (error,))
