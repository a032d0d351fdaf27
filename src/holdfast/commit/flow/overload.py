"""Overload errors: why a server refused a request, and when to retry.

Flow controllers, rates and caps raise them. To a caller it is Unavailable: the request did not
happen and may be retried after `retry_after_s`. `host/api/status_objects` makes it a 429.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.commit.flow.request_classes import Flow
from holdfast.model.errors import Unavailable


class RejectionReason(StrEnum):
    """Why a request was refused. The codes are for metrics and clients, and never change."""

    QUEUE_FULL = "QueueFull"
    WAITED_TOO_LONG = "WaitedTooLong"
    RATE_EXCEEDED = "RateExceeded"
    TOO_MANY_WATCHES = "TooManyWatches"
    TOO_MANY_CONNECTIONS = "TooManyConnections"
    TOO_MANY_BYTES = "TooManyBytes"
    WRITES_TOO_MUCH = "WritesTooMuch"


_SENTENCES = {
    RejectionReason.QUEUE_FULL: "the queue is full",
    RejectionReason.WAITED_TOO_LONG: "the request waited too long",
    RejectionReason.RATE_EXCEEDED: "the request rate exceeds its limit",
    RejectionReason.TOO_MANY_WATCHES: "the limit of open watches is reached",
    RejectionReason.TOO_MANY_CONNECTIONS: "the limit of open connections is reached",
    RejectionReason.TOO_MANY_BYTES: "the limit of bytes being received is reached",
    RejectionReason.WRITES_TOO_MUCH: "the bytes written per second exceed their limit",
}


class Overloaded(Unavailable):
    """The request was not started because the server is overloaded: retry after `retry_after_s`."""

    code = "TooManyRequests"

    def __init__(self, message: str, why: RejectionReason, retry_after_s: int) -> None:
        super().__init__(message)
        self.why, self.retry_after_s = why, retry_after_s


def overload_error(flow: Flow, why: RejectionReason, retry_after_s: int) -> Overloaded:
    """The error for this reason."""
    whose = f"{flow.request_class.label} requests of {flow.tenant}"
    return Overloaded(
        f"{whose}: {_SENTENCES[why]}; retry after {retry_after_s} s", why, retry_after_s
    )
