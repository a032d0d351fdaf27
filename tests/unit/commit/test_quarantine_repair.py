"""Quarantine: a wrong record costs the one request that needs it; an operator repairs it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.ledgers.ledger_sums import StoreContents
from holdfast.commit.ledgers.rebuild import rebuild_ledger
from holdfast.commit.ledgers.recount import recount
from holdfast.commit.record_encoding import encode
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import OPERATORS, Identity
from holdfast.model.errors import Invalid, Unavailable
from holdfast.model.kinds.access import RoleBinding, RoleRef, Subject
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Disruption
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.plane_format import FORMAT
from holdfast.model.quarantine import Quarantined
from holdfast.model.quota.ledger import GrantLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import (
    Accepted,
    Create,
    Move,
    Patch,
    PatchType,
    QuarantineRecord,
    Remove,
    RepairAction,
    RepairRecord,
)
from holdfast.model.transaction import ABSENT, Put, Transaction
from tests.furnished import ANN, Furnished
from tests.plane import ADMIN, SCHEDULER, WORKLOADS, Plane, accepted, bind, refused, target

OPERATOR = Identity(name="olga", groups=(OPERATORS,))
LEDGER = keys.node_ledger("n")


class Poisoned:
    """A plane with a stopping replica whose node's ledger knows nothing of it."""

    def __init__(self) -> None:
        self.plane = plane = Plane()
        plane.region()
        plane.tenant()
        self.node = plane.node("n")
        self.term = plane.term(SCHEDULER, "scheduler:one")
        self.web = plane.workload()
        made = plane.bound(plane.replica(self.web), self.node, self.term)
        accepted(plane.ask(ANN, Remove("replicas", "acme", made.name)))
        self.replica = plane.get(made)
        plane.damage(LEDGER, lambda tree: tree.pop("used") and None)

    @property
    def stopped(self) -> Move:
        return Move(target(self.replica), State.RELEASED, "Stopped", "x", 1)

    def meet(self) -> list[Any]:
        """The agent's proof of stop, between two requests of others."""
        pairs: list[tuple[Identity, Any]] = [
            (ADMIN, Create(Tenant(ObjectMeta(name="one")))),
            (who.agent("n"), self.stopped),
            (ADMIN, Create(Tenant(ObjectMeta(name="two")))),
        ]
        return self.plane.ask_all(*pairs)

    @property
    def note(self) -> Quarantined | None:
        found: Quarantined | None = self.plane.read(keys.quarantine(LEDGER))
        return found

    @property
    def seen(self) -> int:
        record = self.plane.store.get(LEDGER)
        assert record is not None
        return record.modified

    def contents(self) -> StoreContents:
        return StoreContents(self.plane.store.range("", keys.END).records)


def test_the_others_of_a_group_are_answered_and_the_server_lives() -> None:
    it = Poisoned()
    one, wrong, two = it.meet()
    assert isinstance(one, Accepted)
    assert isinstance(two, Accepted)
    no = refused(wrong, Reason.NODE_QUARANTINED)
    assert no.details == {"record": LEDGER, "found": "RecordsDisagree"}
    assert "returned more than the node's ledger holds" in no.message
    # The answer was that it did not happen, and that is true: nothing of it was written.
    assert it.plane.get(it.replica).status.state is State.STOPPING


def test_the_record_is_quarantined_with_its_evidence_once() -> None:
    """What was found, by whose request, and on which records."""
    it = Poisoned()
    it.meet()
    note = it.note
    assert note is not None
    assert (note.key, note.reason) == (LEDGER, "RecordsDisagree")
    assert note.request == "Move by system:node:n"
    read = {evidence.key: evidence.revision for evidence in note.evidence}
    assert keys.key_of(it.replica) in read
    assert LEDGER in read
    before = it.plane.store.get(keys.quarantine(LEDGER))
    it.plane.ask(who.agent("n"), it.stopped)
    assert it.plane.store.get(keys.quarantine(LEDGER)) == before


def test_another_life_of_the_server_meets_it_and_lives_too() -> None:
    it = Poisoned()
    for _ in range(3):
        it.plane.authority = it.plane.new_authority()
        refused(it.plane.ask(who.agent("n"), it.stopped), Reason.NODE_QUARANTINED)


