"""The distributed store: the contract on an etcd cluster.

The host opens one for each server process. Other modules of this package add what etcd does not
promise by itself: tokens (`at_most_once`), confirmed reads (`linearizable_reads`), watches without
holes (`watch_source`). Revisions are etcd's own; other users of the same etcd make them skip.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.model.errors import Expired, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.model.transaction import Batch, Fate, Outcome, Page, Transaction
from holdfast.store.contract import BOOKMARK_EVERY_S, RANGE_LIMIT_MAX, Space, check
from holdfast.store.etcd import codec
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.at_most_once import AtMostOnce
from holdfast.store.etcd.cluster import Cluster, MemberFacts
from holdfast.store.etcd.config import EtcdConfig
from holdfast.store.etcd.known_bugs import reads_are_fresh, warnings_for
from holdfast.store.etcd.layout import Layout
from holdfast.store.etcd.linearizable_reads import LinearizableReader
from holdfast.store.etcd.watch_reader import EtcdWatch, FollowerRun
from holdfast.store.etcd.watch_source import PrefixFollower

# A member with a few GiB takes some seconds for each step of making room.
MAKE_ROOM_S = 60.0


class EtcdStore:
    """Holdfast's part of one etcd cluster. Made by `open`, inside the event loop that uses it."""

    def __init__(
        self,
        config: EtcdConfig,
        cluster: Cluster,
        facts: list[MemberFacts],
        *,
        bookmark_every_s: float,
    ) -> None:
        # The members that this store calls, for what concerns a member and not the data.
        self.cluster = cluster
        self._layout = Layout(config.prefix)
        self._timeout_s = config.call_timeout_s
        self._quota_bytes = config.quota_bytes
        self._bookmark_every_s = bookmark_every_s
        self._limits = codec.TransactionLimits(
            ops=config.max_txn_ops - codec.OWN_OPS,
            bytes=config.max_request_bytes - codec.ENVELOPE_BYTES,
        )
        self._reader = LinearizableReader(
            cluster,
            self._layout,
            # A member that did not report its version may be an old one.
            confirm=not all(reads_are_fresh(fact.version) for fact in facts),
            timeout_s=self._timeout_s,
        )
        self._once = AtMostOnce(cluster, self._layout, timeout_s=self._timeout_s)
        self._runs: set[FollowerRun] = set()
        self._closed = False
        # For the host to log: what an operator should know about this cluster.
        self.warnings = _warnings(facts)

    @classmethod
    async def open(
        cls, config: EtcdConfig, *, bookmark_every_s: float = BOOKMARK_EVERY_S
    ) -> EtcdStore:
        """Connect. Raises Unavailable when no member answers, Forbidden when the login fails."""
        cluster = Cluster(config)
        try:
            facts = await cluster.look()
        except BaseException:
            await cluster.close()
            raise
        return cls(config, cluster, facts, bookmark_every_s=bookmark_every_s)

    @property
    def max_ops(self) -> int:
        """How many compares, and how many writes, one transaction may hold."""
        return self._limits.ops

    @property
    def max_bytes(self) -> int:
        """How large one transaction may be."""
        return self._limits.bytes

    async def range(
        self, start: str, end: str, *, limit: int = RANGE_LIMIT_MAX, at: int | None = None
    ) -> Page:
        self._check_open()
        if limit < 1:
            raise Invalid(f"limit: {limit} must be at least 1")
        return await self._reader.range(start, end, limit=min(limit, RANGE_LIMIT_MAX), at=at)

    async def txn(
        self, transaction: Transaction, *, token: str | None = None, timeout_s: float = 5.0
    ) -> Outcome:
        self._check_open()
        check(transaction)
        self._limits.check(transaction, self._layout)
        request = codec.request_of(transaction, self._layout)
        if token is None:
            # Without a token no caller can ask later, so a slot would be useless: the transaction's
            # own compares must show the outcome.
            answer = await self.cluster.txn(request, timeout_s, writes=bool(transaction.writes))
            outcome = codec.outcome_of(transaction, self._layout, answer)
        else:
            outcome = await self._once.txn(transaction, request, token, timeout_s)
        self._reader.saw(outcome.revision)
        return outcome

    async def space(self) -> Space:
        """How full the fullest member is. Raises Unavailable when none answers."""
        self._check_open()
        facts = [fact for fact in await self.cluster.look() if not fact.error]
        return Space(
            in_use=max(fact.in_use for fact in facts),
            size=max(fact.size for fact in facts),
            most=min(fact.quota or self._quota_bytes for fact in facts),
            is_closed=any("NOSPACE" in alarm for fact in facts for alarm in fact.alarms),
        )

    async def make_room(self, revision: int) -> None:
        """Compact to this revision, and defragment all members.

        Raises Unavailable, or Forbidden if the login may not do that.
        """
        await self._compact(revision, MAKE_ROOM_S, physical=True)
        await self.cluster.defragment(MAKE_ROOM_S)

    async def disarm(self) -> None:
        """Disarm the alarm of an etcd that was full. Raises what `make_room` does."""
        self._check_open()
        await self.cluster.disarm(self._timeout_s)

    def new_token(self) -> str:
        return self._once.new_token()

    async def fate(self, token: str) -> Fate:
        self._check_open()
        return await self._once.fate(token)

    async def snapshot(self) -> AsyncIterator[tuple[bytes, int]]:
        """The whole database of one member in pieces, each with how many bytes are to come.

        It ends with a SHA-256 of itself, as etcd's own tools expect it.
        """
        self._check_open()
        async for piece in self.cluster.snapshot(self._timeout_s):
            yield piece.blob, piece.remaining_bytes

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Batch]:
        self._check_open()
        return EtcdWatch(lambda: self._start_watch(prefix, after))

    async def compact(self, revision: int) -> None:
        await self._compact(revision, self._timeout_s)

    async def _compact(self, revision: int, timeout_s: float, *, physical: bool = False) -> None:
        self._check_open()
        request = pb.CompactionRequest(revision=revision, physical=physical)
        try:
            await self.cluster.compact(request, timeout_s)
        except OutcomeUnknown as error:
            # Compacting once more does no harm, so an unknown outcome is no problem.
            raise Unavailable(error.message) from error
        except Expired as error:
            if error.code == "FutureRevision":
                raise Invalid(f"revision: {revision} is not reached yet") from error
            # Compacted further already.

    async def revision(self) -> int:
        self._check_open()
        return await self._reader.revision()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for run in self._runs:
            run.stop()
        try:
            await self._once.close()
        except HoldfastError:
            # The cluster is unreachable. Unused tokens are forgotten then, which is safe.
            pass
        finally:
            await self.cluster.close()

    def _start_watch(self, prefix: str, after: int) -> FollowerRun | None:
        """Start the follower; None when the store was closed before the watch was read."""
        if self._closed:
            return None
        follower = PrefixFollower(
            self.cluster,
            self._layout,
            self._reader.revision,
            prefix=prefix,
            after=after,
            bookmark_every_s=self._bookmark_every_s,
        )
        run = FollowerRun(follower.follow)
        self._runs.add(run)
        run.when_done(lambda: self._runs.discard(run))
        return run

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store is closed")


def _warnings(facts: list[MemberFacts]) -> tuple[str, ...]:
    lines: list[str] = []
    for version in sorted({fact.version for fact in facts if not fact.error}):
        lines += warnings_for(version)
    for fact in facts:
        if fact.error:
            lines.append(f"etcd at {fact.target} does not answer: {fact.error}")
        lines += [f"etcd at {fact.target} reports {alarm}" for alarm in fact.alarms]
    return tuple(lines)
