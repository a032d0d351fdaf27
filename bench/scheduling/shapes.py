"""The shapes of load by which schedulers are compared, as our templates.

They are those of Kubernetes' scheduler_perf. The file with their numbers is not part of the
project: HOLDFAST_BENCH_DATA names the folder that has `scheduler_perf/shapes.json`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

PUBLISHED = (
    "kubernetes/kubernetes, test/integration/scheduler_perf/{misc,affinity}/performance-config.yaml"
)
TEMPLATES = 500
# The label by which replicas of the measured kind avoid each other.
KIND_LABEL = "bench/kind"
DISKS = ("ssd", "hdd")
RACKS = 50


class Shape(msgspec.Struct, frozen=True):
    """The initial replicas, and those that are measured.

    `templates` take turns over the measured replicas. With `noise`, a replica that fits nowhere is
    submitted five times a second meanwhile. `peer` is the figure of kube-scheduler.
    """

    name: str
    nodes: int
    node: dict[str, str]
    zones: tuple[str, ...]
    initial: int
    initial_template: dict[str, Any]
    measured: int
    templates: tuple[dict[str, Any], ...]
    noise: bool = False
    peer: float = 0.0


class Book:
    """All shapes of one file."""

    def __init__(self, path: Path) -> None:
        self._read = json.loads(path.read_text(encoding="utf-8"))
        self._peers = self._read["kube_scheduler_on_a_2_core_machine_pods_per_s"]

    @property
    def source(self) -> str:
        """The source of the peer's figures."""
        return f"kube-scheduler, as quoted: {self._peers['note']}"

    def shape(self, name: str, *, measured: int = 0) -> Shape:
        """One shape of the file; by default with as many measured replicas as the file says."""
        found = self._read["shapes"][name]
        template = _template(found["measured"])
        initial = found["initial"]
        plain = template if initial.get("like") == "measured" else _template(initial)
        return Shape(
            name=name,
            nodes=found["nodes"],
            node=self._node(),
            zones=tuple(found.get("zones", ("zone1",))),
            initial=initial["count"],
            initial_template=plain,
            measured=measured or found["measured"]["count"],
            templates=(template,),
            noise="noise" in found,
            peer=self._peer(name),
        )

    def mixed(self) -> Shape:
        """As many different templates as there are teams in a large company."""
        basic = self._read["shapes"]["basic-5000"]
        return Shape(
            name="mixed-5000",
            nodes=basic["nodes"],
            node=self._node(),
            zones=("moon-1", "moon-2", "moon-3"),
            initial=basic["initial"]["count"],
            initial_template=_template(basic["initial"]),
            measured=basic["measured"]["count"],
            templates=tuple(_various(number) for number in range(TEMPLATES)),
            peer=self._peer("basic-5000"),
        )

    def _node(self) -> dict[str, str]:
        node = self._read["node"]
        return {"cpu": node["cpu"], "memory": node["memory"], "replicas": str(node["pods"])}

    def _peer(self, name: str) -> float:
        """The median of quoted figures; hard spread stands in for the soft one, which is not."""
        quoted = self._peers.get(name, self._peers.get(name.replace("-soft", ""), "0"))
        ends = [float(end) for end in str(quoted).split("-")]
        return sum(ends) / len(ends)


def book() -> Book | str:
    """The shapes; exits with a message on where to find them if there are none."""
    folder = os.environ.get("HOLDFAST_BENCH_DATA", "")
    path = Path(folder) / "scheduler_perf" / "shapes.json"
    if not folder or not path.exists():
        return (
            "HOLDFAST_BENCH_DATA must name a folder with scheduler_perf/shapes.json. Such shapes "
            f"are published in {PUBLISHED}"
        )
    return Book(path)


def _template(wanted: dict[str, Any]) -> dict[str, Any]:
    placement: dict[str, Any] = {}
    labels: dict[str, str] = {}
    if "required_zone_in" in wanted:
        placement["zones"] = wanted["required_zone_in"]
    if "spread" in wanted:
        spread = wanted["spread"]
        placement["spread"] = [
            {"over": spread["over"], "maxSkew": spread["max_skew"], "required": spread["hard"]}
        ]
    if "anti_affinity" in wanted:
        labels[KIND_LABEL] = "alone"
        placement["antiAffinity"] = [{"selector": {"matchLabels": labels}, "within": "node"}]
    return _made(wanted["cpu"], wanted["memory"], placement, labels)


def _made(
    cpu: str, memory: str, placement: dict[str, Any], labels: dict[str, str]
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "command": ["sleep", "60"],
        "resources": {"cpu": cpu, "memory": memory},
    }
    if placement:
        made["placement"] = placement
    if labels:
        made["metadata"] = {"labels": labels}
    return made


def _various(number: int) -> dict[str, Any]:
    """One of many templates, each with another combination of needs and constraints."""
    labels = {KIND_LABEL: f"kind-{number}"}
    placement: dict[str, Any] = {}
    if number % 2:
        placement["nodeSelector"] = {"disk": DISKS[number % 4 // 2]}
    if number % 3 == 1:
        placement["zones"] = [f"moon-{1 + number % 2}", "moon-3"]
    if number % 4 == 2:
        hard = number % 8 == 2
        placement["spread"] = [{"over": "zone", "maxSkew": 5, "required": hard}]
    if number % 5 == 3:
        placement["antiAffinity"] = [{"selector": {"matchLabels": labels}, "within": "node"}]
    if number % 7 == 5:
        racks = [f"rack-{(number + step) % RACKS}" for step in range(10)]
        placement["nodeExpressions"] = [{"key": "rack", "operator": "In", "values": racks}]
    return _made(f"{50 + number % 100}m", f"{200 + number}Mi", placement, labels)
