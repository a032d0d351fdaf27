"""The list of all controllers. A `ControllerRunner` runs them."""

from __future__ import annotations

from holdfast.correct.controller import Controller
from holdfast.correct.drain import DrainController
from holdfast.correct.endpoints import EndpointsController
from holdfast.correct.events.controller import EventsController
from holdfast.correct.garbage.controller import GarbageController
from holdfast.correct.jobs.cron import Zones, only_utc
from holdfast.correct.nodes.controller import NodesController
from holdfast.correct.repair import RepairController
from holdfast.correct.reserves import ReservesController
from holdfast.correct.rollout.controller import RolloutController
from holdfast.correct.status import StatusController
from holdfast.correct.workload.controller import WorkloadController

# A starting workload of three replicas changes fifteen times within a second. Users and tools that
# wait for a status wait at most this much longer.
STATUS_EVERY_MS = 200


def core_controllers(zones: Zones = only_utc, status_every_ms: int = 0) -> tuple[Controller, ...]:
    """The controllers that a replica needs from its creation to its release.

    Simulator worlds about single replicas run these alone, so that the findings of a seed do not
    change with every controller that is added.
    """
    return (
        WorkloadController(zones),
        NodesController(),
        RepairController(),
        StatusController(status_every_ms),
    )


def all_controllers(zones: Zones = only_utc) -> tuple[Controller, ...]:
    """New instances of all controllers, since each has state of its own.

    `zones` looks up time zones.
    """
    return (
        *core_controllers(zones, STATUS_EVERY_MS),
        EndpointsController(),
        DrainController(),
        ReservesController(),
        GarbageController(),
        RolloutController(),
        EventsController(),
    )
