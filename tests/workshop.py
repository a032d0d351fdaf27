"""A runtime with real processes, for tests: effects go in, what comes back can be waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from holdfast.agent.runtime_protocol import (
    Attempt,
    Halt,
    Inventory,
    Launch,
    Launched,
    LookAround,
    Sampled,
    SecretValues,
)
from holdfast.host.process.clock import monotonic_ms
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.host.runtime.cgroups import detect, removal
from holdfast.host.runtime.runtime import NodeRuntime
from holdfast.host.runtime.service_tokens import FetchToken
from holdfast.host.runtime.starting import RuntimeOptions
from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.template import Template

PATIENCE_S = 60.0
NODE = "n1"


def new_uid() -> str:
    """Never the same: what a broken run left behind must not be taken for work of this one."""
    return str(uuid.uuid4())


def command(script: str) -> Template:
    """Work that runs a script of the shell."""
    return Template(command=("/bin/sh", "-c", script))


class Workshop:
    """One agent's runtime."""

    def __init__(
        self,
        folder: Path,
        isolation: str | None = None,
        options: RuntimeOptions | None = None,
        fetch_token: FetchToken | None = None,
    ) -> None:
        self.folder = folder
        self.attempts = AttemptFolders(folder)
        self.told: list[Any] = []
        self.runtime = NodeRuntime(
            folder, node=NODE, isolation=isolation, options=options, fetch_token=fetch_token
        )
        self._arrived = asyncio.Event()

    def post(self, stimulus: Any) -> None:
        if isinstance(stimulus, Sampled):
            # What work uses comes at any time, and no story is about it.
            return
        self.told.append(stimulus)
        self._arrived.set()

    def fail(self, bug: BaseException) -> None:
        self.post(bug)

    def do(self, effect: Any) -> None:
        self.runtime.performers[type(effect)](effect)

    async def heard(self, kind: type[Any], attempt: Attempt | None = None) -> Any:
        """The first stimulus of a kind, when it has come."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for one in self.told:
                    if isinstance(one, BaseException):
                        raise one
                    if isinstance(one, kind) and (attempt is None or one.attempt == attempt):
                        return one
                self._arrived.clear()
                await self._arrived.wait()

    def launch(
        self,
        template: Template,
        *,
        within_ms: int | None = 60_000,
        grace_ms: int = 500,
        uid: str = "",
        number: int = 0,
        devices: tuple[DeviceShare, ...] = (),
        namespace: str = "team",
        secrets: SecretValues | None = None,
        tenant_uid: str = "",
        isolation: Isolation = Isolation.NONE,
    ) -> Attempt:
        """Launch it with a deadline so far from now; None is without."""
        attempt = Attempt(uid or new_uid(), number)
        deadline_ms = monotonic_ms() + within_ms if within_ms is not None else None
        name, until = f"web-{attempt.uid}", (deadline_ms, grace_ms)
        whose = {"tenant_uid": tenant_uid, "isolation": isolation, "devices": devices}
        given = secrets or SecretValues()
        self.do(Launch(attempt, namespace, name, template, 7, *until, secrets=given, **whose))
        return attempt

    async def launched(self, template: Template, **wishes: Any) -> Attempt:
        """Launch it and wait until it runs."""
        attempt = self.launch(template, **wishes)
        await self.heard(Launched, attempt)
        return attempt

    async def inventory(self) -> Inventory:
        self.told = [one for one in self.told if not isinstance(one, Inventory)]
        self.do(LookAround())
        found: Inventory = await self.heard(Inventory)
        return found

    def path(self, attempt: Attempt) -> Path:
        return self.folder / attempt.uid / str(attempt.number)

    def output(self, attempt: Attempt, stream: str = "stdout") -> str:
        """What the work said, without the times at which it did."""
        records = (self.path(attempt) / stream).read_text().splitlines()
        words = [record.split(" ", 3) for record in records]
        return "".join(text + "\n" * (kind == "F") for _, _, kind, text in words)

    async def prints(self, attempt: Attempt, count: int = 1) -> list[str]:
        """What it wrote, when it has written this many lines."""
        await eventually(lambda: self.output(attempt).count("\n") >= count)
        return self.output(attempt).splitlines()


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until this holds; for what no event signals."""
    async with asyncio.timeout(PATIENCE_S):
        # No event signals what a process wrote or whether it lives, so the test has to look.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether this process lives, as the machine sees it. A zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def pid_of(process_id: str) -> int:
    """The pid in a process's name."""
    return int(process_id.split("/")[1])


def marked(attempt: Attempt) -> list[int]:
    """All living processes of an attempt, by what is in their variables."""
    mark = f"HOLDFAST_ATTEMPT={attempt.uid}/{attempt.number}".encode()
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return [pid for pid in found if is_running(pid)]


async def control(folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A second line to the shim, such as another agent would open."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{fd}/control")
    finally:
        os.close(fd)


@asynccontextmanager
async def workshop(
    folder: Path,
    isolation: str | None = None,
    *,
    leaves_work: bool = False,
    options: RuntimeOptions | None = None,
    fetch_token: FetchToken | None = None,
) -> AsyncIterator[Workshop]:
    """A started runtime, whose work is ended with it unless the test wants to find it again."""
    one = Workshop(folder, isolation, options, fetch_token)
    await one.runtime.start(one.post, one.fail)
    try:
        yield one
    finally:
        await one.runtime.stop()
        if not leaves_work:
            end_all(one.attempts)


def end_all(attempts: AttemptFolders) -> None:
    """Kill every shim that is left."""
    for uid in attempts.uids():
        for number in attempts.numbers(uid):
            seen = attempts.look(Attempt(uid, number))
            if seen.is_alive and seen.state is not None:
                with suppress(ProcessLookupError):
                    os.kill(seen.state.shim.pid, signal.SIGKILL)
    # No agent will ever come to this directory again.
    groups = detect.find(NODE, attempts.root)
    for attempt in groups.attempts():
        removal.remove(groups, attempt)
    groups.retire()


def play(story: Coroutine[Any, Any, None]) -> None:
    """Run a test's story to its end."""
    asyncio.run(story)


def halt(attempt: Attempt, grace_ms: int = 500) -> Halt:
    return Halt(attempt, grace_ms)
