"""resourceVersions over HTTP: what answers carry, what may be asked with them, and resumed watches.

The client here is a stock one: it takes versions as they come and gives them back.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.model.encoding.resource_versions import VERSION_MAX, object_version, parse_version
from tests.patience import PATIENCE_S
from tests.unit.host.api.api_rig import (
    GROUP,
    MERGE,
    TABLE,
    WEB,
    ApiRig,
    events,
    named,
    play,
    store_of,
    workloads,
)

CROWD = 12
GARBAGE = ("-1", "-2", "+2", "1.5", "abc", "0x2", " 2", "٤", str(VERSION_MAX + 1), "9" * 60)


@pytest.fixture(params=["memory", "sqlite"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    async def played(story: Any) -> None:
        async with ApiRig(await store_of(request.param, tmp_path)) as rig:
            await rig.tenant()
            await story(rig)

    return lambda story: play(played(story))


def version_of(body: Any) -> str:
    version: str = body["metadata"]["resourceVersion"]
    return version


async def crowd(rig: ApiRig, prefix: str) -> list[str]:
    """Create many at once. The authority commits them in a few groups, each at one revision."""
    names = [f"{prefix}{i:02}" for i in range(CROWD)]
    made = (await rig.send("POST", workloads(), [named(name) for name in names])).body["items"]
    assert [item["code"] for item in made] == [201] * CROWD
    assert len({item["revision"] for item in made}) < CROWD, "no group had two in it"
    return names


def names_of(told: list[tuple[str, Any]]) -> list[str]:
    return [obj["metadata"]["name"] for _, obj in told]


def test_objects_have_versions_of_their_own_and_lists_those_of_the_whole(run: Any) -> None:
    """In every shape. A list is newer than all that is in it, though it has seen no more. [C8]"""

    async def story(rig: ApiRig) -> None:
        made = (await rig.create(named("a"))).body
        revision = await rig.store.revision()
        assert version_of(made) == object_version(revision)
        for headers in ({}, {"Accept": TABLE}):
            got = (await rig.send("GET", workloads(name="a"), headers=headers)).body
            assert version_of(got) == version_of(made)
            listed = (await rig.send("GET", workloads(), headers=headers)).body
            assert parse_version(version_of(listed)).is_complete
            assert int(version_of(listed)) > int(version_of(made))
        put = (await rig.send("PUT", workloads(name="a"), made)).body
        assert version_of(put) == version_of(made)
        for path in ("/api/v1/namespaces", f"{GROUP}/tenants"):
            listed = (await rig.send("GET", path)).body
            assert parse_version(version_of(listed)).is_complete
            assert not parse_version(version_of(listed["items"][0])).is_complete

    run(story)


def test_a_watch_broken_after_each_line_is_resumed_without_a_hole(run: Any) -> None:
    """What is repeated was committed together with the last line. [INV10, C8]"""

    async def story(rig: ApiRig) -> None:
        await rig.create(named("before"))
        start = version_of((await rig.send("GET", workloads())).body)
        names = [*await crowd(rig, "w"), "after"]
        await rig.create(named("after"))
        async with rig.watch(workloads(), resourceVersion=start) as watch:
            whole = await events(watch, len(names))
        assert names_of(whole) == names
        versions = [version_of(obj) for _, obj in whole]
        for seen, version in enumerate(versions[:-1], 1):
            again = versions.index(version) if versions.count(version) > 1 else seen
            async with rig.watch(workloads(), resourceVersion=version) as watch:
                rest = await events(watch, len(whole) - again)
            assert rest == whole[again:], f"broken after line {seen}"

    run(story)


def test_the_watch_of_one_of_many_gets_nothing_twice(run: Any) -> None:
    """Others of its revision do not count. [INV10]"""

    async def story(rig: ApiRig) -> None:
        for name in await crowd(rig, "w"):
            version = version_of((await rig.send("GET", workloads(name=name))).body)
            field = f"metadata.name={name}"
            query = {"fieldSelector": field, "resourceVersion": version}
            async with rig.watch(workloads(), **query) as watch:
                body = {"metadata": {"labels": {"is": "new"}}}
                headers = {"Content-Type": MERGE}
                await rig.send("PATCH", workloads(name=name), body, headers=headers)
                ((kind, obj),) = await events(watch, 1)
            assert (kind, obj["metadata"]["labels"]) == ("MODIFIED", {"is": "new"})

    run(story)


def test_a_bookmark_and_a_list_are_resumed_from_without_repetition(run: Any) -> None:
    """[INV10, C8]"""

    async def story(rig: ApiRig) -> None:
        first = await crowd(rig, "a")
        listed = version_of((await rig.send("GET", workloads())).body)
        query = {"sendInitialEvents": "true", "allowWatchBookmarks": "true"}
        async with rig.watch(workloads(), **query) as watch:
            *_, (kind, mark) = await events(watch, len(first) + 1)
        assert kind == "BOOKMARK"
        assert parse_version(version_of(mark)).is_complete
        names = await crowd(rig, "b")
        for version in (listed, version_of(mark)):
            async with rig.watch(workloads(), resourceVersion=version) as watch:
                told = await events(watch, len(names))
            assert names_of(told) == names

    run(story)


def test_zero_is_any_state_to_reads_and_watches(run: Any) -> None:
    """A watch from 0 tells what is there first. [C8]"""

    async def story(rig: ApiRig) -> None:
        await rig.create(named("a"))
        await rig.send("GET", workloads())
        for version in ("0", "00"):
            query = {"resourceVersion": version}
            assert (await rig.send("GET", workloads(name="a"), **query)).code == 200
            assert len((await rig.send("GET", workloads(), **query)).body["items"]) == 1
            async with rig.watch(workloads(), **query) as watch:
                ((kind, _),) = await events(watch, 1)
            assert kind == "ADDED"

    run(story)


def test_what_is_no_version_is_a_bad_request(run: Any) -> None:
    """To reads and watches alike; the answer says which parameter. [A2]"""

    async def story(rig: ApiRig) -> None:
        for text in GARBAGE:
            for path, more in (
                (workloads(), {}),
                (workloads(), {"watch": "true"}),
                (workloads(), {"resourceVersionMatch": "Exact"}),
                (workloads(name="a"), {}),
            ):
                answer = await rig.send("GET", path, resourceVersion=text, **more)
                assert (answer.code, answer.body["reason"]) == (400, "BadRequest"), text
                assert "resourceVersion" in answer.body["message"]

    run(story)


def test_a_read_is_not_older_than_any_version_that_was_seen(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this server has not reached is said to be too large, in time and not for ever. [C8]"""
    monkeypatch.setattr("holdfast.host.api.objects.reads.AHEAD_S", 0.05)

    async def story(rig: ApiRig) -> None:
        made = (await rig.create(named("a"))).body
        whole = version_of((await rig.send("GET", workloads())).body)
        for version in (version_of(made), whole):
            assert (await rig.send("GET", workloads(), resourceVersion=version)).code == 200
        for version in (str(int(whole) + 1), str(int(whole) + 2), str(VERSION_MAX)):
            for path, more in (
                (workloads(), {}),
                (workloads(name="a"), {}),
                (workloads(), {"resourceVersionMatch": "NotOlderThan"}),
                (workloads(), {"resourceVersionMatch": "Exact"}),
            ):
                answer = await rig.send("GET", path, resourceVersion=version, **more)
                assert (answer.code, answer.body["reason"]) == (504, "Timeout"), answer.body
                assert "Too large resource version" in answer.body["message"]

    run(story)


