"""Work that runs under an agent, and what the agent has done and asked so far."""

from __future__ import annotations

from typing import Any

from holdfast.model.lifecycle import Stage
from holdfast.model.machine import Ask
from holdfast.model.transaction import Delete, Transaction
from tests.unit.agent.rig import Rig


def made(rig: Rig, kind: type[Any]) -> list[Any]:
    """All effects of a kind so far."""
    return [it for it in rig.trace if isinstance(it, kind)]


def asked(rig: Rig, kind: type[Any]) -> list[Any]:
    return [it.body for it in made(rig, Ask) if isinstance(it.body, kind)]


def running(rig: Rig, kind: str = "svc", **more: Any) -> Any:
    """A replica that runs and is ready."""
    replica = rig.bound(kind, **more)
    rig.settle()
    rig.launched(replica.name)
    rig.settle()
    assert rig.state(replica).stage is Stage.READY
    return replica


def started() -> Rig:
    rig = Rig()
    rig.up()
    return rig


def without(*gone: str) -> Transaction:
    """Take these keys away behind the back of the authority."""
    return Transaction((), tuple(Delete(key) for key in gone))
