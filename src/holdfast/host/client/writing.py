"""Writes to any of a plane's servers, each operation once.

Each is a request of `model/requests`, encoded like a component's (`request_calls`). Every write
carries an operation id, the same for all its tries; the object remembers accepted ones.
When an answer is lost, the object is read and checked for the operation before anything is sent
again. `observe/operation` decides what to do after each outcome.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, overload

import msgspec

from holdfast.host.client import paths
from holdfast.host.client.plain_documents import (
    Document,
    decode_document,
    encode_document,
    subject_of,
)
from holdfast.host.client.reading import ReadingClient
from holdfast.host.client.request_calls import api_call
from holdfast.host.client.retrying import RefusedAnswer, demand_good
from holdfast.model.encoding.wire import decode_trusted, encode, readable
from holdfast.model.errors import Missing, OutcomeUnknown
from holdfast.model.meta import AnyObject, Object
from holdfast.model.operation_evidence import remembers
from holdfast.model.registry import kind_of, kind_of_struct
from holdfast.model.requests import (
    Create,
    Patch,
    PatchType,
    Propagation,
    Remove,
    Term,
    Update,
)
from holdfast.observe.operation import Nature, Send

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
    return obj if obj is not None and remembers(obj, operation) else None


async def trace_of_generated(
    client: BodyReader, cls: type[AnyObject], collection: str, operation: str, timeout_s: float
) -> AnyObject | None:
    """Return the object that was created under a generated name, if one was."""
    body = await client.fetch(collection, None, timeout_s)
    for item in msgspec.json.decode(body, type=_Items).items:
        obj = readable(cls, bytes(item))
        if obj is not None and remembers(obj, operation):
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
    return obj if remembers(obj, operation) else None


class DeletedObject(msgspec.Struct, frozen=True, gc=False):
    """The result for an object that no longer exists."""


Written = TypeVar("Written")
Write = Create | Update | Patch | Remove


class WritingClient(ReadingClient):
    """The writing half of a client.

    Objects are typed or plain dicts with `apiVersion`, `kind` and `metadata`; the result is typed.
    An object without a namespace goes to that of the credentials. `operation` is an id of the
    caller's own, under which a write takes effect once, also over restarts of the caller.

    `term` is the lease under which it writes: a component's client sets it to what AcquireLease
    returned, because its writes of objects are refused without one. People have none.
    """

    term: Term | None = None

    @overload
    async def create(
        self, obj: AnyObject, *, operation: str = "", manager: str = "", dry_run: bool = False
    ) -> AnyObject: ...
    @overload
    async def create(
        self, obj: Document, *, operation: str = "", manager: str = "", dry_run: bool = False
    ) -> Object: ...
    async def create(
        self, obj: Any, *, operation: str = "", manager: str = "", dry_run: bool = False
    ) -> Any:
        """Create an object. Raises Conflict (AlreadyExists) if it exists."""
        obj = self._placed(obj)
        operation, cls = operation or new_operation(), type(obj)
        request = Create(obj, manager, dry_run, operation, self.term)
        metadata = obj.metadata

        async def look(timeout_s: float) -> Object | None:
            if not metadata.name:
                path = paths.collection(kind_of(obj), metadata.namespace)
                return await trace_of_generated(self, cls, path, operation, timeout_s)
            where = paths.one(kind_of(obj), metadata.namespace, metadata.name)
            return await find_remembered(self, cls, where, operation, timeout_s)

        return await self._write(request, lambda body: _written(cls, body), look)

    @overload
    async def update(
        self,
        obj: AnyObject,
        *,
        subresource: str = "",
        operation: str = "",
        manager: str = "",
        dry_run: bool = False,
    ) -> AnyObject: ...
    @overload
    async def update(
        self,
        obj: Document,
        *,
        subresource: str = "",
        operation: str = "",
        manager: str = "",
        dry_run: bool = False,
    ) -> Object: ...
    async def update(
        self,
        obj: Any,
        *,
        subresource: str = "",
        operation: str = "",
        manager: str = "",
        dry_run: bool = False,
    ) -> Any:
        """Replace an object or its status. Raises Conflict if it has changed since."""
        obj = self._placed(obj)
        operation = operation or new_operation()
        request = Update(obj, subresource, manager, dry_run, operation, self.term)
        return await self._write_one(type(obj), request)

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
        path = self.path_of(cls, name, namespace)
        wanted: AnyObject | None = None

        async def send(effect: Send) -> AnyObject:
            nonlocal wanted
            if effect.fresh or wanted is None:
                timeout_s = effect.timeout_ms / 1_000
                current = decode_trusted(cls, await self.fetch(path, None, timeout_s))
                wanted = compute(current)
                if wanted == current:
                    return current
            request = Update(wanted, subresource, operation=operation, term=self.term)
            return _written(cls, await self._put(request, effect))

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
        dry_run: bool = False,
    ) -> AnyObject:
        """Change an object by a patch, which the server applies to the current one."""
        kind = kind_of_struct(cls)
        request = Patch(
            kind.plural,
            self.namespace_of(cls, namespace),
            name,
            form,
            body,
            subresource,
            manager,
            force,
            dry_run=dry_run,
            operation=operation or new_operation(),
            term=self.term,
        )
        return await self._write_one(cls, request)

    @overload
    async def apply(
        self,
        obj: AnyObject,
        *,
        manager: str,
        force: bool = False,
        operation: str = "",
        dry_run: bool = False,
    ) -> AnyObject: ...
    @overload
    async def apply(
        self,
        obj: Document,
        *,
        manager: str,
        force: bool = False,
        operation: str = "",
        dry_run: bool = False,
    ) -> Object: ...
    async def apply(
        self,
        obj: Any,
        *,
        manager: str,
        force: bool = False,
        operation: str = "",
        dry_run: bool = False,
    ) -> Any:
        """Apply the fields of this manager on the server; create the object if it is missing.

        A dict is sent as it is: the fields that it leaves out are not the manager's.
        """
        if isinstance(obj, Object):
            cls, body = type(obj), encode(obj)
            name, namespace = obj.name, obj.namespace
        else:
            about = subject_of(obj, self.access.namespace)
            cls, body = about.kind.struct, encode_document(obj)
            name, namespace = about.name, about.namespace
        return await self.patch(
            cls,
            name,
            namespace,
            msgspec.Raw(body),
            form=PatchType.APPLY,
            operation=operation,
            manager=manager,
            force=force,
            dry_run=dry_run,
        )

    async def scale(self, cls: type[AnyObject], name: str, namespace: str, replicas: int) -> None:
        """Set the wanted number of replicas, and nothing else."""
        operation, path = new_operation(), self.path_of(cls, name, namespace)
        body = {"spec": {"replicas": replicas}}
        plural, where = kind_of_struct(cls).plural, self.namespace_of(cls, namespace)
        request = Patch(
            plural, where, name, PatchType.MERGE, body, "scale", operation=operation, term=self.term
        )

        async def look(timeout_s: float) -> bool | None:
            found = await find_remembered(self, cls, path, operation, timeout_s)
            return None if found is None else True

        await self._write(request, lambda body: True, look)

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
        dry_run: bool = False,
    ) -> AnyObject | DeletedObject:
        """Delete an object. Returns it while finalizers or a grace period delay the deletion."""
        operation, path = operation or new_operation(), self.path_of(cls, name, namespace)
        request = Remove(
            kind_of_struct(cls).plural,
            self.namespace_of(cls, namespace),
            name,
            uid,
            propagation=propagation,
            grace_seconds=grace_seconds,
            # In Kubernetes a grace period of 0 means force.
            force=grace_seconds == 0,
            dry_run=dry_run,
            operation=operation,
            term=self.term,
        )

        async def look(timeout_s: float) -> AnyObject | DeletedObject | None:
            found = await trace_of_delete(self, cls, path, operation, uid, timeout_s)
            return DeletedObject() if isinstance(found, Vanished) else found

        return await self._write(request, lambda body: _left_over(cls, body), look)

    def _placed(self, obj: Any) -> Any:
        """Return the object of a document; one without a namespace gets that of the credentials."""
        if not isinstance(obj, Object):
            obj = decode_document(obj)
        if obj.namespace or not kind_of(obj).namespaced:
            return obj
        metadata = msgspec.structs.replace(obj.metadata, namespace=self.access.namespace)
        return msgspec.structs.replace(obj, metadata=metadata)

    async def _write_one(self, cls: type[AnyObject], request: Update | Patch) -> AnyObject:
        """Write an object that has a name."""
        subject, operation = request.subject(), request.operation
        path = paths.one(kind_of_struct(cls), subject.namespace, subject.name)

        async def look(timeout_s: float) -> AnyObject | None:
            return await find_remembered(self, cls, path, operation, timeout_s)

        return await self._write(request, lambda body: _written(cls, body), look)

    async def _write(
        self,
        request: Write,
        read: Callable[[bytes], Written],
        look: Callable[[float], Awaitable[Written | None]],
    ) -> Written:
        async def send(effect: Send) -> Written:
            return read(await self._put(request, effect))

        written: Written = await self.performer.perform(Nature.WRITE, send, look)
        return written

    async def _put(self, request: Write, effect: Send) -> bytes:
        """Try a write once. Return the body of the answer."""
        call = api_call(None, request)
        answer = await self.transport.send(
            call.method,
            call.path,
            query=call.query,
            body=call.body,
            headers=call.headers,
            timeout_s=effect.timeout_ms / 1_000,
        )
        demand_good(answer, is_write=True)
        self.pass_warnings(answer)
        return answer.body


def new_operation() -> str:
    """Return an id for an operation that will not be repeated after a restart."""
    return uuid.uuid4().hex


def _written(cls: type[AnyObject], body: bytes) -> AnyObject:
    """Return the object in an answer. A bare Status only says that it was accepted before."""
    if msgspec.json.decode(body, type=_OnlyKind).kind != kind_of_struct(cls).name:
        raise OutcomeUnknown("the operation was accepted before; read the object for its outcome")
    return decode_trusted(cls, body)


def _left_over(cls: type[AnyObject], body: bytes) -> AnyObject | DeletedObject:
    """Return what is left: a Status means deleted, an object means being deleted."""
    if msgspec.json.decode(body, type=_OnlyKind).kind == kind_of_struct(cls).name:
        return decode_trusted(cls, body)
    return DeletedObject()


class _OnlyKind(msgspec.Struct, frozen=True):
    kind: str = ""
