"""What callers may do, as this server knows it: for reads, watches and access reviews.

The authority authorizes writes, inside their transaction. Here the roles and bindings are those of
the hub, a few milliseconds behind the store. A server that accepted a change of them answers only
once its own hub has it, so the change is in effect there from the answer on; elsewhere it takes
effect with the next event of the store's watch.

A missing event must not keep a permission alive. So the view is compared with the store every
`CONFIRM_S`. If it was not confirmed for `TRUST_S`, none of its roles and bindings is in effect.
Built-in permissions are always in effect: components, administrators, and people in their own
namespaces go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from holdfast.host.api.objects.freshness import Freshness
from holdfast.model.access.identity import Identity
from holdfast.model.access.rights import (
    BUILT_IN_LABEL,
    NOTHING,
    AccessLedger,
    GrantedRule,
    Permission,
    find_grant,
    find_path_grant,
    granted_rules,
    ledger_of,
    subjects_of,
)
from holdfast.model.access.roles import HELD_BY, PEOPLE, ROLES, built_in_grants
from holdfast.model.encoding.wire import readable
from holdfast.model.errors import HoldfastError
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.access import Role, RoleBinding, RoleRef, Subject
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of, kind_of_struct
from holdfast.model.requests import Create, Update
from holdfast.observe.entries import ObjectEntry
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watch_hub import WatchHub

# A revoked permission ends everywhere within this time, or roles and bindings have no effect.
TRUST_S = 5.0
CONFIRM_S = 1.0
# Callers whose permissions are cached; beyond that the cache is cleared.
CALLERS_MAX = 4_096

_ROLE, _BINDING = kind_of_struct(Role), kind_of_struct(RoleBinding)

# The roles and the bindings of one namespace by name, each with the entry it was decoded from.
_Shown = tuple[dict[str, tuple[ObjectEntry, Any]], dict[str, tuple[ObjectEntry, Any]]]


class Rights:
    """See the module's docstring."""

    def __init__(
        self, hub: WatchHub, freshness: Freshness, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._hub, self._freshness = hub, freshness
        # A monotonic clock, by which the last confirmation grows old.
        self.now_s = now_s
        self._confirmed_s = now_s()
        # The number of the hub's lists, and when roles and bindings last changed.
        self._seen = (0, 0, 0)
        self._shown: dict[str, _Shown] = {}
        self._ledgers: dict[str, AccessLedger] = {}
        # The namespaces in which bindings name a subject.
        self._where: dict[str, set[str]] = {}
        self._given: dict[Identity, tuple[GrantedRule, ...]] = {}

    # Questions -----------------------------------------------------------------------------------

    def may(self, identity: Identity, permission: Permission) -> bool:
        """Return whether an identity may do this, or continue to do it."""
        if find_grant(built_in_grants(identity), permission) is not None:
            return True
        return find_grant(self.grants_of(identity), permission) is not None

    def may_path(self, identity: Identity, verb: str, path: str) -> bool:
        """Return whether an identity may use a non-resource path."""
        if find_path_grant(built_in_grants(identity), verb, path) is not None:
            return True
        return find_path_grant(self.grants_of(identity), verb, path) is not None

    def grants(self, identity: Identity) -> tuple[GrantedRule, ...]:
        """Return all grants of an identity, in all namespaces."""
        return (*built_in_grants(identity), *self.grants_of(identity))

    def grants_of(self, identity: Identity) -> tuple[GrantedRule, ...]:
        """Return the grants by roles and bindings; none while these may be outdated."""
        if not subjects_of(identity) or not self.is_trusted:
            return ()
        self._look()
        found = self._given.get(identity)
        if found is None:
            if len(self._given) >= CALLERS_MAX:
                self._given.clear()
            found = self._given[identity] = self._put_together(identity)
        return found

    @property
    def age_s(self) -> float:
        """Return how long ago the view was last confirmed to be current."""
        return self.now_s() - self._confirmed_s

    @property
    def is_trusted(self) -> bool:
        """Return whether the view is recent enough to be used."""
        return self.age_s <= TRUST_S

    async def is_current(self) -> bool:
        """Return whether the view can be used; an old one is compared with the store first."""
        if not self.is_trusted:
            await self.confirm()
        return self.is_trusted

    # The view ------------------------------------------------------------------------------------

    def _put_together(self, identity: Identity) -> tuple[GrantedRule, ...]:
        system = self._ledgers.get(SYSTEM_NAMESPACE, NOTHING)
        places = {it for who in subjects_of(identity) for it in self._where.get(who, ())}
        return tuple(
            grant
            for namespace in sorted(places)
            for grant in granted_rules(
                identity, namespace, self._ledgers[namespace], system, PEOPLE
            )
        )

    def _look(self) -> None:
        """Take in what has changed. Only namespaces with changes are visited, and only what changed
        there is decoded: one tenant's change must not cost in proportion to all others.
        """
        hub, before = self._hub, self._seen
        seen = (hub.lists, hub.changed(_ROLE), hub.changed(_BINDING))
        if seen == before:
            return
        self._seen = seen
        if seen[0] != before[0]:
            # What was deleted meanwhile has changed as well.
            changed = hub.namespaces(_ROLE) | hub.namespaces(_BINDING) | self._shown.keys()
        else:
            changed = hub.namespaces_changed(_ROLE, before[1])
            changed |= hub.namespaces_changed(_BINDING, before[2])
        for namespace in changed:
            self._look_at(namespace)
        self._given.clear()

    def _look_at(self, namespace: str) -> None:
        before = self._shown.get(namespace, ({}, {}))
        roles = _read_again(self._hub, _ROLE, namespace, before[0])
        bindings = _read_again(self._hub, _BINDING, namespace, before[1])
        for who in self._ledgers.get(namespace, NOTHING).given:
            self._where[who].discard(namespace)
            if not self._where[who]:
                del self._where[who]
        if not roles and not bindings:
            self._shown.pop(namespace, None)
            self._ledgers.pop(namespace, None)
            return
        self._shown[namespace] = (roles, bindings)
        # An object that cannot be read grants nothing.
        ledger = self._ledgers[namespace] = ledger_of(
            namespace,
            (it for _, it in roles.values() if it is not None),
            (it for _, it in bindings.values() if it is not None),
        )
        for who in ledger.given:
            self._where.setdefault(who, set()).add(namespace)

    async def confirm(self) -> None:
        """Compare the view with the store. If the store cannot be asked, the view ages."""
        began_s = self.now_s()
        with contextlib.suppress(HoldfastError):
            if await self._freshness.is_hub_fresh():
                self._confirmed_s = began_s

    async def confirm_for_ever(self) -> None:
        """Confirm the view at intervals until cancelled."""
        while True:
            await self.confirm()
            await asyncio.sleep(CONFIRM_S)

    async def reached(self, revision: int) -> None:
        """Wait until a change of roles or bindings that was just accepted is in effect here."""
        await self._freshness.wait_for_revision(revision, TRUST_S)


def concerns_rights(objects: tuple[Object, ...]) -> bool:
    """Return whether a change of these objects may change permissions."""
    return any(isinstance(obj, Role | RoleBinding) for obj in objects)


def _read_again(
    hub: WatchHub, kind: Kind, namespace: str, before: dict[str, tuple[ObjectEntry, Any]]
) -> dict[str, tuple[ObjectEntry, Any]]:
    """Return the objects of a kind in a namespace; unchanged ones are not decoded again."""
    found: dict[str, tuple[ObjectEntry, Any]] = {}
    for entry in hub.select(ObjectSelection(kind, namespace)):
        known = before.get(entry.name)
        if known is None or known[0] is not entry:
            known = (entry, readable(kind.struct, entry.data))
        found[entry.name] = known
    return found


# Publishes the built-in permissions: a Role for each built-in role, a RoleBinding for each group.
#
# `server_process` calls this at every start, so `kubectl get roles -n holdfast-system` shows what
# this version does. The objects are informative: the table in `model/access/roles` decides, and
# only a server may change or delete them. During an upgrade they are those of the last server to
# start.

MANAGER = "holdfast"

Ask = Callable[[Any], Awaitable[Any]]


def _metadata(name: str) -> ObjectMeta:
    labels = {BUILT_IN_LABEL: "true"}
    return ObjectMeta(name=name, namespace=SYSTEM_NAMESPACE, labels=labels)


def built_in_objects() -> Iterator[Role | RoleBinding]:
    """Yield the objects as they should be."""
    for name, rules in ROLES.items():
        yield Role(_metadata(name), rules=rules)
    for name, group in HELD_BY.items():
        yield RoleBinding(
            _metadata(name), subjects=(Subject("Group", group),), role_ref=RoleRef(name)
        )


def _wanted(hub: WatchHub, obj: Role | RoleBinding) -> Create | Update | None:
    """Return the request that creates or updates the object, if one is needed."""
    entry = hub.get(kind_of(obj), obj.namespace, obj.name)
    if entry is None:
        return Create(obj, MANAGER)
    there: Object | None = readable(type(obj), entry.data)
    if there is None:
        # The commit reports what is wrong with it.
        return Update(obj, manager=MANAGER)
    metadata = msgspec.structs.replace(
        there.metadata, labels={**there.metadata.labels, **obj.metadata.labels}
    )
    after = msgspec.structs.replace(obj, metadata=metadata)
    return Update(after, manager=MANAGER) if after != there else None


async def publish_built_in_roles(hub: WatchHub, ask: Ask) -> str:
    """Publish the built-in objects. Return a message if that failed, which does no harm."""
    requests = [request for obj in built_in_objects() if (request := _wanted(hub, obj)) is not None]
    # All at once, so that a first start waits for one commit.
    verdicts = await asyncio.gather(*map(ask, requests), return_exceptions=True)
    for verdict in verdicts:
        if isinstance(verdict, BaseException) and not isinstance(verdict, HoldfastError):
            raise verdict
        is_refused = isinstance(verdict, Refusal) and verdict.reason is not Reason.EXISTS
        if is_refused or isinstance(verdict, HoldfastError):
            return f"The built-in roles could not be published: {verdict.message}"
    return ""
