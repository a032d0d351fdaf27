"""Runs of cron jobs: their names, and whose they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from holdfast.model.kinds.template import RestartPolicy
from holdfast.model.kinds.workload import Cron, Workload, WorkloadSpec, WorkloadType
from holdfast.model.meta import ObjectMeta
from holdfast.model.validation import validate
from holdfast.model.workload.jobs import cron_of, run_name, run_of, run_spec, scheduled_at
from tests.plane import template

WHEN = datetime(2026, 3, 1, 12, 5, tzinfo=UTC)


def cron(name: str = "nightly") -> Workload:
    made = template(restart=RestartPolicy.NEVER)
    spec = WorkloadSpec(template=made, type=WorkloadType.CRON, cron=Cron("@daily"))
    return Workload(ObjectMeta(name=name, namespace="acme", uid="uid-1"), spec=spec)


def test_a_run_has_the_name_of_its_minute_and_can_be_read_back() -> None:
    """So no second run can start for the same minute."""
    name = run_name("nightly", WHEN)
    assert name == "nightly-29539445"
    assert scheduled_at("nightly", name) == WHEN
    assert run_name("nightly", WHEN + timedelta(seconds=59)) == name


@pytest.mark.parametrize(
    "name",
    [
        "nightly",
        "nightly-",
        "nightly-x",
        "nightly-01",
        "nightly-123456789",
        "other-5",
        "nightly--5",
    ],
)
def test_any_other_name_is_for_no_moment(name: str) -> None:
    """Jobs that people make by hand may be called anything."""
    assert scheduled_at("nightly", name) is None


def test_a_run_is_a_valid_job_that_its_cron_job_owns() -> None:
    """Also of the longest name that a cron job may have. [A2]"""
    owner = cron("n" * 37)
    assert validate(owner) == ()
    made = run_of(owner, WHEN)
    assert validate(made) == ()
    assert made.spec == run_spec(owner.spec)
    found = cron_of(made)
    assert found is not None
    assert (found.name, found.uid) == (owner.name, "uid-1")
    assert cron_of(owner) is None
    bare = msgspec.structs.replace(made, metadata=ObjectMeta(name="x", namespace="acme"))
    assert cron_of(bare) is None
