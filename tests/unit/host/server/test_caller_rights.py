"""What callers may do as a server knows it: changed at once, never by an outdated view."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.host.api.objects import reads
from holdfast.host.client.create_form import CreateForm
from holdfast.host.server import caller_rights as module
from holdfast.host.server.caller_rights import TRUST_S, Rights
from holdfast.model.access.identity import ADMINS, Identity, controller
from holdfast.model.access.rights import Permission
from holdfast.model.errors import Expired, Unavailable
from holdfast.model.kinds.access import Role, RoleBinding, RoleRef, Rule, Subject
from holdfast.model.machine import Changed
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import Remove
from holdfast.model.time import Instant
from tests.patience import PATIENCE_S
from tests.plane import ADMIN, Plane, accepted
from tests.rights_rig import Freshly, listed, read
from tests.unit.host.api.api_rig import (
    GROUP,
    MERGE,
    ApiRig,
    events,
    named,
    play,
    store_of,
    workloads,
)

BOB = Identity("bob")
GET = Permission("get", "workloads", namespace="acme", name="web")


def role(name: str, *rules: Rule, namespace: str = "acme") -> Role:
    return Role(ObjectMeta(name=name, namespace=namespace), rules=rules)


def binding(name: str, user: str = "bob", namespace: str = "acme") -> RoleBinding:
    meta = ObjectMeta(name=name, namespace=namespace)
    return RoleBinding(meta, subjects=(Subject("User", user),), role_ref=RoleRef(name))


READERS = Rule(("workloads",), ("get", "list", "watch"))


class Known:
    """A plane, a hub that follows it, and its server's view of permissions."""

    def __init__(self) -> None:
        self.plane = Plane()
        self.plane.tenant("acme")
        self.plane.create(role("readers", READERS))
        self.plane.create(binding("readers"))
        self.hub = listed(self.plane.store)
        self.freshness, self.now_s = Freshly(), 0.0
        self.rights = Rights(self.hub, self.freshness, lambda: self.now_s)  # type: ignore[arg-type]
        self._watch = 0

    def follow(self) -> None:
        """Let the hub catch up."""
        batch = self.plane.store.changes("", after=self.hub.revision)
        self.hub.step(Changed(1, batch), Instant(0, 0))


def test_events_of_the_hub_count() -> None:
    it = Known()
    assert it.rights.may(BOB, GET)
    accepted(it.plane.ask(ADMIN, Remove("rolebindings", "acme", "readers")))
    assert it.rights.may(BOB, GET)
    it.follow()
    assert not it.rights.may(BOB, GET)
    it.plane.create(binding("readers", "amy"))
    it.follow()
    assert not it.rights.may(BOB, GET)
    assert it.rights.may(Identity("amy"), GET)


def test_only_where_something_changed_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Known()
    it.plane.tenant("globex")
    it.follow()
    assert it.rights.may(BOB, GET)
    read: list[str] = []
    ledger_of = module.ledger_of

    def counted(namespace: str, *more: Any) -> Any:
        read.append(namespace)
        return ledger_of(namespace, *more)

    monkeypatch.setattr(module, "ledger_of", counted)
    it.plane.create(role("readers", READERS, namespace="globex"))
    it.follow()
    assert it.rights.may(BOB, GET)
    it.plane.workload("other")
    it.follow()
    assert it.rights.may(BOB, GET)
    assert read == ["globex"]


@pytest.mark.parametrize("later", [0, 20])
def test_what_a_list_of_everything_does_not_have_is_gone(later: int) -> None:
    """Also where the store was restored from a backup, and its revisions are lower."""
    backup = Plane()
    backup.tenant("acme")
    backup.create(role("readers", READERS))
    it = Known()
    for number in range(20 - later):
        it.plane.workload(f"w{number}")
    for number in range(later):
        backup.workload(f"w{number}")
    it.plane.tenant("globex")
    it.plane.create(role("readers", READERS, namespace="globex"))
    it.plane.create(binding("readers", namespace="globex"))
    it.follow()
    there = Permission("get", "workloads", namespace="globex", name="web")
    assert it.rights.may(BOB, GET)
    assert it.rights.may(BOB, there)
    is_lower = backup.store.revision < it.plane.store.revision
    assert is_lower is not bool(later)
    relisted = it.hub.step(Changed(1, Expired("never reached here")), Instant(0, 0))
    read(it.hub, relisted, backup.store)
    assert not it.rights.may(BOB, GET)
    assert not it.rights.may(BOB, there)
    backup.create(binding("readers", "amy"))
    batch = backup.store.changes("", after=it.hub.revision)
    it.hub.step(Changed(2, batch), Instant(0, 0))
    assert it.rights.may(Identity("amy"), GET)
    assert not it.rights.may(BOB, GET)


