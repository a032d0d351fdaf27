"""A plane: one store with its servers, schedulers and controllers.

A value that says which plane something belongs to. The options of a server make one, its store
remembers it, decisions ask it, and clients are shown it; a simulated world builds one plane or
several from such values.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from holdfast.model.errors import FieldError, Invalid
from holdfast.model.meta import Part
from holdfast.model.validation.names import NAME_RULE, is_name


class PlaneRole(Enum):
    """What a plane is responsible for."""

    # Everything: the plane of one cluster.
    BOTH = "both"
    # Tenants, quotas, policies and the work that spans regions. It has no nodes.
    GLOBAL = "global"
    # The nodes, replicas and bindings of one region.
    REGION = "region"


DEFAULT_NAME = "main"


class Plane(msgspec.Struct, frozen=True, omit_defaults=True):
    """One plane by its name, which no other plane that it works with has.

    region: the region of its nodes; required for a region plane, and none for a global one.
    store: where its records are; in a simulated world the name of a store.
    servers: the names of its servers, as far as they are known.
    """

    name: str = DEFAULT_NAME
    role: PlaneRole = PlaneRole.BOTH
    region: str = ""
    store: str = "store"
    servers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        errors = [
            FieldError(option, value[:80], NAME_RULE)
            for option, value in (("--plane", self.name), ("--plane-region", self.region))
            if not is_name(value) and (value or option == "--plane")
        ]
        if self.role is PlaneRole.REGION and not self.region:
            rule = "a region plane needs the name of its region"
            errors.append(FieldError("--plane-region", self.region, rule))
        if self.role is PlaneRole.GLOBAL and self.region:
            rule = "a global plane has no nodes and so no region"
            errors.append(FieldError("--plane-region", self.region, rule))
        if errors:
            raise Invalid("; ".join(map(str, errors)), tuple(errors))

    def node_refusal(self, region: str) -> str:
        """Why no node of this region may register; empty if it may."""
        if self.role is PlaneRole.GLOBAL:
            return f"this is plane {self}, which has no nodes: let it join the plane of its region"
        if self.role is PlaneRole.REGION and region != self.region:
            return (
                f"it is in region {region[:80]!r}, and this is plane {self}: let it join the plane "
                f"of its region, or start its agent with --region {self.region}"
            )
        return ""

    def __str__(self) -> str:
        """The plane as it is shown to people: `eu, the region eu-central`."""
        match self.role:
            case PlaneRole.REGION:
                return f"{self.name}, the region plane of {self.region}"
            case PlaneRole.GLOBAL:
                return f"{self.name}, the global plane"
        return f"{self.name}, region {self.region}" if self.region else self.name


class PlaneRecord(Part, frozen=True):
    """Which plane a store belongs to; the first server that starts over the store writes it."""

    name: str
    role: PlaneRole = PlaneRole.BOTH
    region: str = ""


def record_of(plane: Plane) -> PlaneRecord:
    """What the plane's store remembers of it."""
    return PlaneRecord(plane.name, plane.role, plane.region)


def store_refusal(found: PlaneRecord, plane: Plane) -> str:
    """Why no server of this plane may use a store with this record; empty if it may."""
    if found == record_of(plane):
        return ""
    owner = Plane(found.name, found.role, found.region)
    options = f"--plane={owner.name} --plane-role={owner.role.value}"
    if owner.region:
        options += f" --plane-region={owner.region}"
    return (
        f"the store belongs to plane {owner}, and this server is started for plane {plane}: start "
        f"it with {options}, or with a store of its own (--data, --store, --etcd-prefix)"
    )
