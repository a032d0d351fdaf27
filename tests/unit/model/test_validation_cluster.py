"""What operators and controllers write: nodes, tenants, budgets, overrides, leases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.documents import CREATED, LATER, Document, Row, check, errors, named


def spec(kind: str, **parts: Any) -> tuple[str, Document]:
    return kind, {f"spec.{name}": value for name, value in parts.items()}


def node(**parts: Any) -> tuple[str, Document]:
    return spec("Node", **parts)


GPU = {"id": "gpu-0", "deviceClass": "gpu"}

NODES: list[Row] = [
    (*node(capacity={"cpu": "-1"}), "spec.capacity[cpu]", "must not be negative"),
    (*node(capacity={"cpu": "many"}), "spec.capacity[cpu]", "must be a quantity"),
    (*node(capacity={"gpu": 4}), "spec.capacity[gpu]", "listed under spec.devices"),
    (*node(capacity={"CPU": 4}), "spec.capacity[CPU]", "must be cpu, memory"),
    (*node(capacity={"cpu": 1}, reserved={"cpu": 2}), "spec.reserved[cpu]", "at most the capacity"),
    (*node(reserved={"memory": 1}), "spec.reserved[memory]", "at most the capacity"),
    (*node(portShare={"index": 2, "of": 2}), "spec.portShare.index", "must be less than `of`"),
    (*node(portShare={"index": 0, "of": 0}), "spec.portShare.index", "must be less than `of`"),
    (*node(devices=[GPU, GPU]), "spec.devices[1].id", "twice"),
    (*node(devices=[{**GPU, "id": ""}]), "spec.devices[0].id", "must be given"),
    (*node(devices=[{**GPU, "deviceClass": "memory"}]), "spec.devices[0].deviceClass", "plain"),
    (*node(devices=[{**GPU, "memory": "x"}]), "spec.devices[0].memory", "must be a quantity"),
    (
        *node(capacity={"memory": 1}, overcommit={"memory": 151}),
        "spec.overcommit[memory]",
        "from 1 to 150",
    ),
    (*node(capacity={"cpu": 1}, overcommit={"cpu": 0}), "spec.overcommit[cpu]", "from 1 to 1000"),
    (*node(overcommit={"cpu": 150}), "spec.overcommit[cpu]", "the node's capacity"),
    (*node(capacity={"cpu": 1}, overcommit={"cpu": 1001}), "spec.overcommit[cpu]", "to 1000"),
    (*node(capacity={"disk": 1}, overcommit={"disk": 101}), "spec.overcommit[disk]", "1 to 100"),
    (*node(devices=[GPU], overcommit={"gpu": 200}), "spec.overcommit[gpu]", "`share`"),
    (
        *node(capacity={"cpu": 1}, overcommit={"cpu": 150}, protectedFor={"tenants": ["risk"]}),
        "spec.overcommit[cpu]",
        "on a protected node",
    ),
    (*node(protectedFor={}), "spec.protectedFor", "must name tenants or priority classes"),
    (
        *node(taints=[{"key": "a"}, {"key": "a"}]),
        "spec.taints[1].key",
        "twice with the same effect",
    ),
    (*node(taints=[{"key": f"t{i}"} for i in range(65)]), "spec.taints", "at most 64"),
    (*node(devices=[GPU] * 1025), "spec.devices", "at most 1024"),
    (*node(capacity={f"r{i}": 1 for i in range(65)}), "spec.capacity", "at most 64"),
    (*node(taints=[{"key": ""}]), "spec.taints[0].key", "must be given"),
    (*node(region="EU"), "spec.region", "lower-case"),
    (*node(pool=""), "spec.pool", "must be given"),
    (*node(costPerHour=-1), "spec.costPerHour", "must not be negative"),
    (*node(drain={"reason": "a\x07b"}), "spec.drain.reason", "U+0007"),
    (
        "Node",
        {"status.mark": {"number": 2, "at": CREATED}, "status.marks": 1},
        "status.marks",
        "the present mark",
    ),
]

TENANCY: list[Row] = [
    ("Tenant", {"metadata.name": "holdfast-system"}, "metadata.name", "reserved name"),
    ("Tenant", {"metadata.name": "kube-public"}, "metadata.name", "reserved name"),
    ("Tenant", {"metadata.name": "system"}, "metadata.name", "reserved name"),
    (*spec("Tenant", displayName="a\u2066b"), "spec.displayName", "U+2066"),
    (*spec("Tenant", residency="EU"), "spec.residency", "lower-case"),
    (*spec("Tenant", regions=["a", "a"]), "spec.regions[1]", "twice"),
    (*spec("PriorityClass", capacityClass="soft"), "spec.capacityClass", "hard or reclaimable"),
    (
        *spec("PriorityClass", capacityClass="reclaimable", preempts=True),
        "spec.preempts",
        "itself preempted",
    ),
    (*spec("PriorityClass", urgent=True), "spec.value", "more than 0 for urgent"),
    (*spec("PriorityClass", allowedTenants=["A"]), "spec.allowedTenants[0]", "lower-case"),
    (
        "PriorityClass",
        {"metadata.name": "default", "spec.allowedTenants": ["a"]},
        "spec.allowedTenants",
        "all tenants use the default class",
    ),
    (*spec("Region", zones=["a", "b", "a"]), "spec.zones[2]", "twice"),
    (*spec("Tenant", regions=[f"r{i}" for i in range(257)]), "spec.regions", "at most 256"),
    (*spec("Region", jurisdictions=["EU"]), "spec.jurisdictions[0]", "lower-case"),
    (*spec("Region", pools=[{"name": "a"}, {"name": "a"}]), "spec.pools[1].name", "twice"),
    (
        *spec("Region", pools=[{"name": "a", "protectedFor": {}}]),
        "spec.pools[0].protectedFor",
        "must name tenants",
    ),
    (*spec("Region", endpoint="http://eu-west"), "spec.endpoint", "https://"),
    (*spec("Region", endpoint="https://"), "spec.endpoint", "https://"),
    (*spec("Region", endpoint="https://a:99999"), "spec.endpoint", "https://"),
    (*spec("Region", endpoint="https://user:pw@a"), "spec.endpoint", "https://"),
    (*spec("SchedulerPolicy", filters=["a", "a"]), "spec.filters[1]", "twice"),
    (*spec("SchedulerPolicy", weights={"A": 1}), "spec.weights[A]", "the key"),
    (*spec("SchedulerPolicy", demands=[{}]), "spec.demands[0].devices", "at least one item"),
    (
        *spec("SchedulerPolicy", intents={"speed": {}}),
        "spec.intents[speed]",
        "latency, batch, recovery",
    ),
    (
        *spec("SchedulerPolicy", intents={"batch": {"No": 1}}),
        "spec.intents[batch][No]",
        "the key",
    ),
    (
        *spec("SchedulerPolicy", demands=[{"devices": [{"deviceClass": "gpu"}]}] * 97),
        "spec.demands",
        "at most 96",
    ),
    (
        *spec("SchedulerPolicy", demands=[{"devices": [{"deviceClass": "gpu", "share": "2"}]}]),
        "spec.demands[0].devices[0].share",
        "at most 1",
    ),
    (
        *spec(
            "SchedulerPolicy",
            demands=[{"resources": {"cpu": "-1"}, "devices": [{"deviceClass": "gpu"}]}],
        ),
        "spec.demands[0].resources.cpu",
        "must not be negative",
    ),
    (*spec("SchedulerPolicy", fallback="web"), "spec.fallback", "another policy"),
    (
        *spec("SchedulerPolicy", stage="Canary", scope={"percent": 0}),
        "spec.scope",
        "must cover something",
    ),
    (*spec("SchedulerPolicy", stage="Region"), "spec.scope.regions", "while the stage is Region"),
]


def quota(**parts: Any) -> tuple[str, Document]:
    return spec("Quota", **parts)


BUDGETS: list[Row] = [
    ("Quota", {"metadata.name": "mine"}, "metadata.name", 'must be "default"'),
    (*quota(hard={"a b": 1}), "spec.hard[a b]", "name of a device class"),
    (*quota(hard={"cpu": "-1"}), "spec.hard[cpu]", "must not be negative"),
    (*quota(reclaimable={"gpu": "1e99"}), "spec.reclaimable[gpu]", "exponent"),
    (
        *quota(cohort="c", borrowing={"cpu": 1}),
        "spec.borrowing[cpu]",
        "must be limited in spec.hard",
    ),
    (*quota(hard={"cpu": 1}, borrowing={"cpu": 1}), "spec.borrowing", "without a cohort"),
    (*quota(cohort="tenant:risk"), "spec.cohort", "lower-case"),
    (
        *quota(objects={"pending": 9, "replicas": 8}),
        "spec.objects.pending",
        "at most replicas, which is 8",
    ),
    (*quota(objects={"workloads": 9, "objects": 8}), "spec.objects.workloads", "at most objects"),
    (*quota(requestsPerSecond=0), "spec.requestsPerSecond", "at least 1"),
    (
        *quota(priorityClasses={"A": {"cpu": 1}}),
        "spec.priorityClasses[A]",
        "name of a priority class",
    ),
    (*quota(priorityClasses={"a": {}}), "spec.priorityClasses[a]", "must name a resource"),
    (
        *quota(priorityClasses={"a": {"cpu": -1}}),
        "spec.priorityClasses[a][cpu]",
        "must not be negative",
    ),
    (
        *quota(priorityClasses={f"c{i}": {"cpu": 1} for i in range(33)}),
        "spec.priorityClasses",
        "at most 32",
    ),
    (*spec("Grant", expires=CREATED), "spec.expires", "later than the creation"),
    (*spec("Grant", tenant=""), "spec.tenant", "must be given"),
    (*spec("Grant", region="EU"), "spec.region", "lower-case"),
    (*spec("Grant", recovery={"cpu": "x"}), "spec.recovery[cpu]", "must be a quantity"),
    ("Grant", {"status.acceptedSerial": 1}, "status.acceptedSerial", "at most the serial"),
    (*spec("Reservation", deadline=CREATED), "spec.deadline", "later than the creation"),
    (*spec("Reservation", capacityClass="soft"), "spec.capacityClass", "hard or reclaimable"),
    (*spec("Reservation", minAvailable=2), "spec.minAvailable", "left out for any other intent"),
    (*spec("Reservation", intent="gang"), "spec.minAvailable", "at least 1 for a gang"),
    (
        *spec("Reservation", owner={"kind": "Pod", "name": "a", "uid": "u"}),
        "spec.owner.kind",
        "must be a kind",
    ),
    ("Reservation", {"status.claims": [{"node": "A"}]}, "status.claims[0].node", "lower-case"),
    (
        "Reservation",
        {"status.claims": [{"charge": {"cpu": -1}}]},
        "status.claims[0].charge[cpu]",
        "not be negative",
    ),
    (
        "Reservation",
        {"status.claims": [{"devices": [{"device": "a", "deviceClass": "gpu", "milli": 1001}]}]},
        "status.claims[0].devices[0].milli",
        "from 1 to 1000",
    ),
]


def override(**parts: Any) -> tuple[str, Document]:
    return spec("Override", **parts)


def of_cluster(made: tuple[str, Document]) -> tuple[str, Document]:
    return made[0], {**made[1], "metadata.namespace": "holdfast-system"}


OVERRIDES: list[Row] = [
    (*override(scope={}), "spec.scope", "must name at least one target"),
    (*override(reason="  "), "spec.reason", "must not be blank"),
    (*override(reason="x" * 1025), "spec.reason", "at most 1024"),
    (*override(expires=CREATED), "spec.expires", "later than the creation"),
    (*override(type="Avoid"), "spec.scope", "must name regions, zones or nodes for Avoid"),
    (*override(type="Failover"), "spec.scope", "must name regions for Failover"),
    (*override(type="BreakGlass"), "spec.type", "outside namespace holdfast-system"),
    (
        *override(scope={"tenants": ["risk", "billing"]}),
        "spec.scope.tenants[1]",
        "override's own namespace",
    ),
    (*override(scope={"nodes": ["A"]}), "spec.scope.nodes[0]", "lower-case"),
    (*of_cluster(override(type="Priority")), "spec.priorityClass", "must be given for Priority"),
    (
        *of_cluster(override(type="Quota", scope={"tenants": ["risk"]})),
        "spec.amounts",
        "must be given for Quota",
    ),
    (
        *of_cluster(override(type="Quota", amounts={"cpu": 4})),
        "spec.scope",
        "must name tenants for Quota",
    ),
    (*override(amounts={"cpu": 4}), "spec.amounts", "unless the type is Quota"),
    (*override(postconditions=[{}]), "spec.postconditions[0]", "exactly one of commitment and"),
    (
        *override(postconditions=[{"condition": "is ready"}]),
        "spec.postconditions[0].condition",
        "one word",
    ),
]

LEASES: list[Row] = [
    (*spec("Lease", scope=""), "spec.scope", "must be given"),
    (*spec("Lease", holder="a"), "spec.epoch", "at least 1 while the lease is held"),
    (*spec("Lease", durationMs=50), "spec.durationMs", "from 100 to"),
    (*spec("Lease", acquired=LATER, renewed=CREATED), "spec.renewed", "before acquired"),
    (
        *spec("Commitment", given={"regionLost": "a", "zoneLost": "b"}),
        "spec.given",
        "at most one loss, has 2",
    ),
    (
        *spec("Commitment", promise={"workload": "web", "serving": 0}),
        "spec.promise.serving",
        "at least 1",
    ),
    (
        *spec(
            "Commitment",
            given={"regionLost": "eu"},
            promise={"workload": "web", "serving": 1, "regions": ["eu"]},
        ),
        "spec.promise.regions",
        "besides the one that is lost",
    ),
    (*spec("Commitment", given={"nodeLost": "A"}), "spec.given.nodeLost", "lower-case"),
    (
        *spec(
            "Commitment",
            given={"zoneLost": "a"},
            promise={"workload": "web", "serving": 1, "withinSeconds": 0},
        ),
        "spec.promise.withinSeconds",
        "at least 1 after a loss",
    ),
    (
        *spec("Commitment", promise={"workload": "Web", "serving": 1}),
        "spec.promise.workload",
        "lower-case",
    ),
]


@pytest.mark.parametrize("row", [*NODES, *TENANCY, *BUDGETS, *OVERRIDES, *LEASES], ids=named)
def test_what_operators_write_is_refused_where_it_breaks_a_rule(row: Row) -> None:
    """Capacity, budgets, overrides and leases make sense or are not accepted [B4, D6]."""
    check(row)


ACCEPTED: list[tuple[str, Document]] = [
    node(
        capacity={"cpu": 8, "memory": "32Gi", "disk": "1Ti", "replicas": 200},
        reserved={"cpu": "500m", "memory": "1Gi"},
        overcommit={"cpu": 1000, "memory": 90},
        devices=[{**GPU, "model": "A100", "memory": "80Gi"}, {**GPU, "id": "0000:3b:00.0"}],
        taints=[{"key": "a"}, {"key": "a", "effect": "NoExecute"}],
        costPerHour="0.42",
    ),
    node(capacity={"cpu": 1}, overcommit={"cpu": 100}, protectedFor={"priorityClasses": ["p"]}),
    spec("PriorityClass", value=1_000_000_000, urgent=True, preempts=True, allowedTenants=["a"]),
    spec("PriorityClass", value=-5, capacityClass="reclaimable"),
    spec("Region", endpoint="https://eu-west.example:8443/api", zones=["a", "b"]),
    spec("SchedulerPolicy", stage="Canary", weights={"spread": 0}, fallback="v4"),
    spec("SchedulerPolicy", stage="Canary", scope={"percent": 0, "tenants": ["a"]}),
    spec("SchedulerPolicy", demands=[{"weight": 3, "devices": [{"deviceClass": "gpu"}]}]),
    quota(cohort="c", hard={"cpu": 0, "gpu": 4}, borrowing={"cpu": 4, "gpu": "500m"}),
    quota(objects={"pending": 8, "replicas": 8, "objects": 8}),
    quota(priorityClasses={"critical": {"cpu": "2", "replicas": 0, "gpu": 1}}),
    spec("Grant", guaranteed={"cpu": 1}, serial=4),
    spec("Reservation", intent="gang", minAvailable=2),
    override(type="Avoid", scope={"zones": ["eu-west-b"]}),
    override(scope={"tenants": ["risk"]}, postconditions=[{"commitment": "c"}]),
    of_cluster(override(type="Drain", scope={"nodes": ["a.b"]})),
    of_cluster(override(type="Quota", scope={"tenants": ["x"]}, amounts={"cpu": 4})),
    spec("Lease", holder="system:scheduler:a", epoch=1, acquired=CREATED, renewed=CREATED),
    spec(
        "Commitment",
        given={"regionLost": "eu-central"},
        promise={"workload": "web", "serving": 4, "regions": ["eu-west", "eu-central"]},
    ),
]


@pytest.mark.parametrize("kind, changes", ACCEPTED)
def test_what_operators_write_is_accepted_at_the_edge_of_a_rule(
    kind: str, changes: Document
) -> None:
    assert errors(kind, changes) == ()