def test_a_ledger_in_quarantine_gives_nothing_out() -> None:
    """What is left of it is unknown; other nodes are not affected. [INV4]"""
    it = Poisoned()
    it.meet()
    plane = it.plane
    other = plane.node("other")
    waiting = plane.replica(it.web, ordinal=1)
    refused(plane.ask(SCHEDULER, bind(waiting, it.node, it.term)), Reason.NODE_QUARANTINED)
    assert isinstance(plane.ask(SCHEDULER, bind(waiting, other, it.term)), Accepted)


def test_a_quota_ledger_that_is_wrong_gives_nothing_out() -> None:
    """[INV3]"""
    it = Furnished()
    plane = it.plane
    plane.quota(hard={"cpu": "64"})
    bound = it.bound()
    key = next(k.key for k in plane.store.range(keys.LEDGERS + "quota/", keys.END).records)
    plane.damage(key, lambda tree: tree.pop("used") and None)
    accepted(plane.ask(ANN, Remove("replicas", "acme", bound.name)))
    gone = Move(target(plane.get(bound)), State.RELEASED, "Stopped", "x", 1)
    refused(plane.ask(who.agent(it.node.name), gone), Reason.QUOTA_QUARANTINED)
    no = plane.ask(SCHEDULER, it.bind(it.pending()))
    assert "in quarantine" in refused(no, Reason.QUOTA_QUARANTINED).message


def test_no_victim_is_stopped_for_work_of_a_quota_in_quarantine() -> None:
    """The bind that victims make room for would be refused. [G4]"""
    it = Furnished(cpus=1)
    it.plane.quota(hard={"cpu": "64"})
    victim = it.running(it.of_class("low"))
    high = it.pending(it.of_class("high"))
    key = keys.quota_ledger(next(iter(_cohorts(it.plane))))
    it.plane.damage(key, lambda tree: tree.update(quarantined=True))
    no = it.plane.ask(SCHEDULER, it.preempt(high, victim))
    assert "in quarantine" in refused(no, Reason.QUOTA_QUARANTINED).message
    assert it.get(victim).status.state is State.RUNNING


def test_a_preemption_blames_the_quota_ledger_that_does_not_know_its_victims() -> None:
    """Else the ledger would go on giving out, and an object that is right would be blamed."""
    it = Furnished(cpus=1)
    it.plane.quota(hard={"cpu": "64"})
    victim = it.running(it.of_class("low"))
    high = it.pending(it.of_class("high"))
    key = keys.quota_ledger(next(iter(_cohorts(it.plane))))
    it.plane.damage(key, lambda tree: tree.pop("used") and None)
    no = it.plane.ask(SCHEDULER, it.preempt(high, victim))
    assert refused(no, Reason.QUOTA_QUARANTINED).details["record"] == key
    assert it.plane.read(key).quarantined


def test_a_tenant_does_not_take_doubtful_sums_to_another_cohort() -> None:
    """The mark stays, and so does what has to be counted again. [INV3]"""
    it = Furnished()
    quota = it.plane.quota(hard={"cpu": "64"}, cohort="house")
    it.bound()
    key = keys.quota_ledger("house")
    it.plane.damage(key, lambda tree: tree.update(quarantined=True))
    moved = Patch("quotas", "acme", quota.name, PatchType.MERGE, {"spec": {"cohort": "other"}})
    refused(it.plane.ask(ADMIN, moved), Reason.QUOTA_QUARANTINED)
    assert it.plane.read(key).quarantined
    limits = Patch("quotas", "acme", quota.name, PatchType.MERGE, {"spec": {"hard": {"cpu": "9"}}})
    accepted(it.plane.ask(ADMIN, limits))
    assert it.plane.read(key).quarantined


def _cohorts(plane: Plane) -> list[str]:
    prefix = f"{keys.LEDGERS}quota/"
    found = plane.store.range(prefix, keys.after_prefix(prefix)).records
    return [record.key.removeprefix(prefix) for record in found]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 5_000,
        b'{"kind":"Workload","later":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"kind":"Workload","metadata":{"name":"web","namespace":"acme"},"spec":{"type":"Mesh"}}',
    ],
)
def test_a_record_that_cannot_be_read_is_refused_for_that_object_only(damage: bytes) -> None:
    """An enum value of a newer version is one of these."""
    it = Furnished()
    key = keys.key_of(it.web)
    it.plane.damage(key, damage)
    scaled = Patch("workloads", "acme", "web", PatchType.MERGE, {"spec": {"replicas": 3}})
    made = Create(Tenant(ObjectMeta(name="new")))
    wrong, good = it.plane.ask_all((ANN, scaled), (ADMIN, made))
    no = refused(wrong, Reason.RECORD_UNREADABLE)
    assert no.details["record"] == key
    assert isinstance(good, Accepted)
    note = it.plane.read(keys.quarantine(key))
    assert note.reason == "RecordUnreadable"
    # What is there is not written over.
    record = it.plane.store.get(key)
    assert record is not None
    assert record.value == damage


