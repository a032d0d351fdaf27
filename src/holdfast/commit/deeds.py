"""What each request of our own components does, in the words of roles: a verb and a resource.

`authorise` asks for all of them before the request is looked at. A request that does several
things, or one thing to many, needs the right to each. What comes through the ordinary verbs is not
here: it names verb and resource itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.model import requests as ask
from holdfast.model.rights import Deed

_REPLICAS = "replicas"


def _replica(verb: str, part: str, target: ask.Target) -> Deed:
    return Deed(verb, _REPLICAS, part, target.namespace, target.name)


def _to_target(verb: str, part: str) -> Callable[[Any], tuple[Deed, ...]]:
    def deeds(request: Any) -> tuple[Deed, ...]:
        return (_replica(verb, part, request.target),)

    return deeds


def _always(deed: Deed) -> Callable[[Any], tuple[Deed, ...]]:
    return lambda request: (deed,)


def _bind_together(request: ask.BindTogether) -> tuple[Deed, ...]:
    return tuple(_replica("create", "binding", it.target) for it in request.binds)


def _stop_and_reserve(request: ask.StopAndReserve) -> tuple[Deed, ...]:
    victims = (_replica("create", "eviction", victim) for victim in request.victims)
    return (_replica("create", "reservation", request.target), *victims)


def _reservation(verb: str) -> Callable[[Any], tuple[Deed, ...]]:
    def deeds(request: Any) -> tuple[Deed, ...]:
        name = getattr(request, "reservation", "")
        return (Deed(verb, "reservations", namespace=request.namespace, name=name),)

    return deeds


DEEDS: dict[type[Any], Callable[[Any], tuple[Deed, ...]]] = {
    ask.Bind: _to_target("create", "binding"),
    ask.BindTogether: _bind_together,
    ask.Reserve: _to_target("create", "reservation"),
    ask.Unreserve: _to_target("delete", "reservation"),
    ask.HoldCapacity: _reservation("create"),
    ask.CommitGang: _reservation("update"),
    ask.DropReservation: _reservation("delete"),
    ask.Evict: _to_target("create", "eviction"),
    ask.StopAndReserve: _stop_and_reserve,
    ask.Move: _to_target("update", "state"),
    ask.ReportStage: _to_target("update", "stage"),
    ask.ReportPending: _to_target("update", "pending"),
    ask.RegisterNode: lambda it: (Deed("create", "nodes", "registration", name=it.node.name),),
    ask.JudgeNode: lambda it: (Deed("update", "nodes", "phase", name=it.node),),
    ask.AcquireLease: _always(Deed("update", "leases")),
    ask.RenewLease: _always(Deed("update", "leases")),
    ask.ReleaseLease: _always(Deed("update", "leases")),
    ask.RetireLease: _always(Deed("delete", "leases")),
    ask.QuarantineRecord: _always(Deed("create", "quarantine")),
    ask.RepairRecord: _always(Deed("update", "quarantine")),
    ask.RaiseFormat: _always(Deed("update", "upgrade")),
    ask.ForgetOperations: _always(Deed("delete", "operations")),
}


def deeds_of(request: object) -> tuple[Deed, ...]:
    """All that a request does; nothing for one that names verb and resource itself."""
    of = DEEDS.get(type(request))
    return of(request) if of is not None else ()
