"""The ordinary verbs over HTTP, on the stores that need no other process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.access.identity import Identity
from holdfast.model.requests import AcquireLease
from tests.unit.host.api.api_rig import (
    APPLY,
    GROUP,
    MERGE,
    PATIENCE_S,
    WEB,
    ApiRig,
    named,
    play,
    store_of,
    workloads,
)

Story = Callable[[ApiRig], Awaitable[None]]
Run = Callable[[Story], None]


@pytest.fixture(params=["memory", "sqlite"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Plays a story against a server with the tenant acme."""

    async def played(story: Story) -> None:
        async with ApiRig(await store_of(request.param, tmp_path)) as rig:
            await rig.tenant()
            await story(rig)

    return lambda story: play(played(story))


def test_an_object_is_created_read_changed_and_deleted(run: Run) -> None:
    """Each answer is the object as it is then, and a read after a write sees it. [A2, C2]"""

    async def story(rig: ApiRig) -> None:
        made = await rig.create(WEB)
        assert made.code == 201
        assert made.body["metadata"]["uid"]
        got = await rig.send("GET", workloads(name="web"))
        assert (got.code, got.raw) == (200, made.raw)
        changed = dict(got.body, spec={**WEB["spec"], "replicas": 3})
        put = await rig.send("PUT", workloads(name="web"), changed)
        assert put.code == 200
        assert put.body["metadata"]["generation"] == 2
        assert (await rig.send("GET", workloads(name="web"))).raw == put.raw
        gone = await rig.send("DELETE", workloads(name="web"))
        assert gone.code == 200
        # It waits for its replicas' finalizer, which the workload controller takes away.
        assert gone.body["metadata"]["deletionTimestamp"]

    run(story)