def test_a_doubt_on_records_of_different_revisions_is_not_an_answer() -> None:
    """The view may be old; the store brings what is current, and the request is decided again."""
    it = Poisoned()
    plane = it.plane
    plane.ask(who.agent("n"), it.stopped)
    # Another server repairs the ledger; this one has the old one in its view.
    good = rebuild_ledger(it.contents(), LEDGER)
    plane.damage(LEDGER, msgspec.json.encode(good))
    assert isinstance(plane.ask(who.agent("n"), it.stopped), Accepted)


def test_only_a_server_quarantines_and_only_an_operator_repairs() -> None:
    it = Poisoned()
    note = Quarantined(LEDGER, it.seen, "RecordsDisagree", "x", "x", it.plane.at())
    for identity in (ADMIN, OPERATOR, ANN, SCHEDULER, who.agent("n")):
        assert isinstance(it.plane.ask(identity, QuarantineRecord(note)), Refusal)
    it.meet()
    release = RepairRecord(LEDGER, RepairAction.RELEASE, it.seen, "checked")
    for identity in (ANN, SCHEDULER, who.agent("n"), who.server("s1")):
        assert isinstance(it.plane.ask(identity, release), Refusal)
    assert isinstance(it.plane.ask(OPERATOR, release), Accepted)


def test_a_recount_repairs_the_ledger_and_the_proof_is_accepted() -> None:
    """[INV4]"""
    it = Poisoned()
    it.meet()
    plane = it.plane
    value = msgspec.to_builtins(rebuild_ledger(it.contents(), LEDGER))
    request = RepairRecord(LEDGER, RepairAction.RECOUNT, it.seen, "ticket 7", value)
    dry = msgspec.structs.replace(request, dry_run=True)
    assert isinstance(plane.ask(OPERATOR, dry), Accepted)
    assert it.note is not None
    assert isinstance(plane.ask(OPERATOR, request), Accepted)
    assert it.note is None
    assert recount(plane.store.range("", keys.END).records) == []
    assert isinstance(plane.ask(who.agent("n"), it.stopped), Accepted)
    assert recount(plane.store.range("", keys.END).records) == []
    said = plane.read(keys.audit_stamp()).mutations
    assert said


def test_a_repair_is_audited_with_the_reason_of_its_author() -> None:
    """The record of the audit names the operator and the reason."""
    it = Poisoned()
    it.meet()
    release = RepairRecord(LEDGER, RepairAction.RELEASE, it.seen, "ticket 7")
    assert isinstance(it.plane.ask(OPERATOR, release), Accepted)
    (said,) = it.plane.read(keys.audit_stamp()).mutations
    assert (said.who, said.verb) == ("olga", "RepairRecord")
    assert said.reason == "ticket 7"


def test_a_repair_of_what_was_written_since_is_refused() -> None:
    """What was counted may have changed with it."""
    it = Poisoned()
    it.meet()
    seen = it.seen
    it.plane.damage(LEDGER, lambda tree: tree.update(ports={"tcp/1": "x"}))
    late = RepairRecord(LEDGER, RepairAction.RELEASE, seen, "ticket 7")
    refused(it.plane.ask(OPERATOR, late), Reason.STALE_OBJECT)
    assert it.note is not None


def test_a_repair_says_why_and_is_about_a_quarantined_record() -> None:
    it = Poisoned()
    silent = RepairRecord(LEDGER, RepairAction.RELEASE, it.seen, "ticket 7")
    refused(it.plane.ask(OPERATOR, silent), Reason.MISSING)
    it.meet()
    wordless = RepairRecord(LEDGER, RepairAction.RELEASE, it.seen, " ")
    refused(it.plane.ask(OPERATOR, wordless), Reason.INVALID)
    wrong = RepairRecord(LEDGER, RepairAction.RECOUNT, it.seen, "why", {"gate": 7})
    refused(it.plane.ask(OPERATOR, wrong), Reason.INVALID)


