"""The members of one etcd cluster: which one gets a call, the login, and what failed.

`store`, `at_most_once` and `watch_source` call through here. A call goes to one member, once. When
a member fails, the *next* call goes to another one: only the caller knows whether sending the same
request again is safe. Only a request that a member refused because the login had expired is sent
again after a new login, since that refusal is certain.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

import msgspec

from holdfast.model.errors import HoldfastError, Unavailable, invariant
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.config import EtcdConfig
from holdfast.store.etcd.error_meaning import ErrorMeaning, error_for, is_members_fault
from holdfast.store.etcd.member import CallFailed, MemberChannel, Metadata, Unary

# With this a member without a leader refuses at once, and ends watches, instead of waiting.
_HAS_LEADER = ("hasleader", "true")

# A login, and the first status of a member, must not use up the whole time of a call.
LOGIN_TIMEOUT_S = 3.0
# etcd's numbers for alarm actions and the alarm.
_GET, _DISARM, _NOSPACE = 0, 2, 1
# A member may take this multiple of the usual time for a transaction, within these bounds. An
# election takes up to two seconds by etcd's defaults, and requests from before it are lost.
PATIENCE_FACTOR, PATIENCE_MIN_S, PATIENCE_MAX_S = 20.0, 1.5, 60.0
# How long connecting to other members may take when the connected one has failed.
LOOK_ELSEWHERE_S = 1.0

Request = TypeVar("Request")


class _WithHeader(Protocol):
    @property
    def header(self) -> pb.ResponseHeader: ...


Answer = TypeVar("Answer", bound=_WithHeader)


class MemberFacts(msgspec.Struct, frozen=True):
    """The status of a member; `error` when it did not answer.

    `size` is the size of its file, `in_use` how much of that is used, `quota` the size at which it
    accepts no more writes, which only 3.6 and later report.
    """

    target: str
    version: str = ""
    alarms: tuple[str, ...] = ()
    error: str = ""
    size: int = 0
    in_use: int = 0
    quota: int = 0


class CallTimeout:
    """The time-out for one member's transactions: many times what they usually take.

    A follower whose leader died keeps a request for seconds without an answer; a stopped member
    keeps it until it runs again. If everything is slow, the limit doubles until answers come.
    """

    def __init__(self) -> None:
        self._usual_s = 0.0
        self.limit_s = PATIENCE_MIN_S

    def sufficed(self, took_s: float) -> None:
        self._usual_s += (took_s - self._usual_s) / 16
        self.limit_s = max(PATIENCE_MIN_S, PATIENCE_FACTOR * self._usual_s)

    def ran_out(self) -> None:
        self.limit_s = min(PATIENCE_MAX_S, 2 * self.limit_s)


class Cluster:
    """All members; one is in use until it fails."""

    def __init__(self, config: EtcdConfig) -> None:
        config.check()
        self._config = config
        self.members = [MemberChannel(target, config) for target in config.targets()]
        # Spread clients with the same configuration over the members.
        self._at = random.randrange(len(self.members))
        # Members that failed and have not answered since.
        self._blamed: set[MemberChannel] = set()
        self._cluster_id = 0
        self._metadata: Metadata = (_HAS_LEADER,)
        self._patience = CallTimeout()
        self._login_lock = asyncio.Lock()
        self._closed = False

    async def look(self) -> list[MemberFacts]:
        """Ask every member for its status. Raises Unavailable when none answers."""
        facts = await asyncio.gather(*(self._look_at(member) for member in self.members))
        if all(fact.error for fact in facts):
            errors = "; ".join(f"{fact.target}: {fact.error}" for fact in facts)
            raise Unavailable(f"no etcd member answers: {errors}")
        if self._config.user is not None:
            await self._login(await self.ready(LOGIN_TIMEOUT_S), self._metadata)
        return facts

    async def range(self, request: pb.RangeRequest, timeout_s: float) -> pb.RangeResponse:
        return await self._call(_range, request, timeout_s, writes=False)

    async def txn(
        self, request: pb.TxnRequest, timeout_s: float, *, writes: bool = True
    ) -> pb.TxnResponse:
        """Send a transaction. It is small, so a member that takes far longer than usual is given
        up, and the next call goes to another one. The caller learns the outcome by its token.
        """
        patience = self._patience if len(self.members) > 1 else None
        return await self._call(
            transaction_call, request, timeout_s, writes=writes, patience=patience
        )

    async def put(self, request: pb.PutRequest, timeout_s: float) -> pb.PutResponse:
        return await self._call(_put, request, timeout_s, writes=True)

    async def compact(self, request: pb.CompactionRequest, timeout_s: float) -> None:
        await self._call(_compact, request, timeout_s, writes=True)

    async def defragment(self, timeout_s: float) -> None:
        """Defragment the members one after the other: each stops meanwhile.

        Raises Unavailable, or Forbidden if the login may not do that.
        """
        for member in self.members:
            try:
                await member.defragment(pb.DefragmentRequest(), timeout_s, self._metadata)
            except CallFailed as failed:
                raise self._error(member, failed, writes=False) from None

    async def disarm(self, timeout_s: float) -> None:
        """Disarm the alarm that stops writes to etcd. Raises what `defragment` does."""
        member = await self.ready(timeout_s)
        try:
            # Answers about alarms do not name their cluster.
            found = await member.alarm(pb.AlarmRequest(action=_GET), timeout_s, self._metadata)
            for it in found.alarms:
                if it.alarm == _NOSPACE:
                    end = pb.AlarmRequest(action=_DISARM, memberID=it.memberID, alarm=_NOSPACE)
                    await member.alarm(end, timeout_s, self._metadata)
        except CallFailed as failed:
            raise self._error(member, failed, writes=False) from None

    async def snapshot(self, timeout_s: float) -> AsyncIterator[pb.SnapshotResponse]:
        """The whole database of one member. Raises Unavailable, or Forbidden if the login may not
        read it.
        """
        member = await self.ready(timeout_s)
        try:
            async for piece in member.snapshot(self._metadata):
                yield piece
        except CallFailed as failed:
            raise self._error(member, failed, writes=False) from None

    async def ready(self, timeout_s: float) -> MemberChannel:
        """A connected member, the current one if possible.

        Waiting here, before anything is sent, is what makes Unavailable certain: a call that is
        sent on an open connection and fails may have arrived.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        if self.is_connected():
            return self.members[self._at]
        order = self.members[self._at :] + self.members[: self._at]
        if len(self._blamed) == len(order):
            self._blamed.clear()
        trusted = [member for member in order if member not in self._blamed]
        member = _ready_of(trusted)
        if member is None and self._blamed:
            # A connection to a stopped or unreachable member looks as good as any. Before falling
            # back on one that failed, give the others a chance to connect.
            look_s = min(timeout_s / 2, LOOK_ELSEWHERE_S)
            member = await _first_connected(trusted, look_s, patiently=False) or _ready_of(order)
        if member is None:
            member = await _first_connected(order, timeout_s, patiently=True)
        if self._closed:
            raise Unavailable("the store is closed")
        if member is None:
            targets = ", ".join(member.target for member in order)
            raise Unavailable(f"cannot connect to any etcd member: {targets}")
        return member

    def is_connected(self) -> bool:
        """Whether the current member has not failed and a call to it would be sent at once."""
        member = self.members[self._at]
        return member not in self._blamed and member.is_ready()

    def blame(self, member: MemberChannel) -> None:
        """Send the next call to another member than this one."""
        self._blamed.add(member)
        self._at = (self.members.index(member) + 1) % len(self.members)

    def praise(self, member: MemberChannel) -> None:
        """The member answered."""
        self._blamed.discard(member)

    def is_ours(self, header: pb.ResponseHeader) -> bool:
        """Whether an answer came from the cluster that the store was opened on."""
        return header.cluster_id == self._cluster_id

    @property
    def metadata(self) -> Metadata:
        return self._metadata

    async def login_again(self, member: MemberChannel, metadata: Metadata) -> bool:
        """After a refusal of this metadata. False when there is nothing to log in with."""
        if self._config.user is None:
            return False
        await self._login(member, metadata)
        return True

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(member.close() for member in self.members))

    async def _call(
        self,
        method: Callable[[MemberChannel], Unary[Request, Answer]],
        request: Request,
        timeout_s: float,
        *,
        writes: bool,
        patience: CallTimeout | None = None,
    ) -> Answer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        member = await self.ready(timeout_s)
        metadata = self._metadata
        left_s = deadline - loop.time()
        if left_s <= 0:
            raise Unavailable("nothing was sent: connecting took the whole time-out")
        began = loop.time()
        # The member's time-out does not include connecting: what was not sent can wait.
        given_s = left_s if patience is None else min(left_s, patience.limit_s)
        try:
            try:
                answer = await method(member)(request, given_s, metadata)
            except CallFailed as failed:
                # gRPC may end a call a moment early.
                if patience is not None and loop.time() - began >= 0.9 * patience.limit_s:
                    patience.ran_out()
                if failed.kind is not ErrorMeaning.LOGIN:
                    raise
                # The member refused before it processed the request: nothing was written, and the
                # same request may be sent once more with a new login.
                if not await self.login_again(member, metadata):
                    raise
                answer = await method(member)(request, deadline - loop.time(), self._metadata)
        except CallFailed as failed:
            raise self._error(member, failed, writes=writes) from None
        if not self.is_ours(answer.header):
            stranger = CallFailed(
                ErrorMeaning.DOUBT, "it belongs to another cluster than at the start"
            )
            raise self._error(member, stranger, writes=writes)
        self.praise(member)
        if patience is not None:
            patience.sufficed(loop.time() - began)
        return answer

    def _error(self, member: MemberChannel, failed: CallFailed, *, writes: bool) -> HoldfastError:
        if is_members_fault(failed.kind):
            self.blame(member)
        return error_for(failed.kind, f"etcd at {member.target}: {failed.text}", writes=writes)

    async def _login(self, member: MemberChannel, refused: Metadata) -> None:
        async with self._login_lock:
            if self._metadata is not refused:
                # Another task logged in during the wait.
                return
            user, password = self._config.user, self._config.password
            invariant(user is not None and password is not None, "a login needs a user")
            request = pb.AuthenticateRequest(name=user or "", password=password or "")
            try:
                answer = await member.login(request, LOGIN_TIMEOUT_S, (_HAS_LEADER,))
            except CallFailed as failed:
                # A login whose outcome is unknown does no harm.
                raise self._error(member, failed, writes=False) from None
            self._metadata = (_HAS_LEADER, ("token", answer.token))

    async def _look_at(self, member: MemberChannel) -> MemberFacts:
        try:
            async with asyncio.timeout(LOGIN_TIMEOUT_S):
                await member.connect()
            answer = await member.status(pb.StatusRequest(), LOGIN_TIMEOUT_S, ())
        except TimeoutError:
            return MemberFacts(member.target, error="cannot connect")
        except CallFailed as failed:
            return MemberFacts(member.target, error=failed.text)
        self._cluster_id = self._cluster_id or answer.header.cluster_id
        if not self.is_ours(answer.header):
            raise Unavailable(
                f"etcd at {member.target} belongs to another cluster than the other endpoints"
            )
        return MemberFacts(
            member.target,
            answer.version,
            tuple(answer.errors),
            size=answer.dbSize,
            in_use=answer.dbSizeInUse,
            quota=answer.dbSizeQuota,
        )