def test_an_exact_version_lists_the_state_of_its_revision(run: Any) -> None:
    """An object's version stands for the whole revision in which it was written. [C8]"""

    async def story(rig: ApiRig) -> None:
        names = await crowd(rig, "a")
        first = (await rig.send("GET", workloads())).body
        last = max((version_of(item) for item in first["items"]), key=int)
        await rig.create(named("later"))
        for version in (version_of(first), last):
            query = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
            found = (await rig.send("GET", workloads(), **query)).body
            assert [o["metadata"]["name"] for o in found["items"]] == names
            at = parse_version(version).revision
            assert parse_version(version_of(found)).revision == at
        page = (await rig.send("GET", workloads(), limit="1", **query)).body
        token = {"continue": page["metadata"]["continue"]}
        rest = (await rig.send("GET", workloads(), **token)).body
        assert [o["metadata"]["name"] for o in rest["items"]] == names[1:]
        assert version_of(rest) == version_of(page)
        # Before the first transaction there was nothing.
        query["resourceVersion"] = "1"
        assert (await rig.send("GET", workloads(), **query)).body["items"] == []
        await rig.store.compact(await rig.store.revision())
        assert (await rig.send("GET", workloads(), **query)).code == 410

    run(story)


def test_parameters_that_contradict_each_other_are_refused(run: Any) -> None:
    """The same as in Kubernetes."""

    async def story(rig: ApiRig) -> None:
        await crowd(rig, "a")
        page = (await rig.send("GET", workloads(), limit="1")).body
        token, version = page["metadata"]["continue"], version_of(page)
        for code, query in (
            (422, {"resourceVersionMatch": "Exact"}),
            (422, {"resourceVersionMatch": "NotOlderThan"}),
            (422, {"resourceVersionMatch": "Newest", "resourceVersion": version}),
            (422, {"resourceVersionMatch": "Exact", "resourceVersion": "0"}),
            (400, {"continue": token, "resourceVersion": version}),
            (422, {"continue": token, "resourceVersionMatch": "Exact"}),
            (200, {"continue": token, "resourceVersion": "0"}),
        ):
            answer = await rig.send("GET", workloads(), **query)
            assert answer.code == code, (query, answer.body)

    run(story)