def test_a_late_request_does_not_put_back_what_was_released() -> None:
    """Also of a record that gives nothing out, and so has no mark of its own."""
    it = Furnished()
    key = keys.key_of(it.web)
    late = QuarantineRecord(
        Quarantined(key, _revision(it.plane, key), "RecordsDisagree", "x", "x", it.plane.at())
    )
    server = who.server("s1")
    assert isinstance(it.plane.ask(server, late), Accepted)
    release = RepairRecord(key, RepairAction.RELEASE, _revision(it.plane, key), "it is right")
    assert isinstance(it.plane.ask(OPERATOR, release), Accepted)
    assert isinstance(it.plane.ask(server, late), Accepted)
    assert it.plane.read(keys.quarantine(key)) is None
    again = msgspec.structs.replace(late.record, revision=_revision(it.plane, key))
    assert isinstance(it.plane.ask(server, QuarantineRecord(again)), Accepted)
    assert it.plane.read(keys.quarantine(key)) == again


def test_what_cannot_be_read_is_not_released() -> None:
    """It is not right as it is. Released again and again, it would be put there again."""
    it = Furnished()
    key = keys.key_of(it.web)
    it.plane.damage(key, b"{")
    it.plane.ask(ANN, Patch("workloads", "acme", "web", PatchType.MERGE, {}))
    release = RepairRecord(key, RepairAction.RELEASE, _revision(it.plane, key), "it is right")
    refused(it.plane.ask(OPERATOR, release), Reason.NOT_ALLOWED)
    assert it.plane.read(keys.quarantine(key)) is not None


def test_an_epoch_is_taken_from_its_lease_and_never_from_the_past() -> None:
    """A former holder could act under it again. [INV7]"""
    it = Furnished()
    term = it.term(SCHEDULER)
    key = keys.epoch(term.scope)
    right = it.plane.read(key)
    it.plane.damage(key, b"{")
    refused(it.plane.ask(SCHEDULER, it.bind(it.pending())), Reason.RECORD_UNREADABLE)
    old = {"epoch": 0, "holder": "system:scheduler:zero"}
    back = RepairRecord(key, RepairAction.RESTORE, _revision(it.plane, key), "ticket 7", old)
    refused(it.plane.ask(OPERATOR, back), Reason.NOT_ALLOWED)
    contents = StoreContents(it.plane.store.range("", keys.END).records)
    value = msgspec.to_builtins(rebuild_ledger(contents, key))
    repair = RepairRecord(key, RepairAction.RECOUNT, _revision(it.plane, key), "ticket 7", value)
    assert isinstance(it.plane.ask(OPERATOR, repair), Accepted)
    assert it.plane.read(key) == right
    assert isinstance(it.plane.ask(SCHEDULER, it.bind(it.pending())), Accepted)


PLANE_FORMAT = keys.plane_format()


def mending(plane: Plane, **more: Any) -> RepairRecord:
    stated = {"action": RepairAction.RESTORE, "word": "ticket 7", "value": {"format": FORMAT}}
    return RepairRecord(PLANE_FORMAT, seen=_revision(plane, PLANE_FORMAT), **{**stated, **more})


