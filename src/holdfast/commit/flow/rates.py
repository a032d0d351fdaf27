"""How often each tenant may ask: so many requests a second, and a few more at once.

`host/api/flow/admission` asks here before a request comes to a gate. A rate is a limit that holds
also when the server has nothing else to do; fairness among those who ask at the same time is the
gates'.

For each tenant one moment is kept: the one at which everything it asked so far would have been due
at its rate (the generic cell rate algorithm). Whoever is ahead of it by more than the burst is sent
away with the time that is missing. When the rate is changed, whoever is ahead is so by as many
requests as before, which take another time now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.commit.flow.flow_counts import OTHERS, TENANTS_COUNTED_MAX
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import BindTogether

# Tenants that are remembered; one that is not ahead of its rate needs no memory.
TENANTS_MAX = 10_000
# What may come at once, as seconds of the rate.
BURST_S = 2
_US = 1_000_000


class Rate(msgspec.Struct, frozen=True, gc=False):
    """So many requests a second, or of whatever else is counted; zero means any number."""

    per_s: int = 0
    burst_s: int = BURST_S

    @property
    def gap_us(self) -> int:
        """Between two requests."""
        return max(1, _US // self.per_s)

    @property
    def ahead_us(self) -> int:
        """How far ahead of its rate a tenant may be; one request is always allowed."""
        return max(self.burst_s * _US, self.gap_us)


class Rates:
    """See the module's docstring. Times are readings of the owner's monotonic clock."""

    def __init__(self) -> None:
        # The moment of each tenant, and the gap between two requests that it was counted with.
        self._due: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._due)

    def take(self, tenant: str, rate: Rate, now_ms: int) -> int:
        """One more request: 0 if it may be made, else after how many milliseconds it may."""
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
        """After how many milliseconds something may be charged again; 0 if it may be now.

        For what is known only when it is done, such as bytes: one who is not ahead may do anything,
        and waits for it afterwards.
        """
        if not rate.per_s:
            return 0
        now_us = now_ms * 1_000
        too_early_us = self._due_us(tenant, rate, now_us) - now_us - rate.ahead_us
        return max(1, too_early_us // 1_000) if too_early_us > 0 else 0

    def charge(self, tenant: str, rate: Rate, cost: int, now_ms: int) -> None:
        """A request that was allowed brought so many more with it; they count like others."""
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


# How often each tenant was refused because a budget of its own was used up.
#
# `authority` counts its refusals here, `host/api/flow/tenant_rates` those of the rates;
# `host/server/server_process` shows both to operators. Work that a scheduler does not even send,
# because its picture says that there is no room, is not refused: it waits, and is counted with its
# reason (`propose/queue/scheduling_queue.py`).

# Which budget it is that a refusal of this reason found used up.
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
        """How often, by tenant and budget."""
        return self._counts

    def refused(self, request: Any, refusal: Refusal) -> None:
        """A request was refused; for whatever reason."""
        budget = BUDGETS.get(refusal.reason)
        if budget is not None:
            self.add(request_tenant(request), budget)

    def add(self, tenant: str, budget: str) -> None:
        """A budget of the tenant was found used up."""
        if tenant not in self._counts and len(self._counts) >= TENANTS_COUNTED_MAX:
            tenant = OTHERS
        of_tenant = self._counts.setdefault(tenant, {})
        of_tenant[budget] = of_tenant.get(budget, 0) + 1


def request_tenant(request: Any) -> str:
    """The tenant whose work a request is about."""
    if isinstance(request, BindTogether):
        return request_tenant(request.binds[0]) if request.binds else ""
    about = getattr(request, "target", None) or getattr(request, "object", None) or request
    found: str = getattr(about, "namespace", "")
    return found
