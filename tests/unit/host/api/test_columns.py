"""What `kubectl get` shows of a replica that gets nowhere."""

from __future__ import annotations

import pytest

from holdfast.host.api.columns import _waits_for
from holdfast.model.kinds.replica import Pending, Process, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import Template
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta


@pytest.mark.parametrize(
    "state, reason, shown",
    [
        (State.BOUND, "SecretMissing: there is no secret acme/db", "SecretMissing"),
        (State.RUNNING, "NotReady: readiness probe: http: status 503", "NotReady"),
        (State.RUNNING, "CrashLoop: exit code 1; next start after 800 ms", "CrashLoop"),
        (State.RUNNING, "", ""),
        (State.RELEASED, "Stopped", ""),
    ],
)
def test_it_shows_why_its_agent_gets_no_further(state: State, reason: str, shown: str) -> None:
    """[E3]"""
    spec = ReplicaSpec(workload="web", workload_uid="u", template=Template(command=("x",)))
    status = ReplicaStatus(state=state, process=Process(reason=reason))
    meta = ObjectMeta(name="web-0-0", namespace="acme")
    assert _waits_for(Replica(meta, spec=spec, status=status)) == shown


def test_what_the_scheduler_says_comes_first() -> None:
    """[E3]"""
    spec = ReplicaSpec(workload="web", workload_uid="u", template=Template(command=("x",)))
    status = ReplicaStatus(pending=Pending(reasons={"NodeFull": 3}))
    meta = ObjectMeta(name="web-0-0", namespace="acme")
    assert _waits_for(Replica(meta, spec=spec, status=status)) == "NodeFull"
