"""What the store's contract promises of reads and of its life, for every kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.model.errors import Invalid, Unavailable
from holdfast.model.keys import after_prefix
from holdfast.model.transaction import Committed, Delete, NotApplied, Put, TokenApplied, Transaction
from holdfast.store.contract import KEY_END, Store
from tests import store_factories
from tests.property.store_stories import collect, following, on_fresh, put, puts
from tests.store_factories import SILENCE_MAX_S, Rig


@pytest.fixture(scope="module", params=store_factories.params())
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    yield from store_factories.started(request.param, tmp_path_factory.mktemp("store"))


# Reads. ------------------------------------------------------------------------------------------


def test_values_come_back_as_they_were(rig: Rig) -> None:
    """Empty is not absent, and every byte survives, up to the largest object [INV11]."""
    values = {
        "empty": b"",
        "every-byte": bytes(range(256)),
        "zeros": bytes(1000),
        "large": bytes(range(256)) * 4096,
    }

    async def story(store: Store) -> None:
        for key, value in values.items():
            await put(store, key, value)
        page = await store.range("a", KEY_END)
        assert {r.key: r.value for r in page.records} == values

    on_fresh(rig, story)


def test_keys_are_ordered_by_code_point(rig: Rig) -> None:
    keys = ["A", "a", "a\0", "a!", "a/b", "aa", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000"]

    async def story(store: Store) -> None:
        for key in reversed(keys):
            await put(store, key, b"")
        assert [r.key for r in (await store.range("A", KEY_END)).records] == keys
        below = await store.range("a", after_prefix("a"))
        assert [r.key for r in below.records] == ["a", "a\0", "a!", "a/b", "aa"]
        assert [r.key for r in (await store.range("\ud7ff", "\ue000")).records] == ["\ud7ff"]
        assert (await store.range("b", "a")).records == ()

    on_fresh(rig, story)


def test_a_list_in_pages_shows_one_moment_while_writers_go_on(rig: Rig) -> None:
    """Pages read at the first page's revision join without a seam [C8]."""

    async def story(store: Store) -> None:
        names = [f"k{i:04}" for i in range(600)]
        for i in range(0, 600, 60):
            await store.txn(puts(*((name, b"old") for name in names[i : i + 60])))
        page = await store.range("k", "l", limit=250)
        at, seen = page.revision, list(page.records)
        while page.more_from is not None:
            name = names[len(seen)]
            await store.txn(Transaction((), (Put(name, b"new"), Put(name + "-new", b"new"))))
            await store.txn(Transaction((), (Delete(names[-1]),)))
            page = await store.range(page.more_from, "l", limit=250, at=at)
            assert page.revision == at
            seen += page.records
        assert [r.key for r in seen] == names
        assert {r.value for r in seen} == {b"old"}

    on_fresh(rig, story)


def test_a_range_needs_a_limit_of_at_least_one(rig: Rig) -> None:
    async def story(store: Store) -> None:
        with pytest.raises(Invalid):
            await store.range("a", "b", limit=0)

    on_fresh(rig, story)


def test_a_read_sees_what_was_acknowledged_before(rig: Rig) -> None:
    """Linearizable: `range` and `revision` are never behind an answer already given [C2]."""

    async def story(store: Store) -> None:
        async def write_and_read(key: str) -> None:
            for i in range(10):
                written = await put(store, key, b"%d" % i)
                page = await store.range(key, key + "\0")
                assert page.revision >= written
                assert page.records[0].value == b"%d" % i
                assert await store.revision() >= written

        await asyncio.gather(*(write_and_read(f"k{n}") for n in range(8)))

    on_fresh(rig, story)


# Life. -------------------------------------------------------------------------------------------


def test_compaction_keeps_what_is_current(rig: Rig) -> None:
    async def story(store: Store) -> None:
        for i in range(5):
            await put(store, "a", b"%d" % i)
            await put(store, f"b{i}", b"")
        await store.txn(Transaction((), (Delete("b0"),)))
        before = await store.range("a", KEY_END)
        await store.compact(before.revision)
        after = await store.range("a", KEY_END)
        assert after.records == before.records
        await store.compact(before.revision)
        await store.compact(before.revision - 3)
        with pytest.raises(Invalid):
            await store.compact(before.revision + 1_000)
        assert (await store.range("a", KEY_END, at=before.revision)).records == before.records

    on_fresh(rig, story)


def test_a_closed_store_ends_its_watches_and_refuses_the_rest(rig: Rig) -> None:
    async def story(store: Store) -> None:
        revision = await put(store, "a", b"1")
        token = store.new_token()
        batches = store.watch("a", after=revision)
        await following(batches)

        async def read_to_the_end() -> None:
            async for _ in batches:
                pass

        reading = asyncio.create_task(read_to_the_end())
        await asyncio.sleep(0)
        await store.close()
        async with asyncio.timeout(SILENCE_MAX_S):
            await reading
        for call in (
            store.range("a", "b"),
            store.txn(puts(("a", b"2"))),
            store.fate(token),
            store.compact(revision),
            store.revision(),
        ):
            with pytest.raises(Unavailable):
                await call

    on_fresh(rig, story)


def test_a_store_opened_again_goes_on_where_it_was(rig: Rig) -> None:
    """Records, past revisions, revision and tokens survive a restart [C7.4, INV10, INV11]."""
    if not rig.durable:
        pytest.skip(f"{rig.name} keeps nothing over a restart, by design")

    async def story(store: Store) -> None:
        token, lost = store.new_token(), store.new_token()
        first = await put(store, "a", b"1")
        outcome = await store.txn(puts(("b", b"1")), token=token)
        assert isinstance(outcome, Committed)
        await store.txn(Transaction((), (Delete("b"),)))
        pages = [await store.range("a", KEY_END, at=at) for at in (first, outcome.revision)]
        now = await store.range("a", KEY_END)
        again = await rig.reopen(store)
        try:
            assert await again.revision() >= now.revision
            assert (await again.range("a", KEY_END)).records == now.records
            for page in pages:
                assert await again.range("a", KEY_END, at=page.revision) == page
            assert await again.fate(token) == TokenApplied(outcome.revision)
            assert await again.fate(lost) == NotApplied()
            assert again.new_token() not in (token, lost)
            changes = await collect(again.watch("", after=first), now.revision)
            assert [(c.key, c.value) for c in changes] == [("b", b"1"), ("b", None)]
            assert await put(again, "c", b"") > now.revision
        finally:
            await again.close()

    on_fresh(rig, story)
