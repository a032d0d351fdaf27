"""What cells of the matrix send: requests of components, and objects under free names."""

from __future__ import annotations

import copy
from typing import Any

from tests.live.matrix_plane import soon, target


def fresh(plural: str, found: Any) -> Any:
    """The same object again, under a name that is free."""
    kept = {k: v for k, v in found.items() if k not in ("metadata", "status")}
    name = {"replicas": "web-1-0", "quotas": "default", "revocations": "user.bob"}.get(plural)
    made = copy.deepcopy(kept) | {"metadata": {"name": name or "fresh"}}
    if plural == "replicas":
        made["spec"]["ordinal"] = 1
    if plural == "revocations":
        made["spec"] = {"user": "bob"}
    return made


def requests(objects: dict[str, Any]) -> dict[str, Any]:
    """Each on what is there, in a state where it is right, and under an epoch that never was.

    Agents, who have no epoch, speak as a life that never was.
    """
    running, waiting, reserved = (
        {"target": target(objects[it])} for it in ("replicas", "waiting", "reserved")
    )
    term = {"term": {"scope": "scheduler:one", "epoch": 99}}
    at = {"deadline": soon(), **term}
    # A report rests on a version of its replica, here on one that has passed.
    seen = {"version": "1"}
    node = objects["nodes"]
    place = {**waiting, "node": "n1", "node_uid": node["metadata"]["uid"]}
    bind = {**place, **term}
    owner = {"kind": "Workload", "name": "web", "uid": "none"}
    held = objects["reservations"]["metadata"]
    hold = {"namespace": "team-a", "reservation": held["name"], "uid": held["uid"], **term}
    made = fresh("replicas", objects["replicas"])
    made["metadata"]["namespace"], made["spec"]["workloadUid"] = "team-a", "none"
    lease = {"scope": "scheduler:one", "seen_epoch": 99}
    bodies: dict[str, Any] = {
        "Bind": bind,
        "BindTogether": {"binds": [{"type": "Bind", **bind}]},
        "Reserve": {**place, **at},
        "Unreserve": {**reserved, "reason": "late", **term},
        "HoldCapacity": {"namespace": "team-a", "owner": owner, "claims": [], **at}
        | {"intent": "recovery", "operation": "hold-late"},
        "CommitGang": hold,
        "DropReservation": {**hold, "reason": "late"},
        "Evict": {**waiting, "cause": "UserDelete"},
        "StopAndReserve": {**place, "victims": [running["target"]], **at},
        "Move:Failed": {**running, "to": "Failed", "incarnation": 99},
        "Move:Unknown": {**running, "to": "Unknown", "mark": 99, **term},
        "Move:Released": {**waiting, "to": "Released", **term},
        "ReportStage:Ready": {**running, "stage": "Ready", "incarnation": 99, **seen},
        "ReportStage:Queued": {**running, "stage": "Queued", **seen},
        "ReportStage:Serving": {**running, "stage": "Serving", **seen},
        "ReportPending": {**waiting, "pending": {}, **seen},
        "RegisterNode": {"node": node},
        "JudgeNode": {"node": "n1", "uid": node["metadata"]["uid"], "word": "Suspect", **term},
        "AcquireLease": {**lease, "duration_ms": 1_000},
        "RenewLease": term,
        "ReleaseLease": term,
        "RetireLease": {**lease, "seen_renewals": 0},
        "ForgetOperations": {"operations": [], **term},
        "Create": {"object": made},
    }
    return {name: {"type": name.partition(":")[0], **it} for name, it in bodies.items()}
