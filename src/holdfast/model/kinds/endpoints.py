"""Endpoints: the addresses of a workload's ready replicas."""

from __future__ import annotations

from holdfast.model.kind_declaration import Kind, KindRules, Writers, count, text
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object, Part

# No workload has more Endpoints objects than this many digits can number.
NUMBER_DIGITS_MAX = 6


class Endpoint(Part, frozen=True):
    """One replica that serves.

    replica: the replica.
    node: where it runs.
    zone: the zone of that node.
    ports: address and number of each named port.
    """

    list_keys = ("replica",)

    replica: str
    node: str = ""
    zone: str = ""
    ports: dict[str, str] = {}


class Endpoints(Object, frozen=True, kw_only=True, tag="Endpoints"):
    """The addresses of a workload's ready replicas; its name is the workload's.

    A workload with more addresses than fit has further objects, named `web.1`, `web.2`.

    endpoints: the replicas that serve, by name.
    """

    endpoints: tuple[Endpoint, ...] = ()


def list_name(workload: str, number: int) -> str:
    """The name of a workload's Endpoints. Workload names have no dots, so it is unique."""
    return f"{workload}.{number}" if number else workload


def list_of(name: str) -> tuple[str, int]:
    """The workload of an Endpoints name, and the number of the object."""
    workload, _, number = name.partition(".")
    is_number = number.isascii() and number.isdigit() and len(number) <= NUMBER_DIGITS_MAX
    return workload, int(number) if is_number else 0


# As many as fit a line.
ENDPOINTS_SHOWN = 3


def _endpoints_rules() -> KindRules:
    from holdfast.model.validation import records

    return KindRules(records.endpoints)


ENDPOINTS_KIND = Kind(
    Endpoints,
    "endpoints",
    rules=_endpoints_rules,
    writers=Writers(spec=(Actor.ENDPOINTS,)),
    columns=(
        count("Ready", lambda o: len(o.endpoints), "how many replicas serve"),
        text(
            "Addresses",
            lambda o: (
                ",".join(a for e in o.endpoints[:ENDPOINTS_SHOWN] for a in e.ports.values()) or "-"
            ),
            "where the first few can be reached",
        ),
    ),
    short_names=("ep",),
    dotted=True,
    status=False,
    removal_order=2,
)
