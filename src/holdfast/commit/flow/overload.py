"""Overload errors: why a server refused a request, and when to retry.

Flow controllers, rates and caps raise them. To a caller it is Unavailable: the request did not
happen and may be retried after `retry_after_s`. `host/api/status` makes it a 429.
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
    RejectionReason.QUEUE_FULL: "as many wait already as may",
    RejectionReason.WAITED_TOO_LONG: "its turn did not come in time",
    RejectionReason.RATE_EXCEEDED: "it asks more often than it may",
    RejectionReason.TOO_MANY_WATCHES: "it has as many watches as it may",
    RejectionReason.TOO_MANY_CONNECTIONS: "it has as many connections as it may",
    RejectionReason.TOO_MANY_BYTES: "it sends as much at once as it may",
    RejectionReason.WRITES_TOO_MUCH: "it writes more bytes a second than it may",
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
