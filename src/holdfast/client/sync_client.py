"""The client for programs without asyncio: `AsyncClient` on an event loop in a thread of its own.

Nothing is implemented here: each method runs that of `AsyncClient` and waits for it, and a test
compares their parameters. It may be used from several threads, and beside a running event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from holdfast.host.client import (
    Access,
    AsyncClient,
    DeletedObject,
    ExecResult,
    LogOptions,
    ObjectList,
)
from holdfast.host.client.async_client import WAIT_S, WHOLE_LOG, Change, Condition
from holdfast.host.client.plain_documents import Document
from holdfast.host.client.reading import PAGE
from holdfast.model.errors import Unavailable
from holdfast.model.meta import AnyObject, Object
from holdfast.model.requests import PatchType, Propagation
from holdfast.observe.retry import DEFAULT_POLICY, RetryPolicy

Result = TypeVar("Result")
# A closing iterator waits no longer, so that the end of the interpreter cannot hang.
CLOSING_S = 5.0


class Client:
    """A client of a plane. Use as a context manager, or call `close`.

    Each method is documented at `AsyncClient`.

        with Client() as client:
            client.scale(kinds.Workload, "hello", "default", 3)
    """

    def __init__(
        self,
        access: Access | None = None,
        *,
        policy: RetryPolicy = DEFAULT_POLICY,
        agent: str = "holdfast",
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="holdfast-client", daemon=True
        )
        self._thread.start()

        async def made() -> AsyncClient:
            return AsyncClient(access, policy=policy, agent=agent, warn=warn)

        try:
            self._client = self._run(made())
        except BaseException:
            self._end()
            raise

    @property
    def access(self) -> Access:
        """Where the servers are, and the credentials in use."""
        return self._client.access

    def close(self) -> None:
        """Close all connections. The client cannot be used afterwards."""
        if self._thread.is_alive():
            try:
                self._run(self._client.close())
            finally:
                self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get(self, cls: type[AnyObject], name: str, namespace: str = "") -> AnyObject:
        """Return one object as it is now. Raises Missing."""
        return self._run(self._client.get(cls, name, namespace))

    def find(self, cls: type[AnyObject], name: str, namespace: str = "") -> AnyObject | None:
        """Return one object as it is now, or None."""
        return self._run(self._client.find(cls, name, namespace))

    def list(
        self,
        cls: type[AnyObject],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        page: int = PAGE,
    ) -> ObjectList[AnyObject]:
        """Return all objects of a kind at one moment, in one namespace or in all."""
        wanted = self._client.list(cls, namespace, labels=labels, fields=fields, page=page)
        return self._run(wanted)

    @overload
    def create(
        self, obj: AnyObject, *, operation: str = "", manager: str = "", dry_run: bool = False
    ) -> AnyObject: ...
    @overload
    def create(
        self, obj: Document, *, operation: str = "", manager: str = "", dry_run: bool = False
    ) -> Object: ...
    def create(
        self, obj: Any, *, operation: str = "", manager: str = "", dry_run: bool = False
    ) -> Any:
        """Create an object. Raises Conflict (AlreadyExists) if it exists."""
        wanted: Coroutine[Any, Any, Any] = self._client.create(
            obj, operation=operation, manager=manager, dry_run=dry_run
        )
        return self._run(wanted)

    @overload
    def update(
        self,
        obj: AnyObject,
        *,
        subresource: str = "",
        operation: str = "",
        manager: str = "",
        dry_run: bool = False,
    ) -> AnyObject: ...
    @overload
    def update(
        self,
        obj: Document,
        *,
        subresource: str = "",
        operation: str = "",
        manager: str = "",
        dry_run: bool = False,
    ) -> Object: ...
    def update(
        self,
        obj: Any,
        *,
        subresource: str = "",
        operation: str = "",
        manager: str = "",
        dry_run: bool = False,
    ) -> Any:
        """Replace an object or its status. Raises Conflict if it has changed since."""
        wanted: Coroutine[Any, Any, Any] = self._client.update(
            obj, subresource=subresource, operation=operation, manager=manager, dry_run=dry_run
        )
        return self._run(wanted)

    def change(
        self,
        cls: type[AnyObject],
        name: str,
        namespace: str,
        compute: Callable[[AnyObject], AnyObject],
        *,
        subresource: str = "",
        operation: str = "",
    ) -> AnyObject:
        """Read an object, compute its new form, and write that; repeat when it was stale."""
        wanted = self._client.change(
            cls, name, namespace, compute, subresource=subresource, operation=operation
        )
        return self._run(wanted)

    @overload
    def apply(
        self,
        obj: AnyObject,
        *,
        manager: str,
        force: bool = False,
        operation: str = "",
        dry_run: bool = False,
    ) -> AnyObject: ...
    @overload
    def apply(
        self,
        obj: Document,
        *,
        manager: str,
        force: bool = False,
        operation: str = "",
        dry_run: bool = False,
    ) -> Object: ...
    def apply(
        self,
        obj: Any,
        *,
        manager: str,
        force: bool = False,
        operation: str = "",
        dry_run: bool = False,
    ) -> Any:
        """Apply the fields of this manager on the server; create the object if it is missing."""
        wanted: Coroutine[Any, Any, Any] = self._client.apply(
            obj, manager=manager, force=force, operation=operation, dry_run=dry_run
        )
        return self._run(wanted)

    def patch(
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
        wanted = self._client.patch(
            cls,
            name,
            namespace,
            body,
            form=form,
            subresource=subresource,
            operation=operation,
            manager=manager,
            force=force,
            dry_run=dry_run,
        )
        return self._run(wanted)

    def scale(self, cls: type[AnyObject], name: str, namespace: str, replicas: int) -> None:
        """Set the wanted number of replicas, and nothing else."""
        self._run(self._client.scale(cls, name, namespace, replicas))

    def delete(
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
        wanted = self._client.delete(
            cls,
            name,
            namespace,
            uid=uid,
            propagation=propagation,
            grace_seconds=grace_seconds,
            operation=operation,
            dry_run=dry_run,
        )
        return self._run(wanted)

    def watch(
        self, cls: type[AnyObject], namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> Generator[Change[AnyObject], None, None]:
        """Yield `Listed`, with all objects, then each change, until the iterator is closed."""
        return self._each(self._client.watch(cls, namespace, labels=labels, fields=fields))

    def wait(
        self,
        cls: type[AnyObject],
        name: str,
        until: Condition[AnyObject],
        namespace: str = "",
        *,
        timeout_s: float = WAIT_S,
    ) -> AnyObject:
        """Wait until an object fulfils a condition, and return it as it was then."""
        return self._run(self._client.wait(cls, name, until, namespace, timeout_s=timeout_s))

    def wait_gone(
        self,
        cls: type[AnyObject],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        timeout_s: float = WAIT_S,
    ) -> None:
        """Wait until an object is gone."""
        self._run(self._client.wait_gone(cls, name, namespace, uid=uid, timeout_s=timeout_s))

    def logs(
        self,
        name: str,
        namespace: str = "",
        *,
        follow: bool = False,
        tail: int | None = None,
        since_s: int | None = None,
        timestamps: bool = False,
        previous: bool = False,
    ) -> Generator[str, None, None]:
        """Yield the lines that a replica has printed, and with `follow` those that it prints."""
        lines = self._client.logs(
            name,
            namespace,
            follow=follow,
            tail=tail,
            since_s=since_s,
            timestamps=timestamps,
            previous=previous,
        )
        return self._each(lines)

    def log_bytes(
        self, name: str, namespace: str = "", options: LogOptions = WHOLE_LOG
    ) -> Generator[bytes, None, None]:
        """Yield the output of a replica as it arrives."""
        return self._each(self._client.log_bytes(name, namespace, options))

    def exec(
        self,
        name: str,
        command: Sequence[str],
        namespace: str = "",
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
    ) -> ExecResult:
        """Run a command inside a replica to its end, and return what it printed."""
        wanted = self._client.exec(name, command, namespace, stdin=stdin, timeout_s=timeout_s)
        return self._run(wanted)

    def _run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        if not self._thread.is_alive():
            work.close()
            raise Unavailable("this client is closed: make another one")
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result(timeout_s)
        except BaseException:
            # Ctrl-C must not leave the work behind.
            done.cancel()
            raise

    def _each(self, items: AsyncGenerator[Result, None]) -> Generator[Result, None, None]:
        """Yield the items one by one; the work goes on only while the next one is awaited."""
        last = object()

        async def following() -> Any:
            return await anext(items, last)

        try:
            while (item := self._run(following())) is not last:
                yield item
        finally:
            # After Ctrl-C the generator may still be ending by itself.
            with contextlib.suppress(RuntimeError, TimeoutError, Unavailable):
                self._run(items.aclose(), CLOSING_S)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