def test_what_has_no_finalizer_is_gone_with_its_deletion(run: Run) -> None:
    """The answer is a Status with the uid of what was deleted. [A2]"""

    async def story(rig: ApiRig) -> None:
        secret = {"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "Yg=="}}
        path = f"{GROUP}/namespaces/acme/secrets"
        made = await rig.send("POST", path, secret)
        assert made.code == 201, made.body
        wrong = {"preconditions": {"uid": "another"}}
        assert (await rig.send("DELETE", f"{path}/s", wrong)).code == 409
        gone = await rig.send("DELETE", f"{path}/s", {"propagationPolicy": "Background"})
        assert gone.body["status"] == "Success"
        assert gone.body["details"]["uid"] == made.body["metadata"]["uid"]
        missing = await rig.send("GET", f"{path}/s")
        assert missing.code == 404
        assert missing.body["message"] == 'secrets.holdfast.dev "s" not found'
        assert missing.body["reason"] == "NotFound"

    run(story)


def test_what_an_object_refers_to_and_is_missing_is_named_itself(run: Run) -> None:
    """Not the object that was just given: its user would look for it in vain. [B4]"""

    async def story(rig: ApiRig) -> None:
        lost = {**WEB, "metadata": {"name": "web", "namespace": "nowhere"}}
        answer = await rig.send(
            "PATCH",
            workloads("nowhere", "web"),
            lost,
            headers={"Content-Type": APPLY},
            fieldManager="t",
        )
        assert answer.code == 404, answer.body
        assert answer.body["message"] == "tenant 'nowhere' does not exist"
        template = {**WEB["spec"]["template"], "priorityClass": "royal"}
        grand = await rig.create({**WEB, "spec": {"template": template}})
        assert "there is no such priority class" in grand.body["message"], grand.body

    run(story)


def test_an_old_version_is_refused_with_a_conflict(run: Run) -> None:
    """The sentence is the one that users of Kubernetes know. [C2]"""

    async def story(rig: ApiRig) -> None:
        made = (await rig.create(WEB)).body
        newer = dict(made, spec={**WEB["spec"], "replicas": 2})
        assert (await rig.send("PUT", workloads(name="web"), newer)).code == 200
        stale = await rig.send("PUT", workloads(name="web"), newer)
        assert (stale.code, stale.body["reason"]) == (409, "Conflict")
        assert stale.body["message"].startswith("Operation cannot be fulfilled on workloads.h")
        assert stale.headers["X-Holdfast-Reason"] == "StaleObject"
        again = await rig.create(WEB)
        assert (again.code, again.body["reason"]) == (409, "AlreadyExists")

    run(story)


def test_pages_are_of_one_moment(run: Run) -> None:
    """What is written between two pages shows in neither. [C8]"""

    async def story(rig: ApiRig) -> None:
        for i in range(7):
            assert (await rig.create(named(f"w{i}"))).code == 201
        first = (await rig.send("GET", workloads(), limit="3")).body
        assert [o["metadata"]["name"] for o in first["items"]] == ["w0", "w1", "w2"]
        assert first["metadata"]["remainingItemCount"] == 4
        await rig.create(named("w3a"))
        token = first["metadata"]["continue"]
        second = (await rig.send("GET", workloads(), limit="3", **{"continue": token})).body
        assert [o["metadata"]["name"] for o in second["items"]] == ["w3", "w4", "w5"]
        assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        token = second["metadata"]["continue"]
        third = (await rig.send("GET", workloads(), limit="3", **{"continue": token})).body
        assert [o["metadata"]["name"] for o in third["items"]] == ["w6"]
        assert "continue" not in third["metadata"]
        whole = (await rig.send("GET", workloads())).body
        assert len(whole["items"]) == 8
        assert whole["kind"] == "WorkloadList"

    run(story)


def test_a_page_of_a_forgotten_moment_is_410(run: Run) -> None:
    """The client lists again. [INV10]"""

    async def story(rig: ApiRig) -> None:
        for i in range(4):
            await rig.create(named(f"w{i}"))
        first = (await rig.send("GET", workloads(), limit="2")).body
        await rig.create(named("later"))
        await rig.store.compact(await rig.store.revision())
        token = first["metadata"]["continue"]
        answer = await rig.send("GET", workloads(), limit="2", **{"continue": token})
        assert (answer.code, answer.body["reason"]) == (410, "Expired")

    run(story)


def test_selectors_choose(run: Run) -> None:
    """By labels, by name, and by fields; an unknown field is an error, not an empty list."""

    async def story(rig: ApiRig) -> None:
        await rig.tenant("other")
        await rig.create(named("a", labels={"app": "x"}))
        await rig.create(named("b", labels={"app": "y"}))
        await rig.create(named("a", "other"))

        async def names(path: str, **query: str) -> list[str]:
            listed = (await rig.send("GET", path, **query)).body["items"]
            return [f"{o['metadata']['namespace']}/{o['metadata']['name']}" for o in listed]

        assert await names(workloads(), labelSelector="app=x") == ["acme/a"]
        assert await names(workloads(), fieldSelector="metadata.name=b") == ["acme/b"]
        assert await names(f"{GROUP}/workloads", fieldSelector="metadata.name=a") == [
            "acme/a",
            "other/a",
        ]
        assert await names(workloads(), fieldSelector="spec.type=Job") == []
        wrong = await rig.send("GET", workloads(), fieldSelector="spec.nothing=1")
        assert wrong.code == 422

    run(story)


def test_unknown_fields_are_refused_warned_of_or_left_out_as_asked(run: Run) -> None:
    """Strict in the words of Kubernetes, Warn in a header, Ignore in silence."""

    async def story(rig: ApiRig) -> None:
        body = {**named("a"), "spec": {**WEB["spec"], "replcas": 1}}
        strict = await rig.create(body, fieldValidation="Strict")
        assert strict.code == 400
        assert 'strict decoding error: unknown field "spec.replcas"' in strict.body["message"]
        warned = await rig.create(body)
        assert warned.code == 201
        assert 'unknown field \\"spec.replcas\\"' in warned.headers["Warning"]
        silent = await rig.create({**body, "metadata": {"name": "b"}}, fieldValidation="Ignore")
        assert silent.code == 201
        assert "Warning" not in silent.headers

    run(story)


def test_a_field_without_effect_is_warned_of_whatever_is_asked_of_unknown_ones(run: Run) -> None:
    """In the header that kubectl prints, with each verb that writes. [A15]"""

    async def story(rig: ApiRig) -> None:
        spec = {**WEB["spec"], "latencyTargetMs": 50}
        text = '299 - "spec.latencyTargetMs has no effect yet: '
        body = {**named("a"), "spec": {**spec, "replcas": 1}}
        made = await rig.create(body, fieldValidation="Ignore")
        assert made.headers["Warning"].startswith(text)
        assert "replcas" not in made.headers["Warning"]
        put = await rig.send("PUT", workloads(name="a"), made.body)
        assert put.headers["Warning"].startswith(text)
        headers = {"Content-Type": MERGE}
        change = {"spec": {"replicas": 2, "replcas": 1}}
        query = {"fieldValidation": "Ignore"}
        patched = await rig.send("PATCH", workloads(name="a"), change, headers=headers, **query)
        assert patched.headers["Warning"].startswith(text)
        assert "replcas" not in patched.headers["Warning"]
        dry = await rig.create({**named("b"), "spec": spec}, dryRun="All")
        assert dry.headers["Warning"].startswith(text)
        assert (await rig.create(named("c"))).headers.get("Warning") is None

    run(story)


def test_what_was_read_is_not_created_again(run: Run) -> None:
    """In the words and with the code of Kubernetes, also as one of many. [A2]"""

    async def story(rig: ApiRig) -> None:
        made = (await rig.create(WEB)).body
        version = made["metadata"]["resourceVersion"]
        seen = {**named("b"), "metadata": {"name": "b", "resourceVersion": version}}
        refused = await rig.create(seen)
        assert (refused.code, refused.body["reason"]) == (400, "BadRequest")
        text = "resourceVersion should not be set on objects to be created"
        assert refused.body["message"] == text
        many = await rig.send("POST", workloads(), [seen, named("c")])
        assert [item["code"] for item in many.body["items"]] == [400, 201]
        assert many.body["items"][0]["status"]["message"] == text
        unseen = {**named("b"), "metadata": {"name": "b", "resourceVersion": "0"}}
        assert (await rig.create(unseen)).code == 201

    run(story)


def test_patches_of_each_type(run: Run) -> None:
    """Merge, JSON and apply change the object; strategic is for kinds that others know."""

    async def story(rig: ApiRig) -> None:
        await rig.create(WEB)

        async def patch(media: str, body: Any, **query: str) -> Any:
            headers = {"Content-Type": media}
            return await rig.send("PATCH", workloads(name="web"), body, headers=headers, **query)

        merged = await patch(MERGE, {"spec": {"replicas": 2}})
        assert merged.body["spec"]["replicas"] == 2
        operations = [{"op": "replace", "path": "/spec/replicas", "value": 4}]
        assert (await patch("application/json-patch+json", operations)).body["spec"][
            "replicas"
        ] == 4
        strategic = await patch("application/strategic-merge-patch+json", {})
        assert (strategic.code, strategic.body["reason"]) == (415, "UnsupportedMediaType")

    run(story)


def test_server_side_apply_names_the_owner_of_a_conflicting_field(run: Run) -> None:
    """It creates, changes what is its own, and takes over only by force."""

    async def story(rig: ApiRig) -> None:
        headers = {"Content-Type": APPLY}
        path = workloads(name="web")
        text = b"""
apiVersion: holdfast.dev/v1
kind: Workload
metadata: {name: web}
spec:
  replicas: 2
  template: {command: [sleep, "60"]}
"""
        one = await rig.send("PATCH", path, text, headers=headers, fieldManager="one")
        assert (one.code, one.body["spec"]["replicas"]) == (201, 2), one.body
        other = text.replace(b"replicas: 2", b"replicas: 3")
        two = await rig.send("PATCH", path, other, headers=headers, fieldManager="two")
        assert (two.code, two.body["reason"]) == (409, "Conflict")
        assert two.body["details"]["causes"][0]["reason"] == "FieldManagerConflict"
        assert '"one"' in two.body["message"]
        forced = await rig.send(
            "PATCH", path, other, headers=headers, fieldManager="two", force="true"
        )
        assert (forced.code, forced.body["spec"]["replicas"]) == (200, 3)
        assert (await rig.send("PATCH", path, other, headers=headers)).code == 422

    run(story)


def test_an_apply_that_creates_says_so_also_when_it_is_repeated(run: Run) -> None:
    """Every other apply is 200; a dry run answers as the real one would. [E5]"""

    async def story(rig: ApiRig) -> None:
        async def applied(operation: str, replicas: int, **query: str) -> tuple[int, int]:
            headers = {"Content-Type": APPLY, "X-Holdfast-Operation": operation}
            body = {**WEB, "spec": {**WEB["spec"], "replicas": replicas}}
            query |= {"fieldManager": "one"}
            path = workloads(name="web")
            answer = await rig.send("PATCH", path, body, headers=headers, **query)
            return answer.code, answer.body["spec"]["replicas"]

        assert await applied("dry", 2, dryRun="All") == (201, 2)
        assert await applied("made", 2) == (201, 2)
        assert await applied("unchanged", 2) == (200, 2)
        assert await applied("changed", 3) == (200, 3)
        assert await applied("changed", 3) == (200, 3)
        assert await applied("made", 2) == (201, 3)
        assert await applied("silent", 4, fieldValidation="Ignore") == (200, 4)

    run(story)


def test_a_dry_run_decides_and_writes_nothing(run: Run) -> None:
    """The answer is what would be."""

    async def story(rig: ApiRig) -> None:
        made = await rig.create(WEB, dryRun="All")
        assert made.code == 201
        assert (await rig.send("GET", workloads(name="web"))).code == 404
        assert (await rig.create(WEB, dryRun="Some")).code == 422

    run(story)


def test_the_same_operation_is_performed_once(run: Run) -> None:
    """Its repetition is answered with how things are. [C2, INV3]"""

    async def story(rig: ApiRig) -> None:
        headers = {"X-Holdfast-Operation": "op-1"}
        first = await rig.create(WEB, headers=headers)
        again = await rig.create(WEB, headers=headers)
        assert (first.code, again.code) == (201, 201)
        assert again.body == first.body
        other = await rig.create({**WEB, "spec": {**WEB["spec"], "replicas": 9}}, headers=headers)
        assert other.headers["X-Holdfast-Reason"] == "OperationReused"

    run(story)


def test_scale_reads_and_sets_the_number(run: Run) -> None:
    """By a PUT without content type, as kubectl sends it, and by a merge patch."""

    async def story(rig: ApiRig) -> None:
        await rig.create(WEB)
        path = workloads(name="web") + "/scale"
        scale = (await rig.send("GET", path)).body
        assert (scale["kind"], scale["spec"]["replicas"]) == ("Scale", 1)
        scale["spec"]["replicas"] = 5
        put = await rig.send("PUT", path, scale, headers={"Content-Type": ""})
        assert put.body["spec"]["replicas"] == 5, put.body
        stale = await rig.send("PUT", path, scale)
        assert stale.code == 409
        headers = {"Content-Type": MERGE}
        patched = await rig.send("PATCH", path, {"spec": {"replicas": 7}}, headers=headers)
        assert patched.body["spec"]["replicas"] == 7
        got = await rig.send("GET", workloads(name="web"))
        assert got.body["spec"]["replicas"] == 7

    run(story)


def test_the_status_has_a_path_and_a_writer_of_its_own(run: Run) -> None:
    """An administrator is no controller, and an update of the status changes nothing else. [A9]"""

    async def story(rig: ApiRig) -> None:
        made = (await rig.create(WEB)).body
        path = workloads(name="web") + "/status"
        body = {**made, "status": {"observedGeneration": 1}, "spec": {**WEB["spec"], "replicas": 9}}
        assert (await rig.send("PUT", path, body)).code == 403
        controller = "system:controller:status"
        unseen = {**body, "metadata": {**made["metadata"], "resourceVersion": ""}}
        bare = await rig.send("PUT", path, unseen, user=controller)
        assert bare.code == 422, bare.body
        request = AcquireLease("controller:status", 10_000)
        await rig.authority.ask(Identity(name=controller), request, PATIENCE_S)
        term = {"X-Holdfast-Term": "1 controller:status"}
        done = await rig.send("PUT", path, body, user=controller, headers=term)
        assert done.code == 200, done.body
        assert done.body["status"]["observedGeneration"] == 1
        assert "replicas" not in done.body["spec"]

    run(story)


def test_many_objects_in_one_request_have_one_result_each(run: Run) -> None:
    """Good ones are created, bad ones are refused as they would be alone."""

    async def story(rig: ApiRig) -> None:
        items = [named("a"), {**named("b"), "spec": {}}, named("c"), named("a")]
        for body in (items, {"kind": "List", "apiVersion": "v1", "items": items}):
            answer = await rig.send("POST", workloads(), body)
            assert answer.code == 200, answer.body
        first = await rig.send("POST", workloads(), [named("d"), items[1], named("d")])
        assert [item["code"] for item in first.body["items"]] == [201, 422, 409]
        assert first.body["items"][2]["reason"] == "AlreadyExists"
        assert first.body["items"][0]["objects"][0]["metadata"]["name"] == "d"
        listed = (await rig.send("GET", workloads())).body["items"]
        assert [o["metadata"]["name"] for o in listed] == ["a", "c", "d"]

    run(story)


def test_a_collection_is_deleted_by_selector(run: Run) -> None:
    """What is not selected stays."""

    async def story(rig: ApiRig) -> None:
        path = f"{GROUP}/namespaces/acme/secrets"
        for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
            body = {"kind": "Secret", "metadata": {"name": name, "labels": {"app": app}}}
            assert (await rig.send("POST", path, body)).code == 201
        answer = await rig.send("DELETE", path, labelSelector="app=x")
        assert answer.code == 200, answer.body
        left = (await rig.send("GET", path)).body["items"]
        assert [o["metadata"]["name"] for o in left] == ["b"]

    run(story)
