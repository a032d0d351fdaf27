"""What a server that follows roles and bindings knows is what one that reads all of them knows.

Only what changed is read again, so this holds the view that was kept up to date against a new one,
after any sequence of changes, and of questions in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.host.server.caller_rights import Rights
from holdfast.model import keys
from holdfast.model.access.identity import Identity
from holdfast.model.encoding.wire import encode
from holdfast.model.errors import Expired
from holdfast.model.kinds.access import Role, RoleBinding, RoleRef, Rule, Subject
from holdfast.model.machine import Changed
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.time import Instant
from holdfast.model.transaction import Delete, Put, Transaction
from holdfast.store.memory import Keyspace
from tests.rights_rig import Freshly, listed, read, rights_on
from tests.scale import examples

NAMESPACES = ("acme", "globex", SYSTEM_NAMESPACE)
NAMES = ("readers", "writers")
WHO = (Identity("bob"), Identity("amy", ("devs",)))

places = st.tuples(st.sampled_from(NAMESPACES), st.sampled_from(NAMES))
roles = st.builds(
    lambda at, verb: Role(
        ObjectMeta(name=at[1], namespace=at[0]), rules=(Rule(("workloads",), (verb,)),)
    ),
    places,
    st.sampled_from(("get", "list", "delete")),
)
bindings = st.builds(
    lambda at, subjects, role, of: RoleBinding(
        ObjectMeta(name=at[1], namespace=at[0]),
        subjects=tuple(subjects),
        role_ref=RoleRef(role, namespace=of),
    ),
    places,
    st.lists(
        st.sampled_from((Subject("User", "bob"), Subject("User", "amy"), Subject("Group", "devs"))),
        unique=True,
        max_size=2,
    ),
    st.sampled_from(NAMES),
    st.sampled_from(("", SYSTEM_NAMESPACE)),
)
objects = st.one_of(roles, bindings, bindings)
# Some are written and others go, all at once; then the server may hear of it, and is asked.
changes = st.tuples(
    st.lists(objects, min_size=1, max_size=3),
    st.lists(objects, max_size=2),
    st.sampled_from(("", "follow", "follow", "list again")),
)
ROLES = tuple(
    Role(ObjectMeta(name=name, namespace=it), rules=(Rule(("workloads",), ("get", name)),))
    for it in NAMESPACES
    for name in NAMES
)


@settings(max_examples=examples(240), deadline=None)
@given(st.lists(changes, min_size=1, max_size=12))
def test_rights_that_are_followed_are_those_that_are_read(
    story: list[tuple[list[Object], list[Object], str]],
) -> None:
    store, watch = Keyspace(), 1
    change(store, ROLES, ())
    hub = listed(store)
    followed = Rights(hub, Freshly(), lambda: 0.0)  # type: ignore[arg-type]
    for written, gone, then in (*story, ([], [], "follow")):
        change(store, written, gone)
        if then == "follow":
            hub.step(Changed(watch, store.changes("", after=hub.revision)), Instant(0, 0))
        elif then == "list again":
            read(hub, hub.step(Changed(watch, Expired("compacted")), Instant(0, 0)), store)
            watch += 1
        if then:
            fresh = rights_on(store)
            assert [followed.grants_of(it) for it in WHO] == [fresh.grants_of(it) for it in WHO]


def change(store: Keyspace, written: Iterable[Object], gone: Iterable[Object]) -> None:
    puts = {keys.key_of(obj): encode(obj) for obj in written}
    out = {keys.key_of(obj) for obj in gone} - puts.keys()
    writes = (*(Put(*it) for it in puts.items()), *map(Delete, sorted(out)))
    store.txn(Transaction((), writes))
