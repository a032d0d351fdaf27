"""WorkloadRevision: one template that a workload once had, so that it can be had again."""

from __future__ import annotations

from holdfast.model.kinds.template import Template
from holdfast.model.meta import Object, Part, Revision


class WorkloadRevisionSpec(Part, frozen=True):
    """The template as it was. It never changes.

    workload: whose template.
    number: which in order.
    digest: of the template, so that going back makes no new revision.
    template: the template.
    """

    workload: str
    number: Revision
    digest: str
    template: Template


class WorkloadRevision(Object, frozen=True, kw_only=True, tag="WorkloadRevision"):
    """One template that a workload once had.

    spec: the template as it was.
    """

    spec: WorkloadRevisionSpec
