"""INV2 as far as the store knows it: nothing is declared gone that may still run, nobody comes back
under a mark, and each life of a node speaks for its own work."""

from __future__ import annotations

from holdfast.commit.records import Epoch
from holdfast.model import keys
from holdfast.model.identity import Identity, acts_as
from holdfast.model.kinds.node import Mark, Node, NodePhase
from holdfast.model.kinds.replica import Binding, Replica, TransitionRecord
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import Actor, State
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.agents import LIFE
from holdfast.sim.worlds.authority.books import Books, accepted_in
from holdfast.sim.worlds.authority.laws import same, steps_of

_FENCED = (NodePhase.FENCED, NodePhase.LOST)
_OUT = (NodePhase.UNKNOWN, *_FENCED)


class Marked(Checker):
    """Marks, fences and lives of nodes, and what they allow with the work on them."""

    invariants = ("INV2", "INV7")

    def __init__(self, books: Books) -> None:
        self.books = books

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.books.changed("objects/replicas/"):
            if same(old, new) and new.status.binding is not None:
                for record in steps_of(old, new):
                    self._moved(new, new.status.binding, record)
        for _, old, new in self.books.changed("objects/nodes/"):
            if old is not None and new is not None and old.metadata.uid == new.metadata.uid:
                self._judged(old, new)

    def _moved(self, replica: Replica, binding: Binding, record: TransitionRecord) -> None:
        nodes: list[Node] = self.books.versions(f"objects/nodes/{binding.node}")
        what = f"{record.by} made {replica.name} {record.to.value}"
        actors = acts_as(Identity(name=record.by))
        if Actor.REPAIR in actors and nodes:
            keeps = replica.spec.template.on_disconnect is OnDisconnect.KEEP
            if not any(_gone(node, binding, record.to, keeps=keeps) for node in nodes):
                self.violated("INV2", f"{what} on {nodes[-1].status.phase.value}")
        if Actor.AGENT in actors:
            life = int(record.evidence.removeprefix(LIFE))
            later = record.to is State.RELEASED and life > binding.node_incarnation
            if life != binding.node_incarnation and not later:
                self.violated("INV2", f"{what} in life {life} of {binding.node}")
            back = record.from_state is State.UNKNOWN
            if back and all(node.status.mark is not None for node in nodes):
                self.violated("INV2", f"{what} under a mark")
        if Actor.NODES in actors and all(node.status.mark is None for node in nodes):
            self.violated("INV2", f"{what} without a mark")

    def _judged(self, old: Node, new: Node) -> None:
        mark = new.status.mark
        if mark is not None and mark != old.status.mark:
            self._under(new, mark)
        self._about_the_mark(old, new)
        lives = new.status.incarnation - old.status.incarnation
        if lives not in (0, 1) or (lives and old.status.phase not in _OUT):
            self.violated("INV2", f"{new.name} began {lives} lives from {old.status.phase}")
        if old.status.phase in _FENCED and new.status.phase not in _FENCED and not lives:
            self.violated("INV2", f"{new.name} came back from its fence in the same life")

    def _about_the_mark(self, old: Node, new: Node) -> None:
        """A fence or a clearing is about the very mark that it names, in this world by its id."""
        marks = [n.status.mark.number for n in (old, new) if n.status.mark is not None]
        for operation in accepted_in(old, new):
            what, _, number = operation.id.rpartition("/")[2].partition("-")
            if what in ("Fence", "Clear") and int(number) not in marks:
                self.violated("INV2", f"{new.name}: {what} of mark {number}, it had {marks}")

    def _under(self, node: Node, mark: Mark) -> None:
        epochs: list[Epoch] = self.books.versions(keys.epoch("controller:nodes"))
        if not any((e.epoch, e.holder) == (mark.epoch, mark.by) for e in epochs):
            self.violated("INV7", f"{mark.by} marked {node.name} under {mark.epoch}, {epochs}")


def _gone(node: Node, binding: Binding, to: State, *, keeps: bool) -> bool:
    """Whether repair may take this work for gone on what it knows of the node."""
    later = node.status.incarnation > binding.node_incarnation
    if keeps:
        return later and to is State.FAILED
    return later or node.status.phase in _FENCED
