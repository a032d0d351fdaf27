"""Templates: commands, environment, files, ports, amounts, probes, placement."""

from __future__ import annotations

from typing import Any

import pytest

from tests.documents import Document, Row, check, errors, named

T = "spec.template"
P = "spec.template.placement"


def with_(changes: Document) -> tuple[str, Document]:
    """A workload whose template is changed so."""
    return "Workload", {f"{T}.{path}": value for path, value in changes.items()}


def one(path: str, value: Any) -> tuple[str, Document]:
    return with_({path: value})


PROGRAM: list[Row] = [
    (*one("command", []), f"{T}.command", "must be given"),
    (*one("command", [" "]), f"{T}.command[0]", "name a program"),
    (*one("command", ["a", "b\x00c"]), f"{T}.command[1]", "U+0000"),
    (*one("command", ["a", "b" * 131_072]), f"{T}.command[1]", "at most 131071"),
    (*one("command", ["a"] * 1025), f"{T}.command", "at most 1024"),
    (*one("image", "nginx"), f"{T}.image", "unless the runtime is container"),
    (*with_({"runtime": "container", "command": []}), f"{T}.image", "must be given"),
    (*with_({"runtime": "container", "image": "a b"}), f"{T}.image", "must be a reference"),
    (*one("workingDir", "/etc"), f"{T}.workingDir", "relative"),
    (*one("workingDir", "../x"), f"{T}.workingDir", "'..'"),
    (*one("user", "Root User"), f"{T}.user", "user's name or number"),
    (*one("priorityClass", "High"), f"{T}.priorityClass", "lower-case"),
    (*one("metadata", {"labels": {"a": "b c"}}), f"{T}.metadata.labels[a]", "must be empty or"),
    (*one("startupDeadlineSeconds", 0), f"{T}.startupDeadlineSeconds", "at least 1"),
    (*one("replaceAfterSeconds", 60), f"{T}.replaceAfterSeconds", "onDisconnect is keep"),
    (*one("preStop", {}), f"{T}.preStop", "exactly one of exec and http, has 0"),
    (
        *with_({"graceSeconds": 0, "preStop": {"exec": {"command": ["a"]}}}),
        f"{T}.graceSeconds",
        "preStop needs time",
    ),
]


def env(*items: Document, **more: Any) -> tuple[str, Document]:
    return with_({"env": list(items), **more})


ENVIRONMENT: list[Row] = [
    (*env({"name": ""}), f"{T}.env[0].name", "not starting with a digit"),
    (*env({"name": "1A"}), f"{T}.env[0].name", "not starting with a digit"),
    (*env({"name": "A=B"}), f"{T}.env[0].name", "not starting with a digit"),
    (*env({"name": "A"}, {"name": "A"}), f"{T}.env[1].name", "twice"),
    (*env({"name": "A", "value": "\x00"}), f"{T}.env[0].value", "U+0000"),
    (*env({"name": "HOLDFAST_INDEX"}), f"{T}.env[0].name", "that the agent sets"),
    (
        *env({"name": "PORT_WEB_UI"}, ports=[{"name": "web-ui"}]),
        f"{T}.env[0].name",
        "that the agent sets",
    ),
    (
        *env({"name": "A", "value": "b", "secret": {"name": "s", "key": "k"}}),
        f"{T}.env[0].value",
        "where a secret is named",
    ),
    (
        *env({"name": "A", "secret": {"name": "S", "key": "k"}}),
        f"{T}.env[0].secret.name",
        "lower-case",
    ),
    (
        *env({"name": "A", "secret": {"name": "s", "key": "../k"}}),
        f"{T}.env[0].secret.key",
        "at most 253",
    ),
    (*env(*({"name": f"A{i}"} for i in range(513))), f"{T}.env", "at most 512"),
]


def files(*items: Document) -> tuple[str, Document]:
    return one("files", list(items))


