"""How often each tenant was refused because a budget of its own was used up.

`authority` counts its refusals here, `host/api/tenant_rates` those of the rates; `host/plane` shows
both to operators. Work that a scheduler does not even send, because its picture says that there is
no room, is not refused: it waits, and is counted with its reason (`propose/backlog.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.commit.gate_counts import OTHERS, TENANTS_COUNTED_MAX
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import BindTogether

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


class Exhausted:
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
            self.add(tenant_of(request), budget)

    def add(self, tenant: str, budget: str) -> None:
        """A budget of the tenant was found used up."""
        if tenant not in self._counts and len(self._counts) >= TENANTS_COUNTED_MAX:
            tenant = OTHERS
        of_tenant = self._counts.setdefault(tenant, {})
        of_tenant[budget] = of_tenant.get(budget, 0) + 1


def tenant_of(request: Any) -> str:
    """The tenant whose work a request is about."""
    if isinstance(request, BindTogether):
        return tenant_of(request.binds[0]) if request.binds else ""
    about = getattr(request, "target", None) or getattr(request, "object", None) or request
    found: str = getattr(about, "namespace", "")
    return found
