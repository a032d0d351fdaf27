"""All controllers, found by the actors of the lifecycle table. A `ControllerRunner` runs them.

The controller of the actor `controller:NAME` is the class `NameController` in `NAME.py` of this
room, or in `NAME/controller.py`. So a new one is its actor (`model/lifecycle.py`) and its module:
no list here could forget it, and the order is that of the actors.
"""

from __future__ import annotations

from importlib import import_module

from holdfast import correct
from holdfast.correct.controller import Controller
from holdfast.correct.jobs.cron import Zones, only_utc
from holdfast.correct.nodes.controller import NodesController
from holdfast.correct.repair import RepairController
from holdfast.correct.status import StatusController
from holdfast.correct.workload.controller import WorkloadController
from holdfast.model.lifecycle import CONTROLLER_SCOPE, CONTROLLERS, PLANNED, Actor

# A starting workload of three replicas changes fifteen times within a second. Users and tools that
# wait for a status wait at most this much longer.
STATUS_EVERY_MS = 200


def core_controllers(zones: Zones = only_utc, status_every_ms: int = 0) -> tuple[Controller, ...]:
    """The controllers that a replica needs from its creation to its release."""
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
    core = core_controllers(zones, STATUS_EVERY_MS)
    known = {*PLANNED, *(it.actor for it in core)}
    return (*core, *(controller_class(actor)() for actor in CONTROLLERS if actor not in known))


def controller_class(actor: Actor) -> type[Controller]:
    """The controller of this actor. Raises ImportError if its module is missing."""
    name = actor.value.removeprefix(CONTROLLER_SCOPE)
    module = import_module(f"{correct.__name__}.{name}")
    if hasattr(module, "__path__"):
        module = import_module(f"{module.__name__}.controller")
    found: type[Controller] = getattr(module, f"{name.title()}Controller")
    return found