FILES: list[Row] = [
    (*files({"path": ""}), f"{T}.files[0].path", "must be given"),
    (*files({"path": "/etc/passwd"}), f"{T}.files[0].path", "relative"),
    (*files({"path": "a/../../b"}), f"{T}.files[0].path", "'..'"),
    (*files({"path": ".."}), f"{T}.files[0].path", "'..'"),
    (*files({"path": "./a"}), f"{T}.files[0].path", "'.'"),
    (*files({"path": "a//b"}), f"{T}.files[0].path", "empty"),
    (*files({"path": "a/"}), f"{T}.files[0].path", "empty"),
    (*files({"path": "a\x00b"}), f"{T}.files[0].path", "control characters"),
    (*files({"path": "a\\b"}), f"{T}.files[0].path", "backslashes"),
    (*files({"path": "a\u202eb"}), f"{T}.files[0].path", "control characters"),
    (*files({"path": "ä" * 128}), f"{T}.files[0].path", "parts of at most 255"),
    (*files({"path": "/".join("a" * 520)}), f"{T}.files[0].path", "at most 1024 bytes"),
    (*files({"path": "a"}, {"path": "a"}), f"{T}.files[1].path", "twice"),
    (*files({"path": "a/b"}, {"path": "a"}), f"{T}.files[1].path", "directory of another"),
    (
        *files({"path": "a"}, {"path": "a-b"}, {"path": "a/b/c"}, {"path": "a!"}),
        f"{T}.files[0].path",
        "directory of another",
    ),
    (*files(*({"path": f"f{i}"} for i in range(129))), f"{T}.files", "at most 128"),
    (*files({"path": "a", "mode": "644x"}), f"{T}.files[0].mode", "octal"),
    (*files({"path": "a", "mode": "0888"}), f"{T}.files[0].mode", "octal"),
    (*files({"path": "a", "mode": "4755"}), f"{T}.files[0].mode", "octal"),
    (
        *files({"path": "a", "content": "x", "secret": {"name": "s", "key": "k"}}),
        f"{T}.files[0].content",
        "where a secret is named",
    ),
    (*files({"path": "a", "content": "x" * 262_145}), f"{T}.files", "at most 262144 bytes"),
]


def ports(*items: Document) -> tuple[str, Document]:
    return one("ports", list(items))


PORTS: list[Row] = [
    (*ports({"name": "http"}, {"name": "http"}), f"{T}.ports[1].name", "twice"),
    (*ports({"name": "http_ui"}), f"{T}.ports[0].name", "lower-case"),
    (*ports({"name": "8080"}), f"{T}.ports[0].name", "a letter"),
    (*ports({"name": "a" * 16}), f"{T}.ports[0].name", "at most 15"),
    (
        *ports({"name": "a", "port": 80}, {"name": "b", "port": 80}),
        f"{T}.ports[1].port",
        "twice for the same protocol",
    ),
    (*ports(*({"name": f"p{i}"} for i in range(65))), f"{T}.ports", "at most 64"),
]

AMOUNTS: list[Row] = [
    (*one("resources", {"cpu": "lots"}), f"{T}.resources.cpu", "must be a quantity"),
    (*one("resources", {"cpu": -1}), f"{T}.resources.cpu", "must not be negative"),
    (*one("resources", {"memory": "9EE"}), f"{T}.resources.memory", "must be a quantity"),
    (*one("resources", {"memory": "16Ei"}), f"{T}.resources.memory", "must be at most"),
    (*one("resources", {"disk": "1e999"}), f"{T}.resources.disk", "exponent"),
    (
        *with_({"resources": {"cpu": 2}, "limits": {"cpu": "1999m"}}),
        f"{T}.limits.cpu",
        "less than the amount in resources",
    ),
    (
        *with_({"resources": {"memory": "1Gi"}, "limits": {"memory": "1G"}}),
        f"{T}.limits.memory",
        "less than the amount in resources",
    ),
    (*one("devices", [{"deviceClass": "gpu"}] * 17), f"{T}.devices", "at most 16"),
    (*one("devices", [{"deviceClass": "GPU"}]), f"{T}.devices[0].deviceClass", "lower-case"),
    (*one("devices", [{"deviceClass": "cpu"}]), f"{T}.devices[0].deviceClass", "plain resource"),
    (
        *one("devices", [{"deviceClass": "gpu", "share": 0}]),
        f"{T}.devices[0].share",
        "more than 0 and at most 1",
    ),
    (
        *one("devices", [{"deviceClass": "gpu", "share": "1001m"}]),
        f"{T}.devices[0].share",
        "more than 0 and at most 1",
    ),
    (
        *one("devices", [{"deviceClass": "gpu", "share": 0.5, "count": 2}]),
        f"{T}.devices[0].count",
        "must be 1",
    ),
    (
        *one("devices", [{"deviceClass": "gpu", "memory": "-1Gi"}]),
        f"{T}.devices[0].memory",
        "not be negative",
    ),
    (
        *one("devices", [{"deviceClass": "gpu", "models": ["A", "A"]}]),
        f"{T}.devices[0].models[1]",
        "twice",
    ),
]


