"""A coalition of hostile people in one tenant never gains a right outside of it.

They write random Tokens, Roles and RoleBindings, here and elsewhere, as themselves and as whatever
their tokens speak for. Afterwards every identity that they can be has, outside their tenant, what
it had before; and a token speaks for nothing that its author could not do.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commit import escalation
from holdfast.host import authentication
from holdfast.host.authentication import from_token, hashed
from holdfast.model.identity import ADMINS, AUDITORS, OPERATORS, Identity
from holdfast.model.kinds.role import Role, RoleBinding, RoleRef, Rule, Subject
from holdfast.model.kinds.token import Token, TokenSpec
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import Accepted, Create, Update
from holdfast.model.rights import Deed
from holdfast.model.validation import access
from tests.plane import Plane
from tests.rights_rig import rights_on
from tests.scale import examples

HOME, AWAY = "acme", "globex"
SECRET = "s" * 43
ADMIN_OF_HOME = Identity("maya")
COALITION = (ADMIN_OF_HOME, Identity("eddy"), Identity("ann", ("tenant:acme",), (HOME,)))
OTHERS = (Identity("bob"), Identity("bob", ("devs",)), Identity("tenant:acme:bot"))
# One hostile example makes this many writes; examples times writes is the number of cases.
WRITES, EXAMPLES = 25, examples(420)

DEEDS = tuple(
    Deed(verb, resource, part, namespace, "x")
    for verb in ("get", "create", "delete", "impersonate", "escalate", "bind")
    for resource, part in (("secrets", ""), ("roles", ""), ("replicas", "exec"), ("groups", ""))
    for namespace in (AWAY, SYSTEM_NAMESPACE, "")
)

namespaces = st.sampled_from((HOME, HOME, HOME, AWAY, SYSTEM_NAMESPACE))
foreign = st.sampled_from(
    (
        ADMINS,
        OPERATORS,
        AUDITORS,
        "tenant:globex",
        "tenant:*",
        "tenant:globex:x",
        "devs",
        "tenant:acme",
    )
)


@st.composite
def group_lists(draw: st.DrawFn) -> tuple[str, ...]:
    """Mostly harmless lists of lengths around every bound, with a foreign group anywhere."""
    length = draw(st.sampled_from((0, 1, 2, 31, 32, 63, 64, 65, 255, 256, 257)))
    groups = [f"tenant:acme:g{n}" for n in range(length)]
    if draw(st.booleans()):
        groups.insert(draw(st.integers(0, length)), draw(foreign))
    return tuple(groups)


rules = st.builds(
    Rule,
    resources=st.sampled_from((("secrets",), ("*",), ("roles", "rolebindings"), ("groups",))),
    verbs=st.sampled_from((("get",), ("*",), ("bind", "escalate"), ("impersonate",), ("create",))),
    api_groups=st.sampled_from(((), ("*",))),
)
tokens = st.builds(
    lambda namespace, name, user, groups: Token(
        ObjectMeta(name=name, namespace=namespace),
        spec=TokenSpec(user=user, groups=groups, hash=hashed(SECRET)),
    ),
    namespaces,
    st.sampled_from(("t1", "t2", "t3")),
    st.sampled_from(("tenant:acme:bot", "tenant:acme:x", "root", "maya", "system:node:a")),
    group_lists(),
)
roles = st.builds(
    lambda namespace, name, said: Role(ObjectMeta(name=name, namespace=namespace), rules=said),
    namespaces,
    st.sampled_from(("r1", "r2")),
    # Most of what the lists give is more than the author has, so that few would come into being.
    st.one_of(
        st.just((Rule(("secrets",), ("get",)),)), st.lists(rules, min_size=1, max_size=2)
    ).map(tuple),
)
subjects = st.sampled_from(
    (
        Subject("User", "maya"),
        Subject("User", "bob"),
        Subject("User", "tenant:acme:bot"),
        Subject("Group", "devs"),
        Subject("Group", "system:authenticated"),
        Subject("Group", "tenant:acme:g0"),
        Subject("ServiceAccount", "bot", HOME),
    )
)
bindings = st.builds(
    lambda namespace, name, whom, role, place: RoleBinding(
        ObjectMeta(name=name, namespace=namespace), subjects=(whom,), role_ref=RoleRef(role, place)
    ),
    namespaces,
    st.sampled_from(("b1", "b2")),
    subjects,
    st.sampled_from(("r1", "r2", "admin", "operator", "tenant-admin", "tenant-editor")),
    st.sampled_from(("", SYSTEM_NAMESPACE)),
)
writes = st.lists(
    st.tuples(st.integers(0, 99), st.one_of(tokens, tokens, roles, bindings)),
    min_size=WRITES,
    max_size=WRITES,
)


def hostile_plane() -> Plane:
    plane = Plane()
    for tenant in (HOME, AWAY):
        plane.tenant(tenant)
    for name, role in (("maya", "tenant-admin"), ("eddy", "tenant-editor")):
        plane.create(
            RoleBinding(
                ObjectMeta(name=name, namespace=HOME),
                subjects=(Subject("User", name),),
                role_ref=RoleRef(role, SYSTEM_NAMESPACE),
            )
        )
    return plane


def outside(plane: Plane, identity: Identity) -> frozenset[Deed]:
    """What an identity may do outside of the tenant."""
    rights = rights_on(plane.store)
    return frozenset(deed for deed in DEEDS if rights.may(identity, deed))


def speaker(token: Token) -> Identity | None:
    """Whom a server takes the bearer of this token for."""
    header = f"Bearer {token.namespace}.{token.name}.{SECRET}"
    try:
        return from_token(header, lambda *_: token, token.metadata.creation_timestamp)
    except authentication.Forbidden:
        return None


def written(plane: Plane, author: Identity, obj: Object) -> Object | None:
    """The object after this author created or replaced it; None if that was refused."""
    answer = plane.ask(author, Create(obj))
    if isinstance(answer, Refusal) and answer.reason is Reason.EXISTS:
        answer = plane.ask(author, Update(obj))
    return answer.objects[0] if isinstance(answer, Accepted) else None


def play(steps: list[tuple[int, Object]]) -> Counter[str]:
    """Let the coalition write all of this, then look at what everyone may do."""
    plane = hostile_plane()
    everyone = [*COALITION, *OTHERS]
    before = {identity: outside(plane, identity) for identity in everyone}
    plain = outside(plane, Identity("plain"))
    able = list(COALITION)
    accepted: Counter[str] = Counter()
    for number, obj in steps:
        # Every other author is the one who may do most.
        author = ADMIN_OF_HOME if number % 2 else able[number // 2 % len(able)]
        made = written(plane, author, obj)
        if made is None:
            continue
        accepted[type(made).__name__] += 1
        spoken = speaker(made) if isinstance(made, Token) else None
        if spoken is not None and spoken not in able:
            able.append(spoken)
    for identity in (*everyone, *able):
        assert outside(plane, identity) <= before.get(identity, plain), identity
    return accepted


def test_a_tenants_people_gain_nothing_outside_of_it() -> None:
    """[B5, C6.8]"""
    accepted: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(steps=writes)
    def attack(steps: list[tuple[int, Object]]) -> None:
        accepted.update(play(steps))

    attack()
    # A coalition of which everything is refused would show nothing.
    for kind in ("Token", "Role", "RoleBinding"):
        assert accepted[kind] >= EXAMPLES // 10, accepted


def test_the_check_notices_a_list_that_is_looked_at_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flaw as it was: 256 groups looked at, and nothing said of more."""

    def in_part(at: Any, obj: Token) -> None:
        for group in obj.spec.groups[:256]:
            if not group.startswith(access.tenant_prefix(obj.namespace)):
                at["groups"].wrong(group, "foreign")

    monkeypatch.setattr(access, "GROUPS_MAX", 10_000)
    monkeypatch.setattr(access, "_own_identities", in_part)
    monkeypatch.setattr(escalation, "foreign_groups", lambda token: ())
    monkeypatch.setattr(authentication, "GROUPS_MAX", 10_000)
    monkeypatch.setattr(authentication, "speaks_for_others", lambda token: False)
    groups = (*(f"tenant:acme:g{n}" for n in range(256)), ADMINS)
    spec = TokenSpec(user="tenant:acme:bot", groups=groups, hash=hashed(SECRET))
    attack = Token(ObjectMeta(name="t", namespace=HOME), spec=spec)
    with pytest.raises(AssertionError):
        play([(1, attack)])
