"""Writes to any of a plane's servers, each operation once.

Every write carries an operation id, the same for all its tries; the object remembers accepted ones.
When an answer is lost, the object is read and checked for the operation before anything is sent
again. `observe/retry` decides what to do after each outcome.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from holdfast.host.client import paths
from holdfast.host.client.paths import OPERATION_HEADER, TERM_HEADER
from holdfast.host.client.reading import ReadingClient
from holdfast.host.client.retrying import RefusedAnswer, demand_good
from holdfast.model.encoding.wire import decode_trusted, encode, readable
from holdfast.model.errors import Missing, OutcomeUnknown
from holdfast.model.meta import AnyObject, Object
from holdfast.model.registry import Kind, kind_of, kind_of_struct
from holdfast.model.requests import PatchType, Propagation, Term
from holdfast.observe.retry import Nature, Send

# Looks for the trace of a write whose answer was lost.
#
# An object remembers the operations that were accepted on it. A deletion may leave no object, and
# the caller does not know a generated name; each is looked for in its own way. Finding nothing
# never proves that nothing will happen: the next try uses the same id.


class BodyReader(Protocol):
    """A client that can read the body of a path once."""

    async def fetch(self, path: str, query: dict[str, str] | None, timeout_s: float) -> bytes: ...


class _Items(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] = []


def is_remembered(obj: Object, operation: str) -> bool:
    """Return whether this operation was accepted on the object."""
    return any(past.id == operation for past in obj.metadata.operations)


async def fetch_object(
    client: BodyReader, cls: type[AnyObject], path: str, timeout_s: float
) -> AnyObject | None:
    """Return the object as it is now, or None. Anything but a clear answer is an error."""
    try:
        return decode_trusted(cls, await client.fetch(path, None, timeout_s))
    except RefusedAnswer as refused:
        if isinstance(refused.error, Missing):
            return None
        raise


async def find_remembered(
    client: BodyReader, cls: type[AnyObject], path: str, operation: str, timeout_s: float
) -> AnyObject | None:
    """Return the object, if it remembers the operation."""
    obj = await fetch_object(client, cls, path, timeout_s)
    return obj if obj is not None and is_remembered(obj, operation) else None


async def trace_of_generated(
    client: BodyReader, cls: type[AnyObject], collection: str, operation: str, timeout_s: float
) -> AnyObject | None:
    """Return the object that was created under a generated name, if one was."""
    body = await client.fetch(collection, None, timeout_s)
    for item in msgspec.json.decode(body, type=_Items).items:
        obj = readable(cls, bytes(item))
        if obj is not None and is_remembered(obj, operation):
            return obj
    return None


class Vanished(msgspec.Struct, frozen=True, gc=False):
    """The object does not exist."""


async def trace_of_delete(
    client: BodyReader,
    cls: type[AnyObject],
    path: str,
    operation: str,
    uid: str,
    timeout_s: float,
) -> AnyObject | Vanished | None:
    """Return the object if it remembers the deletion, or that it is gone.

    Another client may have deleted it; the caller has what it wanted either way.
    """
    obj = await fetch_object(client, cls, path, timeout_s)
    if obj is None or (uid and obj.metadata.uid != uid):
        return Vanished()
    return obj if is_remembered(obj, operation) else None


JSON = "application/json"

_JSON = msgspec.json.Encoder()


class DeletedObject(msgspec.Struct, frozen=True, gc=False):
    """The result for an object that no longer exists."""


class WritingClient(ReadingClient):
    """The writing half of a client.

    `term` is the lease under which it writes: a component's client sets it to what AcquireLease
    returned, because its writes of objects are refused without one. People have none.
    """

    term: Term | None = None

    async def create(self, obj: AnyObject, *, operation: str = "", manager: str = "") -> AnyObject:
        """Create an object. Raises Conflict (AlreadyExists) if it exists."""
        kind, metadata = kind_of(obj), obj.metadata
        operation = operation or new_operation()
        path, cls = paths.collection(kind, metadata.namespace), type(obj)

        async def look(timeout_s: float) -> AnyObject | None:
            if not metadata.name:
                return await trace_of_generated(self, cls, path, operation, timeout_s)
            where = paths.one(kind, metadata.namespace, metadata.name)
            return await find_remembered(self, cls, where, operation, timeout_s)

        async def send(effect: Send) -> AnyObject:
            body = await self.put("POST", path, encode(obj), operation, effect, manager=manager)
            return _written(cls, body)

        made: AnyObject = await self.performer.perform(Nature.WRITE, send, look)
        return made

    async def update(
        self,
        obj: AnyObject,
        *,
        subresource: str = "",
        operation: str = "",
        manager: str = "",
    ) -> AnyObject:
        """Replace an object or its status. Raises Conflict if it has changed since."""
        path = paths.one(kind_of(obj), obj.namespace, obj.name, subresource)
        return await self._write(
            type(obj), "PUT", path, lambda: encode(obj), operation, manager=manager
        )

    async def update_status(self, obj: AnyObject, *, operation: str = "") -> AnyObject:
        """Replace the status of an object."""
        return await self.update(obj, subresource="status", operation=operation)

    async def change(
        self,
        cls: type[AnyObject],
        name: str,
        namespace: str,
        compute: Callable[[AnyObject], AnyObject],
        *,
        subresource: str = "",
        operation: str = "",
    ) -> AnyObject:
        """Read an object, compute its new form, and write that; repeat when it was stale.

        An object that needs no change is returned as it is, without a write.
        """
        operation = operation or new_operation()
        path = paths.one(kind_of_struct(cls), namespace, name)
        where = f"{path}/{subresource}" if subresource else path
        wanted: AnyObject | None = None

        async def send(effect: Send) -> AnyObject:
            nonlocal wanted
            if effect.fresh or wanted is None:
                timeout_s = effect.timeout_ms / 1_000
                current = decode_trusted(cls, await self.fetch(path, None, timeout_s))
                wanted = compute(current)
                if wanted == current:
                    return current
            body = await self.put("PUT", where, encode(wanted), operation, effect)
            return _written(cls, body)

        async def look(timeout_s: float) -> AnyObject | None:
            return await find_remembered(self, cls, path, operation, timeout_s)

        changed: AnyObject = await self.performer.perform(Nature.CHANGE, send, look)
        return changed

    async def patch(
        self,
        cls: type[AnyObject],
        name: str,
        namespace: str,
        body: Any,
        *,
        form: PatchType = PatchType.MERGE,
        subresource: str = "",
        operation: str = "",
        manager: str = "",
        force: bool = False,
    ) -> AnyObject:
        """Change an object by a patch, which the server applies to the current one."""
        path = paths.one(kind_of_struct(cls), namespace, name, subresource)
        data = _JSON.encode(body)
        return await self._write(
            cls, "PATCH", path, lambda: data, operation, str(form.value), manager, force
        )

    async def apply(
        self, obj: AnyObject, *, manager: str, force: bool = False, operation: str = ""
    ) -> AnyObject:
        """Apply the fields of this manager on the server; create the object if it is missing."""
        path = paths.one(kind_of(obj), obj.namespace, obj.name)
        form = str(PatchType.APPLY.value)
        return await self._write(
            type(obj), "PATCH", path, lambda: encode(obj), operation, form, manager, force
        )

    async def scale(self, cls: type[AnyObject], name: str, namespace: str, replicas: int) -> None:
        """Set the wanted number of replicas, and nothing else."""
        kind = kind_of_struct(cls)
        path = paths.one(kind, namespace, name)
        data = _JSON.encode({"spec": {"replicas": replicas}})
        operation, form = new_operation(), str(PatchType.MERGE.value)

        async def send(effect: Send) -> bool:
            await self.put("PATCH", f"{path}/scale", data, operation, effect, form)
            return True

        async def look(timeout_s: float) -> bool | None:
            found = await find_remembered(self, cls, path, operation, timeout_s)
            return None if found is None else True

        await self.performer.perform(Nature.WRITE, send, look)

    async def delete(
        self,
        cls: type[AnyObject],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        propagation: Propagation = Propagation.BACKGROUND,
        grace_seconds: int | None = None,
        operation: str = "",
    ) -> AnyObject | DeletedObject:
        """Delete an object. Returns it while finalizers or a grace period delay the deletion."""
        kind = kind_of_struct(cls)
        operation = operation or new_operation()
        path = paths.one(kind, namespace, name)
        data = _JSON.encode(_delete_options(uid, propagation, grace_seconds))

        async def send(effect: Send) -> AnyObject | DeletedObject:
            body = await self.put("DELETE", path, data, operation, effect)
            return _left_over(cls, kind, body)

        async def look(timeout_s: float) -> AnyObject | DeletedObject | None:
            found = await trace_of_delete(self, cls, path, operation, uid, timeout_s)
            return DeletedObject() if isinstance(found, Vanished) else found

        left: AnyObject | DeletedObject = await self.performer.perform(Nature.WRITE, send, look)
        return left

    async def _write(
        self,
        cls: type[AnyObject],
        method: str,
        path: str,
        body: Callable[[], bytes],
        operation: str,
        form: str = JSON,
        manager: str = "",
        force: bool = False,
    ) -> AnyObject:
        operation = operation or new_operation()
        where = path.removesuffix("/status")

        async def send(effect: Send) -> AnyObject:
            data = await self.put(
                method, path, body(), operation, effect, form, manager=manager, force=force
            )
            return _written(cls, data)

        async def look(timeout_s: float) -> AnyObject | None:
            return await find_remembered(self, cls, where, operation, timeout_s)

        written: AnyObject = await self.performer.perform(Nature.WRITE, send, look)
        return written

    async def put(
        self,
        method: str,
        path: str,
        body: bytes,
        operation: str,
        effect: Send,
        form: str = JSON,
        *,
        manager: str = "",
        force: bool = False,
    ) -> bytes:
        """Try a write once. Return the body of the answer."""
        query = {"fieldManager": manager} if manager else {}
        if force:
            query["force"] = "true"
        headers = {"Content-Type": form}
        if operation:
            headers[OPERATION_HEADER] = operation
        if self.term is not None:
            headers[TERM_HEADER] = f"{self.term.epoch} {self.term.scope}"
        answer = await self.transport.send(
            method,
            path,
            query=query,
            body=body,
            headers=headers,
            timeout_s=effect.timeout_ms / 1_000,
        )
        return demand_good(answer, is_write=True).body


def new_operation() -> str:
    """Return an id for an operation that will not be repeated after a restart."""
    return uuid.uuid4().hex


def _delete_options(uid: str, propagation: Propagation, grace: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"propagationPolicy": propagation.value}
    if uid:
        options["preconditions"] = {"uid": uid}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    return options


def _written(cls: type[AnyObject], body: bytes) -> AnyObject:
    """Return the object in an answer. A bare Status only says that it was accepted before."""
    if msgspec.json.decode(body, type=_OnlyKind).kind != kind_of_struct(cls).name:
        raise OutcomeUnknown("the operation was accepted before; read the object for its outcome")
    return decode_trusted(cls, body)


def _left_over(cls: type[AnyObject], kind: Kind, body: bytes) -> AnyObject | DeletedObject:
    """Return what is left: a Status means deleted, an object means being deleted."""
    if msgspec.json.decode(body, type=_OnlyKind).kind == kind.name:
        return decode_trusted(cls, body)
    return DeletedObject()


class _OnlyKind(msgspec.Struct, frozen=True):
    kind: str = ""
