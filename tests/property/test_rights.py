"""What a review says is what happens: random roles and bindings, three ways to the same answer.

The oracle below reads the objects themselves, rule by rule, as Kubernetes describes it. The access
review goes through the server's view (`host/server/caller_rights`), the deed itself through the
authority with its ledgers (`commit/access/authorize`). All three must agree, for every identity and
everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from holdfast.host.api.plane import access_reviews
from holdfast.model.access.identity import ADMINS, AUDITORS, OPERATORS, Identity
from holdfast.model.access.rights import GrantedRule, Permission, find_grant, first_uncovered
from holdfast.model.access.roles import COMPONENTS, HELD_BY, PEOPLE
from holdfast.model.kinds.access import Role, RoleBinding, RoleRef, Rule, Subject
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import Quota, Tenant
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of_plural
from holdfast.model.requests import Create, Patch, PatchType, Remove, Update
from tests.plane import Plane, template
from tests.rights_rig import rights_on
from tests.scale import examples

NAMESPACES = ("acme", "globex", SYSTEM_NAMESPACE)
NAMES = ("web", "api")
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
WHAT = ("workloads", "workloads/scale", "quotas", "tenants", "secrets")
IDENTITIES = (
    Identity("bob"),
    Identity("bob", ("devs",)),
    Identity("amy", ("devs", "ops")),
    Identity("tenant:acme:bot"),
    Identity("ann", ("tenant:acme",), ("acme",)),
    Identity("zoe", (), ("*",)),
    Identity("root", (ADMINS,)),
    Identity("oz", (OPERATORS,)),
    Identity("eve", (AUDITORS,)),
    Identity("system:anonymous", (ADMINS,), ("*",)),
    Identity("system:node:bob", ("devs",)),
)
# What the door says no with; whatever comes behind it means that it was open.
NO = (Reason.NOT_ALLOWED, Reason.NOT_OWNER, Reason.UNAUTHENTICATED)

some_rules = st.lists(
    st.builds(
        Rule,
        resources=st.lists(
            st.sampled_from((*WHAT, "*", "*/scale", "workloads/*", "nodes")),
            min_size=1,
            max_size=2,
            unique=True,
        ).map(tuple),
        verbs=st.lists(st.sampled_from((*VERBS, "*")), min_size=1, max_size=3, unique=True).map(
            tuple
        ),
        api_groups=st.sampled_from(((), ("holdfast.dev",), ("*",), ("apps",))),
        resource_names=st.sampled_from(((), (), (), ("web",), NAMES)),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
some_roles = st.dictionaries(
    st.tuples(st.sampled_from(NAMESPACES), st.sampled_from(("r1", "r2"))), some_rules, max_size=4
)
some_subjects = st.lists(
    st.sampled_from(
        (
            Subject("User", "bob"),
            Subject("User", "amy"),
            Subject("Group", "devs"),
            Subject("Group", "system:authenticated"),
            Subject("ServiceAccount", "bot"),
            Subject("ServiceAccount", "bot", "acme"),
        )
    ),
    min_size=1,
    max_size=2,
    unique=True,
).map(tuple)
some_bindings = st.dictionaries(
    st.tuples(st.sampled_from(NAMESPACES), st.sampled_from(("b1", "b2"))),
    st.tuples(
        some_subjects,
        st.sampled_from(("r1", "r2", "tenant-editor", "ghost")),
        st.sampled_from(("", SYSTEM_NAMESPACE)),
    ),
    max_size=4,
)
some_deeds = st.lists(
    st.tuples(
        st.sampled_from(VERBS),
        st.sampled_from(WHAT),
        st.sampled_from(NAMESPACES),
        st.sampled_from(NAMES),
    ),
    min_size=1,
    max_size=8,
)

Roles = dict[tuple[str, str], tuple[Rule, ...]]
Bindings = dict[tuple[str, str], tuple[tuple[Subject, ...], str, str]]


# The oracle ---------------------------------------------------------------------------------------


def matches(rule: Rule, deed: Permission) -> bool:
    named = {deed.what, "*"}
    if deed.subresource:
        named |= {f"*/{deed.subresource}", f"{deed.resource}/*"}
    return (
        bool({deed.verb, "*"} & set(rule.verbs))
        and bool(named & set(rule.resources))
        and bool({"holdfast.dev", "*"} & set(rule.api_groups or ("holdfast.dev",)))
        and (not rule.resource_names or deed.name in rule.resource_names)
    )


def is_meant(subject: Subject, namespace: str, identity: Identity) -> bool:
    match subject.kind:
        case "User":
            return subject.name == identity.name
        case "Group":
            return subject.name in (*identity.groups, "system:authenticated")
    return identity.name == f"tenant:{subject.namespace or namespace}:{subject.name}"


def rules_for(
    identity: Identity, namespace: str, roles: Roles, bindings: Bindings
) -> Iterator[Rule]:
    """All rules that hold for an identity in a namespace, or in the cluster without one."""
    for role, group in HELD_BY.items():
        if group in (*identity.groups, "system:authenticated"):
            yield from PEOPLE[role]
    is_tenants = namespace not in ("", SYSTEM_NAMESPACE)
    if is_tenants and {namespace, "*"} & set(identity.tenants):
        yield from PEOPLE["tenant-editor"]
    for (place, _), (subjects, role, of) in bindings.items():
        is_here = place in (SYSTEM_NAMESPACE, namespace)
        if is_here and any(is_meant(subject, place, identity) for subject in subjects):
            where = of or place
            built_in = PEOPLE.get(role, ()) if where == SYSTEM_NAMESPACE else ()
            yield from roles.get((where, role), built_in)


def allowed(identity: Identity, deed: Permission, roles: Roles, bindings: Bindings) -> bool:
    """The rules of every binding that means the identity, where it holds; nothing else."""
    rules: Iterable[Rule] = COMPONENTS["node"] if identity.node is not None else ()
    if not identity.name.startswith("system:"):
        rules = rules_for(identity, deed.namespace, roles, bindings)
    return any(matches(rule, deed) for rule in rules)


# The deed itself ----------------------------------------------------------------------------------


def thing(plural: str, namespace: str, name: str) -> Object:
    meta = ObjectMeta(name=name, namespace=namespace)
    match plural:
        case "workloads":
            return Workload(meta, spec=WorkloadSpec(template=template()))
        case "quotas":
            return Quota(meta)
        case "secrets":
            return Secret(meta)
    return Tenant(ObjectMeta(name=name))


def request(deed: Permission) -> Any:
    """The request that does this, if only to see what becomes of it; None for a read."""
    obj = thing(deed.resource, deed.namespace, deed.name)
    match deed.verb:
        case "create" if not deed.subresource:
            return Create(obj, dry_run=True)
        case "update":
            return Update(obj, deed.subresource, dry_run=True)
        case "patch":
            change = {"metadata": {"labels": {"a": "b"}}}
            merge, part = PatchType.MERGE, deed.subresource
            at = (deed.resource, deed.namespace, deed.name)
            return Patch(*at, merge, change, part, dry_run=True)
        case "delete" | "deletecollection" if not deed.subresource:
            many = deed.verb == "deletecollection"
            at = (deed.resource, deed.namespace, deed.name)
            return Remove(*at, dry_run=True, collection=many)
    return None


def furnished(roles: Roles, bindings: Bindings) -> Plane:
    plane = Plane()
    for name in ("acme", "globex"):
        plane.tenant(name)
        plane.create(thing("workloads", name, "web"))
    for (namespace, name), rules in roles.items():
        plane.create(Role(ObjectMeta(name=name, namespace=namespace), rules=rules))
    for (namespace, name), (subjects, role, place) in bindings.items():
        meta = ObjectMeta(name=name, namespace=namespace)
        plane.create(RoleBinding(meta, subjects=subjects, role_ref=RoleRef(role, place)))
    return plane


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    roles=some_roles,
    bindings=some_bindings,
    callers=st.lists(st.sampled_from(IDENTITIES), min_size=1, max_size=3, unique=True),
    deeds=some_deeds,
)
def test_a_review_says_what_the_api_does(
    roles: Roles, bindings: Bindings, callers: list[Identity], deeds: list[Any]
) -> None:
    plane = furnished(roles, bindings)
    rights = rights_on(plane.store)
    for identity in callers:
        for verb, what, place, name in deeds:
            resource, _, part = what.partition("/")
            namespace = place if kind_of_plural(resource).namespaced else ""
            nameless = verb in ("list", "watch", "deletecollection") or (
                verb == "create" and not part
            )
            deed = Permission(verb, resource, part, namespace, "" if nameless else name)
            expected = allowed(identity, deed, roles, bindings)
            assert rights.may(identity, deed) is expected, (identity, deed)
            event(f"{'yes' if expected else 'no'}")
            asked = access_reviews.Attributes(
                verb, "holdfast.dev", resource, namespace, part, deed.name
            )
            said, reason = access_reviews.judge(rights, identity, asked)
            # A review says no also to what there is not, such as watching a scale.
            assert said is expected or (expected and "does not support the verb" in reason), (
                identity,
                deed,
                reason,
            )
            if verb in ("get", "list", "watch"):
                continue
            sent = request(Permission(verb, resource, part, namespace, name))
            if sent is None:
                continue
            answer = plane.ask(identity, sent)
            refused = isinstance(answer, Refusal) and answer.reason in NO
            assert refused is not said, (identity, deed, answer)


@settings(max_examples=examples(120), deadline=None)
@given(
    roles=some_roles, bindings=some_bindings, wanted=some_rules, place=st.sampled_from(NAMESPACES)
)
def test_a_role_is_written_by_those_alone_who_have_all_of_it(
    roles: Roles, bindings: Bindings, wanted: tuple[Rule, ...], place: str
) -> None:
    """Whatever a new role allows, its writer may do without it."""
    plane = furnished(roles, bindings)
    makers = RoleRef("makers", SYSTEM_NAMESPACE)
    may_make = (Rule(("roles",), ("create",)),)
    plane.create(Role(ObjectMeta(name="makers", namespace=SYSTEM_NAMESPACE), rules=may_make))
    plane.create(
        RoleBinding(
            ObjectMeta(name="makers", namespace=SYSTEM_NAMESPACE),
            subjects=(Subject("User", "bob"),),
            role_ref=makers,
        )
    )
    bob = Identity("bob", ("devs",))
    made = Create(Role(ObjectMeta(name="new", namespace=place), rules=wanted))
    answer = plane.ask(bob, made)
    if isinstance(answer, Refusal):
        assert answer.reason is Reason.NOT_ALLOWED
        return
    roles = {**roles, (SYSTEM_NAMESPACE, "makers"): may_make}
    bindings = {
        **bindings,
        (SYSTEM_NAMESPACE, "makers"): ((Subject("User", "bob"),), "makers", ""),
    }
    scopes = NAMESPACES if place == SYSTEM_NAMESPACE else (place,)
    for verb in VERBS:
        for what in (*WHAT, "nodes"):
            for namespace in scopes:
                for name in ("", *NAMES):
                    resource, _, part = what.partition("/")
                    deed = Permission(verb, resource, part, namespace, name)
                    if any(matches(rule, deed) for rule in wanted):
                        assert allowed(bob, deed, roles, bindings), deed


@settings(max_examples=examples(300))
@given(mine=some_rules, wanted=some_rules)
def test_what_covers_allows_all_that_is_covered(
    mine: tuple[Rule, ...], wanted: tuple[Rule, ...]
) -> None:
    grants = [GrantedRule(rule) for rule in mine]
    missing = first_uncovered(grants, wanted, "")
    assert first_uncovered([GrantedRule(rule) for rule in wanted], wanted, "") == ""
    if missing:
        return
    for verb in (*VERBS, "frobnicate"):
        for what in (*WHAT, "nodes", "nodes/scale", "workloads/other"):
            for name in ("", *NAMES, "other"):
                resource, _, part = what.partition("/")
                deed = Permission(verb, resource, part, "acme", name)
                if find_grant([GrantedRule(rule) for rule in wanted], deed) is not None:
                    assert find_grant(grants, deed) is not None, deed
