"""The built-in roles: each component has what it owns and no more, and people what they should."""

from __future__ import annotations

import pytest

from holdfast.commit.objects.deletion import FINALIZERS, REMOVERS
from holdfast.commit.objects.field_writers import WRITERS
from holdfast.correct.all_controllers import all_controllers
from holdfast.correct.garbage.ownership import FOLLOWED
from holdfast.host.server.caller_rights import built_in_objects
from holdfast.model.access import identity as who
from holdfast.model.access.identity import ADMINS, Identity, acts_as
from holdfast.model.access.rights import GrantedRule, Permission, find_grant
from holdfast.model.access.roles import (
    COMPONENTS,
    HELD_BY,
    PEOPLE,
    READ,
    ROLES,
    built_in_grants,
    built_in_roles,
)
from holdfast.model.kinds.event import Event
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import WorkloadRevision
from holdfast.model.lifecycle import CAUSE_OWNER, TRANSITIONS, Actor, State
from holdfast.model.meta import Object
from holdfast.model.registry import KINDS, SYSTEM_NAMESPACE, kind_of_struct
from holdfast.model.validation import validate
from holdfast.propose.scheduler import FOLLOWED as SCHEDULERS_FOLLOWED

CONTROLLERS = [actor for actor in Actor if actor.value.startswith("controller:")]
# What has a request of its own, which is not a move.
_OWN_REQUEST = (State.RESERVED, State.BOUND, State.PENDING)
# Requests that one controller alone may send, besides evicting, moving and writing objects: the law
# is in the function that decides each.
_REQUESTS = {
    Actor.NODES: {("update", "nodes/phase")},
    Actor.REPAIR: {("delete", "replicas/reservation"), ("delete", "reservations")},
    Actor.RESERVES: {("create", "reservations"), ("delete", "reservations")},
    Actor.ENDPOINTS: {("update", "replicas/stage")},
    Actor.GARBAGE: {("delete", "operations"), ("delete", "reservations")},
}
# Of the events that every component might tell, these controllers tell some.
_TELLS = {Actor.EVENTS: ("create", "update"), Actor.GARBAGE: ("create",)}


def collected(plural: str) -> set[tuple[str, str]]:
    """controller:garbage collects what it follows, and lets go of what waits for it."""
    verbs = () if plural not in FOLLOWED else ("update", "delete")
    kept = ("tenants", "replicas")
    return {(verb, plural) for verb in verbs if verb == "update" or plural not in kept}


def verbs_on(struct: type[Object], actor: Actor) -> set[str]:
    """How a controller writes objects of a kind, all but their status."""
    writers, found = WRITERS[struct], set[str]()
    if actor in (*writers.spec, *writers.makers):
        found.add("create")
    if actor in (*writers.spec, *writers.removers):
        found.add("delete")
    # What never changes is made and removed, and that is all.
    changes = struct not in (Replica, WorkloadRevision)
    lets_go = any(actor in REMOVERS[name] for name in FINALIZERS.get(struct, ()))
    if lets_go or (changes and actor in writers.spec):
        found.add("update")
    return found


def owned(actor: Actor) -> set[tuple[str, str]]:
    """What the commit's tables let a controller write, independent of the roles."""
    found: set[tuple[str, str]] = set(_REQUESTS.get(actor, set()))
    for struct, writers in WRITERS.items():
        plural = kind_of_struct(struct).plural
        if actor in (*writers.status.values(), *writers.conditions.values()):
            found |= {("update", f"{plural}/status"), ("patch", f"{plural}/status")}
        if actor is Actor.GARBAGE:
            found |= collected(plural)
        elif struct is not Event:
            found |= {(verb, plural) for verb in verbs_on(struct, actor)}
    if actor in CAUSE_OWNER.values():
        found.add(("create", "replicas/eviction"))
    for row in TRANSITIONS:
        is_move = row.source is not None and row.target not in (*_OWN_REQUEST, State.STOPPING)
        if actor in row.actors and is_move:
            found.add(("update", "replicas/state"))
    found |= {(verb, "events") for verb in _TELLS.get(actor, ())}
    return found


