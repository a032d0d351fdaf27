"""One unreadable object stops no reader of many: hub, caches, audit writers."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model import keys
from holdfast.model.audit.audit_records import record_of
from holdfast.model.encoding.wire import encode
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.machine import Started
from holdfast.model.registry import kind_named
from holdfast.model.transaction import Put, Transaction
from holdfast.observe.watch_events import Opaque, Present, read_line
from tests.unit.observe.audit_writer.test_audit_writer import PlaneRig
from tests.unit.observe.hub_rig import HubRig
from tests.unit.observe.test_cache import Rig, departed, list_end, present
from tests.unit.observe.test_watch_hub import workload

WEB, API = workload("web"), workload("api")
DAMAGES = (b"", b"{", b"\xff", b"[]", b'{"metadata":{}}', b'{"metadata":{"name":"other"}}')


def damage(rig: HubRig, value: bytes) -> None:
    rig.store.txn(Transaction((), (Put(keys.key_of(WEB), value),)))


@pytest.mark.parametrize("value", DAMAGES)
def test_a_hub_goes_on_past_a_record_that_it_cannot_read(value: bytes) -> None:
    """Watchers of the object receive nothing: it is not gone."""
    rig = HubRig().start()
    rig.put(WEB, API)
    rig.deliver()
    stream = rig.open("Workload", since=rig.store.revision)
    before = len(b"".join(rig.pushed[stream]))
    damage(rig, value)
    rig.deliver()
    assert list(rig.hub.unreadable) == [keys.key_of(WEB)]
    rig.put(workload("api", count=2))
    rig.deliver()
    received = b"".join(rig.pushed[stream])[before:]
    assert b"DELETED" not in received
    assert b'"api"' in received
    rig.put(WEB)
    rig.deliver()
    assert rig.hub.unreadable == {}


@pytest.mark.parametrize("value", DAMAGES)
def test_a_hub_starts_over_a_store_with_a_record_that_it_cannot_read(value: bytes) -> None:
    rig = HubRig()
    rig.put(WEB, API)
    damage(rig, value)
    rig.store.compact(rig.store.revision)
    rig.start()
    assert rig.hub.count(kind_named("Workload")) == 1
    assert keys.key_of(WEB) in rig.hub.unreadable


def test_what_a_selector_would_have_to_read_and_cannot_is_not_selected() -> None:
    rig = HubRig().start()
    newer = encode(WEB).replace(b'"spec":{', b'"spec":{"type":"Mesh",', 1)
    rig.store.txn(Transaction((), (Put(keys.key_of(WEB), newer),)))
    rig.put(API)
    rig.deliver()
    stream = rig.open("Workload", fields="spec.type=Service")
    assert b'"api"' in b"".join(rig.pushed[stream])
    assert b'"web"' not in b"".join(rig.pushed[stream])
    # A watcher that need not decode it gets what its author wrote.
    plain = rig.open("Workload")
    assert b'"Mesh"' in b"".join(rig.pushed[plain])


def _line(kind: str, body: bytes) -> bytes:
    return b'{"type":"%b","object":%b}' % (kind.encode(), body)


def test_an_object_of_a_newer_version_is_an_opaque_event() -> None:
    web = msgspec.json.decode(encode(WEB))
    web["spec"]["type"] = "Mesh"
    web["metadata"]["resourceVersion"] = "14"
    event = read_line(Workload, _line("MODIFIED", msgspec.json.encode(web)))
    assert isinstance(event, Opaque)
    assert (event.namespace, event.name, event.departed) == ("acme", "web", False)
    assert "Mesh" in event.why
    gone = read_line(Workload, _line("DELETED", msgspec.json.encode(web)))
    assert isinstance(gone, Opaque)
    assert gone.departed


def opaque(name: str, revision: int, *, gone: bool = False) -> Opaque:
    return Opaque("", name, revision, "Invalid enum value 'Mesh'", departed=gone)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.step(Started({}))
    rig.push(present("a", 2), present("b", 4), list_end(5, 2))
    return rig


def test_a_cache_keeps_what_it_knew_of_an_object_that_it_cannot_read(rig: Rig) -> None:
    """It exists, so no component may act as if it were gone. [INV2]"""
    assert rig.push(opaque("a", 6), present("b", 7)) != []
    assert rig.names == {"a": 2, "b": 7}
    assert "the first is a: Invalid enum value" in rig.cache.troubles()["tenants"]
    rig.push(present("a", 8))
    assert rig.names == {"a": 8, "b": 7}
    assert rig.cache.troubles() == {}


def test_a_list_with_an_object_that_cannot_be_read_is_whole(rig: Rig) -> None:
    """And what was known of that object stays."""
    rig.push(opaque("a", 6))
    audit = rig.resync()
    rig.push(opaque("a", 6), present("b", 4), list_end(9, 2), stream=audit)
    assert rig.names == {"a": 2, "b": 4}
    assert "tenants" in rig.cache.troubles()


def test_an_object_that_cannot_be_read_goes_when_it_goes(rig: Rig) -> None:
    rig.push(opaque("a", 6))
    (change,) = rig.push(opaque("a", 7, gone=True))
    assert change.after is None
    assert rig.names == {"b": 4}
    assert rig.cache.troubles() == {}
    rig.push(departed("b", 8))
    assert rig.names == {}


def test_a_first_list_may_hold_what_cannot_be_read() -> None:
    rig = Rig()
    rig.step(Started({}))
    rig.push(opaque("a", 2), present("b", 4), list_end(5, 2))
    assert rig.cache.is_ready
    assert rig.names == {"b": 4}


def test_an_audit_writer_records_a_gap_for_an_unreadable_stamp_and_continues() -> None:
    """What was done then is not known, and the chain says so."""
    plane = PlaneRig("one")
    plane.commit(2)
    plane.run(5_000)
    plane.store.txn(Transaction((), (Put(keys.audit_stamp(), b"{"),)))
    plane.commit(3)
    plane.run(5_000)
    assert plane.head.number == 6
    assert plane.servers["one"].writer.failures == 0
    gaps = [record_of(line).is_gap for line in plane.servers["one"].lines]
    assert gaps == [False, False, True, False, False, False]


def test_an_audit_writer_survives_an_unreadable_head() -> None:
    """It reports that, and continues once the head is repaired."""
    plane = PlaneRig("one")
    plane.commit(2)
    plane.run(5_000)
    good = plane.store.get(keys.audit_head())
    assert good is not None
    plane.store.txn(Transaction((), (Put(keys.audit_head(), b"{"),)))
    plane.servers["one"].begin()
    plane.commit(1)
    plane.run(20_000)
    assert "cannot be read" in plane.servers["one"].writer.last_error
    plane.store.txn(Transaction((), (Put(keys.audit_head(), good.value),)))
    plane.run(20_000)
    assert plane.head.number == 3


def test_a_present_object_is_read_as_ever() -> None:
    """The way around is for what cannot be read alone."""
    body = encode(Tenant(msgspec.structs.replace(WEB.metadata, namespace="", resource_version="4")))
    assert isinstance(read_line(Tenant, _line("ADDED", body)), Present)
