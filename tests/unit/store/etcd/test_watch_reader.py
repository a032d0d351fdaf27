"""The reader's end of a watch, with a follower made of a script instead of etcd."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast.model.errors import Expired, InvariantBroken
from holdfast.model.transaction import Batch, Change
from holdfast.store.etcd.watch_reader import (
    BUFFER_CHANGES_MAX,
    Buffer,
    EtcdWatch,
    Follow,
    FollowerRun,
)
from tests.patience import PATIENCE_S


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()

    asyncio.run(bounded())


def watch_over(follow: Follow) -> EtcdWatch:
    return EtcdWatch(lambda: FollowerRun(follow))


async def push_three(buffer: Buffer) -> None:
    for revision in (1, 2, 3):
        buffer.push(Batch(revision))
        await asyncio.sleep(0)
    await asyncio.Event().wait()


def test_nothing_is_followed_before_the_first_read() -> None:
    """A watch without a reader holds no stream open."""
    started: list[bool] = []

    async def follow(buffer: Buffer) -> None:
        started.append(True)
        await push_three(buffer)

    async def story() -> None:
        watch = watch_over(follow)
        await asyncio.sleep(0)
        assert not started
        assert await anext(watch) == Batch(1)
        assert started
        await watch.aclose()

    play(story)


def test_a_cancelled_wait_loses_nothing() -> None:
    """The next `anext` goes on from the same place [INV10]."""
    release = asyncio.Event()

    async def follow(buffer: Buffer) -> None:
        await release.wait()
        await push_three(buffer)

    async def story() -> None:
        watch = watch_over(follow)
        for _ in range(3):
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
        release.set()
        assert [(await anext(watch)).revision for _ in range(3)] == [1, 2, 3]
        await watch.aclose()

    play(story)


def test_what_came_before_a_failure_is_delivered_first() -> None:
    async def follow(buffer: Buffer) -> None:
        buffer.push(Batch(1))
        raise Expired("compacted")

    async def story() -> None:
        watch = watch_over(follow)
        assert await anext(watch) == Batch(1)
        for _ in range(2):
            with pytest.raises(Expired):
                await anext(watch)

    play(story)


def test_a_departed_reader_ends_the_follower() -> None:
    """Closed or just dropped: no stream is kept for a reader that is gone."""
    ended: list[str] = []
    both = asyncio.Event()

    def follower(name: str) -> Follow:
        async def follow(buffer: Buffer) -> None:
            try:
                await push_three(buffer)
            finally:
                ended.append(name)
                if len(ended) == 2:
                    both.set()

        return follow

    async def story() -> None:
        closed, dropped = watch_over(follower("closed")), watch_over(follower("dropped"))
        await anext(closed)
        await anext(dropped)
        await closed.aclose()
        assert ended == ["closed"]
        with pytest.raises(StopAsyncIteration):
            await anext(closed)
        del dropped
        gc.collect()
        await both.wait()

    play(story)


def test_two_readers_of_one_watch_are_a_bug() -> None:
    async def story() -> None:
        watch = watch_over(lambda buffer: asyncio.Event().wait())  # type: ignore[arg-type, return-value]
        first = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        with pytest.raises(InvariantBroken):
            await anext(watch)
        first.cancel()
        await watch.aclose()

    play(story)


def test_the_buffer_is_full_by_number_and_by_size() -> None:
    """A slow reader is bounded by both."""

    async def story() -> None:
        for changes, size in ((BUFFER_CHANGES_MAX + 1, 1), (5, 1_000_000)):
            buffer = Buffer()
            for i in range(changes):
                assert not buffer.is_full()
                buffer.push(Batch(i, (Change(i, "k", bytes(size), i),)))
            assert buffer.is_full()
            draining = asyncio.ensure_future(buffer.drained())
            for _ in range(changes):
                await asyncio.sleep(0)
                assert not draining.done()
                assert buffer.pop() is not None
            await draining
            assert not buffer.is_full()
            assert buffer.pop() is None

    play(story)
