"""What the parts of one server are doing, for Prometheus: watches, the hub, connections, budgets.

`plane` calls it once, when all parts are there. The gates have a file of their own
(`api/turns_counted.py`), and so have the components that send pulses (`pulses.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from holdfast.commit.exhausted import Exhausted
from holdfast.commit.server import Server
from holdfast.host import digests
from holdfast.host.api import turns_counted
from holdfast.host.api.app import Api
from holdfast.host.metrics import LATENCY_S, Labels, Metrics
from holdfast.observe.hub import Hub


def count(metrics: Metrics, hub: Hub, machine: Server, api: Api) -> None:
    """Add all of it to what the server counts."""
    turns_counted.count(api.turns, metrics)
    _connections(metrics, api)
    _watches(metrics, hub, api)
    metrics.gauge(
        "authority_epoch",
        "Epoch under which this server decides for all; 0 when another one does.",
        lambda: machine.term.epoch if machine.term is not None else 0,
    )
    metrics.gauges(
        "budget_refusals_total",
        "Requests refused because a budget of their tenant was used up, by budget.",
        ("tenant", "budget"),
        partial(_exhausted, machine.exhausted, api.turns.rates.exhausted),
        kind="counter",
    )


def count_servers(metrics: Metrics, read: digests.Read) -> None:
    """The other servers, by their leases."""
    metrics.gauges(
        "server_lease_expired_seconds",
        "Servers that no longer count: for how long each has not renewed its lease.",
        ("server",),
        lambda: [((name,), ms / 1_000) for name, ms in digests.expired(read).items()],
    )


def _connections(metrics: Metrics, api: Api) -> None:
    metrics.gauges(
        "connections_cut_total",
        "Connections cut because a head did not come, or an answer was not taken, in time.",
        ("waited_for",),
        lambda: [((reason,), count) for reason, count in api.cut.items()],
        kind="counter",
    )
    metrics.gauge(
        "streams_shown_out",
        "Open streams ended because whoever opened them may not have them any more.",
        lambda: api.guests.shown_out,
    )


def _watches(metrics: Metrics, hub: Hub, api: Api) -> None:
    gauge = metrics.gauge
    gauge("watchers", "Open watches.", lambda: hub.watchers)
    gauge("watches_dropped", "Watches ended for slow readers.", lambda: hub.dropped)
    gauge(
        "watches_outlived",
        "Watches that could not go on where they wanted to, so that their readers listed again.",
        lambda: hub.outlived,
    )
    gauge("hub_revision", "Revision up to which the hub has read.", lambda: hub.revision)
    gauge("hub_relists", "Times that the hub had to list everything anew.", lambda: hub.relists)
    api.services.freshness.lags = metrics.histogram(
        "watch_lag_seconds",
        "How far the hub was behind the store, of all lists and watches that asked.",
        LATENCY_S,
    )


def _exhausted(*books: Exhausted) -> Iterator[tuple[Labels, float]]:
    for book in books:
        for tenant, budgets in book.counts.items():
            for budget, number in budgets.items():
                yield (tenant, budget), number
