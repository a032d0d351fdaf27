"""Binds in flight by tenant and workload, and the limits that quotas set for them.

A bind is in flight from when it is sent until its outcome is known. The scheduler asks before it
proposes; a replica that has to wait is parked, and woken when a bind of its tenant is settled. The
limit of one scheduler is not shared with others: each counts its own binds.
"""

from __future__ import annotations

from holdfast.model.kinds.tenant import QueueLimits, Quota

_NO_LIMITS = QueueLimits()


class BindSlots:
    """See the module's docstring. `freed` collects tenants of which a bind was settled."""

    def __init__(self) -> None:
        self._limits: dict[str, QueueLimits] = {}
        self._open: dict[str, tuple[str, str]] = {}
        # By tenant, under an empty workload, and by workload.
        self._counts: dict[tuple[str, str], int] = {}
        self.freed: dict[str, None] = {}

    def limit(self, tenant: str, quota: Quota | None) -> None:
        """Apply the limits of a tenant's quota."""
        limits = quota.spec.queue if quota is not None else _NO_LIMITS
        if limits == _NO_LIMITS:
            self._limits.pop(tenant, None)
        else:
            self._limits[tenant] = limits
        self.freed[tenant] = None

    def pending_per_workload(self, tenant: str) -> int | None:
        """How many replicas of one workload are queued."""
        return self._limits.get(tenant, _NO_LIMITS).pending_per_workload

    def begin(self, uid: str, tenant: str, workload: str) -> None:
        """Count a bind that is sent."""
        self._open[uid] = tenant, workload
        self._change(tenant, workload, 1)

    def end(self, uid: str) -> None:
        """Count a bind as settled."""
        tenant, workload = self._open.pop(uid)
        self._change(tenant, workload, -1)
        if tenant in self._limits:
            self.freed[tenant] = None

    def _change(self, tenant: str, workload: str, by: int) -> None:
        for key in ((tenant, ""), (tenant, workload)):
            left = self._counts.get(key, 0) + by
            if left:
                self._counts[key] = left
            else:
                del self._counts[key]

    def is_limited(self, tenant: str) -> bool:
        """Whether the tenant's quota sets a limit."""
        return tenant in self._limits

    def full(self, tenant: str, workload: str) -> str:
        """The limit that is reached, as a sentence; empty if another bind may be sent."""
        limits = self._limits.get(tenant)
        if limits is None:
            return ""
        for whose, name, field, most in (
            (f"tenant {tenant}", "", "binds", limits.binds),
            (f"workload {workload}", workload, "bindsPerWorkload", limits.binds_per_workload),
        ):
            if most is not None and self._counts.get((tenant, name), 0) >= most:
                return f"{whose} has {most} binds in flight, the limit in spec.queue.{field}"
        return ""
