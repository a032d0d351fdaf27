"""Metrics of one server's parts for Prometheus: watches, the hub, connections, budgets.

`server_process` calls `count` once all parts exist. Flow control has its own metrics
(`api/flow/flow_metrics.py`), and so have the components that send pulses (`component_pulses.py`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

from aiohttp import web

from holdfast.commit.flow.rates import ExhaustedBudgets
from holdfast.commit.server import AuthorityServer
from holdfast.host.api import status_objects
from holdfast.host.api.app import Api, Observer
from holdfast.host.api.call import reply
from holdfast.host.api.flow import flow_metrics
from holdfast.host.process.metrics import CONTENT_TYPE, LATENCY_S, Labels, Metrics
from holdfast.host.server import digest_exchange
from holdfast.model.access.identity import MONITORS, Identity, acts_as
from holdfast.model.errors import Forbidden, HoldfastError
from holdfast.model.meta import API_GROUP
from holdfast.model.refusal import Reason
from holdfast.model.registry import KINDS
from holdfast.model.transaction import Batch, CompareFailed, Fate, Outcome, Page, Transaction
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.contract import RANGE_LIMIT_MAX, Store


def count(metrics: Metrics, hub: WatchHub, machine: AuthorityServer, api: Api) -> None:
    """Add these metrics to the server's."""
    flow_metrics.count(api.admission, metrics)
    _connections(metrics, api)
    _watches(metrics, hub, api)
    metrics.gauge(
        "authority_epoch",
        "Epoch under which this server is the authority; 0 when another one is.",
        lambda: machine.term.epoch if machine.term is not None else 0,
    )
    metrics.gauges(
        "budget_refusals_total",
        "Requests refused because a budget of their tenant was used up, by budget.",
        ("tenant", "budget"),
        partial(_exhausted, machine.exhausted, api.admission.rates.exhausted),
        kind="counter",
    )


def count_servers(metrics: Metrics, read: digest_exchange.Read) -> None:
    """Add the other servers, by their leases."""
    metrics.gauges(
        "server_lease_expired_seconds",
        "Servers whose lease has expired: for how long each has not renewed it.",
        ("server",),
        lambda: [
            ((name,), ms / 1_000) for name, ms in digest_exchange.expired_servers(read).items()
        ],
    )


def _connections(metrics: Metrics, api: Api) -> None:
    metrics.gauges(
        "connections_cut_total",
        "Connections cut because a header did not arrive, or an answer was not read, in time.",
        ("waited_for",),
        lambda: [((reason,), count) for reason, count in api.cut.items()],
        kind="counter",
    )
    metrics.gauge(
        "streams_shown_out",
        "Open streams ended because their caller lost the permission for them.",
        lambda: api.long_streams.ended,
    )


def _watches(metrics: Metrics, hub: WatchHub, api: Api) -> None:
    gauge = metrics.gauge
    gauge("watchers", "Open watches.", lambda: hub.watchers)
    gauge("watches_dropped", "Watches ended for slow readers.", lambda: hub.dropped)
    gauge(
        "watches_outlived",
        "Watches that could not resume at their revision, so that their readers listed again.",
        lambda: hub.outlived,
    )
    gauge("hub_revision", "Revision up to which the hub has read.", lambda: hub.revision)
    gauge("hub_relists", "Times that the hub had to list everything again.", lambda: hub.relists)
    api.services.freshness.lags = metrics.histogram(
        "watch_lag_seconds",
        "How far the hub was behind the store at each list and watch that asked.",
        LATENCY_S,
    )


def _exhausted(*books: ExhaustedBudgets) -> Iterator[tuple[Labels, float]]:
    for book in books:
        for tenant, budgets in book.counts.items():
            for budget, number in budgets.items():
                yield (tenant, budget), number


# /metrics: for administrators, operators, and the group of monitors.

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def handlers(
    metrics: Metrics,
    authenticate: Callable[[web.BaseRequest], Identity],
    may_path: Callable[[Identity, str, str], bool],
) -> dict[str, Handler]:
    """Return the handlers by path."""

    async def show(request: web.BaseRequest) -> web.StreamResponse:
        try:
            identity = authenticate(request)
            if not acts_as(identity):
                raise Forbidden(
                    "authentication required: present a client certificate or bearer token",
                    code=Reason.UNAUTHENTICATED,
                )
            if not may_path(identity, "get", "/metrics"):
                raise Forbidden(
                    f"{identity.name} may not get /metrics; members of the group {MONITORS} may",
                    code=Reason.NOT_ALLOWED,
                )
        except HoldfastError as error:
            return reply(*status_objects.of(error))
        return web.Response(body=metrics.text().encode(), headers={"Content-Type": CONTENT_TYPE})

    return {"/metrics": show}


