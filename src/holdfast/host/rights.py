"""What callers may do, as this server knows it: for reads, watches and access reviews.

Writes are judged by the authority, inside their transaction. Here the roles and bindings are those
of the hub, a few milliseconds behind the store. A server that has taken in a change of them answers
only once its own hub has it, so what was given or taken counts there from the answer on; elsewhere
it counts with the next event of the store's watch.

An event that does not come must not keep a right alive. So the view is held against the store every
`CONFIRM_S`; when it was not found current for `TRUST_S`, no role or binding of it counts any more.
What is built in counts always: components, administrators, and people in their own namespaces go
on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from holdfast.host.api.freshness import Freshness
from holdfast.model.errors import HoldfastError
from holdfast.model.identity import Identity
from holdfast.model.kinds.role import Role, RoleBinding
from holdfast.model.meta import Object
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of_struct
from holdfast.model.rights import (
    NOTHING,
    AccessLedger,
    Deed,
    Grant,
    granted,
    ledger_of,
    permitting,
    permitting_path,
    subjects_of,
)
from holdfast.model.roles import PEOPLE, built_in_grants
from holdfast.model.wire import decode_trusted
from holdfast.observe.entries import Entry
from holdfast.observe.hub import Hub
from holdfast.observe.selection import Selection

# A right that was taken away is felt everywhere within this time, or nothing is allowed by it.
TRUST_S = 5.0
CONFIRM_S = 1.0
# People whose rights are kept at hand; after that they are put together anew.
CALLERS_MAX = 4_096

_ROLE, _BINDING = kind_of_struct(Role), kind_of_struct(RoleBinding)

# The roles and the bindings of one namespace, as the hub has them.
_Shown = tuple[tuple[Entry, ...], tuple[Entry, ...]]


class Rights:
    """See the module's docstring."""

    def __init__(
        self, hub: Hub, freshness: Freshness, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._hub, self._freshness, self._now_s = hub, freshness, now_s
        self._confirmed_s = now_s()
        self._seen = (0, 0)
        self._shown: dict[str, _Shown] = {}
        self._ledgers: dict[str, AccessLedger] = {}
        self._given: dict[Identity, tuple[Grant, ...]] = {}

    # Questions -----------------------------------------------------------------------------------

    def may(self, identity: Identity, deed: Deed) -> bool:
        """Whether somebody may do this, or go on doing it."""
        if permitting(built_in_grants(identity), deed) is not None:
            return True
        return permitting(self.given(identity), deed) is not None

    def may_path(self, identity: Identity, verb: str, path: str) -> bool:
        """Whether somebody may use a path that is no resource."""
        if permitting_path(built_in_grants(identity), verb, path) is not None:
            return True
        return permitting_path(self.given(identity), verb, path) is not None

    def grants(self, identity: Identity) -> tuple[Grant, ...]:
        """All that somebody was given, wherever it holds."""
        return (*built_in_grants(identity), *self.given(identity))

    def given(self, identity: Identity) -> tuple[Grant, ...]:
        """What roles and bindings give somebody; nothing while they may be too old."""
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
        """How long ago the view was last known to be as new as the store."""
        return self._now_s() - self._confirmed_s

    @property
    def is_trusted(self) -> bool:
        """Whether the view may be believed as it is."""
        return self.age_s <= TRUST_S

    async def is_current(self) -> bool:
        """Whether the view may be believed; one that is too old is held against the store first."""
        if not self.is_trusted:
            await self.confirm()
        return self.is_trusted

    # The view ------------------------------------------------------------------------------------

    def _put_together(self, identity: Identity) -> tuple[Grant, ...]:
        system = self._ledgers.get(SYSTEM_NAMESPACE, NOTHING)
        return tuple(
            grant
            for namespace, ledger in self._ledgers.items()
            for grant in granted(identity, namespace, ledger, system, PEOPLE)
        )

    def _look(self) -> None:
        """Take in what has changed. Only namespaces in which something did are read anew."""
        seen = (self._hub.changed(_ROLE), self._hub.changed(_BINDING))
        if seen == self._seen:
            return
        self._seen = seen
        shown: dict[str, tuple[list[Entry], list[Entry]]] = {}
        for at, kind in enumerate((_ROLE, _BINDING)):
            for entry in self._hub.select(Selection(kind)):
                shown.setdefault(entry.namespace, ([], []))[at].append(entry)
        before, self._shown = self._shown, {}
        ledgers: dict[str, AccessLedger] = {}
        for namespace, (roles, bindings) in shown.items():
            now = self._shown[namespace] = (tuple(roles), tuple(bindings))
            is_same = before.get(namespace) == now
            ledgers[namespace] = self._ledgers[namespace] if is_same else _ledger(namespace, now)
        self._ledgers = ledgers
        self._given.clear()

    async def confirm(self) -> None:
        """Hold the view against the store. One that cannot be asked leaves it as old as it is."""
        began_s = self._now_s()
        with contextlib.suppress(HoldfastError):
            if await self._freshness.is_hub_fresh():
                self._confirmed_s = began_s

    async def confirm_for_ever(self) -> None:
        """Again and again, for as long as the server lives."""
        while True:
            await self.confirm()
            await asyncio.sleep(CONFIRM_S)

    async def reached(self, revision: int) -> None:
        """Wait until a change of roles or bindings that was just accepted counts here."""
        await self._freshness.reached(revision, TRUST_S)


def concerns_rights(objects: tuple[Object, ...]) -> bool:
    """Whether a change of these may change what somebody may do."""
    return any(isinstance(obj, Role | RoleBinding) for obj in objects)


def _ledger(namespace: str, shown: _Shown) -> AccessLedger:
    roles, bindings = shown
    return ledger_of(
        namespace,
        (decode_trusted(Role, entry.data) for entry in roles),
        (decode_trusted(RoleBinding, entry.data) for entry in bindings),
    )
