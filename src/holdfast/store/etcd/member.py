"""One etcd member: a gRPC channel to it and the calls on it.

This is the only file that uses gRPC. `cluster` owns the members and decides which one gets a call;
watches open their streams here.

gRPC is configured to do as little as possible by itself: it retries nothing (a retried transaction
could apply twice), asks no DNS for a service configuration, uses no proxy and shares no connection
with other channels. It may reconnect on its own, quickly, and it pings a peer that has open calls,
so that a dead or stopped one is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.config import EtcdConfig
from holdfast.store.etcd.error_meaning import ErrorMeaning, classify

# etcd closes connections that ping more often than every five seconds (--grpc-keepalive-min-time).
KEEPALIVE_EVERY_MS = 6_000
KEEPALIVE_TIMEOUT_MS = 3_000
RECONNECT_MIN_MS = 100
RECONNECT_MAX_MS = 1_000
CONNECT_TIMEOUT_MS = 2_000
CLOSE_TIMEOUT_S = 1.0

OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MIN_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
    # Despite its name this is how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.keepalive_time_ms", KEEPALIVE_EVERY_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # The limit of each request bounds the size of its answer.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

Metadata = tuple[tuple[str, str], ...]
Request = TypeVar("Request")
Answer = TypeVar("Answer")


class CallFailed(Exception):
    """A call without an answer. Stays in this package: callers get one of our errors."""

    def __init__(self, kind: ErrorMeaning, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class Unary(Generic[Request, Answer]):
    """One method of one member, one request, one answer."""

    __slots__ = ("_call",)

    def __init__(self, call: Any) -> None:
        self._call = call

    async def __call__(self, request: Request, timeout_s: float, metadata: Metadata) -> Answer:
        call = self._call(request, timeout=timeout_s, metadata=metadata)
        try:
            answer: Answer = await call
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from None
        except asyncio.CancelledError:
            if _is_our_callers_wish():
                raise
            raise CallFailed(
                ErrorMeaning.DOUBT, "the connection was closed under the call"
            ) from None
        return answer


class WatchStream:
    """An open stream of watch answers. Cancelling a `read` ends it."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def create(self, request: pb.WatchCreateRequest) -> None:
        try:
            await self._call.write(pb.WatchRequest(create_request=request))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise _failure(error) from None
        except asyncio.CancelledError:
            if _is_our_callers_wish():
                raise
            raise CallFailed(
                ErrorMeaning.NOT_SENT, "the connection was closed under the watch"
            ) from None

    async def read(self) -> pb.WatchResponse:
        try:
            answer = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise _failure(error) from None
        except asyncio.CancelledError:
            if _is_our_callers_wish():
                raise
            raise CallFailed(
                ErrorMeaning.NOT_SENT, "the connection was closed under the watch"
            ) from None
        if answer is grpc.aio.EOF:
            raise CallFailed(ErrorMeaning.TURNED_AWAY, "the member ended the watch")
        response: pb.WatchResponse = answer
        return response

    def cancel(self) -> None:
        self._call.cancel()


def _failure(error: Exception) -> CallFailed:
    if isinstance(error, grpc.aio.AioRpcError):
        code, text = error.code().name, error.details() or ""
        return CallFailed(classify(code, text), f"{text or 'no details'} ({code})")
    return CallFailed(ErrorMeaning.DOUBT, str(error))


def _is_our_callers_wish() -> bool:
    """Whether a CancelledError was meant for the running task.

    gRPC raises one, too, in every task that awaits a call when the channel is closed.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class MemberChannel:
    """A channel to one endpoint. Must be made inside the event loop that uses it."""

    def __init__(self, target: str, config: EtcdConfig) -> None:
        self.target = target
        self._changing: asyncio.Task[None] | None = None
        if config.tls:
            credentials = grpc.ssl_channel_credentials(*config.certificates())
            self._channel = grpc.aio.secure_channel(target, credentials, OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(target, OPTIONS)
        self.range = self._unary("KV/Range", pb.RangeRequest, pb.RangeResponse)
        self.put = self._unary("KV/Put", pb.PutRequest, pb.PutResponse)
        self.txn = self._unary("KV/Txn", pb.TxnRequest, pb.TxnResponse)
        self.compact = self._unary("KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
        self.status = self._unary("Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
        self.alarm = self._unary("Maintenance/Alarm", pb.AlarmRequest, pb.AlarmResponse)
        self.defragment = self._unary(
            "Maintenance/Defragment", pb.DefragmentRequest, pb.DefragmentResponse
        )
        self.login = self._unary(
            "Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse
        )
        self._watch = self._channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )

        self._snapshot = self._channel.unary_stream(
            "/etcdserverpb.Maintenance/Snapshot",
            request_serializer=pb.SnapshotRequest.SerializeToString,
            response_deserializer=pb.SnapshotResponse.FromString,
        )

    def is_ready(self) -> bool:
        """Whether the channel is connected, so that a call would be sent at once."""
        return bool(self._channel.get_state() is grpc.ChannelConnectivity.READY)

    async def connect(self, *, patiently: bool = True) -> None:
        """Return as soon as the channel is connected; the caller limits the wait.

        Without patience one failed attempt, or one that failed a moment ago, is enough to raise.
        """
        while True:
            try:
                state = self._channel.get_state(try_to_connect=True)
            except grpc.aio.UsageError as error:
                raise CallFailed(ErrorMeaning.NOT_SENT, str(error)) from None
            if state is grpc.ChannelConnectivity.READY:
                return
            if not patiently and state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                raise CallFailed(ErrorMeaning.NOT_SENT, "cannot connect")
            # gRPC cannot cancel a wait for a change of state, so all callers share one waiting task
            # that outlives them.
            if self._changing is None or self._changing.done():
                self._changing = asyncio.create_task(self._wait_for_change(state))
            await asyncio.wait([self._changing])

    def watch(self, metadata: Metadata) -> WatchStream:
        return WatchStream(self._watch(metadata=metadata))

    async def snapshot(self, metadata: Metadata) -> AsyncIterator[pb.SnapshotResponse]:
        """All that the member holds, in pieces; raises CallFailed."""
        try:
            async for piece in self._snapshot(pb.SnapshotRequest(), metadata=metadata):
                yield piece
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from None

    async def close(self) -> None:
        await self._channel.close()
        if self._changing is not None:
            # Closing ends the call. Otherwise gRPC would look for its event loop later.
            await asyncio.wait([self._changing], timeout=CLOSE_TIMEOUT_S)

    async def _wait_for_change(self, state: Any) -> None:
        try:
            await self._channel.wait_for_state_change(state)
        except (grpc.aio.UsageError, asyncio.CancelledError):
            if _is_our_callers_wish():
                raise

    def _unary(
        self, method: str, request: type[Request], answer: type[Answer]
    ) -> Unary[Request, Answer]:
        serialize: Any = request
        deserialize: Any = answer
        return Unary(
            self._channel.unary_unary(
                f"/etcdserverpb.{method}",
                request_serializer=serialize.SerializeToString,
                response_deserializer=deserialize.FromString,
            )
        )
