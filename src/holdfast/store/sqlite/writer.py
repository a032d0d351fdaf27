"""The writer thread: takes all waiting requests, commits them as one group, and answers.

While a group is being synced, the next one collects. So concurrent callers share one sync, and a
single caller does not wait for others.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.store.sqlite.engine import SqliteEngine
from holdfast.store.sqlite.writes import Answer, Answers, Request

# A longer group is cut, so that its first callers do not wait for the last.
GROUP_REQUESTS_MAX = 512

# Passes the answers to these jobs to the event loop.
Deliver = Callable[["list[WriterJob]", Answers, str | None], None]


class WriterJob:
    """A submitted request. Either the writer takes it or its caller's time-out withdraws it."""

    __slots__ = ("future", "is_taken", "is_withdrawn", "request")

    def __init__(self, request: Request, future: asyncio.Future[Answer]) -> None:
        self.request = request
        self.future = future
        self.is_taken = False
        self.is_withdrawn = False


class Writer:
    """Runs an engine on a thread of its own. `submit` and `withdraw` are for the event loop."""

    def __init__(self, engine: SqliteEngine, deliver: Deliver) -> None:
        self._engine = engine
        self._deliver = deliver
        self._queue: queue.SimpleQueue[WriterJob | None] = queue.SimpleQueue()
        self._handover = threading.Lock()
        # Taken and not yet answered.
        self._serving: list[WriterJob] = []
        # Set when no further job will be taken: None while running.
        self._ended: HoldfastError | None = None
        self._thread = threading.Thread(target=self._main, name="holdfast-store", daemon=True)
        self._thread.start()

    def submit(self, job: WriterJob) -> None:
        with self._handover:
            if self._ended is not None:
                raise self._ended
            self._queue.put(job)

    def withdraw(self, job: WriterJob) -> HoldfastError:
        """Give up waiting; the error says whether the job can still take effect."""
        with self._handover:
            if job.is_taken:
                return OutcomeUnknown(
                    f"no answer in time from {self._engine.path}: the transaction is being written."
                    " Ask for the fate of its token."
                )
            job.is_withdrawn = True
            return Unavailable(
                f"no answer in time from {self._engine.path}: the transaction was withdrawn before"
                " it was written"
            )

    def stop(self) -> None:
        """Finish what was submitted, then end. Returns at once; `join` waits."""
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join()

    def _main(self) -> None:
        ending: HoldfastError = Unavailable("the store is closed")
        try:
            while self._turn():
                pass
            if self._engine.failure is not None:
                ending = Unavailable(self._engine.failure, code="StoreFailed")
        except BaseException as bug:
            self._engine.failure = f"The store {self._engine.path} has stopped by a bug: {bug!r}"
            ending = Unavailable(self._engine.failure, code="StoreFailed")
            raise
        finally:
            self._end(ending)

    def _turn(self) -> bool:
        """Serve one group; False at the end."""
        jobs, is_last = self._take()
        if jobs:
            self._serving = jobs
            answers = self._engine.run([job.request for job in jobs])
            self._serving = []
            self._deliver(jobs, answers, self._engine.failure)
        elif not is_last:
            # No request waits: sweep. Garbage that readers still hold does not count.
            self._engine.run([])
        if self._engine.failure is None:
            self._engine.keep_house()
        return not is_last and self._engine.failure is None

    def _take(self) -> tuple[list[WriterJob], bool]:
        """All waiting requests, up to a bound; an empty list when there is time to sweep."""
        waiting: list[WriterJob] = []
        is_last = False
        try:
            job = self._queue.get(block=not self._engine.view.has_garbage())
            while True:
                if job is None:
                    is_last = True
                    break
                waiting.append(job)
                if len(waiting) == GROUP_REQUESTS_MAX:
                    break
                job = self._queue.get_nowait()
        except queue.Empty:
            pass
        with self._handover:
            jobs = [job for job in waiting if not job.is_withdrawn]
            for job in jobs:
                job.is_taken = True
        return jobs, is_last

    def _end(self, ending: HoldfastError) -> None:
        """Refuse everything from here on, also what was submitted but not taken."""
        with self._handover:
            self._ended = ending
        # After a bug it is unknown how far these got.
        unknown: list[Answer] = [OutcomeUnknown(ending.message) for _ in self._serving]
        left: list[WriterJob] = []
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                left.append(job)
        answers = Answers([*unknown, *[ending] * len(left)], self._engine.view.revision, [])
        self._deliver(self._serving + left, answers, self._engine.failure)
