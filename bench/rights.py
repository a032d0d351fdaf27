"""The cost of authorization: of a bind, of a person with a role binding, and of a server's view."""

from __future__ import annotations

import random

from bench.harness import figure, side_by_side
from holdfast.commit.access.authorize import is_permitted, request_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import CommitGroup, Draft, SeenRecords
from holdfast.commit.record_encoding import encode
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import ADMINS, Identity
from holdfast.model.access.rights import Permission, ledger_of
from holdfast.model.kinds.access import Role, RoleBinding, RoleRef, Rule, Subject
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import Bind, Target, Term
from holdfast.model.time import Instant
from holdfast.model.transaction import Record

BINDINGS = 200
SUBJECTS_EACH = 5
RULES = (
    Rule(("workloads", "secrets"), ("get", "list", "watch")),
    Rule(("workloads",), ("create", "update", "patch")),
)
BOB = Identity("user-150-3", ("a", "b", "c", "d"))
ROOT = Identity("root", (ADMINS,))
EDITOR = Identity("ann", ("tenant:acme",), ("acme",))
CREATE = Permission("create", "workloads", namespace="acme")


def draft() -> Draft:
    """A draft of a plane with many bindings in one namespace."""
    roles, bindings = [], []
    for number in range(BINDINGS):
        meta = ObjectMeta(name=f"role-{number}", namespace="acme")
        subjects = tuple(Subject("User", f"user-{number}-{at}") for at in range(SUBJECTS_EACH))
        roles.append(Role(meta, rules=RULES))
        bindings.append(RoleBinding(meta, subjects=subjects, role_ref=RoleRef(meta.name)))
    view = SeenRecords()
    key = keys.access_ledger("acme")
    ledger = encode(ledger_of("acme", roles, bindings))
    view.learn(key, Record(key=key, value=ledger, created=1, modified=1))
    view.learn(keys.access_ledger(SYSTEM_NAMESPACE), None)
    return Draft(CommitGroup(view))


def main() -> None:
    on = draft()
    scheduler = Context(who.scheduler("one"), Instant(0, 0), random.Random(1))
    bind = Bind(Target("acme", "web-0-0", "uid", 1), "node-a", "uid", Term("scheduler:one", 1))
    # The minimum of any check: identify the caller and look one thing up.
    open_to = {scheduler.identity: True}
    for name, ask, goal in (
        ("commit.authorise_bind_us", lambda: request_refusal(on, scheduler, bind), "<= 3"),
        ("commit.authorise_admin_us", lambda: is_permitted(on, ROOT, CREATE), "<= 3"),
        ("commit.authorise_editor_us", lambda: is_permitted(on, EDITOR, CREATE), "<= 5"),
        ("commit.authorise_by_binding_us", lambda: is_permitted(on, BOB, CREATE), "<= 20"),
    ):
        ours_s, bare_s = side_by_side(ask, lambda: open_to.get(scheduler.identity))
        figure(name, 1e6 * ours_s, "us", peer="one lookup", peer_value=1e6 * bare_s, goal=goal)


if __name__ == "__main__":
    main()
