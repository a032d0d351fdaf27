"""An object with its owners, as a server would keep it, and configurations for it."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.commit.apply.managed_fields import Conflicts, Entries
from holdfast.commit.apply.server_side import ApplyResult, apply, entries_after_update
from holdfast.commit.apply.shapes import shape_of
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.workload import Workload

WORKLOAD = shape_of(Workload)
NODE = shape_of(Node)
T0 = datetime(2026, 1, 1, tzinfo=UTC)

Tree = dict[str, Any]


class Live:
    """An object with its owners, as a server would keep it."""

    def __init__(self, shape: Any = WORKLOAD) -> None:
        self.tree: Tree | None = None
        self.owners: Entries = ()
        self.now = T0
        self.shape = shape

    def try_apply(self, manager: str, config: Tree, **more: Any) -> ApplyResult | Conflicts:
        self.now += timedelta(minutes=1)
        before = deepcopy((self.tree, self.owners, config))
        result = apply(
            self.tree, self.owners, config, manager=manager, now=self.now, shape=self.shape, **more
        )
        assert (self.tree, self.owners, config) == before, "arguments must never change"
        return result

    def apply(self, manager: str, config: Tree, **more: Any) -> Tree:
        result = self.try_apply(manager, config, **more)
        assert isinstance(result, ApplyResult), result.message
        self.tree, self.owners = result.tree, result.managed_fields
        return self.tree

    def refuse(self, manager: str, config: Tree, **more: Any) -> str:
        result = self.try_apply(manager, config, **more)
        assert isinstance(result, Conflicts), "this must be a conflict"
        return result.message

    def update(self, manager: str, tree: Tree, **more: Any) -> None:
        self.now += timedelta(minutes=1)
        before = deepcopy((self.tree, self.owners, tree))
        owners = entries_after_update(
            self.tree, tree, self.owners, manager=manager, now=self.now, shape=self.shape, **more
        )
        assert (self.tree, self.owners, tree) == before, "arguments must never change"
        self.tree, self.owners = tree, owners

    def fields(self, manager: str, operation: str = "Apply", subresource: str = "") -> Any:
        found = [
            e.fields_v1
            for e in self.owners
            if (e.manager, e.operation, e.subresource) == (manager, operation, subresource)
        ]
        assert len(found) <= 1
        return found[0] if found else None


def workload(labels: Tree | None = None, **spec: Any) -> Tree:
    metadata: Tree = {"name": "risk-api", "namespace": "risk"}
    if labels is not None:
        metadata["labels"] = labels
    tree = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "metadata": metadata}
    return {**tree, "spec": spec} if spec else tree


def env(**variables: str) -> Tree:
    return {"template": {"env": [{"name": n, "value": v} for n, v in variables.items()]}}
