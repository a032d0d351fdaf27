"""The client of users, of the `holdfast` command and of tests: all that a plane's API offers.

`holdfast.client` is its public name; docs/client.md describes it. Its layers share one
transport: `reading`, `writing`, `typed_requests`, and here what takes longer than one answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from holdfast.host.client.exec_session import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    STDOUT,
    CommandOptions,
    ExecResult,
    ExecSession,
)
from holdfast.host.client.http_session import CONNECT_S, FAULTS, fault_of, leave
from holdfast.host.client.list_watch import Listed, follow
from holdfast.host.client.typed_requests import RequestingClient
from holdfast.model.errors import Invalid, Rejected, Unavailable
from holdfast.model.kinds.replica import Replica
from holdfast.model.meta import AnyObject, ConditionStatus, Object, condition
from holdfast.model.registry import kind_of_struct
from holdfast.observe.watch_events import Departed, Present, Reached

# More of a command's output than this is for a session that reads it piece by piece.
OUTPUT_BYTES_MAX = 16 << 20
LINE_BYTES_MAX = 1 << 20
LOG_PIECE_BYTES = 64 << 10
WAIT_S = 60.0
# A server passes the request on to the node's agent, which may be slow.
EXEC_OPENING_S = 5 * CONNECT_S
# The code of Unavailable when a wait was in vain.
WAIT_TIMED_OUT = "WaitTimedOut"

Condition = str | Callable[[AnyObject], bool]
Change = Listed[AnyObject] | Present[AnyObject] | Departed[AnyObject]


class LogOptions(msgspec.Struct, frozen=True):
    """Which part of a log to read. The fields are those of `AsyncClient.logs`."""

    follow: bool = False
    tail: int | None = None
    since_s: int | None = None
    since_time: str = ""
    limit_bytes: int | None = None
    timestamps: bool = False
    previous: bool = False

    @property
    def query(self) -> dict[str, str]:
        flags = {"follow": self.follow, "timestamps": self.timestamps, "previous": self.previous}
        numbers = {
            "tailLines": self.tail,
            "sinceSeconds": self.since_s,
            "limitBytes": self.limit_bytes,
            "sinceTime": self.since_time or None,
        }
        query = {name: "true" for name, is_set in flags.items() if is_set}
        return query | {name: str(it) for name, it in numbers.items() if it is not None}


WHOLE_LOG = LogOptions()


class AsyncClient(RequestingClient):
    """A client of a plane, for asyncio.

    Without arguments it uses the kubeconfig that `find_access` finds: inside a replica its own, for
    a person that of kubectl. Lost answers are settled by operation ids: a write that returns has
    happened once, and a write that raises OutcomeUnknown may have.

        async with AsyncClient() as client:
            print([node.name for node in (await client.list(Node)).objects])
    """

    async def watch(
        self, cls: type[AnyObject], namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncGenerator[Change[AnyObject], None]:
        """Yield `Listed`, with all objects, then each change, until the iterator is closed.

        It resumes after faults without gaps. When the history that it needs is gone it yields
        another `Listed`, which replaces all that was known. Raises what a server refuses.
        """
        events = follow(self, cls, namespace, labels=labels, fields=fields)
        async with contextlib.aclosing(events):
            async for event in events:
                if not isinstance(event, Reached):
                    yield event

    async def wait(
        self,
        cls: type[AnyObject],
        name: str,
        until: Condition[AnyObject],
        namespace: str = "",
        *,
        timeout_s: float = WAIT_S,
    ) -> AnyObject:
        """Wait until an object fulfils a condition, and return it as it was then.

        `until` is the type of a condition in its status, such as "Available" or "Failed=False", or
        a function of the object. An object that does not exist yet is waited for. Raises
        Unavailable (WaitTimedOut) after `timeout_s`.
        """
        fulfils = _condition(until) if isinstance(until, str) else until
        seen: AnyObject | None = None
        try:
            async with (
                asyncio.timeout(timeout_s) as limit,
                self._watch_one(cls, name, namespace) as found,
            ):
                async for seen in found:
                    if seen is not None and fulfils(seen):
                        return seen
        except TimeoutError:
            if not limit.expired():
                raise
        what = until if isinstance(until, str) else "as wanted"
        raise self._in_vain(cls, name, namespace, f"is not {what}", seen, timeout_s)

    async def wait_gone(
        self,
        cls: type[AnyObject],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        timeout_s: float = WAIT_S,
    ) -> None:
        """Wait until an object is gone; with `uid`, until that one is, whatever replaces it.

        Raises Unavailable (WaitTimedOut) after `timeout_s`.
        """
        seen: AnyObject | None = None
        try:
            async with (
                asyncio.timeout(timeout_s) as limit,
                self._watch_one(cls, name, namespace) as found,
            ):
                async for seen in found:
                    if seen is None or (uid and seen.metadata.uid != uid):
                        return
        except TimeoutError:
            if not limit.expired():
                raise
        raise self._in_vain(cls, name, namespace, "still exists", seen, timeout_s)

    @contextlib.asynccontextmanager
    async def _watch_one(
        self, cls: type[AnyObject], name: str, namespace: str
    ) -> AsyncIterator[AsyncGenerator[AnyObject | None, None]]:
        """Open the states of one object; None where it does not exist."""
        # The path is not asked: it refuses a name that a selector would not match either.
        self.path_of(cls, name, namespace)

        async def states() -> AsyncGenerator[AnyObject | None, None]:
            where = self.namespace_of(cls, namespace)
            async with contextlib.aclosing(
                self.watch(cls, where, fields=f"metadata.name={name}")
            ) as changes:
                async for change in changes:
                    match change:
                        case Listed():
                            yield change.objects[0] if change.objects else None
                        case Present():
                            yield change.object
                        case Departed():
                            yield None

        found = states()
        async with contextlib.aclosing(found):
            yield found

    def _in_vain(
        self,
        cls: type[AnyObject],
        name: str,
        namespace: str,
        what: str,
        seen: AnyObject | None,
        timeout_s: float,
    ) -> Unavailable:
        where = self.namespace_of(cls, namespace)
        title = "/".join(it for it in (kind_of_struct(cls).singular, where, name) if it)
        if seen is None:
            return Unavailable(
                f"{title} did not exist within {timeout_s:g} s: compare its name and namespace, or "
                "wait longer",
                code=WAIT_TIMED_OUT,
            )
        status = getattr(seen, "status", None)
        said = "; ".join(
            f"{it.type} is {it.status.value}" + (f" ({it.message})" if it.message else "")
            for it in getattr(status, "conditions", ())
        )
        return Unavailable(
            f"{title} {what} after {timeout_s:g} s, at resourceVersion "
            f"{seen.metadata.resource_version}: {said or 'it has no conditions'}; wait longer, or "
            f"see `holdfast get {kind_of_struct(cls).singular} {name} -o yaml`",
            code=WAIT_TIMED_OUT,
        )

    async def logs(
        self,
        name: str,
        namespace: str = "",
        *,
        follow: bool = False,
        tail: int | None = None,
        since_s: int | None = None,
        timestamps: bool = False,
        previous: bool = False,
    ) -> AsyncGenerator[str, None]:
        """Yield the lines that a replica has printed.

        With `follow`, also those that it prints from now on, until it ends or the iterator is
        closed. `tail` is the number of last lines, `previous` means the run before the last
        restart. Undecodable bytes are replaced.
        """
        options = LogOptions(follow, tail, since_s, timestamps=timestamps, previous=previous)
        rest = b""
        async with contextlib.aclosing(self.log_bytes(name, namespace, options)) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
                if len(rest) > LINE_BYTES_MAX:
                    yield rest.decode(errors="replace")
                    rest = b""
        if rest:
            yield rest.decode(errors="replace")

    async def log_bytes(
        self, name: str, namespace: str = "", options: LogOptions = WHOLE_LOG
    ) -> AsyncGenerator[bytes, None]:
        """Yield the output of a replica as it arrives."""
        path = self.path_of(Replica, name, namespace, "log")
        # Work may be silent for long; the operating system notices a broken connection.
        response, server = await self.transport.stream(
            path, options.query, opening_s=None, any_server=True
        )
        try:
            async for piece in response.content.iter_chunked(LOG_PIECE_BYTES):
                yield piece
        except FAULTS as error:
            raise fault_of("GET", server, error) from error
        finally:
            leave(response)

    async def exec(
        self,
        name: str,
        command: Sequence[str],
        namespace: str = "",
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
    ) -> ExecResult:
        """Run a command inside a replica to its end, and return what it printed.

        Raises Rejected if it could not be run or printed more than 16 MiB, OutcomeUnknown if it may
        have run. After `timeout_s` it is ended, with TimeoutError.
        """
        printed: dict[int, list[bytes]] = {}
        size = 0
        async with (
            asyncio.timeout(timeout_s),
            self.exec_session(name, command, namespace, has_input=bool(stdin)) as session,
        ):
            typing = asyncio.create_task(_type(session, stdin))
            try:
                async with contextlib.aclosing(session.output()) as output:
                    async for channel, data in output:
                        size += len(data)
                        if size > OUTPUT_BYTES_MAX:
                            raise Rejected(
                                f"{command[0]} printed more than {OUTPUT_BYTES_MAX} bytes and was "
                                "ended: read its output with exec_session"
                            )
                        printed.setdefault(channel, []).append(data)
            finally:
                typing.cancel()
                await asyncio.gather(typing, return_exceptions=True)
        stdout, stderr = (b"".join(printed.get(it, ())) for it in (STDOUT, STDOUT + 1))
        return ExecResult(session.exit_code or 0, stdout, stderr)

    @contextlib.asynccontextmanager
    async def exec_session(
        self,
        name: str,
        command: Sequence[str],
        namespace: str = "",
        *,
        has_input: bool = False,
        has_terminal: bool = False,
    ) -> AsyncIterator[ExecSession]:
        """Run a command inside a replica, with its streams. Leaving the block ends the command."""
        if isinstance(command, str) or not command:
            raise Invalid(
                f"command: {command!r:.80} must be a list of words, such as ['sh', '-c', 'date']"
            )
        options = CommandOptions(tuple(command), has_input, has_terminal)
        async with self.transport.websocket(
            self.path_of(Replica, name, namespace, "exec"),
            options.query,
            protocols=(PROTOCOL,),
            opening_s=EXEC_OPENING_S,
            frame_bytes_max=FRAME_BYTES_MAX,
        ) as socket:
            yield ExecSession(socket)


async def _type(session: ExecSession, data: bytes) -> None:
    """Send all input, then its end."""
    if data:
        await session.write(data)
        await session.close_input()


def _condition(text: str) -> Callable[[Any], bool]:
    """Return the check of a condition such as Available or Failed=False. Raises Invalid."""
    wanted, _, value = text.partition("=")
    try:
        status = ConditionStatus(value or ConditionStatus.TRUE)
    except ValueError:
        raise Invalid(
            f"until: {text[:63]!r} must be a condition such as Available, or Available=False"
        ) from None

    def fulfils(obj: Object) -> bool:
        found = condition(getattr(getattr(obj, "status", None), "conditions", ()), wanted)
        if found is None or found.status is not status:
            return False
        # One that is about an earlier spec says nothing about the present one.
        return found.observed_generation in (0, obj.metadata.generation)

    return fulfils
