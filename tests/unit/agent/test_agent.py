"""What an agent starts and stops, against the real authority."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.agent.replica_workers import LAUNCHES_MAX
from holdfast.agent.runtime_protocol import Halt, Launch
from holdfast.model.access import identity as who
from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.template import OnDisconnect, RestartPolicy
from holdfast.model.lifecycle import Stage
from holdfast.model.machine import Ask, Pushed, Started
from holdfast.model.read_requests import Get
from holdfast.model.requests import ReportStage
from holdfast.observe.watch_events import Departed, Present, Reached
from tests.plane import target
from tests.unit.agent.rig import Rig
from tests.unit.agent.running_work import asked, made, running, started, without


def test_nothing_is_decided_before_inventory_and_lists_are_there() -> None:
    """With half of the state the agent would start work twice or kill the wrong work. [E4]"""
    rig = Rig()
    rig.bound()
    rig.start()
    rig.wait(5_000)
    assert asked(rig, Get) == []
    rig.push_changes()
    assert asked(rig, Get) == []
    rig.look()
    assert asked(rig, Get) == [Get("nodes", "node-a")]


def test_work_that_is_not_listed_is_stopped_only_after_a_read_of_itself() -> None:
    """A list may be wrong; a linearizable read is not. [C6.4, H4]"""
    rig = started()
    replica = running(rig)
    stream = next(n for n, (follow, _) in rig.streams.items() if follow.plural == "replicas")
    revision = rig.plane.store.revision + 1
    rig.feed(Pushed(stream, (Departed(replica, revision), Reached(revision))))
    assert made(rig, Halt) == []
    assert asked(rig, Get)[-1] == Get("replicas", replica.name, "acme")
    rig.drop("Get")
    rig.wait(1_000)
    rig.settle()
    assert made(rig, Halt) == []


def test_work_whose_replica_is_gone_is_stopped_and_cleared() -> None:
    """The operator confirmed its end while the agent was down. [C6.4]"""
    rig = started()
    replica = running(rig)
    rig.stop()
    # Behind the back of the books, which so are wrong from here on.
    rig.plane.store.txn(without(f"objects/replicas/acme/{replica.name}"))
    rig.it.check = lambda: None  # type: ignore[method-assign]
    rig.start()
    rig.look()
    rig.settle()
    assert [halt.attempt.uid for halt in made(rig, Halt)] == [replica.metadata.uid]
    rig.exited(replica.name)
    rig.settle()
    assert rig.table == {}
    assert rig.lines[-1].endswith(f"clear {replica.name}")


def test_stale_events_after_the_end_start_nothing_again() -> None:
    """The stream is behind: it still tells that the work is bound here. [C6.4]"""
    rig = started()
    rig.bound("once", restart=RestartPolicy.NEVER)
    rig.settle()
    name = next(iter(rig.table.values())).launch.name
    rig.launched(name)
    rig.answer("Move")
    seen = [rig.objects("replicas")]
    rig.answer("ReportStage")
    rig.exited(name, code=0)
    for _ in range(2):
        rig.answer("Move")
    assert rig.lines[-1].endswith(f"clear {name}")
    before = len(rig.trace)
    stream = next(n for n, (follow, _) in rig.streams.items() if follow.plural == "replicas")
    for objects in seen:
        changes = [Present(it, int(it.metadata.resource_version) // 2) for it in objects.values()]
        rig.feed(Pushed(stream, tuple(changes)))
    rig.push_changes()
    assert [it for it in rig.trace[before:] if isinstance(it, Launch | Ask)] == []


def test_work_that_serves_goes_on_a_moment_before_the_stop_signal() -> None:
    """A client that read its address just before still gets an answer."""
    rig = started()
    replica = rig.bound()
    rig.settle()
    rig.launched(replica.name)
    rig.settle()
    ready = rig.it.get(replica)
    rig.it.yes(who.controller("endpoints"), ReportStage(target(ready), Stage.SERVING))
    rig.it.stopping(rig.it.get(replica))
    rig.settle()
    rig.wait(900)
    assert made(rig, Halt) == []
    rig.wait(200)
    (halt,) = made(rig, Halt)
    # The moment is a part of its grace of ten seconds.
    assert 8_500 <= halt.grace_ms <= 9_100


def test_a_launch_names_the_tenant_by_its_uid_and_how_far_to_keep_it_apart() -> None:
    """As the binding says, of which the tenant is a part. [INV5]"""
    rig = Rig()
    rig.facts = msgspec.structs.replace(rig.facts, isolation=Isolation.CONTAINER)
    rig.up()
    tenant = rig.plane.read("objects/tenants/acme")
    tenant = rig.it.updated(tenant, isolation=Isolation.USER)
    rig.bound()
    rig.settle()
    (launch,) = made(rig, Launch)
    assert launch.tenant == f"acme/{tenant.metadata.uid}"
    assert launch.isolation is Isolation.USER


def test_starts_at_once_are_bounded_and_all_get_their_turn() -> None:
    """A node that comes back with all its work must not choke on it."""
    rig = started()
    replicas = [rig.bound("tiny", cpu="100m", memory="10Mi") for _ in range(LAUNCHES_MAX + 3)]
    rig.settle()
    assert len(made(rig, Launch)) == LAUNCHES_MAX
    rig.launched(replicas[0].name)
    assert len(made(rig, Launch)) == LAUNCHES_MAX + 1
    for replica in replicas[1:]:
        rig.launched(replica.name)
    rig.settle()
    assert all(rig.state(replica).stage is Stage.READY for replica in replicas)


def test_kept_work_is_started_without_a_deadline_and_others_never_beyond_the_planes_grace() -> None:
    """The fence waits for no longer grace than the plane's own. [H7]"""
    rig = started()
    rig.bound("kept", on_disconnect=OnDisconnect.KEEP, grace_seconds=60)
    rig.bound("slow", grace_seconds=60)
    rig.settle()
    kept, slow = made(rig, Launch)
    assert (kept.deadline_ms, kept.grace_ms) == (None, 60_000)
    assert (slow.deadline_ms, slow.grace_ms) == (30_000, 10_000)


def test_a_start_of_the_machine_asks_first_what_is_there() -> None:
    """And sends no report before it knows."""
    rig = Rig()
    rig.start()
    assert isinstance(rig.trace[0], Started)
    assert type(rig.trace[1]).__name__ == "LookAround"


def test_more_replicas_than_a_node_may_have_wait_until_others_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the servers say, the agent's memory is bounded. [C7.6]"""
    monkeypatch.setattr("holdfast.agent.replica_workers.WORKS_MAX", 2)
    rig = started()
    first, second, third = (rig.bound() for _ in range(3))
    rig.settle()
    for replica in (first, second):
        rig.launched(replica.name)
    rig.settle()
    assert [it.name for it in made(rig, Launch)] == [first.name, second.name]
    rig.it.stopping(rig.it.get(first))
    rig.settle()
    rig.exited(first.name)
    rig.settle()
    assert made(rig, Launch)[-1].name == third.name


def test_work_that_may_not_start_now_starts_with_the_next_acknowledgement() -> None:
    """Close to the deadline nothing is begun; afterwards the agent needs no reminder. [C7.6]"""
    rig = started()
    for _ in range(3):
        rig.wait(10_000)
        rig.drop("Renew")
    replica = rig.bound()
    rig.push_changes()
    assert made(rig, Launch) == []
    rig.wait(1_000)
    rig.settle()
    assert [it.name for it in made(rig, Launch)] == [replica.name]