def probe(which: str, value: Document) -> tuple[str, Document]:
    return with_({"ports": [{"name": "http"}], "probes": {which: value}})


READY = f"{T}.probes.readiness"
PROBES: list[Row] = [
    (*probe("readiness", {}), READY, "exactly one of exec, http and tcp, has 0"),
    (
        *probe("readiness", {"tcp": {"port": "http"}, "exec": {"command": ["a"]}}),
        READY,
        "exactly one of exec, http and tcp, has 2",
    ),
    (*probe("readiness", {"tcp": {"port": "grpc"}}), f"{READY}.tcp.port", "template's ports"),
    (*probe("readiness", {"tcp": {"port": 0}}), f"{READY}.tcp.port", "from 1 to 65535"),
    (*probe("readiness", {"http": {"port": 70_000}}), f"{READY}.http.port", "from 1 to 65535"),
    (
        *probe("readiness", {"http": {"port": "http", "path": "live"}}),
        f"{READY}.http.path",
        "start with a slash",
    ),
    (
        *probe("readiness", {"http": {"port": "http", "path": "/a b"}}),
        f"{READY}.http.path",
        "without blanks",
    ),
    (*probe("readiness", {"exec": {"command": []}}), f"{READY}.exec.command", "must be given"),
    (
        *probe("liveness", {"tcp": {"port": 80}, "successThreshold": 2}),
        f"{T}.probes.liveness.successThreshold",
        "must be 1",
    ),
]


def place(changes: Document) -> tuple[str, Document]:
    return "Workload", {f"{P}.{path}": value for path, value in changes.items()}


def expression(operator: str, values: list[str], key: str = "disk") -> tuple[str, Document]:
    return place({"nodeExpressions": [{"key": key, "operator": operator, "values": values}]})


