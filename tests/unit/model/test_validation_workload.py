"""Workloads: what belongs together, what has no meaning for a type, and all errors at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.documents import Document, Row, check, errors, named


def service(**parts: Any) -> tuple[str, Document]:
    return "Workload", {f"spec.{name}": value for name, value in parts.items()}


def job(**parts: Any) -> tuple[str, Document]:
    return service(**{"type": "Job", "template.restart": "OnFailure", **parts})


def cron(schedule: str = "0 3 * * *", **more: Any) -> tuple[str, Document]:
    return job(type="Cron", cron={"schedule": schedule, **more})


def per_node(**parts: Any) -> tuple[str, Document]:
    return service(**{"type": "PerNode", "rollout": {"maxSurge": 0}, **parts})


def called(length: int, made: tuple[str, Document]) -> tuple[str, Document]:
    return made[0], {**made[1], "metadata.name": "a" * length}


def rollout(**parts: Any) -> tuple[str, Document]:
    return service(rollout=parts)


def canary(*portions: int | str) -> tuple[str, Document]:
    return rollout(strategy="Canary", canary=[{"portion": portion} for portion in portions])


RESTART = "spec.template.restart"
RULES = "spec.job.failurePolicy"

TYPES: list[Row] = [
    (*called(48, service()), "metadata.name", "at most 47 characters, so that its replicas'"),
    (*called(39, cron()), "metadata.name", "at most 38"),
    (*job(**{"template.restart": "Always"}), RESTART, "OnFailure or Never for Job"),
    (
        *job(type="Cron", cron={"schedule": "@daily"}, **{"template.restart": "Always"}),
        RESTART,
        "Cron",
    ),
    (*per_node(replicas=3), "spec.replicas", "each node has one replica"),
    (*service(job={"retries": 1}), "spec.job", "left out for Service"),
    (*per_node(job={"indexed": True}), "spec.job", "left out for PerNode"),
    (*service(cron={"schedule": "@daily"}), "spec.cron", "left out for Service"),
    (*job(type="Cron"), "spec.cron", "must be given for Cron"),
    (*job(rollout={"paused": True}), "spec.rollout", "left out for Job"),
    (*job(autoscale={"max": 3}), "spec.autoscale", "left out for Job"),
    (*per_node(recovery={}), "spec.recovery", "left out for PerNode"),
    (*per_node(gang={"minAvailable": 1}), "spec.gang", "left out for PerNode"),
    (*cron("0 3 * *"), "spec.cron.schedule", "this has 4"),
    (*cron("0 3 31 2 *"), "spec.cron.schedule", "a day that its months have"),
    (*cron(timeZone="../etc/passwd"), "spec.cron.timeZone", "IANA name"),
    (*cron(timeZone=""), "spec.cron.timeZone", "IANA name"),
    (*cron(timeZone="Local"), "spec.cron.timeZone", "IANA name"),
    (*job(job={"deadlineSeconds": 0}), "spec.job.deadlineSeconds", "at least 1"),
    (*job(job={"expectedSeconds": 0}), "spec.job.expectedSeconds", "from 1 to"),
    (*job(job={"expectedSeconds": 31_622_401}), "spec.job.expectedSeconds", "a year"),
    (
        *job(job={"failurePolicy": [{"exitCodes": [3], "action": "FailJob"}]}),
        RESTART,
        "Never where the job has a failurePolicy",
    ),
]


def failures(*codes: list[int]) -> tuple[str, Document]:
    rules = [{"exitCodes": each, "action": "Count"} for each in codes]
    return job(job={"failurePolicy": rules}, **{"template.restart": "Never"})


PARTS: list[Row] = [
    (*failures([]), f"{RULES}[0].exitCodes", "at least one"),
    (*failures([1, 0]), f"{RULES}[0].exitCodes[1]", "success"),
    (*failures([1], [2, 1]), f"{RULES}[1].exitCodes[1]", "the first rule decides"),
    (
        *rollout(maxSurge=0, maxUnavailable="0%"),
        "spec.rollout.maxUnavailable",
        "nothing could move",
    ),
    (*rollout(maxSurge="25"), "spec.rollout.maxSurge", "percentage"),
    (*rollout(maxUnavailable=-1), "spec.rollout.maxUnavailable", "percentage"),
    (*rollout(maxUnavailable="101%"), "spec.rollout.maxUnavailable", "percentage"),
    (*rollout(progressDeadlineSeconds=0), "spec.rollout.progressDeadlineSeconds", "at least 1"),
    (*per_node(rollout={"maxSurge": 1}), "spec.rollout.maxSurge", "one replica at a time"),
    (*rollout(strategy="Canary"), "spec.rollout.canary", "only if, the strategy is Canary"),
    (*rollout(canary=[{"portion": 1}]), "spec.rollout.canary", "only if, the strategy is Canary"),
    (*canary("10%", "10%"), "spec.rollout.canary[1].portion", "more than the step before"),
    (*canary(3, "10%", "5%"), "spec.rollout.canary[2].portion", "more than the step before"),
    (*canary(0), "spec.rollout.canary[0].portion", "more than 0"),
    (*canary(*range(1, 22)), "spec.rollout.canary", "at most 20"),
    (*service(disruption={}), "spec.disruption", "exactly one of maxUnavailable and minAvailable"),
    (
        *service(disruption={"maxUnavailable": 1, "minAvailable": 1}),
        "spec.disruption",
        "has 2",
    ),
    (*service(disruption={"minAvailable": "half"}), "spec.disruption.minAvailable", "percentage"),
    (
        *job(replicas=3, gang={"minAvailable": 4}),
        "spec.gang.minAvailable",
        "at most replicas, which is 3",
    ),
    (
        *job(replicas=2, gang={"minAvailable": 2, "timeoutSeconds": 0}),
        "spec.gang.timeoutSeconds",
        "at least 1: places that are held for no time are given back",
    ),
    (
        *job(replicas=8, gang={"minAvailable": 4}, job={"parallelism": 2}),
        "spec.gang.minAvailable",
        "at most parallelism, which is 2",
    ),
    (*service(autoscale={"min": 5, "max": 4}), "spec.autoscale.min", "at most max, which is 4"),
    (*service(autoscale={"min": 0, "max": 0}), "spec.autoscale.max", "at least 1"),
    (*service(autoscale={"max": 4, "metric": "a b"}), "spec.autoscale.metric", "letters"),
    (*service(recovery={"regions": ["a", "a"]}), "spec.recovery.regions[1]", "twice"),
    (*service(recovery={"reserve": True}), "spec.recovery.regions", "capacity is reserved there"),
    (
        *service(recovery={"eligible": False, "regions": ["a"]}),
        "spec.recovery.regions",
        "left out if eligible is false",
    ),
    (*service(recovery={"eligible": False, "reserve": True}), "spec.recovery.reserve", "eligible"),
    (*service(recovery={"withinSeconds": 0}), "spec.recovery.withinSeconds", "at least 1"),
    (
        *service(replicas=2, recovery={"replicas": 3}),
        "spec.recovery.replicas",
        "number of replicas, which is 2",
    ),
]


@pytest.mark.parametrize("row", [*TYPES, *PARTS], ids=named)
def test_a_workload_that_breaks_a_rule_is_refused_in_its_place(row: Row) -> None:
    """Parts that contradict each other, or would do nothing, are refused [A3, B4]."""
    check(row)


ACCEPTED: list[tuple[str, Document]] = [
    called(47, service()),
    called(38, cron()),
    service(**{"template.restart": "Never"}),
    service(replicas=0),
    cron("*/5 0-4 * JAN,feb Mon-Fri", timeZone="America/Argentina/Buenos_Aires"),
    cron("@hourly", timeZone="Etc/GMT+3"),
    failures([1, 2], [3]),
    job(job={"parallelism": 0}, gang={"minAvailable": 1}),
    rollout(maxSurge=0, maxUnavailable=1),
    canary("5%", "50%", "100%"),
    canary(1, "10%", 5),
    service(disruption={"minAvailable": "100%"}),
    service(replicas=2, autoscale={"max": 8}, recovery={"replicas": 6}),
    service(recovery={"eligible": False}),
    per_node(disruption={"maxUnavailable": 1}),
]


@pytest.mark.parametrize("kind, changes", ACCEPTED)
def test_a_workload_at_the_edge_of_a_rule_is_accepted(kind: str, changes: Document) -> None:
    assert errors(kind, changes) == ()


def test_all_errors_in_one_document_are_reported_at_once() -> None:
    """A user mends a document in one go [B4]."""
    kind, changes = service(
        replicas=2,
        gang={"minAvailable": 3},
        autoscale={"min": 9, "max": 3},
        disruption={},
        **{
            "template.command": [],
            "template.env": [{"name": "A"}, {"name": "A"}],
            "template.files": [{"path": "/etc/shadow"}],
            "template.ports": [{"name": "http"}, {"name": "Http"}],
            "template.resources": {"cpu": "-1"},
            "template.probes": {"readiness": {"http": {"port": "grpc"}}},
        },
    )
    found = errors(kind, {**changes, "metadata.name": "Web"})
    assert [(error.path, error.value) for error in found] == [
        ("metadata.name", '"Web"'),
        ("spec.template.command", ""),
        ("spec.template.env[1].name", '"A"'),
        ("spec.template.files[0].path", '"/etc/shadow"'),
        ("spec.template.ports[1].name", '"Http"'),
        ("spec.template.resources.cpu", '"-1"'),
        ("spec.template.probes.readiness.http.port", '"grpc"'),
        ("spec.disruption", ""),
        ("spec.gang.minAvailable", "3"),
        ("spec.gang", ""),
        ("spec.autoscale.min", "9"),
    ]
