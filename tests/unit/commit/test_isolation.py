"""How far tenants are kept apart is promised by the commit: by a node's level and neighbours."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.access import identity as who
from holdfast.model.kinds.node import Node, NodeSpec, NodeStatus
from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.kinds.template import Runtime
from holdfast.model.kinds.tenant import ImagePolicy, Tenant, TenantSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.placement_rules import (
    image_refusal,
    isolation_refusal,
    neighbour_refusal,
    user_refusal,
)
from holdfast.model.quota.ledger import NodeGate
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import BindTogether, HoldCapacity, RegisterNode
from holdfast.model.validation import validate
from tests.furnished import Furnished
from tests.plane import SCHEDULER, accepted, refused, template

LEVELS = tuple(Isolation)


def register(it: Furnished, isolation: Isolation | None, name: str = "node-i") -> Any:
    """A node whose agent says this."""
    spec = NodeSpec(region="eu-west", zone="eu-west-a", capacity={"cpu": "8", "memory": "32Gi"})
    node = Node(ObjectMeta(name=name), spec=spec, status=NodeStatus(isolation=isolation))
    return accepted(it.plane.ask(who.agent(name), RegisterNode(node)))


def wanting(it: Furnished, level: Isolation, tenant: str = "acme") -> Any:
    box = {"runtime": Runtime.CONTAINER, "image": "app:1"} if level is Isolation.CONTAINER else {}
    work = template(isolation=level, **box)
    return it.pending(it.plane.workload(f"w-{level.value}", tenant, template=work))


@pytest.mark.parametrize("have", [None, *LEVELS])
@pytest.mark.parametrize("wanted", LEVELS)
def test_a_stronger_level_serves_a_weaker_wish(have: Isolation | None, wanted: Isolation) -> None:
    """Ordered none < user < container < sandboxed; an agent that is silent gives none. [INV5]"""
    order = ["none", "user", "container", "sandboxed"]
    is_enough = order.index(have.value if have else "none") >= order.index(wanted.value)
    refusal = isolation_refusal(have, wanted, Runtime.CONTAINER)
    assert (refusal is None) is is_enough
    if refusal is not None:
        assert refusal.reason is Reason.ISOLATION_TOO_WEAK
        assert f"{wanted.value} is required" in refusal.message


@pytest.mark.parametrize("level", [Isolation.USER, Isolation.CONTAINER])
def test_work_is_bound_only_where_tenants_are_kept_as_far_apart_as_it_asks(
    level: Isolation,
) -> None:
    """By every way that leads to a place. [INV5]"""
    it = Furnished()
    weak, strong = register(it, Isolation.NONE), register(it, level, "node-j")
    replica = wanting(it, level)
    for request in (
        it.bind(replica, weak),
        BindTogether((it.bind(replica, weak),)),
        it.reserve(replica, weak),
    ):
        refused(it.ask(SCHEDULER, request), Reason.ISOLATION_TOO_WEAK)
    it.yes(SCHEDULER, it.bind(replica, strong))


def test_a_binding_says_what_the_tenant_demands_and_which_tenant_that_is() -> None:
    """Its agent reads no Tenants, and has to tell a later one of the same name. [INV5]"""
    it = Furnished()
    node = register(it, Isolation.SANDBOXED)
    replica = contained(it, isolation=Isolation.USER)
    tenant = it.updated(it.plane.read("objects/tenants/acme"), isolation=Isolation.SANDBOXED)
    binding = it.yes(SCHEDULER, it.bind(replica, node)).status.binding
    assert binding is not None
    assert (binding.isolation, binding.tenant_uid) == (Isolation.SANDBOXED, tenant.metadata.uid)


@pytest.mark.parametrize("level", [Isolation.CONTAINER, Isolation.SANDBOXED])
def test_a_process_never_has_the_isolation_of_a_container(level: Isolation) -> None:
    """Whatever its node does for containers: it is not one. [INV5]"""
    it = Furnished()
    node = register(it, Isolation.SANDBOXED)
    replica = it.pending(it.plane.workload("w", template=template(isolation=level)))
    refusal = it.ask(SCHEDULER, it.bind(replica, node))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.ISOLATION_TOO_WEAK
    assert "use runtime container" in refusal.message


def contained(it: Furnished, **more: Any) -> Any:
    work = template(runtime=Runtime.CONTAINER, **{"image": "registry.example/acme/app:1", **more})
    return it.pending(it.plane.workload("w", template=work))


def test_a_container_is_on_the_network_of_its_node_only_if_its_tenant_may() -> None:
    """By every way that leads to a place. [INV5]"""
    it = Furnished()
    node = register(it, Isolation.CONTAINER)
    replica = contained(it, host_network=True)
    for request in (
        it.bind(replica, node),
        BindTogether((it.bind(replica, node),)),
        it.reserve(replica, node),
    ):
        refused(it.ask(SCHEDULER, request), Reason.HOST_NETWORK_NOT_ALLOWED)
    it.updated(it.plane.read("objects/tenants/acme"), host_network=True)
    it.yes(SCHEDULER, it.bind(replica, node))


def test_a_container_has_only_images_that_its_tenant_may_use() -> None:
    """By every way that leads to a place. [INV5]"""
    it = Furnished()
    node, replica = register(it, Isolation.CONTAINER), contained(it)
    tenant = it.plane.read("objects/tenants/acme")
    it.updated(tenant, images=ImagePolicy(("registry.example/other",)))
    for request in (
        it.bind(replica, node),
        BindTogether((it.bind(replica, node),)),
        it.reserve(replica, node),
    ):
        refused(it.ask(SCHEDULER, request), Reason.IMAGE_NOT_ALLOWED)
    tenant = it.plane.read("objects/tenants/acme")
    it.updated(tenant, images=ImagePolicy(("registry.example/acme",)))
    it.yes(SCHEDULER, it.bind(replica, node))


DIGEST = "@sha256:" + "0" * 64


@pytest.mark.parametrize(
    "image, policy, is_allowed",
    [
        ("app:1", ImagePolicy(), True),
        ("r.example/acme/app:1", ImagePolicy(("r.example/acme",)), True),
        ("r.example/acme", ImagePolicy(("r.example/acme",)), True),
        ("r.example/acme:1", ImagePolicy(("r.example/acme",)), True),
        ("r.example/acmeology/app", ImagePolicy(("r.example/acme",)), False),
        ("r.example/acme/../other/app", ImagePolicy(("r.example/acme",)), False),
        ("r.example.evil/app", ImagePolicy(("r.example",)), False),
        ("r.example:5000/app", ImagePolicy(("r.example",)), False),
        ("r.example:5000/app:1", ImagePolicy(("r.example:5000",)), True),
        (f"r.example/acme:1{DIGEST}", ImagePolicy(("r.example/acme",)), True),
        ("app:1", ImagePolicy(("r.example",)), False),
        ("/srv/images/app", ImagePolicy(("r.example", "/srv/images")), True),
        ("/srv/images/app", ImagePolicy(("r.example",)), False),
        ("r.example/app:1", ImagePolicy(digests_only=True), False),
        (f"r.example/app{DIGEST}", ImagePolicy(digests_only=True), True),
        (f"r.example/app{DIGEST[:-1]}", ImagePolicy(digests_only=True), False),
        (f"r.other/app{DIGEST}", ImagePolicy(("r.example",), digests_only=True), False),
    ],
)
def test_an_image_lies_below_an_allowed_registry_and_may_have_to_name_its_digest(
    image: str, policy: ImagePolicy, is_allowed: bool
) -> None:
    """[INV5]"""
    work = template(runtime=Runtime.CONTAINER, image=image)
    tenant = Tenant(ObjectMeta(name="acme"), spec=TenantSpec(images=policy))
    refusal = image_refusal(work, tenant)
    assert (refusal is None) is is_allowed
    assert refusal is None or refusal.reason is Reason.IMAGE_NOT_ALLOWED


def test_a_tenant_s_own_level_holds_for_all_of_its_work() -> None:
    """Whatever its workloads say. [INV5]"""
    it = Furnished()
    weak, strong = register(it, None), register(it, Isolation.USER, "node-j")
    replica = it.pending()
    it.updated(it.plane.read("objects/tenants/acme"), isolation=Isolation.USER)
    refused(it.ask(SCHEDULER, it.bind(replica, weak)), Reason.ISOLATION_TOO_WEAK)
    it.yes(SCHEDULER, it.bind(replica, strong))


def test_an_agent_that_gives_less_than_before_gets_no_such_work_any_more() -> None:
    """What was promised by its earlier life does not count. [INV5]"""
    it = Furnished()
    node, replica = register(it, Isolation.USER), wanting(it, Isolation.USER)
    register(it, Isolation.NONE)
    refused(it.ask(SCHEDULER, it.bind(replica, node)), Reason.ISOLATION_TOO_WEAK)


def test_a_node_without_isolation_has_work_of_one_tenant_at_a_time() -> None:
    """Bound or reserved, until the last of it has gone. The tenant is not revealed. [INV5]"""
    it = Furnished()
    node = register(it, Isolation.NONE)
    mine = it.plane.workload("mine")
    theirs = it.pending(it.plane.workload("w", "globex"))
    it.yes(SCHEDULER, it.bind(it.pending(mine), node))
    refusal = it.ask(SCHEDULER, it.bind(theirs, node))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NODE_OF_ANOTHER_TENANT
    assert "acme" not in f"{refusal.message} {refusal.details}"
    refused(it.ask(SCHEDULER, it.reserve(theirs, node)), Reason.NODE_OF_ANOTHER_TENANT)
    it.yes(SCHEDULER, it.bind(it.pending(it.plane.workload("more")), node))
    other = register(it, Isolation.NONE, "node-j")
    owner = ReservationOwner("Workload", mine.name, mine.metadata.uid)
    claims = (Claim(node=other.name, charge={"cpu": 500}),)
    term, until = it.term(SCHEDULER), it.plane.at(60)
    hold = HoldCapacity("acme", owner, Intent.RECOVERY, claims, until, term)
    it.yes(SCHEDULER, hold)
    refused(it.ask(SCHEDULER, it.bind(theirs, other)), Reason.NODE_OF_ANOTHER_TENANT)


def test_a_node_without_isolation_is_free_for_another_tenant_once_it_is_empty() -> None:
    """[INV5]"""
    it = Furnished()
    node = register(it, Isolation.NONE, it.node.name)
    theirs = it.pending(it.plane.workload("w", "globex"))
    running = it.running(it.plane.workload("mine"))
    assert it.plane.read(f"ledgers/node/{node.name}").tenants == {"acme": 1}
    refused(it.ask(SCHEDULER, it.bind(theirs, node)), Reason.NODE_OF_ANOTHER_TENANT)
    it.moved(it.moved(running, State.FAILED), State.RELEASED)
    assert it.plane.read(f"ledgers/node/{node.name}").tenants == {}
    it.yes(SCHEDULER, it.bind(theirs, node))


@pytest.mark.parametrize("isolation", [None, *LEVELS[1:]])
def test_only_a_node_that_says_none_is_for_one_tenant(isolation: Isolation | None) -> None:
    gate = NodeGate(uid="n", isolation=isolation)
    assert neighbour_refusal(gate, ("acme", "globex"), "acme") is None
    assert neighbour_refusal(NodeGate("n", isolation=Isolation.NONE), ("acme",), "acme") is None


@pytest.mark.parametrize("level", [Isolation.USER, Isolation.CONTAINER, Isolation.SANDBOXED])
def test_work_runs_as_a_user_of_the_node_only_if_its_tenant_may(level: Isolation) -> None:
    """Any user of a node has files and groups there: no tenant takes one by itself. [INV5]"""
    it = Furnished()
    node = register(it, level)
    replica = it.pending(it.plane.workload("w", template=template(user="daemon")))
    for request in (
        it.bind(replica, node),
        BindTogether((it.bind(replica, node),)),
        it.reserve(replica, node),
    ):
        refused(it.ask(SCHEDULER, request), Reason.USER_NOT_ALLOWED)
    it.updated(it.plane.read("objects/tenants/acme"), users=("app",))
    refused(it.ask(SCHEDULER, it.bind(replica, node)), Reason.USER_NOT_ALLOWED)
    it.updated(it.plane.read("objects/tenants/acme"), users=("app", "daemon"))
    it.yes(SCHEDULER, it.bind(replica, node))


@pytest.mark.parametrize("level", [None, Isolation.NONE])
def test_where_tenants_have_no_users_of_their_own_any_user_may_be_named(
    level: Isolation | None,
) -> None:
    """Such a node, or an agent of an earlier version, is as it was."""
    it = Furnished()
    node = register(it, level)
    replica = it.pending(it.plane.workload("w", template=template(user="daemon")))
    it.yes(SCHEDULER, it.bind(replica, node))


def test_a_user_inside_a_container_is_none_of_the_node() -> None:
    """It has the number of one, and none of its files."""
    named = template(user="1000", runtime=Runtime.CONTAINER, image="app:1")
    assert user_refusal(Isolation.CONTAINER, named, None) is None
    refusal = user_refusal(Isolation.USER, template(user="1000"), None)
    assert refusal is not None
    assert refusal.reason is Reason.USER_NOT_ALLOWED


@pytest.mark.parametrize("user", ["root", "0", "no such name", ""])
def test_a_tenant_is_allowed_no_root_and_no_nonsense(user: str) -> None:
    """[INV5]"""
    made = Tenant(ObjectMeta(name="acme"), spec=TenantSpec(users=("app", user)))
    assert any("users[1]" in str(error) for error in validate(made))
    fine = Tenant(ObjectMeta(name="acme"), spec=TenantSpec(users=("app", "1000")))
    assert not validate(fine)
