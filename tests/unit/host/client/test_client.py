"""The client against a server that loses answers, asks to retry later, refuses or is down."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.host.client import Access, AsyncClient, DeletedObject
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.errors import Conflict, Expired, Forbidden, Missing, OutcomeUnknown, Unavailable
from holdfast.model.kinds.replica import Pending
from holdfast.model.kinds.workload import Workload
from holdfast.model.requests import Accepted, RenewLease, ReportPending, Target, Term
from tests.patience import PATIENCE_S
from tests.unit.host.client.scripted import HASTY, Scripted, hangs_up, refuses, says

PATH = "/apis/holdfast.dev/v1/namespaces/acme/workloads"


def play(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story

    asyncio.run(bounded())


def document(name: str = "web", *operations: str, **metadata: Any) -> dict[str, Any]:
    """Return a workload as a server sends it, with these operations remembered."""
    at = "2026-01-01T00:00:00Z"
    remembered = [{"id": operation, "digest": "d", "at": at} for operation in operations]
    return {
        "kind": "Workload",
        "apiVersion": "holdfast.dev/v1",
        "metadata": {
            "name": name,
            "namespace": "acme",
            "uid": "u-1",
            "resourceVersion": "14",
            "operations": remembered,
            **metadata,
        },
        "spec": {"template": {"command": ["true"]}},
    }


def web(name: str = "web") -> Workload:
    return decode_trusted(Workload, msgspec.json.encode(document(name)))


def test_a_lost_answer_is_looked_up_and_never_sent_again_when_it_was_accepted(
    tmp_path: Path,
) -> None:
    """[E5]"""

    async def story() -> None:
        server = Scripted(tmp_path, hangs_up, says(document("web", "op-1")))
        async with server, server.client() as client:
            made = await client.create(web(), operation="op-1")
            assert made.metadata.uid == "u-1"
            assert [(m, p) for m, p, _ in server.seen] == [
                ("POST", f"{PATH}?fieldValidation=Strict"),
                ("GET", f"{PATH}/web"),
            ]

    play(story())


def test_a_lost_answer_without_a_trace_is_sent_again_under_the_same_id(tmp_path: Path) -> None:
    """[E5]"""

    async def story() -> None:
        nothing = refuses(404, "Missing")
        server = Scripted(tmp_path, hangs_up, nothing, says(document("web", "op-1"), 201))
        async with server, server.client() as client:
            await client.create(web(), operation="op-1")
            sent = [(m, op) for m, _, op in server.seen]
            assert sent == [("POST", "op-1"), ("GET", ""), ("POST", "op-1")]

    play(story())


def test_put_and_delete_are_not_repeated_by_the_library_beneath(tmp_path: Path) -> None:
    """[E5]"""

    async def story() -> None:
        # The first answer leaves a connection open; on such a one aiohttp would repeat by itself.
        known = says(document("web"))
        server = Scripted(tmp_path, known, hangs_up, says(document("web", "op-2")))
        async with server, server.client() as client:
            await client.get(Workload, "web", "acme")
            await client.update(web(), operation="op-2")
            assert [m for m, _, _ in server.seen] == ["GET", "PUT", "GET"]
        server = Scripted(tmp_path, known, hangs_up, refuses(404, "Missing"))
        async with server, server.client() as client:
            await client.get(Workload, "web", "acme")
            assert await client.delete(Workload, "web", "acme") == DeletedObject()
            assert [m for m, _, _ in server.seen] == ["GET", "DELETE", "GET"]

    play(story())


def test_a_deletion_meant_one_object_and_not_a_later_one_of_its_name(tmp_path: Path) -> None:
    """[E5]"""

    async def story() -> None:
        server = Scripted(tmp_path, hangs_up, says(document("web", uid="u-2")))
        async with server, server.client() as client:
            assert await client.delete(Workload, "web", "acme", uid="u-1") == DeletedObject()

    play(story())


def test_a_generated_name_is_looked_for_among_all(tmp_path: Path) -> None:
    """[E5]"""

    async def story() -> None:
        listed = {"metadata": {}, "items": [document("web-a"), document("web-b", "op-1")]}
        server = Scripted(tmp_path, hangs_up, says(listed))
        unnamed = web("")
        async with server, server.client() as client:
            made = await client.create(unnamed, operation="op-1")
            assert made.name == "web-b"

    play(story())


def test_the_next_server_is_asked_when_one_is_not_there(tmp_path: Path) -> None:
    """[E5, C7.5]"""

    async def story() -> None:
        server = Scripted(tmp_path, says(document()))
        async with server, server.client(before=("https://127.0.0.1:1",)) as client:
            assert (await client.get(Workload, "web", "acme")).name == "web"
            await client.get(Workload, "web", "acme")
            assert client.performer.sent == 2, "within one try"

    play(story())


def test_a_server_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    """[E5, C7.5]"""

    async def story() -> None:
        busy = refuses(429, "TooManyRequests")
        server = Scripted(tmp_path, busy, refuses(503, "Unavailable"), says(document(), 201))
        async with server, server.client() as client:
            await client.create(web())
            ids = {operation for _, _, operation in server.seen}
            assert (len(server.seen), len(ids)) == (3, 1)
            assert server.attempts == ["", "2", "3"]

    play(story())


def test_a_503_of_a_proxy_leaves_the_outcome_of_a_write_open(tmp_path: Path) -> None:
    """[E5]"""

    async def story() -> None:
        proxy = says("the upstream is gone", 503)
        server = Scripted(tmp_path, proxy, says(document("web", "op-1")))
        async with server, server.client() as client:
            await client.create(web(), operation="op-1")
            assert [m for m, _, _ in server.seen] == ["POST", "GET"]

    play(story())


def test_a_change_is_computed_again_on_a_fresh_read_after_a_conflict(tmp_path: Path) -> None:
    """[E5]"""

    async def story() -> None:
        server = Scripted(
            tmp_path,
            says(document()),
            refuses(409, "StaleObject"),
            says(document(resourceVersion="16")),
            says(document(resourceVersion="18")),
        )
        seen: list[str] = []

        def compute(old: Workload) -> Workload:
            seen.append(old.metadata.resource_version)
            metadata = msgspec.structs.replace(old.metadata, labels={"a": "b"})
            return msgspec.structs.replace(old, metadata=metadata)

        async with server, server.client() as client:
            changed = await client.change(Workload, "web", "acme", compute)
            assert changed.metadata.resource_version == "18"
            assert [m for m, _, _ in server.seen] == ["GET", "PUT", "GET", "PUT"]
            assert seen == ["14", "16"]

    play(story())


@pytest.mark.parametrize(
    "code, reason, error",
    [
        (404, "Missing", Missing),
        (409, "AlreadyExists", Conflict),
        (403, "QuotaExceeded", Forbidden),
        (410, "Expired", Expired),
        (401, "Unauthenticated", Forbidden),
    ],
)
def test_a_refusal_arrives_as_it_was_meant(
    tmp_path: Path, code: int, reason: str, error: type[Exception]
) -> None:
    async def story() -> None:
        server = Scripted(tmp_path, refuses(code, reason, "because"))
        async with server, server.client() as client:
            with pytest.raises(error, match="because") as refused:
                await client.create(web())
            assert refused.value.code == reason  # type: ignore[attr-defined]
            assert len(server.seen) == 1

    play(story())


def test_a_client_that_cannot_find_out_says_that_the_outcome_is_unknown(tmp_path: Path) -> None:
    """[E5]"""

    async def story() -> None:
        server = Scripted(tmp_path, hangs_up)
        async with server, server.client() as client:
            with pytest.raises(OutcomeUnknown):
                await client.create(web())
            assert [m for m, _, _ in server.seen].count("POST") == 1

    play(story())


def test_a_server_of_another_authority_is_not_spoken_to(tmp_path: Path) -> None:
    async def story() -> None:
        server = Scripted(tmp_path / "one", says(document()))
        other = Scripted(tmp_path / "two", says(document()))
        async with server, other, other.client(before=(server.url,)) as client:
            await client.get(Workload, "web", "acme")
            assert (len(server.seen), len(other.seen)) == (0, 1)

    play(story())


def test_many_requests_go_together_and_only_the_unclear_ones_are_resolved(tmp_path: Path) -> None:
    """[E5]"""
    accepted = {"code": 200, "revision": 9, "replayed": False, "objects": []}
    lost = {"code": 504, "reason": "OutcomeUnknown", "status": {"message": "lost"}}
    stale = {"code": 409, "reason": "StaleReplica", "status": {"message": "stale"}}
    replica = {
        "kind": "Replica",
        "apiVersion": "holdfast.dev/v1",
        "metadata": {
            "name": "r1",
            "namespace": "acme",
            "uid": "u",
            "resourceVersion": "16",
            "operations": [{"id": "op-1", "digest": "d", "at": "2026-01-01T00:00:00Z"}],
        },
        "spec": {"workload": "w", "workloadUid": "w-1", "template": {"command": ["true"]}},
        "status": {},
    }

    async def story() -> None:
        server = Scripted(tmp_path, says({"items": [accepted, lost, stale]}), says(replica))
        requests = [_waits(f"r{number}", f"op-{number}") for number in range(3)]
        async with server, server.client() as client:
            first, second, third = await client.ask_all(requests)
            assert first == Accepted(9)
            assert isinstance(second, Accepted)
            assert (second.revision, second.replayed) == (8, True)
            assert isinstance(third, Conflict)
            assert [m for m, _, _ in server.seen] == ["POST", "GET"]

    play(story())


def test_a_lease_that_was_lost_is_said_to_be(tmp_path: Path) -> None:
    async def story() -> None:
        server = Scripted(tmp_path, refuses(409, "StaleEpoch", "another process took over"))
        async with server, server.client() as client:
            with pytest.raises(Conflict, match="took over"):
                await client.ask(RenewLease(Term("scheduler", 3)))

    play(story())


def test_no_server_at_all_is_unavailable_after_bounded_tries() -> None:
    """[E5]"""

    async def story() -> None:
        access = Access(servers=("https://127.0.0.1:1",))
        async with AsyncClient(access, policy=HASTY) as client:
            with pytest.raises(Unavailable):
                await client.create(web())
            assert client.performer.sent == HASTY.tries_max

    play(story())


def _waits(name: str, operation: str) -> ReportPending:
    return ReportPending(Target("acme", name, "u", 1), Pending(), operation)
