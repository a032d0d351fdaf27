"""Rate limits: the requests per second of each tenant, with a burst.

`host/api/flow/request_admission` asks here before a request reaches a flow controller. A rate limit
holds even when the server is idle; fairness among concurrent requests is up to the flow
controllers.

For each tenant one time is kept: the time at which all its requests so far would have been due at
its rate (the generic cell rate algorithm). A tenant that is ahead of it by more than the burst is
refused, with the missing time. When the rate changes, a tenant stays ahead by the same number of
requests, which take a different time now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.commit.flow.flow_counts import TENANTS_COUNTED_MAX
from holdfast.model import requests as ask
from holdfast.model.pulse import OTHERS
from holdfast.model.refusal import Reason, Refusal

# The number of remembered tenants; one that is not ahead of its rate needs no memory.
TENANTS_MAX = 10_000
# The burst, as seconds of the rate.
BURST_S = 2
_US = 1_000_000


class Rate(msgspec.Struct, frozen=True, gc=False):
    """Requests per second, or whatever else is counted; zero means unlimited."""

    per_s: int = 0
    burst_s: int = BURST_S

    @property
    def gap_us(self) -> int:
        """The time between two requests."""
        return max(1, _US // self.per_s)

    @property
    def ahead_us(self) -> int:
        """How far ahead of its rate a tenant may be; one request is always allowed."""
        return max(self.burst_s * _US, self.gap_us)


class Rates:
    """See the module's docstring. Times are readings of the owner's monotonic clock."""

    def __init__(self) -> None:
        # The due time of each tenant, and the gap between two requests that it was computed with.
        self._due: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._due)

    def take(self, tenant: str, rate: Rate, now_ms: int) -> int:
        """Count one more request. Returns 0 if it is allowed, else the milliseconds until it is."""
        if not rate.per_s:
            return 0
        now_us = now_ms * 1_000
        due_us = self._due_us(tenant, rate, now_us) + rate.gap_us
        too_early_us = due_us - now_us - rate.ahead_us
        if too_early_us > 0:
            return max(1, too_early_us // 1_000)
        self._due[tenant] = due_us, rate.gap_us
        if len(self._due) > TENANTS_MAX:
            self._forget(now_us)
        return 0

    def wait_ms(self, tenant: str, rate: Rate, now_ms: int) -> int:
        """The milliseconds until the tenant may be charged again; 0 if it may be now.

        For costs that are known only afterwards, such as bytes: a tenant that is not ahead may do
        anything, and waits for it afterwards.
        """
        if not rate.per_s:
            return 0
        now_us = now_ms * 1_000
        too_early_us = self._due_us(tenant, rate, now_us) - now_us - rate.ahead_us
        return max(1, too_early_us // 1_000) if too_early_us > 0 else 0

    def charge(self, tenant: str, rate: Rate, cost: int, now_ms: int) -> None:
        """Charge an allowed request for its additional cost."""
        if rate.per_s and cost > 0:
            due_us = self._due_us(tenant, rate, now_ms * 1_000)
            self._due[tenant] = due_us + cost * rate.gap_us, rate.gap_us

    def _due_us(self, tenant: str, rate: Rate, now_us: int) -> int:
        due_us, gap_us = self._due.get(tenant, (0, rate.gap_us))
        ahead_us = max(0, due_us - now_us)
        return now_us + (ahead_us if gap_us == rate.gap_us else ahead_us * rate.gap_us // gap_us)

    def _forget(self, now_us: int) -> None:
        self._due = {it: due for it, due in self._due.items() if due[0] > now_us}
        while len(self._due) > TENANTS_MAX:
            del self._due[next(iter(self._due))]


# Refusals of each tenant because one of its budgets was exhausted.
#
# `authority` counts its refusals here, `host/api/flow/tenant_rates` those of the rates;
# `host/server/server_process` shows both to operators. Work that a scheduler does not even send,
# because its snapshot shows no room, is not refused: it waits, and is counted with its reason
# (`propose/queue/scheduling_queue.py`).

# The budget that a refusal of this reason found exhausted.
BUDGETS: Mapping[Reason, str] = {
    Reason.QUOTA_EXCEEDED: "quota",
    Reason.COHORT_EXHAUSTED: "cohort",
    Reason.PRIORITY_BUDGET_EXCEEDED: "priority",
    Reason.GRANT_EXPIRED: "grant",
    Reason.GRANT_EXCEEDED: "grant",
    Reason.OBJECT_CAP: "objects",
    Reason.DISRUPTION_BUDGET: "disruption",
}
RATE = "rate"


class ExhaustedBudgets:
    """See the module's docstring. Tenants beyond a number are counted together."""

    def __init__(self) -> None:
        # By tenant, then by budget.
        self._counts: dict[str, dict[str, int]] = {}

    @property
    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """The counts by tenant and budget."""
        return self._counts

    def count_refusal(self, request: Any, refusal: Refusal) -> None:
        """Count a refusal if its reason is an exhausted budget."""
        budget = BUDGETS.get(refusal.reason)
        if budget is not None:
            self.add(request_tenant(request), budget)

    def add(self, tenant: str, budget: str) -> None:
        """Count an exhausted budget of the tenant."""
        if tenant not in self._counts and len(self._counts) >= TENANTS_COUNTED_MAX:
            tenant = OTHERS
        of_tenant = self._counts.setdefault(tenant, {})
        of_tenant[budget] = of_tenant.get(budget, 0) + 1


def request_tenant(request: object) -> str:
    """The tenant whose work a request is about."""
    changed = request.subject() if ask.is_request(request) else None
    return changed.namespace if changed is not None else ""
