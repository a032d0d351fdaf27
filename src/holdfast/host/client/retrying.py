"""Performs what the operation machine decides: sends, looks and waits until it ends.

`observe/operation` decides what to do after each outcome; this module only does it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.host.client.answers import UNREADABLE, HttpAnswer
from holdfast.host.client.transport import ATTEMPT
from holdfast.host.process import clock
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.machine import Rng
from holdfast.model.operation_evidence import Evidence
from holdfast.model.refusal import Refusal
from holdfast.observe.operation import (
    Begun,
    Failed,
    Finish,
    GiveUp,
    Looked,
    LookFailed,
    LookForOperation,
    Nature,
    OperationMachine,
    Pause,
    Paused,
    Replied,
    Send,
    Stimulus,
)
from holdfast.observe.retry import Budget, RetryPolicy

Sending = Callable[[Send], Awaitable[Any]]
Looking = Callable[[float], Awaitable[Any]]


class RefusedAnswer(Exception):
    """A refusal by a server, on its way to the operation machine."""

    def __init__(self, error: HoldfastError, retry_after_ms: int) -> None:
        super().__init__(error.message)
        self.error = error
        self.retry_after_ms = retry_after_ms


def demand_good(answer: HttpAnswer, *, is_write: bool) -> HttpAnswer:
    """Return a successful answer. Raises RefusedAnswer for any other."""
    if not answer.is_good:
        raise RefusedAnswer(answer.error(may_have_happened=is_write), answer.retry_after_ms)
    return answer


async def no_trace(timeout_s: float) -> Any:
    """The look of a request that leaves no trace, such as a read."""
    return None


class Performer:
    """Performs requests with retries. One for each client."""

    def __init__(self, policy: RetryPolicy, rng: Rng | None = None) -> None:
        self.policy = policy
        self.rng: Rng = rng if rng is not None else random.Random()
        # Shared by all requests of the client, so that they do not all retry at once.
        self.budget = Budget()
        # Requests sent and answers lost, for metrics.
        self.sent = 0
        self.lost = 0

    async def perform(self, nature: Nature, send: Sending, look: Looking = no_trace) -> Any:
        """Return the answer to a request, or raise the error that it ended with."""
        operation = OperationMachine(self.policy, nature, self.rng, self.budget)
        try:
            return await self._carry(operation, send, look)
        finally:
            # Also when its caller was cancelled.
            operation.end()

    async def _carry(self, operation: OperationMachine, send: Sending, look: Looking) -> Any:
        stimulus: Stimulus = Begun()
        tries = 0
        while True:
            match operation.step(stimulus, clock.now().monotonic_ms):
                case Finish(body=body):
                    return body
                case GiveUp(error=error):
                    raised = error.error() if isinstance(error, Refusal) else error
                    raise raised.with_traceback(None)
                case Pause(duration_ms=duration_ms):
                    await asyncio.sleep(duration_ms / 1_000)
                    stimulus = Paused()
                case Send() as effect:
                    tries += 1
                    attempt = ATTEMPT.set(tries)
                    try:
                        stimulus = await self._send(send, effect)
                    finally:
                        ATTEMPT.reset(attempt)
                case LookForOperation(timeout_ms=timeout_ms):
                    stimulus = await self._look(look, timeout_ms / 1_000)

    async def _send(self, send: Sending, effect: Send) -> Stimulus:
        self.sent += 1
        try:
            return Replied(await send(effect))
        except RefusedAnswer as refused:
            return Failed(refused.error, refused.retry_after_ms)
        except HoldfastError as error:
            return Failed(error)
        except UNREADABLE as error:
            return Failed(OutcomeUnknown(f"the answer cannot be decoded: {error}"))

    async def _look(self, look: Looking, timeout_s: float) -> Stimulus:
        self.lost += 1
        try:
            found = await look(timeout_s)
            return Looked(Evidence.ABSENT if found is None else Evidence.DONE, found)
        except RefusedAnswer as refused:
            return LookFailed(refused.error, refused.retry_after_ms)
        except HoldfastError as error:
            return LookFailed(error)
        except UNREADABLE as error:
            return LookFailed(Unavailable(f"the answer cannot be decoded: {error}"))
