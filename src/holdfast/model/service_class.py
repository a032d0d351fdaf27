"""The service class of a replica, from its requests and limits as in Kubernetes.

It decides nothing about where work runs. It says who suffers first when a node runs short: the
agent sets the kernel's preference by it, preemption counts it as a loss, users see it.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.kinds.template import Template
from holdfast.model.quantity import Resource, demand


class ServiceClass(StrEnum):
    """The first to suffer comes last."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


def service_class(of: Template) -> ServiceClass:
    """Guaranteed gets exactly what it requests, BestEffort requests and limits nothing.

    A memory limit that is left out is the request (`host/runtime/cgroups/limits.py`); a CPU limit
    that is left out is none. Disk and devices do not count, as in Kubernetes.
    """
    cpu, most_cpu = demand(Resource.CPU, of.resources.cpu), demand(Resource.CPU, of.limits.cpu)
    memory = demand(Resource.MEMORY, of.resources.memory)
    most_memory = demand(Resource.MEMORY, of.limits.memory) or memory
    if not (cpu or most_cpu or memory or most_memory):
        return ServiceClass.BEST_EFFORT
    if cpu and memory and (cpu, memory) == (most_cpu, most_memory):
        return ServiceClass.GUARANTEED
    return ServiceClass.BURSTABLE


# The loss of stopping one replica of a class, for preemption: a replica of a firmer class is worth
# that many of the next one.
CLASS_LOSS = {
    ServiceClass.GUARANTEED: 4,
    ServiceClass.BURSTABLE: 2,
    ServiceClass.BEST_EFFORT: 1,
}
