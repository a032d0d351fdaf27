"""Regressions that the simulation of the authority found."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.access.identity import Identity
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.machine import FateOf, Txn
from holdfast.model.refusal import Reason
from holdfast.model.requests import Patch, PatchType
from holdfast.model.transaction import Forgotten
from tests.furnished import ROLLOUTS, Furnished
from tests.plane import ADMIN, SCHEDULER, bind, refused


def stated_as_it_is(workload: Workload, subresource: str = "") -> Patch:
    """An apply that changes no value, and so only changes who manages the fields that it names."""
    part = {"status": {"rollout": {"step": 0}}} if subresource else {"spec": {"replicas": 8}}
    body = {"apiVersion": workload.api_version, "kind": "Workload", **part}
    where = ("workloads", workload.namespace, workload.name)
    return Patch(*where, PatchType.APPLY, body, subresource, manager="busybody", force=True)


@pytest.mark.parametrize("subresource", ["", "status"])
@pytest.mark.parametrize("name", ["system:controller:nodes", "system:controller:garbage"])
def test_no_caller_becomes_the_manager_of_fields_that_it_may_not_write(
    name: str, subresource: str
) -> None:
    """An apply of existing values is a change of ownership, and needs the permission for the
    fields. [C6.7]
    """
    it = Furnished()
    before = it.get(it.web)
    answer = it.ask(Identity(name=name), stated_as_it_is(it.web, subresource))
    refused(answer, Reason.NOT_OWNER)
    assert it.get(it.web) == before


def test_a_writer_may_take_over_fields_without_changing_them() -> None:
    """The apply is recorded, so that others learn who manages the field."""
    it = Furnished()
    workload = it.yes(ADMIN, stated_as_it_is(it.web))
    assert "busybody" in [entry.manager for entry in workload.metadata.managed_fields]
    workload = it.yes(ROLLOUTS, stated_as_it_is(it.web, "status"))
    assert "busybody" in [entry.manager for entry in workload.metadata.managed_fields]


def test_a_request_that_was_sent_before_is_never_reported_as_not_happened() -> None:
    """The answer is lost, the store has forgotten the fate, and is unreadable when everything
    has to be decided again: the bind may have been done, and it was. [C6.5, N1.1]
    """
    it = Furnished()
    replica, lost = it.pending(), []

    def spoil(effect: Txn | FateOf) -> Any:
        if isinstance(effect, FateOf):
            return Forgotten()
        if lost:
            return Unavailable("the store cannot be reached")
        if effect.transaction.writes:
            lost.append(effect)
            it.plane.store.txn(effect.transaction, token=effect.token)
            return OutcomeUnknown("the answer was lost")
        return None

    term = it.term(SCHEDULER)
    it.plane.spoil = spoil
    answer = it.ask(SCHEDULER, bind(replica, it.node, term))
    assert isinstance(answer, OutcomeUnknown)
    assert it.get(replica).status.state is State.BOUND
