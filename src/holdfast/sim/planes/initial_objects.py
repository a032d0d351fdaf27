"""What a store holds when a run begins."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from holdfast.commit.authority import Authority
from holdfast.model.errors import invariant
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.tenant import PriorityClass, PriorityClassSpec, Quota, QuotaSpec, Tenant
from holdfast.model.machine import Answer, Answered, Asked, Txn
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.requests import Accepted
from holdfast.model.time import Instant
from holdfast.sim.planes.shared_names import ADMIN, TENANTS
from holdfast.store.memory import Keyspace


def defaults(cpu: str = "8", urgent_cpu: str = "") -> tuple[Object, ...]:
    """The objects that most worlds begin with: regions, tenants, quotas, priorities."""
    cohort = QuotaSpec(
        cohort="house",
        hard={"cpu": cpu, "gpu": "3"},
        borrowing={"cpu": "4", "gpu": "1"},
        priority_classes={"urgent": {"cpu": urgent_cpu}} if urgent_cpu else {},
    )
    return (
        Region(ObjectMeta(name="eu"), spec=RegionSpec(jurisdictions=("eu",))),
        Region(ObjectMeta(name="us"), spec=RegionSpec(jurisdictions=("us",))),
        PriorityClass(ObjectMeta(name="urgent"), spec=PriorityClassSpec(value=100, preempts=True)),
        *(Tenant(ObjectMeta(name=tenant)) for tenant in TENANTS),
        *(Quota(ObjectMeta(name="default", namespace=t), spec=cohort) for t in TENANTS),
    )


def apply_requests(keyspace: Keyspace, rng: Random, requests: Sequence[Any]) -> None:
    """Applies these requests as an operator, long before the run begins; `rng` draws the uids."""
    authority = Authority(rng, keyspace)
    for call, request in enumerate(requests, start=1):
        _apply_request(authority, keyspace, Asked(call, ADMIN, request))


def _apply_request(authority: Authority, keyspace: Keyspace, asked: Asked) -> None:
    work: list[Any] = [asked]
    while work:
        for effect in authority.step(work.pop(0), Instant(0, 0)):
            if isinstance(effect, Txn):
                outcome = keyspace.txn(effect.transaction, token=effect.token)
                work.append(Answered(effect.call, outcome))
            elif isinstance(effect, Answer):
                invariant(
                    isinstance(effect.body, Accepted), f"initial request refused: {effect.body}"
                )