def test_a_forged_token_leads_nowhere(run: Any) -> None:
    """However large or small the revision in it is."""

    async def story(rig: ApiRig) -> None:
        await rig.create(named("a"))
        for revision in (-1, 0, 10**6, 2**63 - 1, 2**63, 2**64, 10**30, "7", None):
            document = {"revision": revision, "start": "objects/workloads/acme/"}
            token = urlsafe_b64encode(msgspec.json.encode(document)).decode()
            answer = await rig.send("GET", workloads(), **{"continue": token})
            assert answer.code in (400, 410), (revision, answer.body)

    run(story)


def test_preconditions_take_an_objects_version_and_no_other(run: Any) -> None:
    """[A2, C2]"""

    async def story(rig: ApiRig) -> None:
        made = (await rig.create(WEB)).body
        listed = version_of((await rig.send("GET", workloads())).body)
        path = workloads(name="web")

        async def codes(version: str) -> list[int]:
            body = {**made, "metadata": {**made["metadata"], "resourceVersion": version}}
            patch = {"metadata": {"resourceVersion": version}}
            options = {"preconditions": {"resourceVersion": version}}
            merge = {"Content-Type": MERGE}
            return [
                (await rig.send("PUT", path, body)).code,
                (await rig.send("PATCH", path, patch, headers=merge)).code,
                (await rig.send("DELETE", path, options, dryRun="All")).code,
            ]

        assert await codes(version_of(made)) == [200, 200, 200]
        assert await codes(listed) == [409, 409, 409]
        assert await codes(str(int(version_of(made)) + 1)) == [409, 409, 409]
        assert await codes("abc") == [422, 422, 409]
        assert await codes("0") == [200, 200, 409]

    run(story)


def test_a_watch_from_a_version_of_another_history_is_too_old(run: Any) -> None:
    """Of a store that was lost: no revision of it is known here. [INV10]"""

    async def story(rig: ApiRig) -> None:
        for version in ("999999", "999998", str(VERSION_MAX), str(VERSION_MAX - 1)):
            async with rig.watch(workloads(), resourceVersion=version) as watch:
                ((kind, obj),) = await asyncio.wait_for(events(watch, 1), PATIENCE_S)
            assert (kind, obj["code"]) == ("ERROR", 410)

    run(story)