VALUES = f"{P}.nodeExpressions[0].values"
PLACEMENT: list[Row] = [
    (*place({"regions": ["EU"]}), f"{P}.regions[0]", "lower-case"),
    (*place({"regions": ["eu-west", "eu-west"]}), f"{P}.regions[1]", "twice"),
    (*place({"zones": [""]}), f"{P}.zones[0]", "must be given"),
    (*place({"residency": "e u"}), f"{P}.residency", "lower-case"),
    (*place({"pool": "GPU"}), f"{P}.pool", "lower-case"),
    (*place({"nodeSelector": {"a": "b c"}}), f"{P}.nodeSelector[a]", "must be empty or"),
    (*expression("In", []), VALUES, "at least one item with In"),
    (*expression("NotIn", []), VALUES, "at least one item with NotIn"),
    (*expression("Exists", ["a"]), VALUES, "left out with Exists"),
    (*expression("DoesNotExist", ["a"]), VALUES, "left out with DoesNotExist"),
    (*expression("Gt", ["1", "2"]), VALUES, "exactly one whole number with Gt"),
    (*expression("Lt", ["1.5"]), VALUES, "exactly one whole number with Lt"),
    (*expression("In", [f"v{i}" for i in range(257)]), VALUES, "at most 256"),
    (
        *place({"nodeExpressions": [{"key": "a", "operator": "Exists"}] * 65}),
        f"{P}.nodeExpressions",
        "at most 64",
    ),
    (*place({"tolerations": [{"operator": "Exists"}] * 65}), f"{P}.tolerations", "at most 64"),
    (*expression("In", ["a b"]), f"{VALUES}[0]", "must be empty or"),
    (*expression("Exists", [], key=""), f"{P}.nodeExpressions[0].key", "must be given"),
    (
        *place({"tolerations": [{"value": "x"}]}),
        f"{P}.tolerations[0].operator",
        "Exists where no key",
    ),
    (
        *place({"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}),
        f"{P}.tolerations[0].value",
        "left out with Exists",
    ),
    (
        *place({"tolerations": [{"key": "a", "tolerationSeconds": 5}]}),
        f"{P}.tolerations[0].tolerationSeconds",
        "effect is NoExecute",
    ),
    (*place({"spread": [{"over": "zone"}, {"over": "zone"}]}), f"{P}.spread[1].over", "twice"),
    (
        *place({"affinity": [{"selector": {"matchLabels": {"a b": "c"}}}]}),
        f"{P}.affinity[0].selector.matchLabels[a b]",
        "the key",
    ),
    (*place({"antiAffinity": [{"selector": {}}] * 17}), f"{P}.antiAffinity", "at most 16"),
    (*place({"prefer": [{"expressions": []}]}), f"{P}.prefer[0].expressions", "at least one"),
]

REFUSED = [*PROGRAM, *ENVIRONMENT, *FILES, *PORTS, *AMOUNTS, *PROBES, *PLACEMENT]


@pytest.mark.parametrize("row", REFUSED, ids=named)
def test_a_template_that_breaks_a_rule_is_refused_in_its_place(row: Row) -> None:
    """Every part that a user writes has its rule [A3, B4]."""
    check(row)


ACCEPTED: list[tuple[str, Document]] = [
    with_({"runtime": "container", "image": "registry.example/a/b:1", "command": []}),
    one("command", ["sh", "-c", "echo $(UNKNOWN) $$(A)\nexit"]),
    with_({"user": "1000"}),
    with_({"user": "www-data", "workingDir": "srv/www"}),
    env({"name": "A", "value": "$(B) \u202e"}, {"name": "b.c-d"}, {"name": "PORT_X"}),
    env({"name": "A", "secret": {"name": "db", "key": "pass.word"}}),
    files({"path": "a/b/.c", "mode": "600", "content": "\x00"}, {"path": "a/b.d"}),
    files({"path": "...", "mode": "0777"}),
    ports({"name": "a", "port": 53}, {"name": "b", "port": 53, "protocol": "UDP"}),
    ports({"name": "a"}, {"name": "1-2"}),
    with_({"resources": {"cpu": 1.5, "memory": "1.5Gi"}, "limits": {"cpu": "1500m"}}),
    one("resources", {"cpu": "1e3", "disk": 0}),
    one("devices", [{"deviceClass": "gpu", "share": "1"}, {"deviceClass": "gpu", "count": 8}]),
    probe("startup", {"http": {"port": "http", "path": "/healthz?full=1"}}),
    probe("readiness", {"tcp": {"port": 8080}, "successThreshold": 3}),
    with_({"onDisconnect": "keep", "replaceAfterSeconds": 60}),
    place({"tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b"}]}),
    place(
        {
            "tolerations": [
                {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
            ]
        }
    ),
    expression("Gt", ["-5"]),
    expression("Exists", []),
    place({"spread": [{"over": "zone"}, {"over": "node"}]}),
]


@pytest.mark.parametrize("kind, changes", ACCEPTED)
def test_a_template_at_the_edge_of_a_rule_is_accepted(kind: str, changes: Document) -> None:
    assert errors(kind, changes) == ()


@pytest.mark.parametrize("kind", ["Replica", "WorkloadRevision"])
def test_a_template_is_judged_wherever_it_appears(kind: str) -> None:
    found = errors(kind, {"spec.template.command": []})
    assert [error.path for error in found] == ["spec.template.command"]
