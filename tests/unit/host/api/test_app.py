"""Authentication, error responses, and the table of routes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.commit.record_encoding import encode as stored
from holdfast.host.api.objects.batch import COMMAS_MAX, split
from holdfast.host.api.plane import typed_request_routes
from holdfast.host.api.routes import WATCH, Router, table
from holdfast.model import keys
from holdfast.model.errors import Invalid, Rejected
from holdfast.model.kinds.replica import Binding, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import EnvVar, File, SecretRef, Template
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import KINDS
from holdfast.model.transaction import Put, Transaction
from tests.unit.host.api.api_rig import (
    APPLY,
    GROUP,
    TABLE,
    WEB,
    ApiRig,
    named,
    with_tenant,
    workloads,
)


def replica(
    name: str,
    node: str,
    template: Template | None = None,
    *,
    namespace: str = "acme",
    state: State = State.BOUND,
) -> Replica:
    meta = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}")
    template = template or Template(command=("sleep",))
    spec = ReplicaSpec(workload="web", workload_uid="u", ordinal=0, template=template)
    status = ReplicaStatus(state=state, binding=Binding(node=node, node_uid="n"))
    return Replica(meta, spec=spec, status=status)


def test_an_anonymous_client_reads_and_writes_nothing() -> None:
    """Not even which kinds there are. [B5]"""

    async def story(rig: ApiRig) -> None:
        for path in (workloads(), workloads(name="web"), "/apis", "/api/v1/namespaces"):
            answer = await rig.send("GET", path, user="system:anonymous")
            assert (answer.code, answer.body["reason"]) == (401, "Unauthorized"), path
        assert (await rig.create(WEB, user="system:anonymous")).code == 401

    with_tenant(story)


def test_an_anonymous_client_does_not_even_learn_which_paths_there_are() -> None:
    """Every route, one that is not there, and a method that is not: the same word. [B5, B3]"""

    async def story(rig: ApiRig) -> None:
        paths = {re.sub(r"\{\w+\}", "x", route.path) for route in table()}
        for path in (*sorted(paths), "/", "/version", "/metrics/x", "/nothing/here"):
            for method in ("GET", "OPTIONS"):
                answer = await rig.send(method, path, user="system:anonymous")
                assert (answer.code, answer.body["reason"]) == (401, "Unauthorized"), path

    with_tenant(story)


def test_what_is_wrong_first_is_reported_first_from_the_bytes_to_the_store() -> None:
    """Authenticate, authorise, schema, validation, tenant, policy, quota. [B3]"""

    async def story(rig: ApiRig) -> None:
        quota = {"kind": "Quota", "metadata": {"name": "default"}, "spec": {"hard": {"cpu": "1"}}}
        await rig.send("POST", f"{GROUP}/namespaces/acme/quotas", quota)
        command = {"command": ["sleep"]}
        large = {**command, "resources": {"cpu": "2"}}
        faults: list[tuple[str, dict[str, Any], int, str]] = [
            ("system:anonymous", {}, 401, ""),
            ("ada", {}, 403, "cannot create"),
            ("admin", {"body": b'{"spec":'}, 400, ""),
            ("admin", {"template": {"command": 7}}, 422, "spec.template.command"),
            ("admin", {"template": {**large, "priorityClass": "none", "command": []}}, 422, ""),
            ("admin", {"template": {**large, "priorityClass": "none"}}, 404, "tenant 'other'"),
            (
                "admin",
                {"namespace": "acme", "template": {**large, "priorityClass": "none"}},
                404,
                "policy priority-class",
            ),
            ("admin", {"namespace": "acme", "template": large}, 403, "exceeds the quota"),
        ]
        for user, case, code, text in faults:
            namespace = case.get("namespace", "other")
            body = case.get("body") or {
                **named("web", namespace),
                "spec": {"template": case.get("template", {"command": 7})},
            }
            answer = await rig.send("POST", workloads(namespace), body, user=user)
            assert answer.code == code, (case, answer.body)
            assert text in answer.body["message"], answer.body

    with_tenant(story)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_caller_that_may_not_write_learns_nothing_of_what_it_wrote(method: str) -> None:
    """Nor whether it could be read at all. [B3]"""

    async def story(rig: ApiRig) -> None:
        await rig.tenant("other")
        name = "" if method == "POST" else "web"
        answer = await rig.send(method, workloads("other", name), b"[" * 100, user="ada")
        assert (answer.code, answer.body["reason"]) == (403, "Forbidden")

    with_tenant(story)


def test_a_tenant_sees_and_changes_its_own_namespace_only() -> None:
    """Reads go through the same door as writes."""

    async def story(rig: ApiRig) -> None:
        await rig.tenant("other")
        assert (await rig.create(WEB, user="ada")).code == 201
        assert (await rig.send("GET", workloads(), user="ada")).code == 200
        for path in (workloads("other"), f"{GROUP}/workloads", f"{GROUP}/nodes"):
            answer = await rig.send("GET", path, user="ada")
            assert (answer.code, answer.body["reason"]) == (403, "Forbidden"), path
            async with rig.watch(path, user="ada") as watch:
                assert watch.status == 403
        assert (await rig.create(named("x", "other"), user="ada")).code == 403
        assert (await rig.send("DELETE", workloads("other"), user="ada")).code == 403

    with_tenant(story)


def test_an_agent_sees_what_is_bound_to_its_node_only() -> None:
    """In lists, by name and in watches; and of other kinds nothing."""

    async def story(rig: ApiRig) -> None:
        for found in (replica("mine", "n1"), replica("yours", "n2")):
            write = Put(keys.key_of(found), stored(found))
            await rig.store.txn(Transaction((), (write,)))
        path, agent = f"{GROUP}/namespaces/acme/replicas", "system:node:n1"
        listed = (await rig.send("GET", path, user=agent)).body["items"]
        assert [o["metadata"]["name"] for o in listed] == ["mine"]
        assert (await rig.send("GET", f"{path}/mine", user=agent)).code == 200
        assert (await rig.send("GET", f"{path}/yours", user=agent)).code == 404
        wider = await rig.send("GET", path, user=agent, fieldSelector="status.binding.node=n2")
        assert wider.body["items"] == []
        assert (await rig.send("GET", workloads(), user=agent)).code == 403
        secrets = f"{GROUP}/namespaces/acme/secrets"
        assert (await rig.send("GET", secrets, user=agent)).code == 403

    with_tenant(story)


def test_an_agent_gets_the_secrets_of_work_on_its_node_and_no_others() -> None:
    """By name alone, while such work is bound there; for all others there is no such Secret."""
    there = (("acme", "db"), ("acme", "tls"), ("acme", "other"), ("globex", "db"))
    env = EnvVar(name="P", secret=SecretRef(name="db", key="k"))
    file = File(path="p", secret=SecretRef(name="tls", key="k"))
    wants = {
        "a": replica("a", "n1", Template(command=("x",), env=(env,))),
        "b": replica("b", "n2", Template(command=("x",), files=(file,))),
        # A name that stands elsewhere in the template is no reference.
        "c": replica("c", "n1", Template(command=("tls", "other"))),
    }

    async def put(rig: ApiRig, found: Replica) -> None:
        write = Put(keys.key_of(found), stored(found))
        await rig.store.txn(Transaction((), (write,)))

    async def story(rig: ApiRig) -> None:
        await rig.tenant("globex")
        for namespace, name in there:
            body = {
                "apiVersion": "holdfast.dev/v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": namespace},
                "stringData": {"k": f"canary-{name}"},
            }
            path = f"{GROUP}/namespaces/{namespace}/secrets"
            assert (await rig.send("POST", path, body)).code == 201
        for found in wants.values():
            await put(rig, found)

        async def seen(node: str) -> list[str]:
            found = []
            for namespace, name in there:
                path = f"{GROUP}/namespaces/{namespace}/secrets/{name}"
                answer = await rig.send("GET", path, user=f"system:node:{node}")
                assert answer.code in (200, 404)
                assert (answer.code == 200) == ("data" in answer.body)
                found += [f"{namespace}/{name}"] * (answer.code == 200)
            return found

        assert await seen("n1") == ["acme/db"]
        assert await seen("n2") == ["acme/tls"]
        assert await seen("n3") == []
        await put(rig, replica("a", "n1", wants["a"].spec.template, state=State.RELEASED))
        assert await seen("n1") == []
        path, agent = f"{GROUP}/namespaces/acme/secrets", "system:node:n2"
        assert (await rig.send("GET", path, user=agent)).code == 403
        async with rig.watch(path, user=agent) as watch:
            assert watch.status == 403

    with_tenant(story)


def test_bodies_are_bounded_and_errors_are_statuses() -> None:
    """Each mistake has its code, and none is our own failure."""

    async def story(rig: ApiRig) -> None:
        async def code(method: str, path: str, body: Any = None, **more: Any) -> int:
            answer = await rig.send(method, path, body, **more)
            assert answer.body["kind"] == "Status", answer.raw
            assert answer.body["code"] == answer.code
            return answer.code

        assert await code("POST", workloads(), b'{"a":"' + b"x" * (1 << 20) + b'"}') == 413
        assert await code("POST", workloads(), b"{") == 400
        assert await code("POST", workloads(), b"[" * 5_000) == 400
        assert await code("POST", workloads(), {**WEB, "spec": {}}) == 422
        assert await code("POST", workloads(), named("web", "other")) == 400
        assert await code("PUT", workloads(name="db"), WEB) == 400
        assert await code("PUT", workloads(name="web"), WEB) == 404
        assert await code("POST", workloads(), WEB, headers={"Content-Type": "text/xml"}) == 415
        assert await code("GET", workloads(), headers={"Accept": "text/html"}) == 406
        assert await code("GET", workloads(), limit="many") == 400
        assert await code("GET", workloads(), **{"continue": "x"}) == 400
        assert await code("GET", workloads(), labelSelector="a=(") == 422
        assert await code("POST", workloads(name="web"), WEB) == 405
        assert await code("GET", f"{GROUP}/nothing") == 404
        assert await code("GET", workloads(name="%ff")) in (400, 404)

    with_tenant(story)


@pytest.mark.parametrize(
    "text",
    [
        b"a: &a [x]\nb: *a",
        b"!!python/object:os.system x",
        b"a: 1\na: 2",
        b"? [x]\n: y",
        b"a: 1\n---\nb: 2",
        b"a: [" * 60,
        b"a: " + b"[x, " * 9_000,
        b"- x\n" * 60_000,
        b"\xff\xfe",
        b"",
        b"just text",
    ],
)
def test_hostile_yaml_is_refused_before_it_is_built(text: bytes) -> None:
    """Neither aliases nor tags, nor too much of anything."""

    async def story(rig: ApiRig) -> None:
        headers = {"Content-Type": APPLY}
        answer = await rig.send(
            "PATCH", workloads(name="web"), text, headers=headers, fieldManager="m"
        )
        assert answer.code in (400, 413, 422), answer.body

    with_tenant(story)


@pytest.mark.parametrize(
    "word", ["%00", "a%2Fb", "..", "%2e%2e", "%0a", "%ff", "%ed%a0%80", "a" * 254, "%41" * 254]
)
def test_a_path_names_what_could_be_there_or_is_refused(word: str) -> None:
    """What cannot be a name is not looked up, and no answer repeats it unescaped."""
    router = Router(table())
    for path in (f"{GROUP}/namespaces/t/workloads/{word}", f"{GROUP}/namespaces/{word}/workloads"):
        with pytest.raises(Rejected) as caught:
            router.find(path)
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 300
    found = router.find(f"{GROUP}/nodes/{'a' * 253}")
    assert found is not None


def test_a_batch_is_measured_before_it_is_cut() -> None:
    """Half a million pieces would take a quarter of a gigabyte before they are counted."""
    kind = next(kind for kind in KINDS if kind.name == "Workload")
    flood = b"0," * (COMMAS_MAX + 2)
    for body in (b"[" + flood + b"0]", b'{"kind":"List","items":[' + flood + b"0]}"):
        with pytest.raises(Invalid, match="values"):
            split(kind, body)
    with pytest.raises(Invalid, match="values"):
        typed_request_routes.decode_requests(b'[{"type":"Create"},' + flood + b"0]")
    with pytest.raises(Rejected, match="at most 5000"):
        typed_request_routes.decode_requests(
            b"[" + b",".join([b'{"type":"Create"}'] * 5_001) + b"]"
        )


def test_typed_requests_are_decided_one_by_one_with_reasons_for_machines() -> None:
    """One or many; a refusal names its stable reason."""

    async def story(rig: ApiRig) -> None:
        path, scheduler = f"{GROUP}/requests", "system:scheduler:one"
        lease = {"type": "AcquireLease", "scope": "scheduler:one", "duration_ms": 10000}
        taken = await rig.send("POST", path, lease, user=scheduler)
        assert taken.code == 200, taken.body
        epoch = taken.body["objects"][0]["spec"]["epoch"]
        bind = {
            "target": {"namespace": "acme", "name": "web-0-0", "uid": "u", "number": 1},
            "node": "n1",
            "node_uid": "n",
            "term": {"scope": "scheduler:one", "epoch": epoch},
        }
        for where, body in (
            (path, [{"type": "Bind", **bind}, {"type": "RenewLease", "term": bind["term"]}]),
            (f"{GROUP}/bindings", [bind]),
        ):
            answer = await rig.send("POST", where, body, user=scheduler)
            assert answer.code == 200, answer.body
            assert answer.body["items"][0]["code"] == 404, answer.body
            assert answer.body["items"][0]["reason"] == "Missing"
        one = f"{GROUP}/namespaces/acme/replicas/web-0-0/binding"
        assert (await rig.send("POST", one, bind, user=scheduler)).code == 404
        other = one.replace("web-0-0", "web-1-0")
        assert (await rig.send("POST", other, bind, user=scheduler)).code == 400
        assert (await rig.send("POST", path, {"type": "Nonsense"}, user=scheduler)).code == 400

    with_tenant(story)


def test_answers_take_the_shape_that_is_asked_for() -> None:
    """Tables for people, metadata for informers, JSON for the rest."""

    async def story(rig: ApiRig) -> None:
        await rig.create(WEB)
        table_answer = (await rig.send("GET", workloads(), headers={"Accept": TABLE})).body
        assert table_answer["kind"] == "Table"
        assert table_answer["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
        accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        partial = (await rig.send("GET", workloads(), headers={"Accept": accept})).body
        assert partial["kind"] == "PartialObjectMetadataList"
        assert set(partial["items"][0]) == {"kind", "apiVersion", "metadata"}

    with_tenant(story)


def test_every_kind_has_its_routes_and_each_is_found() -> None:
    """The table is the router: nothing is reachable that has no row. [A1]"""
    router = Router(table())
    for route in table():
        wanted = {"namespace": "acme", "name": "web", "part": "p"}
        path = route.path
        for key, value in wanted.items():
            path = path.replace(f"{{{key}}}", value)
        found = router.find(path)
        assert found is not None
        assert found[0][route.method] is route
        assert found[1] == {k: v for k, v in wanted.items() if f"{{{k}}}" in route.path}
    for kind in KINDS:
        verbs = {r.verb for r in table() if r.kind is kind and not r.facade and not r.subresource}
        if kind.plural == "decisions":
            # They are kept outside the store: they are read, and that is all.
            assert verbs == {"get", "list"}
            continue
        assert verbs == {
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        }
    assert WATCH not in {r.method for r in table() if r.verb == "list"}
