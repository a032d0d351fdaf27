"""Region: where work can run, and under which law."""

from __future__ import annotations

from holdfast.model.kinds.node import Protection
from holdfast.model.meta import Condition, Object, Part


class Pool(Part, frozen=True):
    """A named set of nodes of a region.

    name: the pool.
    protected_for: whom it is kept for; protected pools cannot be selected by anybody else.
    """

    name: str
    protected_for: Protection | None = None


class RegionSpec(Part, frozen=True):
    """What the region is.

    jurisdictions: the residencies it satisfies, such as eu.
    zones: its failure domains.
    pools: its pools of nodes.
    endpoint: where its plane can be reached; empty for this one.
    """

    jurisdictions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    pools: tuple[Pool, ...] = ()
    endpoint: str = ""


class RegionStatus(Part, frozen=True):
    """What was observed.

    phase: Healthy, Degraded, Lost or Unknown.
    conditions: each type has one writer.
    """

    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class Region(Object, frozen=True, kw_only=True, tag="Region"):
    """Where work can run, and under which law.

    spec: what it is.
    status: what was observed.
    """

    spec: RegionSpec = RegionSpec()
    status: RegionStatus = RegionStatus()
