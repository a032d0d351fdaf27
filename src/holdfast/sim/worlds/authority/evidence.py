"""What is said of a node rests on the node as it is: a word that comes late changes nothing.

Hands say in their requests what they rest on: a judgement of controller:nodes at which revision it
looked, a registration the how manyth of its agent it is.
"""

from __future__ import annotations

from holdfast.model import identity as who
from holdfast.model.kinds.node import Node
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.agents import count_of
from holdfast.sim.worlds.authority.books import Books, accepted_in

_NODES = "objects/nodes/"
_JUDGE = f"{who.controller('nodes').name}/"


class Evidence(Checker):
    """STALE: no judgement on a node that has changed since, and no facts older than those there."""

    invariants = ("STALE",)

    def __init__(self, books: Books) -> None:
        self._books = books
        # At which revision each node was last written.
        self._written: dict[str, int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for key, old, new in self._books.changed(_NODES):
            if old is not None and new is not None and old.metadata.uid == new.metadata.uid:
                self._judged(old, new, self._written.get(key, 0))
                if count_of(new) < count_of(old):
                    told = f"{old.status.agent_version} to {new.status.agent_version}"
                    self.violated("STALE", f"the facts of {new.name} went back from {told}")
            self._written[key] = commit.revision

    def _judged(self, old: Node, new: Node, written: int) -> None:
        for operation in accepted_in(old, new):
            if not operation.id.startswith(_JUDGE):
                continue
            looked = int(operation.id.split("/")[-2])
            if looked < written:
                what = f"{operation.id} looked at {looked}, {new.name} was written at {written}"
                self.violated("STALE", f"a judgement took effect on old evidence: {what}")
