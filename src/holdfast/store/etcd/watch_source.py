"""How a watch follows etcd: across failures of members, with proof of its position.

`watch_reader` runs a follower for each watch. It reads a stream of one member through the guard and
fills the buffer. When the stream fails it opens another one, on another member, where the last one
stopped. Three rules make up for what etcd's own watch does not promise:

- A reader that falls behind never leaves an unread stream open in etcd: above a bound the stream is
  closed, and a new one opened once the reader has caught up. Some versions silently skip compacted
  events on a slow stream; all of them check where a new stream begins. The same is done when this
  process itself was stopped for a while.
- That nothing has changed is proven, not assumed. Either the store's revision is the one delivered
  last, or a bookmark is written inside the watched range and awaited: it comes in order, after all
  that was written before. etcd's own progress answers overtake events in some versions.
- A bookmark that does not come back shows a dead stream, even if the connection looks alive.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.model.errors import Expired, Forbidden, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.transaction import ABSENT, Batch, Change
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.cluster import Cluster
from holdfast.store.etcd.error_meaning import ErrorMeaning
from holdfast.store.etcd.layout import Layout, is_bookmark
from holdfast.store.etcd.member import CallFailed, MemberChannel, WatchStream
from holdfast.store.etcd.watch_reader import Buffer

# The guard between etcd's watch and ours: nothing twice, nothing out of order, no silent hole.
#
# Pure; the follower feeds it every answer of the stream and passes on the result. Several versions
# of etcd repeat events, go back in time or lose events on a watch (see `known_bugs`), so everything
# that can be checked is checked:
#
# - What is not newer than what was delivered is dropped.
# - Changes of one revision are held until all of them are here: a large answer comes in fragments.
# - A stream that goes back within what is new is broken, and is opened again.
# - etcd counts the versions of a key. An event that does not follow the last one of its key shows
#   that one was lost, and the watch is Expired: the reader lists again.
# - A stream begins at the last revision that was delivered, not after it. So etcd checks that this
#   one is not compacted, and the overlap shows whether that revision was delivered whole.

# For how many keys the version is remembered. A key beyond that is not checked, which is no worse
# than having no check at all.
VERSIONS_MAX = 65_536


class StreamBroken(Exception):
    """The stream contradicts itself. A new one, after what was delivered, is enough."""


class _Pending(msgspec.Struct):
    """Events of a revision whose end has not been seen."""

    revision: int
    events: list[pb.Event]


class DeliveryGuard:
    """One watch's memory of what it delivered, over all the streams it used."""

    def __init__(self, layout: Layout, *, after: int) -> None:
        self._layout = layout
        self.delivered = after
        # Names that changed at `delivered`; None at the start, when others delivered it.
        self._last_names: frozenset[bytes] | None = None
        self._pending: _Pending | None = None
        self._began = after
        self._versions: dict[bytes, int] = {}
        self._forgot_versions = False

    def restart(self) -> None:
        """Begin a new stream. What was held back comes again."""
        self._pending = None

    def take(self, answer: pb.WatchResponse) -> Batch | None:
        """Everything that is complete with this answer; None when that is nothing new."""
        changes: list[Change] = []
        before = self.delivered
        for event in answer.events:
            self._take_event(event, changes)
        if not answer.fragment:
            self._complete(changes)
        if self.delivered == before:
            return None
        return Batch(self.delivered, tuple(changes))

    def skip_to(self, revision: int) -> Batch:
        """Take a bookmark: nothing changed up to this revision."""
        if revision > self.delivered:
            self.delivered = revision
            self._last_names = frozenset()
        return Batch(self.delivered)

    def _take_event(self, event: pb.Event, changes: list[Change]) -> None:
        kv = event.kv
        revision = kv.mod_revision
        if revision <= self.delivered:
            self._check_repeat(kv)
            return
        pending = self._pending
        if pending is not None and revision != pending.revision:
            if revision < pending.revision:
                raise StreamBroken(f"revision {revision} came after {pending.revision}")
            self._complete(changes)
            pending = None
        if pending is None:
            pending = self._pending = _Pending(revision, [])
        pending.events.append(event)

    def _complete(self, changes: list[Change]) -> None:
        """Complete the pending revision: a later one began, or the answer is complete."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        changes += [self._change(e) for e in pending.events if not is_bookmark(e.kv.key)]
        self.delivered = pending.revision
        self._last_names = frozenset(event.kv.key for event in pending.events)

    def _change(self, event: pb.Event) -> Change:
        kv = event.kv
        name = kv.key
        key = self._layout.key(name)
        if event.kind == pb.EVENT_DELETE:
            self._check_version(name, 0, ABSENT)
            return Change(kv.mod_revision, key, None, ABSENT)
        created = kv.create_revision
        self._check_version(name, kv.version, created)
        return Change(kv.mod_revision, key, kv.value, created)

    def _check_repeat(self, kv: pb.KeyValue) -> None:
        if (
            kv.mod_revision == self.delivered
            and self._last_names is not None
            and kv.key not in self._last_names
        ):
            raise _hole(f"revision {self.delivered} was delivered without {kv.key!r}")

    def _check_version(self, name: bytes, version: int, created: int) -> None:
        """Check that versions follow each other: 1 follows absence, 0 stands for a deletion."""
        known = self._versions.get(name)
        if known is None:
            # The key was last written before the watch began, unless it was created since.
            is_new = created > self._began and not self._forgot_versions
            follows = not (is_new and version > 1)
        elif version == 0:
            follows = known > 0
        else:
            follows = version == known + 1
        if not follows:
            raise _hole(f"{name!r} went from version {known} to {version}")
        self._remember(name, version)

    def _remember(self, name: bytes, version: int) -> None:
        if len(self._versions) >= VERSIONS_MAX and name not in self._versions:
            # The older half at once, so that forgetting costs a constant share of each event.
            self._versions = dict(list(self._versions.items())[VERSIONS_MAX // 2 :])
            self._forgot_versions = True
        self._versions[name] = version


def _hole(what: str) -> Expired:
    return Expired(f"etcd's watch lost an event: {what}; list again", code="WatchHole")


# When the store did not answer for this long, the reader gets an error.
PATIENCE_S = 30.0
# Between two attempts to open a stream when members refuse it.
RETRY_MIN_S, RETRY_MAX_S = 0.05, 1.0
# The follower wakes at least this often, and if the process was stopped for longer than the second
# time, it does not trust its streams.
LOOK_EVERY_S = 1.0
STALL_MAX_S = 2.0
# How long a bookmark may take to be written, and then to come back.
BOOKMARK_TIMEOUT_S = 3.0

ReadRevision = Callable[[], Awaitable[int]]


class PrefixFollower:
    """Follows one prefix from one revision on."""

    def __init__(
        self,
        cluster: Cluster,
        layout: Layout,
        read_revision: ReadRevision,
        *,
        prefix: str,
        after: int,
        bookmark_every_s: float,
    ) -> None:
        self._cluster = cluster
        self._layout = layout
        self._read_revision = read_revision
        self._prefix = prefix
        self._guard = DeliveryGuard(layout, after=after)
        # Watchers of one prefix see each other's bookmarks, so the first that is due writes for
        # all; a random interval keeps them from writing at the same moment.
        self._pause_s = bookmark_every_s * random.uniform(0.6, 0.8)
        self._due = 0.0
        self._heard = 0.0
        # A bookmark of ours that has not come back: its revision, and the deadline for it.
        self._awaited = 0
        self._awaited_until = 0.0
        self._retry_s = RETRY_MIN_S
        self._denied = False

    async def follow(self, buffer: Buffer) -> None:
        """Fill the buffer until cancelled. Raises Expired, Forbidden or Unavailable."""
        self._buffer = buffer
        self._heard = _now()
        await self._begin()
        while True:
            if buffer.is_full():
                await buffer.drained()
                self._heard = _now()
            member = None
            try:
                member = await self._cluster.ready(PATIENCE_S)
                await self._stream(member)
            except (CallFailed, StreamBroken, Unavailable) as failed:
                await self._after_failure(member, failed)

    async def _begin(self) -> None:
        """Compare the position with the store's, which also shows whether a bookmark is due."""
        after = self._guard.delivered
        revision = await self._revision_within_patience()
        if revision < after:
            raise Expired(
                f"revision {after} was never reached, the store is at {revision}: list again",
                code="FutureRevision",
            )
        if revision == after:
            self._buffer.push(self._guard.skip_to(revision))
            self._due = _now() + self._pause_s

    async def _revision_within_patience(self) -> int:
        while True:
            try:
                return await self._read_revision()
            except Unavailable as error:
                self._check_patience(error)
                await asyncio.sleep(self._next_retry_s())

    async def _stream(self, member: MemberChannel) -> None:
        """Read one stream until it fails or the buffer is full."""
        self._guard.restart()
        self._member = member
        first, end = self._layout.watch_ranges(self._prefix)
        metadata = self._cluster.metadata
        stream = member.watch(metadata)
        try:
            await stream.create(
                pb.WatchCreateRequest(
                    key=first,
                    range_end=end,
                    # Zero would mean "from now on".
                    start_revision=max(self._guard.delivered, 1),
                    fragment=True,
                )
            )
            await self._read(stream)
        except CallFailed as failed:
            if failed.kind not in {ErrorMeaning.LOGIN, ErrorMeaning.DENIED}:
                raise
            # A watch reports "denied" for an expired login, too; but not twice.
            if self._denied or not await self._cluster.login_again(member, metadata):
                raise Forbidden(f"etcd at {member.target}: {failed.text}") from None
            self._denied = True
            raise
        finally:
            stream.cancel()

    async def _read(self, stream: WatchStream) -> None:
        reading = asyncio.ensure_future(stream.read())
        probing: asyncio.Task[None] | None = None
        try:
            while not self._buffer.is_full():
                if probing is None and not self._awaited and _now() >= self._due:
                    probing = asyncio.create_task(self._probe())
                await self._wait(reading, probing)
                if reading.done():
                    self._take(reading.result())
                    reading = asyncio.ensure_future(stream.read())
                if probing is not None and probing.done():
                    probing.result()
                    probing = None
                self._check_awaited()
        finally:
            for task in (reading, probing):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*filter(None, (reading, probing)), return_exceptions=True)

    async def _wait(
        self, reading: asyncio.Future[Any], probing: asyncio.Future[Any] | None
    ) -> None:
        began = _now()
        timeout_s = LOOK_EVERY_S
        if self._awaited:
            timeout_s = min(timeout_s, max(self._awaited_until - began, 0.0))
        elif probing is None:
            timeout_s = min(timeout_s, max(self._due - began, 0.0))
        tasks = [reading] if probing is None else [reading, probing]
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if _now() - began > timeout_s + STALL_MAX_S:
            raise StreamBroken("this process was stopped for a while")

    def _take(self, answer: pb.WatchResponse) -> None:
        if not self._cluster.is_ours(answer.header):
            raise Unavailable("the member belongs to another cluster than at the start")
        if answer.canceled:
            self._refused(answer)
        batch = self._guard.take(answer)
        if batch is not None:
            self._buffer.push(batch)
            self._cluster.praise(self._member)
            self._heard = _now()
            self._due = self._heard + self._pause_s
            self._retry_s = RETRY_MIN_S
            self._denied = False

    def _refused(self, answer: pb.WatchResponse) -> None:
        if answer.compact_revision:
            raise Expired(
                f"changes after revision {self._guard.delivered} are compacted up to"
                f" {answer.compact_revision}: list again",
                code="Compacted",
            )
        if "auth" in answer.cancel_reason or "permission" in answer.cancel_reason:
            raise CallFailed(ErrorMeaning.LOGIN, answer.cancel_reason)
        raise StreamBroken(answer.cancel_reason or "the member ended the watch")

    async def _probe(self) -> None:
        """Prove that nothing is missing, or find out by writing a bookmark after all changes."""
        # In any case, the next probe does not follow at once.
        self._due = _now() + self._pause_s
        try:
            revision = await self._read_revision()
            if revision > self._guard.delivered:
                name = self._layout.bookmark(self._prefix)
                written = await self._cluster.put(pb.PutRequest(key=name), BOOKMARK_TIMEOUT_S)
                self._awaited = written.header.revision
                self._awaited_until = _now() + BOOKMARK_TIMEOUT_S
                return
        except (Unavailable, OutcomeUnknown) as error:
            self._check_patience(error)
            self._due = _now() + self._next_retry_s()
            return
        self._heard = _now()
        self._buffer.push(self._guard.skip_to(revision))

    def _check_awaited(self) -> None:
        if self._guard.delivered >= self._awaited:
            self._awaited = 0
        elif _now() > self._awaited_until:
            self._awaited = 0
            raise StreamBroken("a bookmark did not come back")

    async def _after_failure(self, member: MemberChannel | None, failed: Exception) -> None:
        """Choose another member, and back off when all of them refuse."""
        if member is not None:
            self._cluster.blame(member)
        self._awaited = 0
        self._due = min(self._due, _now() + self._pause_s)
        self._check_patience(failed)
        await asyncio.sleep(self._next_retry_s())

    def _check_patience(self, error: Exception) -> None:
        silence_s = _now() - self._heard
        if silence_s > PATIENCE_S:
            message = error.message if isinstance(error, HoldfastError) else str(error)
            raise Unavailable(
                f"etcd did not answer for {silence_s:.0f} s; watch again after revision"
                f" {self._guard.delivered}: {message}"
            ) from error

    def _next_retry_s(self) -> float:
        delay_s = self._retry_s
        self._retry_s = min(2 * delay_s, RETRY_MAX_S)
        return delay_s * random.uniform(0.5, 1.0)


def _now() -> float:
    """A clock that goes on while the machine sleeps, so that such a pause is noticed."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
