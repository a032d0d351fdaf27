"""Counters, histograms and their text; and labels that clients cannot multiply."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.host.process.metrics import SERIES_MAX, Counter, Histogram, Metrics
from holdfast.host.server.server_metrics import MeteredStore, verb_and_resource
from holdfast.model.transaction import Compare, Put, Transaction
from holdfast.store.memory import MemoryStore


def test_a_histogram_is_printed_as_prometheus_reads_it() -> None:
    histogram = Histogram("h", "Text.", (0.1, 1.0), ("verb",))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value, "get")
    assert list(histogram.lines()) == [
        'h_bucket{verb="get",le="0.1"} 2',
        'h_bucket{verb="get",le="1"} 3',
        'h_bucket{verb="get",le="+Inf"} 4',
        'h_sum{verb="get"} 7.65',
        'h_count{verb="get"} 4',
    ]


def test_labels_are_escaped_and_their_number_is_bounded() -> None:
    counter = Counter("c", "Text.", ("name",))
    counter.add('a"\n\\')
    assert list(counter.lines()) == ['c{name="a\\"\\n\\\\"} 1']
    for number in range(SERIES_MAX + 10):
        counter.add(str(number))
    assert len(list(counter.lines())) == SERIES_MAX


def test_every_metric_has_help_and_type() -> None:
    metrics = Metrics()
    metrics.gauge("watchers", "Open watches.", lambda: 3)
    lines = metrics.text().splitlines()
    assert "# TYPE holdfast_watchers gauge" in lines
    assert "holdfast_watchers 3" in lines
    assert "# TYPE holdfast_request_seconds histogram" in lines
    assert "holdfast_store_conflicts_total 0" in lines


GROUP = "/apis/holdfast.dev/v1"


@pytest.mark.parametrize(
    "method, path, query, labels",
    [
        ("GET", f"{GROUP}/nodes", "", ("list", "nodes")),
        ("GET", f"{GROUP}/nodes", "watch=true", ("watch", "nodes")),
        ("GET", f"{GROUP}/nodes/n1", "", ("get", "nodes")),
        ("GET", f"{GROUP}/namespaces/acme/workloads/w", "", ("get", "workloads")),
        ("PUT", f"{GROUP}/namespaces/acme/workloads/w/status", "", ("update", "workloads/status")),
        ("POST", f"{GROUP}/requests", "", ("create", "requests")),
        ("POST", f"{GROUP}/namespaces/acme/anything", "", ("create", "other")),
        ("BREW", f"{GROUP}/nodes", "", ("other", "nodes")),
        ("GET", "/made/up", "", ("get", "other")),
        ("GET", f"{GROUP}/namespaces/a/replicas/r/log", "", ("connect", "replicas/log")),
        ("GET", f"{GROUP}/nodes/n1/visits/0123", "", ("connect", "nodes/visits")),
        ("POST", "/api/v1/namespaces/a/pods/r/exec", "", ("connect", "pods/exec")),
        ("GET", "/api/v1/namespaces/a/pods/r/made-up", "", ("get", "other")),
    ],
)
def test_a_request_has_few_labels_whatever_a_client_sends(
    method: str, path: str, query: str, labels: tuple[str, str]
) -> None:
    assert verb_and_resource(method, path, query) == labels


def test_transactions_are_counted_by_what_became_of_them() -> None:
    async def story() -> None:
        metrics = Metrics()
        store = MeteredStore(MemoryStore(), metrics)
        await store.txn(Transaction((), (Put("a", b"1"), Put("b", b"2"))))
        await store.txn(Transaction((Compare("a", 99),), (Put("a", b"3"),)))
        await store.txn(Transaction((Compare("a", 99),), ()))
        assert metrics.txns.value("committed") == 1
        assert metrics.txns.value("refused") == metrics.conflicts.value() == 1
        assert metrics.txns.value("read") == 1
        assert metrics.group.count() == 1

    asyncio.run(story())