async def _first_connected(
    members: list[MemberChannel], timeout_s: float, *, patiently: bool
) -> MemberChannel | None:
    """Connect to all at once and take the first that answers, or the earliest of several."""
    attempts = {asyncio.ensure_future(member.connect(patiently=patiently)) for member in members}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    waiting = set(attempts)
    try:
        while waiting and _ready_of(members) is None and loop.time() < deadline:
            _, waiting = await asyncio.wait(
                waiting, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
    finally:
        for attempt in attempts:
            attempt.cancel()
        # The error of a failed attempt says no more than the state of its member.
        await asyncio.gather(*attempts, return_exceptions=True)
    return _ready_of(members)


def _ready_of(members: list[MemberChannel]) -> MemberChannel | None:
    return next((member for member in members if member.is_ready()), None)


def _range(member: MemberChannel) -> Unary[pb.RangeRequest, pb.RangeResponse]:
    return member.range


def transaction_call(member: MemberChannel) -> Unary[pb.TxnRequest, pb.TxnResponse]:
    """The call of a transaction at this member."""
    return member.txn


def _put(member: MemberChannel) -> Unary[pb.PutRequest, pb.PutResponse]:
    return member.put


def _compact(member: MemberChannel) -> Unary[pb.CompactionRequest, pb.CompactionResponse]:
    return member.compact