def test_a_format_that_cannot_be_read_stops_all_writes_but_its_own_repair() -> None:
    """Also when others ask at the same moment."""
    it = Furnished()
    it.plane.damage(PLANE_FORMAT, b"{")
    it.plane.authority = it.plane.new_authority()
    made = Create(Tenant(ObjectMeta(name="new")))
    no = it.plane.ask(ADMIN, made)
    assert isinstance(no, Unavailable)
    assert no.code == Reason.RECORD_UNREADABLE
    assert f"holdfast repair restore {PLANE_FORMAT}" in no.message
    pairs = ((ADMIN, made), (OPERATOR, mending(it.plane)), (ADMIN, made))
    first, repaired, last = it.plane.ask_all(*pairs)
    assert isinstance(first, Unavailable)
    assert isinstance(repaired, Accepted)
    assert isinstance(last, Unavailable | Accepted)
    assert it.plane.read(PLANE_FORMAT).format == FORMAT
    assert it.plane.ask(ADMIN, Create(Tenant(ObjectMeta(name="after")))).created


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"seen": 1}, Reason.STALE_OBJECT),
        ({"word": " "}, Reason.INVALID),
        ({"value": {"format": "x"}}, Reason.INVALID),
        ({"action": RepairAction.RECOUNT}, Reason.NOT_ALLOWED),
        ({"action": RepairAction.RELEASE}, Reason.NOT_ALLOWED),
    ],
)
def test_only_an_operator_repairs_a_format(changes: Any, reason: Reason) -> None:
    it = Furnished()
    it.plane.damage(PLANE_FORMAT, b"{")
    it.plane.authority = it.plane.new_authority()
    seen = changes.pop("seen", None)
    wish = mending(it.plane, **changes)
    wish = msgspec.structs.replace(wish, seen=seen) if seen else wish
    refused(it.plane.ask(OPERATOR, wish), reason)
    assert isinstance(it.plane.ask(ANN, mending(it.plane)), Refusal)


@pytest.mark.parametrize("value", [FORMAT, FORMAT + 1])
def test_a_format_that_can_be_read_may_not_be_repaired(value: int) -> None:
    """Least of all one that is too new for this version: it would be lowered."""
    it = Furnished()
    it.plane.damage(PLANE_FORMAT, msgspec.json.encode({"format": value}))
    it.plane.authority = it.plane.new_authority()
    refused(it.plane.ask(OPERATOR, mending(it.plane)), Reason.NOT_ALLOWED)
    assert it.plane.read(PLANE_FORMAT).format == value


def put_grant(it: Furnished) -> None:
    """A grant for acme, as the global plane would write it."""
    grant = GrantLedger(3, it.plane.at(600), {"guaranteed": {"cpu": 64_000}})
    put = Put(keys.grant_ledger("acme"), encode(grant))
    it.plane.store.txn(Transaction((), (put,)))


def test_a_recount_corrects_a_disruption_ledger() -> None:
    """Also one that says nothing of what is healthy, as before there was this count. [INV3]"""
    it = Furnished()
    web = it.plane.workload("tight", replicas=2, disruption=Disruption(max_unavailable=1))
    one, _ = it.ready(web), it.ready(web)
    key = keys.disruption_ledger("acme", "tight")
    right = it.plane.read(key)
    it.plane.damage(key, lambda tree: tree.pop("healthy") and None)
    rollouts = who.controller("rollout")
    evict = it.evict(one, Cause.ROLLOUT)
    refused(it.plane.ask(rollouts, evict), Reason.DISRUPTION_BUDGET)
    contents = StoreContents(it.plane.store.range("", keys.END).records)
    assert any("healthy" in it for it in recount(it.plane.store.range("", keys.END).records))
    value = msgspec.to_builtins(rebuild_ledger(contents, key))
    repair = RepairRecord(key, RepairAction.RECOUNT, _revision(it.plane, key), "ticket 7", value)
    assert isinstance(it.plane.ask(OPERATOR, repair), Accepted)
    assert it.plane.read(key) == right
    assert isinstance(it.plane.ask(rollouts, evict), Accepted)


def test_a_grant_is_recounted_under_the_terms_that_it_states() -> None:
    """And never made up: no object says what was granted."""
    it = Furnished()
    put_grant(it)
    key = keys.grant_ledger("acme")
    it.bound()
    right = it.plane.read(key)
    it.plane.damage(key, lambda tree: tree.pop("used") and None)
    contents = StoreContents(it.plane.store.range("", keys.END).records)
    assert rebuild_ledger(contents, key) == right
    it.plane.damage(key, b"{")
    with pytest.raises(Invalid, match="restore it first"):
        rebuild_ledger(StoreContents(it.plane.store.range("", keys.END).records), key)