def test_a_view_that_may_be_too_old_grants_nothing() -> None:
    """Built-in permissions stay: components, administrators, and people in their tenants. [B5]"""
    it = Known()
    ann = Identity("ann", tenants=("acme",))
    root = Identity("root", (ADMINS,))
    it.now_s = TRUST_S
    assert it.rights.may(BOB, GET)
    it.now_s = TRUST_S + 0.1
    assert not it.rights.may(BOB, GET)
    for identity in (ann, root, controller("workload")):
        assert it.rights.may(identity, GET)
    for answer in (False, Unavailable("the store does not answer")):
        it.freshness.is_fresh = answer
        asyncio.run(it.rights.confirm())
        assert not it.rights.may(BOB, GET)
    it.freshness.is_fresh = True
    asyncio.run(it.rights.confirm())
    assert it.rights.may(BOB, GET)


def test_an_answer_counts_from_when_the_question_was_sent() -> None:
    """The store may have changed while its answer was in flight."""
    it = Known()

    class Slow(Freshly):
        async def is_hub_fresh(self, **_: Any) -> bool:
            it.now_s += 4.0
            return True

    it.rights = Rights(it.hub, Slow(), lambda: it.now_s)  # type: ignore[arg-type]
    asyncio.run(it.rights.confirm())
    assert it.rights.age_s == 4.0


# Through the server -------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Any:
    async def played(story: Any) -> None:
        async with ApiRig(await store_of("memory", tmp_path)) as rig:
            await rig.tenant()
            await rig.tenant("globex")
            await story(rig)

    return lambda story: play(played(story))


def body(obj: Role | RoleBinding) -> bytes:
    return msgspec.json.encode(obj)


async def give(rig: ApiRig, *rules: Rule, namespace: str = "acme") -> None:
    """Give bob this permission."""
    at = f"{GROUP}/namespaces/{namespace}"
    for plural, obj in (
        ("roles", role("some", *rules, namespace=namespace)),
        ("rolebindings", binding("some", namespace=namespace)),
    ):
        answer = await rig.send("POST", f"{at}/{plural}", body(obj))
        assert answer.code == 201, answer.body


def test_what_was_given_or_taken_counts_from_the_answer_on(run: Any) -> None:
    async def story(rig: ApiRig) -> None:
        await rig.create(named("web"))
        at = f"{GROUP}/namespaces/acme"
        assert (await rig.send("GET", workloads(name="web"), user="bob")).code == 403
        for _ in range(20):
            await give(rig, READERS)
            assert (await rig.send("GET", workloads(name="web"), user="bob")).code == 200
            assert (await rig.send("GET", workloads(), user="bob")).code == 200
            assert (await rig.send("GET", workloads("globex"), user="bob")).code == 403
            assert (await rig.send("POST", workloads(), named("x"), user="bob")).code == 403
            less = {"rules": [{"resources": ["workloads"], "verbs": ["list"]}]}
            patched = {"Content-Type": MERGE}
            answer = await rig.send("PATCH", f"{at}/roles/some", less, headers=patched)
            assert answer.code == 200
            assert (await rig.send("GET", workloads(name="web"), user="bob")).code == 403
            assert (await rig.send("GET", workloads(), user="bob")).code == 200
            assert (await rig.send("DELETE", f"{at}/rolebindings")).code == 200
            assert (await rig.send("GET", workloads(), user="bob")).code == 403
            await rig.send("DELETE", f"{at}/roles/some")

    run(story)


