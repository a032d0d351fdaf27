"""The cost of access control: rights, isolation, encryption, and the longest blocking request.

Other parts add their figures here: a function in `FIGURES` each, which calls `figure`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from bench import guard_encrypt, isolation
from bench.harness import figure, side_by_side
from holdfast.commit.access.authorize import is_permitted
from holdfast.commit.draft import CommitGroup, Draft, SeenRecords
from holdfast.commit.record_encoding import encode
from holdfast.model import keys
from holdfast.model.access.identity import Identity
from holdfast.model.access.rights import Permission, ledger_of
from holdfast.model.kinds.access import Role, RoleBinding, RoleRef, Rule, Subject
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.transaction import Record
from tests.unit.host.api.metered_server import metered_server
from tests.unit.host.api.test_app_loop_turns import HOLD_MAX, ONE, REQUESTS

FEW_BINDINGS, MANY_BINDINGS = 10, 1_000
GROUPS_MAX = 64
OBJECTS = 200_000
CREATE = Permission("create", "workloads", namespace="acme")
RULES = (Rule(("workloads",), ("create", "update", "patch")),)


def draft(bindings: int, group: str) -> Draft:
    """A draft of a plane with role bindings in one namespace, one of them for a group."""
    meta = ObjectMeta(name="editors", namespace="acme")
    made = []
    for number in range(bindings):
        subject = Subject("User", f"user-{number}") if number else Subject("Group", group)
        named = ObjectMeta(name=f"binding-{number}", namespace="acme")
        made.append(RoleBinding(named, subjects=(subject,), role_ref=RoleRef("editors")))
    random.Random(1).shuffle(made)
    view, key = SeenRecords(), keys.access_ledger("acme")
    ledger = encode(ledger_of("acme", [Role(meta, rules=RULES)], made))
    view.learn(key, Record(key=key, value=ledger, created=1, modified=1))
    view.learn(keys.access_ledger(SYSTEM_NAMESPACE), None)
    return Draft(CommitGroup(view))


def authorise() -> None:
    """A person whose last group grants access, beside one with a single group."""
    one = Identity("bob", ("editors-of-acme",))
    many = Identity("bob", (*(f"group-{n}" for n in range(GROUPS_MAX - 1)), "editors-of-acme"))
    small, large = draft(FEW_BINDINGS, one.groups[-1]), draft(MANY_BINDINGS, one.groups[-1])
    many_s, one_s = side_by_side(
        lambda: is_permitted(large, many, CREATE), lambda: is_permitted(small, one, CREATE)
    )
    known = {one: True}
    _, bare_s = side_by_side(lambda: is_permitted(small, one, CREATE), lambda: known.get(one))
    figure(
        "guard.authorise_us",
        1e6 * one_s,
        "us",
        peer="one lookup",
        peer_value=1e6 * bare_s,
        goal="<= 100",
    )
    figure(
        "guard.authorise_many_us",
        1e6 * many_s,
        "us",
        peer=f"one group, {FEW_BINDINGS} bindings",
        peer_value=1e6 * one_s,
        goal="ratio <= 3",
    )


def hold() -> None:
    """The longest turn of a server's event loop while it answers each of the expensive requests."""
    with metered_server(OBJECTS) as served:
        bare_s = min(served.bare_s(ONE) for _ in range(3))
        for name, request in REQUESTS.items():
            held_s = served.held_s(partial(served.send, *request))
            figure(
                f"guard.hold_us.{name.replace(' ', '_')}",
                1e6 * held_s,
                "us",
                peer="a request for one object",
                peer_value=1e6 * bare_s,
                goal=f"ratio <= {HOLD_MAX}",
            )


FIGURES: tuple[Callable[[], None], ...] = (
    authorise,
    isolation.figures,
    guard_encrypt.figures,
    hold,
)


def main() -> None:
    for measure in FIGURES:
        measure()


if __name__ == "__main__":
    main()
