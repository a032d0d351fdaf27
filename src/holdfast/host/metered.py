"""What is counted where it happens: requests at the HTTP server, transactions at the store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from aiohttp import web

from holdfast.host.api.app import Observer
from holdfast.host.metrics import Metrics
from holdfast.model.errors import HoldfastError
from holdfast.model.meta import API_GROUP
from holdfast.model.registry import KINDS
from holdfast.model.transaction import Outcome, Refused, Transaction
from holdfast.store.contract import RANGE_LIMIT_MAX, Batch, Fate, Page, Store

_GROUP = f"/apis/{API_GROUP}/v1/"
_PLURALS = frozenset(kind.plural for kind in KINDS)
_PODS = "/api/v1/namespaces/"
_OWN = ("requests", "bindings", "heartbeats", "terms")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
OTHER = "other"
# These last as long as somebody reads, types or listens: how long says nothing about the server.
_LASTING = ("log", "exec", "summons", "visits")
WATCH, CONNECT = "watch", "connect"


def verb_and_resource(method: str, path: str, query: str) -> tuple[str, str]:
    """The labels of a request, of which there are few whatever clients send."""
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


def counted(metrics: Metrics) -> Observer:
    """Tells the metrics of every request; for the HTTP server."""

    def observe(request: web.BaseRequest, code: int, seconds: float) -> None:
        path, _, query = request.raw_path.partition("?")
        verb, resource = verb_and_resource(request.method, path, query)
        metrics.requests.add(verb, resource, str(code))
        if verb not in (WATCH, CONNECT):
            metrics.latency.observe(seconds, verb, resource)

    return observe


class MeteredStore:
    """A store, counted. Given to the machines; what is not counted is passed on as it is."""

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
        if isinstance(outcome, Refused):
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