def test_a_page_shows_only_the_name_that_one_may_see(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that ends early says where to continue, and that may be any object."""

    async def story(rig: ApiRig) -> None:
        for name in ("hidden-a", "hidden-b", "hidden-c", "mine", "z"):
            await rig.create(named(name))
        await give(rig, Rule(("workloads",), ("list",), resource_names=("mine",)))
        everywhere = Rule(("workloads",), ("list",), resource_names=("mine",))
        await give(rig, everywhere, namespace=SYSTEM_NAMESPACE)
        monkeypatch.setattr(reads, "LOOKED_AT_MAX", 2)
        listed = await rig.send("GET", workloads())
        version = listed.body["metadata"]["resourceVersion"]
        for where in (workloads(), f"{GROUP}/workloads"):
            for exact in ("", f"&resourceVersion={version}&resourceVersionMatch=Exact"):
                asked = f"{where}?fieldSelector=metadata.name=mine&limit=1{exact}"
                answer = await rig.send("GET", asked, user="bob")
                assert [it["metadata"]["name"] for it in answer.body["items"]] == ["mine"]
                assert "continue" not in answer.body["metadata"]

    run(story)


def test_an_answer_about_rights_waits_for_its_own_hub(run: Any) -> None:
    """However the change was sent; other callers do not wait."""

    async def story(rig: ApiRig) -> None:
        rights, waited = rig.api.services.rights, []
        reached = rights.reached

        async def recorded(revision: int) -> None:
            waited.append(revision)
            await reached(revision)
            assert rig.hub.revision >= revision

        rights.reached = recorded  # type: ignore[method-assign]
        at = f"{GROUP}/namespaces/acme"
        await give(rig, READERS)
        assert len(waited) == 2
        await rig.create(named("web"))
        assert len(waited) == 2
        forms = [CreateForm(msgspec.Raw(body(role(name, READERS)))) for name in ("a", "b")]
        sent = b"[%b]" % b",".join(msgspec.json.encode(form) for form in forms)
        answer = await rig.send("POST", f"{GROUP}/requests", sent, results="terse")
        assert [it["code"] for it in answer.body["items"]] == [201, 201]
        assert len(waited) == 4
        await rig.send("DELETE", f"{at}/rolebindings/some")
        await rig.send("DELETE", f"{at}/roles")
        assert len(waited) == 8
        assert waited == sorted(waited)

    run(story)


def test_an_open_watch_ends_when_the_right_to_it_does(run: Any) -> None:
    async def story(rig: ApiRig) -> None:
        await give(rig, READERS)
        async with rig.watch(workloads(), user="bob") as response:
            assert response.status == 200
            await rig.create(named("web"))
            assert [it[0] for it in await events(response, 1)] == ["ADDED"]
            await rig.api.long_streams.sweep()
            await rig.create(named("two"))
            assert [it[0] for it in await events(response, 1)] == ["ADDED"]
            await rig.send("DELETE", f"{GROUP}/namespaces/acme/rolebindings/some")
            await rig.api.long_streams.sweep()
            await rig.create(named("three"))
            assert await asyncio.wait_for(response.content.read(), PATIENCE_S) == b""

    run(story)


def test_another_server_learns_of_it_with_the_next_event(tmp_path: Path) -> None:
    """Within the limit, and in practice at once."""

    async def story() -> None:
        store = await store_of("memory", tmp_path)
        async with ApiRig(store) as one:
            two = ApiRig(store)
            async with two:
                await one.tenant()
                for _ in range(5):
                    await give(one, READERS)
                    deadline_s = time.monotonic() + PATIENCE_S
                    while (await two.send("GET", workloads(), user="bob")).code != 200:
                        assert time.monotonic() < deadline_s
                    await one.send("DELETE", f"{GROUP}/namespaces/acme/rolebindings/some")
                    deadline_s = time.monotonic() + PATIENCE_S
                    while (await two.send("GET", workloads(), user="bob")).code != 403:
                        assert time.monotonic() < deadline_s
                    await one.send("DELETE", f"{GROUP}/namespaces/acme/roles/some")

    play(story())


def test_names_limit_lists_and_watches_to_one_of_them(run: Any) -> None:
    """As `kubectl get NAME --watch` asks."""

    async def story(rig: ApiRig) -> None:
        await give(rig, Rule(("workloads",), ("get", "list", "watch"), (), ("web",)))
        await rig.create(named("web"))
        await rig.create(named("other"))

        async def code(fields: str = "", path: str = workloads()) -> int:
            query = {"fieldSelector": fields} if fields else {}
            return int((await rig.send("GET", path, user="bob", **query)).code)

        assert await code(path=workloads(name="web")) == 200
        assert await code(path=workloads(name="other")) == 403
        assert await code("metadata.name=web") == 200
        assert await code() == 403
        assert await code("metadata.name=other") == 403
        assert await code("metadata.name!=web") == 403
        assert await code("metadata.namespace=acme,metadata.name=web") == 200
        one = await rig.send(
            "GET", workloads(), user="bob", fieldSelector="metadata.name=web,metadata.name=other"
        )
        assert one.body["items"] == []

    run(story)


def test_every_leaf_of_a_batch_needs_the_right(run: Any) -> None:
    """Each gets the answer that it would have got alone."""

    async def story(rig: ApiRig) -> None:
        await give(rig, Rule(("workloads",), ("create", "deletecollection")))
        forms = []
        for number, namespace in enumerate(("acme", "globex", "acme")):
            made = msgspec.json.encode(named(f"w{number}", namespace))
            forms.append(CreateForm(msgspec.Raw(made)))
        tag = {"type": "RetireLease", "scope": "authority", "seen_epoch": 1, "seen_renewals": 1}
        many = [msgspec.json.encode(form) for form in forms] + [msgspec.json.encode(tag)]
        sent = await rig.send("POST", f"{GROUP}/requests", b"[%b]" % b",".join(many), user="bob")
        assert [it["code"] for it in sent.body["items"]] == [201, 403, 201, 403]
        items = {"kind": "List", "items": [named("a"), named("b")]}
        assert [
            it["code"]
            for it in (await rig.send("POST", workloads(), items, user="bob")).body["items"]
        ] == [201, 201]
        one = {"kind": "List", "items": [named("a", "globex")]}
        assert (await rig.send("POST", workloads("globex"), one, user="bob")).code == 403
        # To delete many is a right of its own, and no right to delete just one.
        assert (await rig.send("DELETE", workloads(name="a"), user="bob")).code == 403
        assert (await rig.send("DELETE", workloads("globex"), user="bob")).code == 403
        assert (await rig.send("DELETE", workloads(), user="bob")).code == 200

    run(story)


def test_the_right_to_scale_is_enough_to_scale(run: Any) -> None:
    async def story(rig: ApiRig) -> None:
        await rig.create(named("web"))
        await give(rig, Rule(("workloads/scale",), ("get", "patch")))
        path = f"{workloads(name='web')}/scale"
        change = {"spec": {"replicas": 3}}
        answer = await rig.send("PATCH", path, change, user="bob", headers={"Content-Type": MERGE})
        assert (answer.code, answer.body["spec"]["replicas"]) == (200, 3)
        assert (await rig.send("GET", path, user="bob")).code == 200
        assert (await rig.send("PUT", path, change, user="bob")).code == 403
        direct = await rig.send(
            "PATCH", workloads(name="web"), change, user="bob", headers={"Content-Type": MERGE}
        )
        assert direct.code == 403

    run(story)


@pytest.mark.parametrize("header", ["Impersonate-User", "impersonate-group", "Impersonate-Extra-X"])
def test_no_caller_speaks_for_another(run: Any, header: str) -> None:
    """Not even an administrator, and with a message."""

    async def story(rig: ApiRig) -> None:
        for path in (workloads(), "/api", f"{GROUP}/nodes"):
            answer = await rig.send("GET", path, headers={header: "bob"})
            assert answer.code == 403
            assert "impersonation (--as) is not supported" in answer.body["message"]

    run(story)


def test_another_users_rights_are_shown_to_callers_that_may_ask(run: Any) -> None:
    async def story(rig: ApiRig) -> None:
        await give(rig, READERS)
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        about = {"verb": "list", "resource": "workloads", "group": "holdfast.dev"}
        spec = {"user": "bob", "resourceAttributes": {**about, "namespace": "acme"}}
        answer = await rig.send("POST", path, {"spec": spec})
        assert (answer.code, answer.body["status"]["allowed"]) == (201, True)
        assert (await rig.send("POST", path, {"spec": spec}, user="bob")).code == 403

    run(story)


def test_a_change_of_one_tenant_costs_nothing_that_others_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many namespaces only the changed one is visited, and only what changed is decoded."""
    known = Known()
    for number in range(20):
        known.plane.tenant(f"t{number}")
        known.plane.create(role("readers", READERS, namespace=f"t{number}"))
        known.plane.create(binding("readers", namespace=f"t{number}"))
    known.follow()
    everywhere = [Permission("get", "workloads", namespace=f"t{n}", name="web") for n in range(20)]
    assert all(known.rights.may(BOB, deed) for deed in everywhere)
    decoded: list[bytes] = []
    read = module.readable

    def counted(cls: Any, data: bytes) -> Any:
        decoded.append(data)
        return read(cls, data)

    monkeypatch.setattr(module, "readable", counted)
    known.plane.create(binding("more", "eve", namespace="t3"))
    known.plane.ask(ADMIN, Remove("rolebindings", "t5", "readers"))
    known.follow()
    assert [known.rights.may(BOB, deed) for deed in everywhere] == [n != 5 for n in range(20)]
    assert len(decoded) == 1
