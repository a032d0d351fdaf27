"""A node changes an allow-list of fields of its own and learns of nothing that is not bound to it.

A taken-over agent (`tests/rogue_agent.py`) asks for 10,000 things, alone and in batches. Each is
asked in two planes that differ only in what is none of its business: in the second one that is not
there. Every answer must be the same in both, to the letter, and every record that is written must
be in the table below. `HOLDFAST_HYPOTHESIS=long` asks twenty times as much.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast.commit import dispatch
from holdfast.commit.apply import patch_requests
from holdfast.commit.objects import object_writes
from holdfast.commit.record_encoding import decode
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.kinds.access import Role, Rule, Token, TokenSpec
from holdfast.model.kinds.endpoints import Endpoints
from holdfast.model.kinds.event import Event, ObjectReference
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import EnvVar
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import Accepted, Remove
from holdfast.model.transaction import Delete, Put, Transaction
from holdfast.store.memory import Keyspace
from tests.documents import HASH
from tests.furnished import AGENT, ANN, GARBAGE, Furnished
from tests.plane import ADMIN, NODES, Plane, template
from tests.rogue_agent import RogueAgent
from tests.scale import scaled

LONG = os.environ.get("HOLDFAST_HYPOTHESIS") == "long"
EPISODES = 4_000 if LONG else scaled(80, 200)
# A planted bug ends its search, so that more of them cost nothing.
BUG_EPISODES = 4_000 if LONG else 200
REQUESTS = 50
BATCH_MAX = 5
MINE = "node-a"

# What an agent may change, field by field. Everything else belongs to others.
NODE_FIELDS = {
    *("spec.capacity", "spec.reserved", "spec.devices"),
    *("status.agentVersion", "status.address", "status.bootId", "status.installation"),
    *("status.images", "status.conditions[Pressure]"),
    *("metadata.generation", "metadata.operations", "metadata.managedFields"),
}
# Besides, when it registers after a fence: its next life begins.
NEXT_LIFE_FIELDS = {"status.phase", "status.mark", "status.incarnation"}
REPLICA_FIELDS = {
    *("status.state", "status.stage", "status.process", "status.pending", "status.readySince"),
    *("status.transitions", "status.transitionNumber", "status.conditions[Ready]"),
    *("metadata.operations", "metadata.managedFields"),
}
# What a replica that is released gives back, what its end is counted in, and what its successor at
# its place is born after.
LEDGERS = ("node", "quota", "disruption", "objects", "places")


# Two planes --------------------------------------------------------------------------------------


def furnished() -> Furnished:
    """Work on two nodes in every state, and one of everything that is none of its business."""
    it = Furnished(cpus=32)
    plane = it.plane
    other = plane.node("node-b", capacity={"cpu": "32", "memory": "64Gi"})
    secret = template(env=(EnvVar(name="TOKEN", value="hush"),))
    theirs = plane.workload("theirs", "globex", template=secret, replicas=8)
    for workload in (it.web, theirs):
        for node in (it.node, other):
            it.bound(workload, node)
            it.ready(workload, node)
            it.moved(it.running(workload, node), State.FAILED)
            it.yes(ANN if workload is it.web else ADMIN, _deletion(it.running(workload, node)))
    it.released()
    it.pending(theirs)
    it.reserved(theirs)
    for namespace in ("acme", "globex"):
        where = ObjectMeta(name="hushed", namespace=namespace)
        plane.create(Secret(where, data={"k": "aHVzaA=="}))
        about = ObjectReference(kind="Replica", namespace=namespace, name="web-1-0")
        plane.create(Event(where, involved_object=about, reason="Told", message="hush"))
        plane.create(Role(where, rules=(Rule(("secrets",), ("get",)),)))
        plane.create(Endpoints(where), who.controller("endpoints"))
    plane.create(
        Token(
            ObjectMeta(name="hushed", namespace="holdfast-system"),
            spec=TokenSpec(user="ann", hash=HASH),
        )
    )
    it.term(NODES)
    it.term(GARBAGE)
    return it


def _deletion(replica: Any) -> Remove:
    return Remove("replicas", replica.namespace, replica.name, operation="op-1")


def is_known(obj: Any) -> bool:
    """Whether it is any of the agent's business, by a rule of this file's own."""
    if isinstance(obj, Node):
        return obj.name == MINE
    if isinstance(obj, Replica):
        return obj.status.binding is not None and obj.status.binding.node == MINE
    return False


class Planes:
    """One plane with everything, and one without what the agent may not know of."""

    def __init__(self, it: Furnished) -> None:
        self.whole, self.bare = it.plane, Plane()
        self._elapsed_ms = it.plane.elapsed_ms
        self._stores = (_counted(it.snapshot()), _emptied(it.snapshot()))
        assert self._stores[0].revision == self._stores[1].revision

    def begin(self, seed: int) -> None:
        """As at the beginning; both draw the same names and uids from here on."""
        for plane, store in zip((self.whole, self.bare), self._stores, strict=True):
            plane.store, plane.seed = store.copy(), seed
            plane.authority = plane.new_authority()
            plane.elapsed_ms = self._elapsed_ms
            plane.transactions.clear()
            plane.forget_requests()

    def ask(self, requests: list[Any]) -> list[Any]:
        """The answers, which must be the same in both planes to the letter."""
        pairs = [(AGENT, request) for request in requests]
        # As the agent sent them: each plane would add the versions of what it has itself.
        self.whole.grounds = self.bare.grounds = False
        answers, others = self.whole.ask_all(*pairs), self.bare.ask_all(*pairs)
        self.whole.grounds = True
        for request, one, other in zip(requests, answers, others, strict=True):
            assert one == other, f"the agent learns something by {request}"
        return answers


def _emptied(store: Keyspace) -> Keyspace:
    found = store.range(keys.OBJECTS, keys.after_prefix(keys.OBJECTS)).records
    gone = [Delete(it.key) for it in found if not is_known(decode(it.key, it.value))]
    store.txn(Transaction((), (*gone, Delete(keys.node_ledger("node-b")))))
    return store


def _counted(store: Keyspace) -> Keyspace:
    """The store after a transaction that changes nothing: versions in both planes agree."""
    key = keys.node_ledger("node-b")
    record = store.get(key)
    assert record is not None
    store.txn(Transaction((), (Put(key, record.value),)))
    return store


# What was written --------------------------------------------------------------------------------


def trespasses(before: Keyspace, written: list[Transaction]) -> Iterator[str]:
    """Every write of these transactions that is not an agent's to make."""
    for transaction in written:
        for write in transaction.writes:
            record = before.get(write.key)
            old = decode(record.key, record.value) if record is not None else None
            new = decode(write.key, write.value) if isinstance(write, Put) else None
            yield from _trespass(write.key, old, new)


