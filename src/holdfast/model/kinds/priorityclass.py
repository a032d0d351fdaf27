"""PriorityClass: how urgent work is, and who may say so."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.model.kinds.quota import CapacityClass
from holdfast.model.meta import Object, Part


class PriorityClassSpec(Part, frozen=True):
    """What the class means.

    value: higher goes first.
    urgent: use the fast lane of the queue.
    capacity_class: hard work is charged as committed capacity, reclaimable work may be preempted.
    preempts: whether it may push out less important work.
    allowed_tenants: the only tenants that may use it; empty means all.
    description: for people.
    """

    value: Annotated[int, Meta(ge=-1_000_000, le=1_000_000_000)] = 0
    urgent: bool = False
    capacity_class: CapacityClass = CapacityClass.HARD
    preempts: bool = False
    allowed_tenants: tuple[str, ...] = ()
    description: str = ""


class PriorityClass(Object, frozen=True, kw_only=True, tag="PriorityClass"):
    """How urgent work is, and who may say so. The class `default` is used where none is named.

    spec: what the class means.
    """

    spec: PriorityClassSpec = PriorityClassSpec()
