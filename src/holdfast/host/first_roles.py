"""Shows what is built in: a Role for each built-in role, a RoleBinding for each that a group has.

`plane` calls this at every start, so `kubectl get roles -n holdfast-system` tells what this version
does. The objects are a picture: what counts is the table in `model/roles`, and nobody but a server
may change or delete them. During an upgrade the last server to start has painted it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.role import Role, RoleBinding, RoleRef, Subject
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of
from holdfast.model.requests import Create, Update
from holdfast.model.rights import BUILT_IN_LABEL
from holdfast.model.roles import HELD_BY, ROLES
from holdfast.model.wire import readable
from holdfast.observe.hub import Hub

MANAGER = "holdfast"

Ask = Callable[[Any], Awaitable[Any]]


def _metadata(name: str) -> ObjectMeta:
    labels = {BUILT_IN_LABEL: "true"}
    return ObjectMeta(name=name, namespace=SYSTEM_NAMESPACE, labels=labels)


def built_in() -> Iterator[Role | RoleBinding]:
    """The objects as they should be."""
    for name, rules in ROLES.items():
        yield Role(_metadata(name), rules=rules)
    for name, group in HELD_BY.items():
        yield RoleBinding(
            _metadata(name), subjects=(Subject("Group", group),), role_ref=RoleRef(name)
        )


def _wanted(hub: Hub, obj: Role | RoleBinding) -> Create | Update | None:
    """The request that makes the object so, if it is not so yet."""
    entry = hub.get(kind_of(obj), obj.namespace, obj.name)
    if entry is None:
        return Create(obj, MANAGER)
    there: Object | None = readable(type(obj), entry.data)
    if there is None:
        # The commit says what is wrong with it.
        return Update(obj, manager=MANAGER)
    metadata = msgspec.structs.replace(
        there.metadata, labels={**there.metadata.labels, **obj.metadata.labels}
    )
    after = msgspec.structs.replace(obj, metadata=metadata)
    return Update(after, manager=MANAGER) if after != there else None


async def show_built_in(hub: Hub, ask: Ask) -> str:
    """Bring the picture up to date. Returns a sentence if that did not work, which is no harm."""
    requests = [request for obj in built_in() if (request := _wanted(hub, obj)) is not None]
    # All at once, so that a first start waits for one commit and not for one each.
    verdicts = await asyncio.gather(*map(ask, requests), return_exceptions=True)
    for verdict in verdicts:
        if isinstance(verdict, BaseException) and not isinstance(verdict, HoldfastError):
            raise verdict
        is_refused = isinstance(verdict, Refusal) and verdict.reason is not Reason.EXISTS
        if is_refused or isinstance(verdict, HoldfastError):
            return f"The built-in roles are not shown as they are: {verdict.message}"
    return ""