def _trespass(key: str, old: Any, new: Any) -> Iterator[str]:
    sort, _, rest = key.partition("/")
    if sort == "operations" and rest.startswith(f"{AGENT.name}/"):
        return
    if sort == "audit":
        # What the commit itself notes of every group: who did what.
        return
    if sort == "ledgers" and rest.partition("/")[0] in LEDGERS:
        if rest.startswith("node/") and rest != f"node/{MINE}":
            yield f"{key}: the ledger of another node"
        return
    if sort != "objects" or old is None or not is_known(old):
        yield f"{key}: is not of {MINE}"
        return
    if new is None:
        # Its own proof of stop lets a replica go whose deletion another client has asked for.
        if not isinstance(old, Replica) or old.metadata.deletion_timestamp is None:
            yield f"{key}: was removed"
        return
    allowed = REPLICA_FIELDS if isinstance(old, Replica) else NODE_FIELDS
    if isinstance(old, Node) and old.status.phase.value in ("Fenced", "Lost"):
        allowed = allowed | NEXT_LIFE_FIELDS
    yield from (f"{key}: {field}" for field in changed_fields(old, new) - allowed)
    if isinstance(old, Replica) and new.status.process.restarts not in (
        old.status.process.restarts,
        old.status.process.restarts + 1,
    ):
        yield f"{key}: restarts are counted by the commit"


