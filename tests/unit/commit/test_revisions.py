"""Rollouts: creations and evictions are held to the targets of their workload."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.kinds.workload import RolloutStatus
from holdfast.model.lifecycle import Cause, Stage
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Update
from tests.furnished import ANN, ROLLOUTS, Furnished
from tests.plane import SCHEDULER, WORKLOADS, refused


def rolled(it: Furnished, **rollout: Any) -> None:
    """controller:rollout says what the places of `web` take."""
    web = it.get(it.web)
    status = msgspec.structs.replace(web.status, rollout=RolloutStatus(**rollout))
    it.yes(ROLLOUTS, Update(msgspec.structs.replace(web, status=status), "status"))


def birth(it: Furnished, place: int, revision: str) -> Create:
    obj: Any = it.birth(it.web, place).object
    spec = msgspec.structs.replace(obj.spec, revision=revision)
    return Create(msgspec.structs.replace(obj, spec=spec))


def test_a_birth_is_of_the_revision_that_its_place_takes() -> None:
    """Whatever the controller believes: the workload is compared. [C2]"""
    it = Furnished()
    rolled(it, current="new", stable="old", updated="1")
    answer = refused(it.ask(WORKLOADS, birth(it, 0, "new")), Reason.WRONG_STATE)
    assert "place 0 takes revision old" in answer.message
    it.yes(WORKLOADS, birth(it, 0, "old"))
    refused(it.ask(WORKLOADS, birth(it, 1, "old")), Reason.WRONG_STATE)
    it.yes(WORKLOADS, birth(it, 1, "new"))


def test_nothing_is_created_while_a_rollout_holds_creation_back() -> None:
    """Recreate runs no two revisions at once."""
    it = Furnished()
    rolled(it, current="new", stable="old", updated="0-7", held=True)
    refused(it.ask(WORKLOADS, birth(it, 0, "new")), Reason.WRONG_STATE)
    rolled(it, current="new", stable="old", updated="0-7")
    it.yes(WORKLOADS, birth(it, 0, "new"))


def test_a_stale_rollout_stops_no_replica_of_the_target_revision() -> None:
    """It turned back meanwhile: what it wanted to replace is what is wanted again."""
    it = Furnished()
    rolled(it, current="new", stable="old", updated="0")
    born = it.yes(WORKLOADS, birth(it, 3, "old"))
    bound = it.yes(SCHEDULER, it.bind(born))
    refused(it.ask(ROLLOUTS, it.evict(bound, Cause.ROLLOUT)), Reason.NOT_ALLOWED)
    rolled(it, current="new", stable="old", updated="0,3")
    it.yes(ROLLOUTS, it.evict(bound, Cause.ROLLOUT))


def test_only_its_owner_says_what_places_take() -> None:
    """And not in an unreadable text. [A9, C6.7]"""
    it = Furnished()
    web = it.get(it.web)
    for identity, updated, reason in (
        (WORKLOADS, "0", Reason.NOT_OWNER),
        (ROLLOUTS, "3-1", Reason.INVALID),
    ):
        status = msgspec.structs.replace(web.status, rollout=RolloutStatus(updated=updated))
        update = Update(msgspec.structs.replace(web, status=status), "status")
        refused(it.ask(identity, update), reason)


def test_the_authority_says_since_when_a_replica_is_ready() -> None:
    """Again each time that it becomes ready, and not when that is only repeated."""
    it = Furnished()
    running = it.running()
    it.plane.elapsed_ms += 5_000
    ready = it.at_stage(running, Stage.READY)
    assert ready.status.ready_since == it.plane.at()
    it.plane.elapsed_ms += 5_000
    assert it.at_stage(ready, Stage.READY).status.ready_since == ready.status.ready_since
    it.at_stage(ready, Stage.STARTING)
    it.plane.elapsed_ms += 5_000
    assert it.at_stage(ready, Stage.READY).status.ready_since == it.plane.at()


def test_recreate_and_a_budget_are_not_taken_together() -> None:
    """The one takes all away at once, which the other would never let happen."""
    it = Furnished()
    web = it.get(it.web)
    rollout = {"strategy": "Recreate"}
    body = msgspec.to_builtins(web.spec)
    body |= {"rollout": rollout, "disruption": {"maxUnavailable": 1}}
    spec = msgspec.convert(body, type(web.spec))
    answer = it.ask(ANN, Update(msgspec.structs.replace(web, spec=spec)))
    assert "spec.rollout.strategy" in refused(answer, Reason.INVALID).message
