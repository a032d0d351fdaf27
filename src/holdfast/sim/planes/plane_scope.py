"""What the parts of one plane see of a world that holds several.

A `Scope` stands in for the world: it has the plane's own machines, computers, stores, commits,
facts and faults, under the names that they would have in a world of their own. In the world itself
their names begin with the name of the plane: `eu/server-1`. Addresses are resolved in the plane of
the machine that asks, and then in the world, so that `us/servers` are the servers of another plane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, TypeVar, cast

import msgspec

from holdfast.model.access.identity import Identity
from holdfast.model.errors import invariant
from holdfast.sim.cell import Cell, Factory, Host
from holdfast.sim.check import Checker, Commit, overrides
from holdfast.sim.faults import FaultKind, Heal
from holdfast.sim.lives import Performer
from holdfast.sim.plan import Fault
from holdfast.sim.storage import SimStore
from holdfast.sim.world import World
from holdfast.store.memory import Keyspace

Named = TypeVar("Named")
C = TypeVar("C", bound=Checker)


def scoped(world: World, plane: str, region: str) -> World:
    """The world as the parts of this plane see it, whose computers are in this region."""
    return cast("World", Scope(world, plane, region))


class PlaneFact(msgspec.Struct, frozen=True):
    """A fact of one plane."""

    plane: str
    fact: Any

    def __repr__(self) -> str:
        return f"{self.plane} {self.fact!r}"


class _Names(Mapping[str, Named]):
    """The things of a plane by their plain names; a full name finds the same thing."""

    def __init__(self, prefix: str, everything: Mapping[str, Named]) -> None:
        self._prefix, self._everything = prefix, everything

    def __getitem__(self, name: str) -> Named:
        return self._everything[self._prefix + name.removeprefix(self._prefix)]

    def __iter__(self) -> Iterator[str]:
        prefix = self._prefix
        return (name.removeprefix(prefix) for name in self._everything if name.startswith(prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _OfPlane:
    """A performer or a kind of fault that each plane of a world has its own form of."""

    def __init__(self) -> None:
        self.forms: dict[str, Any] = {}


class _Performers(_OfPlane):
    def __call__(self, cell: Cell, effect: Any) -> None:
        self.forms[cell.prefix](cell, effect)


class _Strikes(_OfPlane):
    def __call__(self, _world: World, fault: Fault) -> Heal | None:
        prefix = next(it for it in self.forms if fault.target.startswith(it))
        scope, strike = self.forms[prefix]
        own = msgspec.structs.replace(fault, target=fault.target.removeprefix(prefix))
        heal: Heal | None = strike(scope, own)
        return heal


class _Faults:
    """The faults of a world, with the kinds that a plane adds for its own things."""

    def __init__(self, scope: Scope, world: World) -> None:
        self._scope, self._faults = scope, world.faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._faults, name)

    def add(self, name: str, kind: FaultKind) -> None:
        known = self._faults.kinds.get(name)
        if known is None:
            known = kind._replace(strike=_Strikes())
            self._faults.add(name, known)
        strikes = known.strike
        invariant(isinstance(strikes, _Strikes), f"fault kind {name!r} exists already")
        cast("_Strikes", strikes).forms[self._scope.prefix] = (self._scope, kind.strike)


class _Hooks:
    """Hooks that are called only for the computers or machines of one plane."""

    def __init__(self, prefix: str, hooks: list[Callable[[Any], None]]) -> None:
        self._prefix, self._hooks = prefix, hooks

    def append(self, hook: Callable[[Any], None]) -> None:
        def of_plane(thing: Host | Cell) -> None:
            if thing.name.startswith(self._prefix):
                hook(thing)

        self._hooks.append(of_plane)


class PlaneChecker(Checker):
    """A checker that sees only what one plane commits and states."""

    def __init__(self, scope: Scope, checker: Checker) -> None:
        self.scope, self._checker = scope, checker
        self._world = cast("World", scope)
        self.invariants = checker.invariants
        # Most events are not of this plane.
        invariant(not overrides(checker, "after_event"), "a plane's checker looks at every event")

    def on_commit(self, world: World, commit: Commit) -> None:
        prefix = self.scope.prefix
        if commit.store.startswith(prefix):
            store, author = (it.removeprefix(prefix) for it in (commit.store, commit.author))
            own = msgspec.structs.replace(commit, store=store, author=author)
            self._checker.on_commit(self._world, own)

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, PlaneFact) and fact.plane == self.scope.plane:
            self._checker.on_fact(self._world, fact.fact)

    def on_calm(self, world: World) -> None:
        self._checker.on_calm(self._world)

    def at_end(self, world: World) -> None:
        self._checker.at_end(self._world)


class AcrossPlanes(Checker):
    """A checker of what holds among planes: it sees the commits and facts of all of them."""

    def on_commit(self, world: World, commit: Commit) -> None:
        plane, _, store = commit.store.partition("/")
        self.on_plane_commit(plane, msgspec.structs.replace(commit, store=store))

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, PlaneFact):
            self.on_plane_fact(fact.plane, fact.fact)

    def on_plane_commit(self, plane: str, commit: Commit) -> None:
        """Called after every commit in a plane. Its author has the full name, as `eu/server-1`."""

    def on_plane_fact(self, plane: str, fact: Any) -> None:
        """Called after every fact of a plane."""


class Scope:
    """See the module's docstring. Whatever it does not have itself is the world's."""

    def __init__(self, world: World, plane: str, region: str) -> None:
        self._world, self.plane, self.prefix = world, plane, f"{plane}/"
        self._region = region
        self.cells = _Names(self.prefix, world.cells)
        self.hosts = _Names(self.prefix, world.hosts)
        self.stores = _Names(self.prefix, world.stores)
        self.faults = _Faults(self, world)
        self.power_hooks = _Hooks(self.prefix, cast("Any", world.power_hooks))
        self.crash_hooks = _Hooks(self.prefix, cast("Any", world.crash_hooks))
        self.checkers: list[Checker] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def rng(self, purpose: str) -> Random:
        return self._world.rng(self.prefix + purpose)

    def add_host(self, name: str) -> Host:
        host = self._world.add_host(self.prefix + name, region=self._region)
        host.own_name = name
        return host

    def add_store(
        self, name: str = "store", *, keyspace: Keyspace | None = None, raw_watches: bool = False
    ) -> SimStore:
        home = self.add_host(name)
        return self._world.add_store(home.name, keyspace=keyspace, raw_watches=raw_watches)

    def add(
        self,
        name: str,
        factory: Factory,
        *,
        host: str | None = None,
        identity: str | Identity | None = None,
        store: str | None = None,
    ) -> Cell:
        home = self.hosts.get(host or name) or self.add_host(host or name)
        full, full_store = self.prefix + name, self.prefix + store if store is not None else None
        identity = identity or name
        cell = self._world.add(full, factory, host=home.name, identity=identity, store=full_store)
        cell.prefix = self.prefix
        return cell

    def balance(self, address: str, members: Sequence[str]) -> None:
        self._world.balance(self.prefix + address, [self.prefix + it for it in members])

    def perform(self, effect_type: type, performer: Performer) -> None:
        performers = self._world.performers.get(effect_type)
        if performers is None:
            performers = _Performers()
            self._world.perform(effect_type, performers)
        is_shared = isinstance(performers, _Performers)
        invariant(is_shared, f"{effect_type.__name__} has a performer")
        cast("_Performers", performers).forms[self.prefix] = performer

    def fact(self, fact: Any) -> None:
        self._world.fact(PlaneFact(self.plane, fact))

    def check(self, *checkers: Checker) -> None:
        for checker in checkers:
            self.checkers.append(checker)
            self._world.check(PlaneChecker(self, checker))

    def checker(self, kind: type[C]) -> C:
        """The checker of this class in this plane."""
        return next(checker for checker in self.checkers if isinstance(checker, kind))
