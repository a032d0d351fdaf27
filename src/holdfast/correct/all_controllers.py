"""Every controller there is, once. A team is made from these."""

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

# A workload of three that starts changes fifteen times within a second. People and tools that wait
# for a status wait no longer than this more.
STATUS_EVERY_MS = 200


def core_controllers(zones: Zones = only_utc, status_every_ms: int = 0) -> tuple[Controller, ...]:
    """Those without which no replica comes from its birth to its release.

    Worlds of the simulator that are about one replica run these alone, so that what they have found
    under a seed does not change with every controller that is added.
    """
    return (
        WorkloadController(zones),
        NodesController(),
        RepairController(),
        StatusController(status_every_ms),
    )


def all_controllers(zones: Zones = only_utc) -> tuple[Controller, ...]:
    """New controllers, since each remembers what it has seen.

    `zones` is what is known of time zones.
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
