"""The typed requests of `model/requests` for programs: for schedulers and controllers of users.

Requests that are made at the same time are sent in one body (`request_batches`), and each is an
operation of its own: one without a clear answer is looked for on the object that it concerns, and
sent again under its id. A component's machine does the same by itself, through `api_client`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import msgspec

from holdfast.host.client import paths
from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.request_batches import UNREADABLE_CODES, RequestBatches
from holdfast.host.client.request_calls import JSON, REQUESTS_PATH
from holdfast.host.client.retrying import RefusedAnswer, demand_good
from holdfast.host.client.writing import WritingClient, fetch_object
from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.errors import HoldfastError, Invalid, Unavailable
from holdfast.model.meta import Object
from holdfast.model.operation_evidence import Evidence, evidence_in, operation_id
from holdfast.model.refusal import Refusal
from holdfast.model.registry import kind_of_plural
from holdfast.model.requests import Accepted
from holdfast.observe.operation import Nature, Send

# This many lost answers are looked for at the same time.
LOOKS_MAX = 32

Verdict = Accepted | HoldfastError


class RequestingClient(WritingClient):
    """The part of a client that makes typed requests."""

    @cached_property
    def _batches(self) -> RequestBatches:
        return RequestBatches(self._send_batch)

    @cached_property
    def _looks(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(LOOKS_MAX)

    async def ask(self, request: Any) -> Accepted:
        """Make a typed request. Raises what was refused."""
        request = _named(request)

        async def send(effect: Send) -> Accepted:
            verdict = await self._batches.ask(request, effect.timeout_ms / 1_000)
            if isinstance(verdict, Refusal):
                raise RefusedAnswer(verdict.error(), 0)
            accepted: Accepted = verdict
            return accepted

        async def look(timeout_s: float) -> Accepted | None:
            it = request.subject()
            if it is None or not operation_id(request):
                return None
            kind = kind_of_plural(it.plural)
            path = paths.one(kind, it.namespace, it.name)
            async with self._looks:
                obj = await fetch_object(self, kind.struct, path, timeout_s)
            if obj is None or evidence_in(request, obj) is not Evidence.DONE:
                # Also where it was overtaken: the server says best why it refuses the next copy.
                return None
            return _found(obj)

        accepted: Accepted = await self.performer.perform(Nature.WRITE, send, look)
        return accepted

    async def ask_all(self, requests: Iterable[Any]) -> list[Verdict]:
        """Make many requests. Return the verdicts in their order, with refusals as values."""

        async def verdict(request: Any) -> Verdict:
            try:
                return await self.ask(request)
            except HoldfastError as error:
                return error

        return await asyncio.gather(*map(verdict, requests))

    async def close(self) -> None:
        await self._batches.close()
        await super().close()

    async def _send_batch(self, body: bytes, timeout_s: float) -> HttpAnswer:
        headers = {"Content-Type": JSON}
        answer = await self.transport.send(
            "POST", REQUESTS_PATH, body=body, headers=headers, timeout_s=timeout_s
        )
        return answer if answer.code in UNREADABLE_CODES else demand_good(answer, is_write=True)


def _named(request: Any) -> Any:
    """Return the request under an operation id, the same for all its tries."""
    if "operation" not in request.__struct_fields__ or request.operation:
        return request
    return msgspec.structs.replace(request, operation=uuid.uuid4().hex)


def _found(obj: Object) -> Accepted:
    """Return the acceptance of a request that an object remembers."""
    try:
        revision = object_revision(obj.metadata.resource_version)
    except Invalid as error:
        # The request was accepted, so this must not look like its refusal.
        raise Unavailable(f"the answer cannot be decoded: {error.message}") from error
    return Accepted(revision, (obj,), replayed=True)
