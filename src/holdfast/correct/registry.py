"""Every controller there is, once. A team is made from these."""

from __future__ import annotations

from holdfast.correct.controller import Controller
from holdfast.correct.nodes import NodesController
from holdfast.correct.repair import RepairController
from holdfast.correct.status import StatusController
from holdfast.correct.workload import WorkloadController


def all_controllers() -> tuple[Controller, ...]:
    """New controllers, since each remembers what it has seen."""
    return (
        WorkloadController(),
        NodesController(),
        RepairController(),
        StatusController(),
    )
