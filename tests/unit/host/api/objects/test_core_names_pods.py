"""Replicas shown as pods."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.host.api.objects import core_names
from holdfast.model.kinds.replica import Process
from holdfast.model.lifecycle import Stage, State
from tests.unit.host.api.api_rig import ApiRig
from tests.unit.host.api.tunnel_rig import POD, replica, with_replica


@pytest.mark.parametrize(
    "state, more, phase, part",
    [
        (State.PENDING, {"binding": None}, "Pending", "waiting"),
        (State.BOUND, {}, "Pending", "waiting"),
        (State.RUNNING, {"stage": Stage.READY}, "Running", "running"),
        (State.STOPPING, {}, "Running", "running"),
        (State.UNKNOWN, {}, "Unknown", "running"),
        (State.SUCCEEDED, {"process": Process(exit_code=0)}, "Succeeded", "terminated"),
        (State.FAILED, {"process": Process(exit_code=4)}, "Failed", "terminated"),
        (State.RELEASED, {"process": Process(exit_code=0)}, "Succeeded", "terminated"),
        (State.RELEASED, {"process": Process(signal=9)}, "Failed", "terminated"),
        (State.RELEASED, {"binding": None}, "Failed", "terminated"),
    ],
)
def test_a_replica_in_any_state_is_a_pod(
    state: State, more: dict[str, Any], phase: str, part: str
) -> None:
    pod = core_names.pod(replica(state, **more))
    assert pod["status"]["phase"] == phase
    (container,) = pod["status"]["containerStatuses"]
    assert list(container["state"]) == [part]
    assert container["ready"] is (more.get("stage") is Stage.READY)


def test_pods_are_read_and_never_written_and_show_no_variables() -> None:
    async def story(rig: ApiRig) -> None:
        answer = await rig.send("GET", POD, user="ada")
        assert (answer.code, answer.body["kind"]) == (200, "Pod")
        assert b"hush" not in answer.raw
        listed = await rig.send("GET", "/api/v1/pods")
        assert (listed.body["kind"], len(listed.body["items"])) == ("PodList", 1)
        for method in ("PUT", "DELETE", "PATCH"):
            assert (await rig.send(method, POD, {})).code == 405
        assert (await rig.send("GET", POD, user="eve")).code == 403

    with_replica(story)
