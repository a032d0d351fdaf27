"""Hostile people never gain a right that they could not use anyway, inside a tenant or outside.

Each story has one coalition. Its members write random Tokens, Roles and RoleBindings, in their own
tenant and elsewhere, as themselves and as whatever their tokens speak for. Afterwards every
identity has, in the tenant, what it had before or what the members had together, with all that they
were allowed to speak for; and outside of it, what it had before.

Stories are drawn from a seed and not by hypothesis, and rights are counted on the ledgers that
decide about writes: ten thousand writes take seconds, so that every run makes them.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from holdfast.commit.access import escalation
from holdfast.host.server import authentication
from holdfast.host.server.authentication import from_token, secret_hash
from holdfast.model import keys
from holdfast.model.access.identity import ADMINS, AUDITORS, OPERATORS, Identity
from holdfast.model.access.rights import NOTHING, GrantedRule, Permission, find_grant, granted_rules
from holdfast.model.access.roles import PEOPLE, built_in_grants
from holdfast.model.kinds.access import Role, RoleBinding, RoleRef, Rule, Subject, Token, TokenSpec
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import Accepted, Create, Update
from holdfast.model.validation import access
from tests.plane import Plane
from tests.scale import scaled

HOME, AWAY = "acme", "globex"
SECRET = "s" * 43
HASH = secret_hash(SECRET)
# How many writes one story has; stories times writes is the number of cases.
WRITES, STORIES = 25, scaled(420, 4_200)

GROUPS = tuple(f"tenant:acme:{name}" for name in ("admins", "readers", "g0"))
USERS = tuple(f"tenant:acme:{name}" for name in ("bot", "deployer", "x"))
OF_TENANTS = ("tenant:globex", "tenant:*", "tenant:globex:x", "tenant:acme")
FOREIGN = (ADMINS, OPERATORS, AUDITORS, "devs", *OF_TENANTS)
ANN = Identity("ann", ("tenant:acme",), (HOME,))
OTHERS = (Identity("bob"), Identity("bob", ("devs",)), *map(Identity, USERS))

SMALL = (Rule(("secrets",), ("get",)),)
TOKENS = Rule(("tokens",), ("create", "update"))
WRITERS = Rule(("roles", "rolebindings"), ("create", "update"))
# Who may be in a coalition, with the rules that each has in the tenant beside what is bound below.
PEOPLE_OF_HOME: dict[str, tuple[Rule, ...]] = {
    "maya": PEOPLE["tenant-admin"],
    "eddy": PEOPLE["tenant-editor"],
    # Speaks for every service account, and for no group.
    "tess": (TOKENS, Rule(("serviceaccounts",), ("impersonate",))),
    # Speaks for one service account and for one group.
    "nora": (
        TOKENS,
        Rule(("serviceaccounts",), ("impersonate",), (), ("tenant:acme:bot",)),
        Rule(("groups",), ("impersonate",), (), ("tenant:acme:readers",)),
    ),
    # Writes roles and bindings, and has little to give.
    "rolf": (WRITERS, *SMALL),
    # Speaks for all groups and gives what it has.
    "gus": (TOKENS, WRITERS, Rule(("serviceaccounts", "groups"), ("impersonate",))),
}
COALITIONS = (
    (Identity("maya"), Identity("eddy"), ANN),
    (Identity("tess"),),
    (Identity("nora"),),
    (Identity("rolf"),),
    (Identity("gus"),),
    (Identity("tess"), Identity("rolf")),
    (Identity("nora"), Identity("eddy")),
)
# What an administrator has bound before: an escalation for a caller that can speak for these.
BOUND = {
    "admins": (Subject("Group", "tenant:acme:admins"), "tenant-admin"),
    "readers": (Subject("Group", "tenant:acme:readers"), "tenant-viewer"),
    "deployer": (Subject("ServiceAccount", "deployer", HOME), "tenant-editor"),
}

VERBS = ("get", "create", "delete", "impersonate", "escalate", "bind")
THINGS = (("secrets", ""), ("roles", ""), ("tokens", ""), ("replicas", "exec"))


def deeds(*namespaces: str) -> tuple[Permission, ...]:
    """A choice of all that a caller could do there."""
    common = [
        Permission(verb, resource, part, namespace, "x")
        for verb in VERBS
        for resource, part in THINGS
        for namespace in namespaces
    ]
    spoken = [
        Permission("impersonate", resource, "", namespace, name)
        for resource, names in (("groups", (*GROUPS, ADMINS)), ("serviceaccounts", USERS))
        for name in names
        for namespace in namespaces
    ]
    return (*common, *spoken)


INSIDE, OUTSIDE = deeds(HOME), deeds(AWAY, SYSTEM_NAMESPACE, "")


# What any caller may do ---------------------------------------------------------------------------


class Held:
    """The rights on a plane as they are now."""

    def __init__(self, plane: Plane) -> None:
        places = (SYSTEM_NAMESPACE, HOME, AWAY)
        self.ledgers = {it: plane.read(keys.access_ledger(it)) or NOTHING for it in places}

    def grants(self, identity: Identity) -> list[GrantedRule]:
        found, system = list(built_in_grants(identity)), self.ledgers[SYSTEM_NAMESPACE]
        for place, ledger in self.ledgers.items():
            found += granted_rules(identity, place, ledger, system, PEOPLE)
        return found

    def outside(self, identity: Identity) -> frozenset[Permission]:
        return permitted(self.grants(identity), OUTSIDE)

    def inside(self, identity: Identity) -> frozenset[Permission]:
        return permitted(self.grants(identity), INSIDE)

    def together(self, members: tuple[Identity, ...]) -> frozenset[Permission]:
        """What the members may do in the tenant with all that they may speak for, step by step."""
        held = [grant for member in members for grant in self.grants(member)]
        names = dict.fromkeys((*USERS, *GROUPS))
        while True:
            new = [name for name in names if _is_spoken(held, name)]
            if not new:
                return permitted(held, INSIDE)
            for name in new:
                del names[name]
                is_user = name in USERS
                one = Identity(name) if is_user else Identity("plain", (name,))
                held += self.grants(one)


def _is_spoken(held: list[GrantedRule], name: str) -> bool:
    resource = "serviceaccounts" if name in USERS else "groups"
    wanted = (
        Permission("create", "tokens", "", HOME),
        Permission("impersonate", resource, "", HOME, name),
    )
    return all(find_grant(held, deed) is not None for deed in wanted)


def permitted(grants: list[GrantedRule], of: tuple[Permission, ...]) -> frozenset[Permission]:
    return frozenset(deed for deed in of if find_grant(grants, deed) is not None)


# What they write ----------------------------------------------------------------------------------


def group_list(rng: random.Random) -> tuple[str, ...]:
    """Mostly short lists; some of lengths around every bound, some with a foreign group."""
    length = rng.choice((0, 0, 1, 1, 2, 3, 31, 63, 64, 65, 257))
    groups = list(rng.sample(GROUPS, min(length, len(GROUPS))))
    groups += [f"tenant:acme:g{n + 1}" for n in range(length - len(groups))]
    if rng.random() < 0.3:
        groups.insert(rng.randint(0, length), rng.choice(FOREIGN))
    return tuple(groups)


def token(rng: random.Random, namespace: str) -> Token:
    user = rng.choice((*USERS, *USERS, "root", "maya", "system:node:a"))
    spec = TokenSpec(user=user, groups=group_list(rng), hash=HASH)
    return Token(ObjectMeta(name=f"t{rng.randrange(12)}", namespace=namespace), spec=spec)


def rule(rng: random.Random) -> Rule:
    return Rule(
        rng.choice((("secrets",), ("*",), ("roles", "rolebindings"), ("groups",), ("tokens",))),
        rng.choice((("get",), ("*",), ("bind", "escalate"), ("impersonate",), ("create",))),
        rng.choice(((), (), ("*",))),
    )


def role(rng: random.Random, namespace: str) -> Role:
    # Most of what is drawn is more than the author has, so that few would come into being.
    said = SMALL if rng.random() < 0.5 else tuple(rule(rng) for _ in range(rng.randint(1, 2)))
    return Role(ObjectMeta(name=rng.choice(("r1", "r2")), namespace=namespace), rules=said)


SUBJECTS = (
    *(Subject("User", name) for name in ("maya", "bob", *PEOPLE_OF_HOME, *USERS)),
    *(Subject("Group", name) for name in ("devs", "system:authenticated", *GROUPS)),
    Subject("ServiceAccount", "bot", HOME),
)
ROLES = ("r1", "r1", "r2", "admin", "operator", "tenant-admin", "tenant-editor", "tenant-viewer")


def binding(rng: random.Random, namespace: str) -> RoleBinding:
    role = rng.choice(ROLES)
    place = rng.choice(("", SYSTEM_NAMESPACE)) if role[0] == "r" else SYSTEM_NAMESPACE
    meta = ObjectMeta(name=rng.choice(("b1", "b2", "b3")), namespace=namespace)
    whom = rng.choice(SUBJECTS)
    return RoleBinding(meta, subjects=(whom,), role_ref=RoleRef(role, place))


def story(seed: int) -> tuple[tuple[Identity, ...], list[tuple[int, Object]]]:
    """Who plays, and what they write one after another: whose turn it is, and the object."""
    rng = random.Random(seed)
    members = COALITIONS[seed % len(COALITIONS)]
    steps: list[tuple[int, Object]] = []
    for _ in range(WRITES):
        make = rng.choice((token, token, role, binding))
        namespace = rng.choice((HOME, HOME, HOME, HOME, AWAY, SYSTEM_NAMESPACE))
        steps.append((rng.randrange(1000), make(rng, namespace)))
    return members, steps


# How it is played ---------------------------------------------------------------------------------


def hostile_plane() -> Plane:
    plane = Plane()
    for tenant in (HOME, AWAY):
        plane.tenant(tenant)
    for name, rules in PEOPLE_OF_HOME.items():
        plane.create(Role(ObjectMeta(name=name, namespace=HOME), rules=rules))
        bind(plane, name, Subject("User", name), RoleRef(name))
    plane.create(Role(ObjectMeta(name="r1", namespace=HOME), rules=SMALL))
    for name, (whom, given) in BOUND.items():
        bind(plane, name, whom, RoleRef(given, SYSTEM_NAMESPACE))
    return plane


def bind(plane: Plane, name: str, whom: Subject, given: RoleRef) -> None:
    meta = ObjectMeta(name=name, namespace=HOME)
    plane.create(RoleBinding(meta, subjects=(whom,), role_ref=given))


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


def play(
    plane: Plane, members: tuple[Identity, ...], steps: list[tuple[int, Object]]
) -> Counter[str]:
    """Let the coalition write all of this, then look at what everyone may do."""
    before = Held(plane)
    together, plain = before.together(members), Identity("plain")
    able, accepted = list(members), Counter[str]()
    for number, obj in steps:
        # Every other author is the first, who may do most.
        author = members[0] if number % 2 else able[number // 2 % len(able)]
        made = written(plane, author, obj)
        if made is None:
            continue
        accepted[type(made).__name__] += 1
        spoken = speaker(made) if isinstance(made, Token) else None
        if spoken is not None and spoken not in able:
            able.append(spoken)
    after = Held(plane)
    for identity in dict.fromkeys((*OTHERS, *able)):
        # An identity made by a token had nothing before but what every caller has.
        was = identity if identity in (*OTHERS, *members) else plain
        assert after.outside(identity) <= before.outside(was), identity
        assert after.inside(identity) <= before.inside(was) | together, identity
    return accepted


def play_all(stories: int) -> Counter[str]:
    """Play this many stories, each from the same start."""
    accepted: Counter[str] = Counter()
    plane = hostile_plane()
    start = plane.store.copy()
    for seed in range(stories):
        plane.store = start.copy()
        plane.authority = plane.new_authority()
        try:
            accepted.update(play(plane, *story(seed)))
        except AssertionError as error:
            error.add_note(f"play(hostile_plane(), *story({seed})) plays it again")
            raise
    return accepted


def test_ten_thousand_hostile_writes_give_no_one_more_rights() -> None:
    assert STORIES * WRITES >= 10_000
    accepted = play_all(STORIES)
    # Coalitions of which everything is refused would show nothing.
    for kind in ("Token", "Role", "RoleBinding"):
        assert accepted[kind] >= STORIES // 4, accepted


def test_the_check_notices_a_list_that_is_looked_at_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flaw as it was: 256 groups looked at, and nothing said of more."""

    def in_part(at: Any, obj: Token) -> None:
        for group in obj.spec.groups[:256]:
            if not group.startswith(access.tenant_prefix(obj.namespace)):
                at["groups"].wrong(group, "foreign")

    for place in (access, escalation, authentication):
        monkeypatch.setattr(place, "GROUPS_MAX", 10_000)
    monkeypatch.setattr(access, "own_identities", in_part)
    monkeypatch.setattr(escalation, "foreign_groups", lambda token: ())
    monkeypatch.setattr(authentication, "speaks_for_others", lambda token: False)
    groups = (*(f"tenant:acme:g{n}" for n in range(256)), ADMINS)
    spec = TokenSpec(user="tenant:acme:bot", groups=groups, hash=HASH)
    attack = Token(ObjectMeta(name="t", namespace=HOME), spec=spec)
    with pytest.raises(AssertionError):
        play(hostile_plane(), (Identity("maya"),), [(1, attack)])


def test_the_check_notices_that_any_user_may_be_in_a_tenants_own_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flaw as it was: who spoke for service accounts could be in any group of the tenant."""
    wanted = escalation.needed_impersonations

    def without_groups(token: Token) -> list[Permission]:
        return [it for it in wanted(token) if (it.resource, it.namespace) != ("groups", HOME)]

    monkeypatch.setattr(escalation, "needed_impersonations", without_groups)
    with pytest.raises(AssertionError):
        play_all(50)
