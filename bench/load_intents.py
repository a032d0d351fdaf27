"""The intents of clients, as opposed to their requests: each intent and the requests it took.

The generator starts one for each arrival of a stream with `retries` and sends its requests. It uses
the shipped operation machine (`observe/operation`) and the shipped reading of answers
(`host/client/answers`); only sockets and clocks are the generator's.
"""

from __future__ import annotations

import random
from collections import Counter

from holdfast.host.client.answers import HttpAnswer
from holdfast.host.process import clock
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.operation_evidence import Evidence
from holdfast.observe.operation import (
    Begun,
    Failed,
    Finish,
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
from holdfast.observe.retry import DEFAULT_POLICY, Budget

_OPERATION = b"X-Holdfast-Operation: "
_REASON = "Unavailable"


class Course:
    """One intent from its first request to its end."""

    def __init__(self, owner: Intents, text: bytes, look: bytes, nature: Nature) -> None:
        self._owner, self._text, self._look = owner, text, look
        self._nature = nature
        self._operation = OperationMachine(DEFAULT_POLICY, nature, owner.rng, owner.budget)
        self._is_looking = False
        self._operation.step(Begun(), clock.now().monotonic_ms)

    def answered(
        self, code: int, after_ms: int, body: bytes, now: float
    ) -> tuple[float, bytes] | None:
        """Take the outcome of a request; return when to send what next, if anything.

        Without a text, the intent is to be resumed then.
        """
        return self._go_on(self._stimulus(code, after_ms, body), now)

    def resume(self, now: float) -> tuple[float, bytes] | None:
        """Continue after a pause; returns the same as `answered`."""
        return self._go_on(Paused(), now)

    def _go_on(self, stimulus: Stimulus, now: float) -> tuple[float, bytes] | None:
        effect = self._operation.step(stimulus, clock.now().monotonic_ms)
        if isinstance(effect, Pause):
            return now + effect.duration_ms / 1_000, b""
        if isinstance(effect, Send | LookForOperation):
            self._is_looking = isinstance(effect, LookForOperation)
            self._owner.count["requests"] += 1
            return now, self._look if self._is_looking else self._text
        self._owner.count["succeeded" if isinstance(effect, Finish) else "failed"] += 1
        return None

    def _stimulus(self, code: int, after_ms: int, body: bytes) -> Stimulus:
        if self._is_looking:
            return self._seen(code, after_ms, body)
        if 200 <= code < 300:
            return Replied(None)
        if code < 100:
            is_read = self._nature is Nature.READ
            lost = "no answer in time"
            return Failed(Unavailable(lost) if is_read else OutcomeUnknown(lost))
        reason = _REASON if code == 503 else ""
        error = HttpAnswer(code, body, reason).error(may_have_happened=self._nature is Nature.WRITE)
        return Failed(error, after_ms)

    def _seen(self, code: int, after_ms: int, body: bytes) -> Stimulus:
        if 200 <= code < 300:
            operation = self._text.partition(_OPERATION)[2].partition(b"\r\n")[0]
            return Looked(Evidence.DONE if operation in body else Evidence.ABSENT, body)
        if code == 404:
            return Looked(Evidence.ABSENT)
        return LookFailed(Unavailable(f"the read of the outcome got {code}"), after_ms)


class Intents:
    """All intents of one client."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.budget = rng, Budget()
        self.count: Counter[str] = Counter()

    def begin(self, text: bytes, look: bytes, *, is_read: bool) -> Course:
        """Start one more, whose first request is to be sent now."""
        self.count["begun"] += 1
        self.count["requests"] += 1
        return Course(self, text, look, Nature.READ if is_read else Nature.WRITE)

    def counted(self) -> dict[str, int]:
        return dict(self.count)