def changed_fields(old: Any, new: Any) -> set[str]:
    """Which fields differ, two steps deep; of conditions each by its type."""
    found = set()
    one, other = msgspec.to_builtins(old), msgspec.to_builtins(new)
    for top in {*one, *other}:
        mine, theirs = one.get(top, {}), other.get(top, {})
        if not isinstance(mine, dict) or not isinstance(theirs, dict):
            found |= {top} if mine != theirs else set()
            continue
        for field in {*mine, *theirs}:
            if mine.get(field) == theirs.get(field):
                continue
            if field != "conditions":
                found.add(f"{top}.{field}")
                continue
            have = {it["type"]: it for it in mine.get(field, ())}
            want = {it["type"]: it for it in theirs.get(field, ())}
            found |= {
                f"{top}.conditions[{it}]" for it in {*have, *want} if have.get(it) != want.get(it)
            }
    return found


# The tests ---------------------------------------------------------------------------------------


def campaign(planes: Planes, episodes: range) -> Counter[str]:
    """What became of everything that the agent tried."""
    heard: Counter[str] = Counter()
    for seed in episodes:
        planes.begin(seed)
        rng = random.Random(seed)
        rogue = RogueAgent(planes.whole, MINE, rng)
        left = REQUESTS
        while left > 0:
            size = rng.choice((1, 1, 1, rng.randint(2, BATCH_MAX)))
            requests = [rogue.request() for _ in range(size)]
            before = planes.whole.store.copy()
            planes.whole.transactions.clear()
            for request, answer in zip(requests, planes.ask(requests), strict=True):
                word = "yes" if isinstance(answer, Accepted) else answer.reason.value
                heard[f"{type(request).__name__} {word}"] += 1
            found = list(trespasses(before, planes.whole.transactions))
            assert found == [], requests
            left -= size
    return heard


@pytest.fixture(scope="module")
def planes() -> tuple[Planes, Planes]:
    """The agent's node is well in the first, and fenced in the second."""
    well, fenced = furnished(), furnished()
    fenced.fenced()
    return Planes(well), Planes(fenced)


# Without these an agent could not do its work, and refusing everything would pass.
DEMANDED = (
    *("Patch yes", "Update yes", "Move yes", "ReportStage yes", "RegisterNode yes"),
    *("Patch NotOwner", "Patch Missing", "Update NotOwner", "Update Missing", "Move Missing"),
    *("Create NotAllowed", "Remove NotAllowed", "Patch NotAllowed", "Move StaleReplica"),
    *("RegisterNode NotOwner", "Bind NotOwner", "JudgeNode NotOwner", "AcquireLease NotOwner"),
)


def test_an_agent_changes_its_own_fields_and_learns_of_nothing_else(
    planes: tuple[Planes, Planes],
) -> None:
    """[A9, A10, C6.7]"""
    heard: Counter[str] = Counter()
    for seed in range(EPISODES):
        heard += campaign(planes[seed % 5 == 0], range(seed, seed + 1))
    assert sum(heard.values()) >= EPISODES * REQUESTS
    assert [it for it in DEMANDED if not heard[it]] == []


@pytest.mark.parametrize(
    "module, name, careless",
    [
        (dispatch, "visibility_refusal", lambda draft, context, request: None),
        (object_writes, "visible_object", lambda context, obj: obj),
        (patch_requests, "visible_object", lambda context, obj: obj),
        (object_writes, "status_refusal", lambda context, old, new: None),
    ],
    ids=["typed", "update", "patch", "status"],
)
def test_a_check_that_is_left_out_is_noticed(
    planes: tuple[Planes, Planes],
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    careless: Any,
) -> None:
    """[C6.7]"""
    monkeypatch.setattr(module, name, careless)
    with pytest.raises(AssertionError):
        campaign(planes[0], range(BUG_EPISODES))
