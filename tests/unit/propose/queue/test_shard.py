"""Schedulers that divide the tenants among them, or compete for all."""

from __future__ import annotations

import pytest

from holdfast.model.errors import Invalid
from holdfast.propose.queue.shard import EVERYTHING, SchedulerShare, parse_share, shard_of
from tests.unit.propose.rig import Rig

MANY = ",".join(f"t{number}" for number in range(257))
TENANTS = [f"tenant-{number}" for number in range(40)]


def test_each_tenant_belongs_to_one_shard() -> None:
    """[K2]"""
    shares = [parse_share(f"{index}/3", "") for index in range(3)]
    for tenant in TENANTS:
        assert [share.takes(tenant) for share in shares].count(True) == 1
    assert all(any(share.takes(tenant) for tenant in TENANTS) for share in shares)


def test_a_tenant_stays_in_its_shard_over_releases() -> None:
    """Processes of different releases must not both leave a tenant alone. [K2]"""
    assert [shard_of(tenant, 4) for tenant in ("acme", "default", "other")] == [2, 3, 0]


def test_the_lease_follows_from_the_share() -> None:
    """Of processes with the same share one acts, whatever their names."""
    assert parse_share("1/3", "").scope("a") == parse_share("1/3", "").scope("b")
    assert parse_share("", "x,y").scope("a") == parse_share("", "y,x").scope("b")
    assert EVERYTHING.scope("a") != EVERYTHING.scope("b")
    scopes = {parse_share(f"{index}/3", "").scope("a") for index in range(3)}
    assert len(scopes) == 3


@pytest.mark.parametrize(
    "shard, tenants",
    [("3/3", ""), ("0/0", ""), ("-1/2", ""), ("1", ""), ("0/65", ""), ("a/b", ""), ("0/2", "x")],
)
def test_a_share_that_cannot_be_is_refused(shard: str, tenants: str) -> None:
    with pytest.raises(Invalid, match="--shard"):
        parse_share(shard, tenants)


@pytest.mark.parametrize("tenants", ["a,,b", "A", "a b", MANY, "-x"], ids=len)
def test_tenants_that_cannot_be_are_refused(tenants: str) -> None:
    with pytest.raises(Invalid, match="--tenants"):
        parse_share("", tenants)


def test_a_shard_leaves_the_work_of_other_tenants_alone() -> None:
    """It does not report on them either; what they use of nodes counts."""
    rig = Rig(share=SchedulerShare(tenants=frozenset(("acme",))))
    rig.node("node-a", cpu="2")
    rig.start()
    rig.replica("web-0-0", tenant="other")
    rig.replica("web-1-0", tenant="acme")
    rig.pass_time(120_000)
    assert [(bind.target.namespace, bind.target.name) for bind in rig.binds] == [
        ("acme", "web-1-0")
    ]
    assert rig.reports == []
    assert rig.lease is not None
    assert rig.lease.scope.startswith("scheduler:tenants-")
