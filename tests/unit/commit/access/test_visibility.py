"""Visibility: what an agent may not see is answered as missing."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.access import identity as who
from holdfast.model.kinds.replica import Process
from holdfast.model.lifecycle import Stage, State
from holdfast.model.refusal import Reason
from holdfast.model.requests import Move, Patch, PatchType, ReportStage, Target, Update
from tests.furnished import AGENT, ANONYMOUS, Furnished
from tests.plane import SCHEDULER, accepted, refused, target

OTHER = who.agent("node-b")


def nothing(plural: str, namespace: str, name: str) -> Patch:
    """A patch that changes nothing, whose answer is the object."""
    return Patch(plural, namespace, name, PatchType.MERGE, {}, "status")


@pytest.mark.parametrize("plural", ["nodes", "replicas"])
def test_a_patch_that_changes_nothing_returns_no_object_of_others(plural: str) -> None:
    it = Furnished()
    running = it.running()
    name = running.name if plural == "replicas" else "node-a"
    namespace = "acme" if plural == "replicas" else ""
    assert accepted(it.ask(AGENT, nothing(plural, namespace, name))).name == name
    mine = refused(it.ask(OTHER, nothing(plural, namespace, name)), Reason.MISSING)
    none = refused(it.ask(OTHER, nothing(plural, namespace, "none")), Reason.MISSING)
    assert mine.message == none.message.replace("none", name)


def test_an_update_of_anothers_status_is_of_nothing() -> None:
    it = Furnished()
    refused(it.ask(OTHER, Update(it.running(), "status")), Reason.MISSING)


def test_the_answer_to_another_nodes_agent_has_neither_uid_nor_state() -> None:
    """Whether it guesses right or wrong."""
    it = Furnished()
    running = it.running()
    seen = target(running)
    guesses: tuple[Target, ...] = (
        seen,
        Target(seen.namespace, seen.name, "guessed", seen.number),
        Target(seen.namespace, seen.name, seen.uid, 0),
        Target(seen.namespace, "none", seen.uid, 0),
    )
    for guess in guesses:
        requests: tuple[Any, ...] = (
            Move(guess, State.FAILED, incarnation=1),
            ReportStage(guess, Stage.READY, 1),
        )
        for request in requests:
            refusal = refused(it.ask(OTHER, request), Reason.MISSING)
            assert refusal.details == {"replica": guess.name}


def test_an_unauthenticated_caller_learns_nothing() -> None:
    it = Furnished()
    for guess in (target(it.running()), Target("acme", "none", "u", 0)):
        refused(it.ask(ANONYMOUS, Move(guess, State.FAILED)), Reason.UNAUTHENTICATED)


def test_no_agent_counts_restarts() -> None:
    """[A10, C6.7]"""
    it = Furnished()
    forged = Process(id="p", restarts=9)
    running = it.moved(it.bound(), State.RUNNING, process=forged)
    assert (running.status.process.id, running.status.process.restarts) == ("p", 0)
    report = ReportStage(target(running), Stage.READY, 1, forged)
    assert it.yes(AGENT, report).status.process.restarts == 0


def test_a_victim_learns_no_name_of_another_tenants_work() -> None:
    it = Furnished(cpus=2)
    victim = it.running(it.of_class("spot", "globex", cpu="2"))
    urgent = it.pending(it.of_class("high", cpu="2"))
    it.yes(SCHEDULER, it.preempt(urgent, victim))
    evidence = it.get(victim).status.transitions[-1].evidence
    assert evidence == "makes way for another tenant's work of priority 100"
    own = Furnished(cpus=2)
    victim = own.running(own.of_class("low", cpu="2"))
    urgent = own.pending(own.of_class("high", cpu="2"))
    own.yes(SCHEDULER, own.preempt(urgent, victim))
    assert own.get(victim).status.transitions[-1].evidence == f"makes way for {urgent.name}"
