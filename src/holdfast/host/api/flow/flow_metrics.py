"""Flow control for Prometheus: which requests run, which wait, and which were refused.

`host/server/server_metrics.py` adds it to a server's metrics. Tenants beyond the first thousand are
counted together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from holdfast.commit.flow.caps import Caps
from holdfast.commit.flow.concurrency_limit import ConcurrencyLimit
from holdfast.commit.flow.flow_counts import ClassLoad
from holdfast.commit.flow.overload import RejectionReason
from holdfast.host.api.flow.request_admission import RequestAdmission
from holdfast.host.process.metrics import LATENCY_S, Labels, Metrics

_STANDINGS: tuple[tuple[str, str, Callable[[ClassLoad], float]], ...] = (
    ("requests_executing", "Requests under way.", lambda it: it.executing),
    ("requests_waiting", "Requests that wait for their turn.", lambda it: it.waiting),
    (
        "request_queue_age_seconds",
        "How long the oldest request waits for its turn.",
        lambda it: it.oldest_ms / 1_000,
    ),
)


def count(admission: RequestAdmission, metrics: Metrics) -> None:
    """Add the figures of flow control to the server's metrics."""
    for name, text, read in _STANDINGS:
        metrics.gauges(name, text, ("gate", "class"), partial(_class_loads, admission, read))
    metrics.gauges(
        "request_limit_scale",
        "How many times the seats of the table a flow controller has, as measured.",
        ("gate",),
        partial(_limits, admission, lambda it: it.scale),
    )
    metrics.gauges(
        "request_patience_seconds",
        "How long people wait for a seat while others are refused, as measured.",
        ("gate",),
        lambda: (((it.name,), it.patience_ms / 1_000) for it in admission.controllers.all),
    )
    metrics.gauges(
        "request_turn_seconds",
        "How long a turn of the event loop takes while requests end, smoothed.",
        ("gate",),
        partial(_limits, admission, lambda it: it.turn_ms / 1_000),
    )
    metrics.gauges(
        "requests_refused_total",
        "Requests that were not begun because there was too much to do, by reason.",
        ("gate", "class", "reason"),
        partial(_refusals, admission),
        kind="counter",
    )
    metrics.gauges(
        "tenant_requests_total",
        "Requests of each tenant, begun or refused; each kind of components counts as a tenant.",
        ("class", "tenant", "outcome"),
        partial(_outcomes, admission),
        kind="counter",
    )
    metrics.gauges(
        "tenant_retries_total",
        "Requests of each tenant that were sent before, as far as clients say so.",
        ("class", "tenant"),
        partial(_retries, admission),
        kind="counter",
    )
    for name, text, caps in (
        ("tenant_watches", "Open watches of each tenant.", lambda: admission.watches),
        ("tenant_connections", "Connections of each tenant.", lambda: admission.connections),
    ):
        metrics.gauges(name, text, ("tenant",), partial(_open, caps))
    admission.waits = metrics.histogram(
        "request_wait_seconds",
        "How long requests waited for their turn, of those that did.",
        LATENCY_S,
        ("class",),
    )


def _class_loads(
    admission: RequestAdmission, read: Callable[[ClassLoad], float]
) -> Iterator[tuple[Labels, float]]:
    admission.settle()
    for controller in admission.controllers.all:
        for it, load in controller.class_loads(admission.now_ms()).items():
            yield (controller.name, it.label), read(load)


def _limits(
    admission: RequestAdmission, read: Callable[[ConcurrencyLimit], float]
) -> Iterator[tuple[Labels, float]]:
    for controller in admission.controllers.all:
        if controller.limit is not None:
            yield (controller.name,), read(controller.limit)


def _open(caps: Callable[[], Caps]) -> Iterator[tuple[Labels, float]]:
    for tenant, number in caps().tenants.items():
        yield (tenant,), number


def _refusals(admission: RequestAdmission) -> Iterator[tuple[Labels, float]]:
    for controller in admission.controllers.all:
        for it, load in controller.class_loads(admission.now_ms()).items():
            for why, number in load.refused.items():
                yield (controller.name, it.label, why.value), number
    yield ("rates", "all", RejectionReason.RATE_EXCEEDED.value), admission.rates.refused
    yield ("watches", "all", RejectionReason.TOO_MANY_WATCHES.value), admission.watches.refused
    yield (
        ("connections", "all", RejectionReason.TOO_MANY_CONNECTIONS.value),
        admission.connections.refused,
    )
    yield ("bodies", "all", RejectionReason.TOO_MANY_BYTES.value), admission.bytes_held.refused


def _retries(admission: RequestAdmission) -> Iterator[tuple[Labels, float]]:
    found: dict[Labels, float] = {}
    for controller in admission.controllers.all:
        for (it, tenant), tally in controller.tenants.items():
            if tally.retried:
                labels = (it.label, tenant)
                found[labels] = found.get(labels, 0) + tally.retried
    yield from found.items()


def _outcomes(admission: RequestAdmission) -> Iterator[tuple[Labels, float]]:
    found: dict[Labels, float] = {}
    for controller in admission.controllers.all:
        for (it, tenant), tally in controller.tenants.items():
            for outcome, number in (("begun", tally.begun), ("refused", tally.refused)):
                labels = (it.label, tenant, outcome)
                found[labels] = found.get(labels, 0) + number
    yield from found.items()
