"""A plane: one store with its servers, schedulers and controllers.

A value that says which plane something belongs to. The options of a server make one, and clients
are shown it; a simulated world builds one plane or several from such values.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from holdfast.model.errors import FieldError, Invalid
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

    def __str__(self) -> str:
        """The plane as it is shown to people: `eu, the region eu-central`."""
        match self.role:
            case PlaneRole.REGION:
                return f"{self.name}, the region plane of {self.region}"
            case PlaneRole.GLOBAL:
                return f"{self.name}, the global plane"
        return f"{self.name}, region {self.region}" if self.region else self.name
