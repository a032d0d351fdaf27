"""Endpoints: the addresses of a workload's ready replicas."""

from __future__ import annotations

from holdfast.model.meta import Object, Part


class Endpoint(Part, frozen=True):
    """One replica that serves.

    replica: the replica.
    node: where it runs.
    zone: the zone of that node.
    ports: address and number of each named port.
    """

    replica: str
    node: str = ""
    zone: str = ""
    ports: dict[str, str] = {}


class Endpoints(Object, frozen=True, kw_only=True, tag="Endpoints"):
    """The addresses of a workload's ready replicas; its name is the workload's.

    endpoints: the replicas that serve, by name.
    """

    endpoints: tuple[Endpoint, ...] = ()