# Counts requests at the HTTP server and transactions at the store.

_GROUP = f"/apis/{API_GROUP}/v1/"
_PLURALS = frozenset(kind.plural for kind in KINDS)
_PODS = "/api/v1/namespaces/"
_OWN = ("requests", "bindings", "heartbeats", "terms")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
OTHER = "other"
# These last as long as their client wants, so their duration says nothing about the server.
_LASTING = ("log", "exec", "summons", "visits")
WATCH, CONNECT = "watch", "connect"


def verb_and_resource(method: str, path: str, query: str) -> tuple[str, str]:
    """Return the metric labels of a request: few, whatever clients send."""
    if path.startswith(_PODS) and path.rpartition("/")[2] in _LASTING:
        return CONNECT, f"pods/{path.rpartition('/')[2]}"
    if not path.startswith(_GROUP):
        return ("get" if method == "GET" else OTHER), OTHER
    parts = path[len(_GROUP) :].split("/")
    if parts[0] == "namespaces" and len(parts) > 2:
        parts = parts[2:]
    resource = parts[0] if parts[0] in _PLURALS or parts[0] in _OWN else OTHER
    if len(parts) > 2 and parts[2] in ("status", "scale", "binding", "renewals"):
        resource = f"{resource}/{parts[2]}"
    if len(parts) > 2 and parts[2] in _LASTING:
        return CONNECT, f"{resource}/{parts[2]}"
    if method != "GET":
        return _VERBS.get(method, OTHER), resource
    if len(parts) > 1 and parts[1]:
        return "get", resource
    is_watch = "watch=true" in query or "watch=1" in query
    return (WATCH if is_watch else "list"), resource


def request_observer(metrics: Metrics) -> Observer:
    """Return an observer for the HTTP server that counts every request."""

    def observe(request: web.BaseRequest, code: int, seconds: float) -> None:
        path, _, query = request.raw_path.partition("?")
        verb, resource = verb_and_resource(request.method, path, query)
        metrics.requests.add(verb, resource, str(code))
        if verb not in (WATCH, CONNECT):
            metrics.latency.observe(seconds, verb, resource)

    return observe


class MeteredStore:
    """A store with metrics, given to the machines. Other calls are passed through."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store, self._metrics = store, metrics

    async def txn(
        self, transaction: Transaction, *, token: str | None = None, timeout_s: float = 5.0
    ) -> Outcome:
        began = time.perf_counter()
        try:
            outcome = await self._store.txn(transaction, token=token, timeout_s=timeout_s)
        except HoldfastError as error:
            self._metrics.txns.add(error.code)
            raise
        self._count(transaction, outcome, time.perf_counter() - began)
        return outcome

    def _count(self, transaction: Transaction, outcome: Outcome, seconds: float) -> None:
        metrics = self._metrics
        if isinstance(outcome, CompareFailed):
            # A transaction without writes is a read; it is meant to be refused.
            metrics.txns.add("refused" if transaction.writes else "read")
            if transaction.writes:
                metrics.conflicts.add()
            return
        metrics.txns.add("committed")
        metrics.txn_latency.observe(seconds)
        metrics.group.observe(len(transaction.writes))

    async def range(
        self, start: str, end: str, *, limit: int = RANGE_LIMIT_MAX, at: int | None = None
    ) -> Page:
        return await self._store.range(start, end, limit=limit, at=at)

    def new_token(self) -> str:
        return self._store.new_token()

    async def fate(self, token: str) -> Fate:
        return await self._store.fate(token)

    async def watch(self, prefix: str, *, after: int) -> AsyncIterator[Batch]:
        async for batch in self._store.watch(prefix, after=after):
            self._metrics.changes.add(by=len(batch.changes))
            yield batch

    async def compact(self, revision: int) -> None:
        await self._store.compact(revision)

    async def revision(self) -> int:
        return await self._store.revision()

    async def close(self) -> None:
        await self._store.close()