def listed(role: str) -> set[tuple[str, str]]:
    """What a role allows to write."""
    return {
        (verb, resource)
        for rule in ROLES[role]
        for verb in rule.verbs
        for resource in rule.resources
        if verb not in READ
    }


@pytest.mark.parametrize("actor", CONTROLLERS)
def test_a_controllers_role_is_what_it_owns_and_nothing_else(actor: Actor) -> None:
    """[C6.7, A9]"""
    assert listed(actor.value.replace(":", "-")) == owned(actor)


def test_every_component_has_a_role_and_every_role_a_component() -> None:
    """[C6.7]"""
    identities = [
        who.agent("n"),
        who.scheduler("s"),
        who.server("s"),
        *(Identity(name=f"system:{actor.value}") for actor in CONTROLLERS),
    ]
    held = {role for identity in identities for role, _ in built_in_roles(identity)}
    assert held == set(COMPONENTS)
    for identity in identities:
        assert acts_as(identity)
        assert all(where == "" for _, where in built_in_roles(identity))


def test_no_rule_of_a_component_has_a_wildcard_where_it_writes() -> None:
    """[C6.7]"""
    for name, rules in COMPONENTS.items():
        for rule in rules:
            if any(verb not in READ for verb in rule.verbs):
                assert "*" not in "".join((*rule.resources, *rule.verbs)), name


@pytest.mark.parametrize("controller", all_controllers(), ids=lambda it: it.name)
def test_a_controller_may_read_what_it_follows(controller: object) -> None:
    """And the collector what they all do, since it reads for them."""
    own, collector = controller.identity, who.controller("garbage").name  # type: ignore[attr-defined]
    for name in (own, collector):
        grants = built_in_grants(Identity(name=name))
        for plural in controller.follows:  # type: ignore[attr-defined]
            for verb in READ:
                assert find_grant(grants, Permission(verb, plural)) is not None, plural
    secrets = find_grant(
        built_in_grants(Identity(name=own)), Permission("get", "secrets", "", "acme")
    )
    assert (secrets is not None) is (own == collector)


def test_a_scheduler_may_read_what_it_follows_and_no_secret() -> None:
    grants = built_in_grants(who.scheduler("s"))
    for plural in SCHEDULERS_FOLLOWED:
        assert find_grant(grants, Permission("watch", plural)) is not None
    assert find_grant(grants, Permission("get", "secrets", namespace="acme")) is None


def test_roles_name_nothing_that_there_is_not() -> None:
    plurals = {kind.plural for kind in KINDS}
    parts = {
        "pulses",
        "records",
        "targets",
        "heartbeats",
        "operations",
        "quarantine",
        "upgrade",
        "auditrecords",
        "users",
        "groups",
        "serviceaccounts",
    }
    for name, rules in ROLES.items():
        for rule in rules:
            if rule.api_groups:
                continue
            for resource in rule.resources:
                plural = resource.partition("/")[0]
                known = plural in plurals or plural in parts or plural == "*"
                assert known or name in ("auditor", "operator", "monitor"), (name, resource)


def test_what_is_built_in_is_valid_as_objects() -> None:
    shown = list(built_in_objects())
    assert len(shown) == len(ROLES) + len(HELD_BY)
    for obj in shown:
        assert validate(obj) == ()


def test_a_tenants_claim_is_an_editor_there_and_nowhere_else() -> None:
    ann = Identity(name="ann", tenants=("acme", "", SYSTEM_NAMESPACE, "*"))
    assert ("tenant-editor", "acme") in built_in_roles(ann)
    where = [place for role, place in built_in_roles(ann) if role == "tenant-editor"]
    assert where == ["acme", "*"]


def test_only_administrators_have_everything() -> None:
    everything = Permission("*", "*", namespace="acme", group="*")
    for role, rules in PEOPLE.items():
        grants = [GrantedRule(rule) for rule in rules]
        assert (find_grant(grants, everything) is not None) is (role == "admin")
    assert find_grant(built_in_grants(Identity("a", (ADMINS,))), everything) is not None
    assert find_grant(built_in_grants(Identity("system:node:a", (ADMINS,))), everything) is None