def test_every_ledger_of_sums_is_rebuilt_as_it_is() -> None:
    """On a plane where nothing is wrong a recount changes nothing. [INV3, INV4]"""
    it = Furnished()
    it.plane.quota(hard={"cpu": "64"}, cohort="house")
    put_grant(it)
    it.running()
    it.reserved()
    it.bound()
    it.ready()
    gone = it.released()
    it.yes(WORKLOADS, Remove("replicas", "acme", gone.name))
    records = it.plane.store.range("", keys.END).records
    contents = StoreContents(records)
    sorts = set()
    for record in records:
        sort = record.key.removeprefix(keys.LEDGERS).partition("/")[0]
        # Of the places no object says what was there: that is what their ledger is for.
        if record.key.startswith(keys.LEDGERS) and sort != "places":
            sorts.add(sort)
            assert rebuild_ledger(contents, record.key) == contents.values[record.key], record.key
    assert {"node", "quota", "objects", "disruption", "grant"} <= sorts
    with pytest.raises(Invalid, match="is not a sum of objects"):
        rebuild_ledger(contents, keys.key_of(it.web))


@pytest.mark.parametrize("sort", ["node", "quota", "objects", "disruption", "grant"])
def test_nothing_is_recounted_without_an_object_that_cannot_be_read(sort: str) -> None:
    """What it holds would be given out a second time. [INV3, INV4]"""
    it = Furnished()
    it.plane.quota(hard={"cpu": "64"}, cohort="house")
    bound = it.bound()
    put_grant(it)
    names = {"node": it.node.name, "quota": "house", "objects": "acme"}
    names |= {"disruption": "acme/web", "grant": "acme"}
    key = f"{keys.LEDGERS}{sort}/{names[sort]}"
    it.plane.damage(keys.key_of(bound), b"{")
    contents = StoreContents(it.plane.store.range("", keys.END).records)
    with pytest.raises(Invalid, match="is unreadable"):
        rebuild_ledger(contents, key)


def test_an_unreadable_object_of_another_sort_is_in_no_way_of_a_recount() -> None:
    it = Furnished()
    it.plane.tenant("other")
    web = it.plane.workload("web", "other")
    it.plane.damage(keys.key_of(web), b"{")
    contents = StoreContents(it.plane.store.range("", keys.END).records)
    for key in (keys.node_ledger(it.node.name), keys.objects_ledger("acme")):
        assert rebuild_ledger(contents, key) == contents.values[key]


def test_a_recount_writes_ledgers_and_nothing_else() -> None:
    """It needs no quarantine, so an operator who may repair could grant any permission by it."""
    it = Furnished()
    metadata = ObjectMeta(name="all", namespace=SYSTEM_NAMESPACE)
    given = RoleBinding(metadata, subjects=(Subject("User", "olga"),), role_ref=RoleRef("admin"))
    for key in (keys.key_of(given), keys.key_of(it.node), keys.epoch("authority")):
        before = it.plane.store.get(key)
        seen = before.modified if before is not None else ABSENT
        value = msgspec.to_builtins(given)
        wish = RepairRecord(key, RepairAction.RECOUNT, seen, "ticket 7", value)
        refused(it.plane.ask(OPERATOR, wish), Reason.INVALID)
        assert it.plane.store.get(key) == before


def test_a_repair_takes_nothing_back_that_its_own_group_has_written() -> None:
    """What was counted does not hold it: another request of the same transaction. [INV4]"""
    it = Furnished()
    plane = it.plane
    bound = it.bound()
    key = keys.node_ledger(it.node.name)
    note = Quarantined(key, _revision(plane, key), "RecordsDisagree", "x", "x", plane.at())
    accepted_note = plane.ask(who.server("s1"), QuarantineRecord(note))
    assert isinstance(accepted_note, Accepted)
    accepted(plane.ask(ANN, Remove("replicas", "acme", bound.name)))
    contents = StoreContents(plane.store.range("", keys.END).records)
    value = msgspec.to_builtins(rebuild_ledger(contents, key))
    gone = Move(target(plane.get(bound)), State.RELEASED, "Stopped", "x", 1)
    seen = _revision(plane, key)
    repair = RepairRecord(key, RepairAction.RECOUNT, seen, "ticket 7", value)
    agent = who.agent(it.node.name)
    # The first of them is decided at once, and the others wait for its transaction together.
    first = Create(Tenant(ObjectMeta(name="first")))
    _, released, repaired = plane.ask_all((ADMIN, first), (agent, gone), (OPERATOR, repair))
    assert isinstance(released, Accepted)
    refused(repaired, Reason.STALE_OBJECT)
    assert plane.read(keys.quarantine(key)) is not None
    assert recount(plane.store.range("", keys.END).records) == []


def _revision(plane: Plane, key: str) -> int:
    record = plane.store.get(key)
    assert record is not None
    return record.modified
