"""A real server as a process of its own, over real TLS, and clients for it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from holdfast.host.client import Access, AsyncClient, from_kubeconfig
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.workload import Workload
from holdfast.model.requests import AcquireLease, Term
from holdfast.observe.retry import RetryPolicy
from tests.free_ports import free_ports
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120.0
# Whatever becomes of the test, no server outlives it.
DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
READY = re.compile(r"Holdfast is ready at (\S+)")
# Patient enough for a server that is killed and started again on a busy machine.
PATIENT = RetryPolicy(tries_max=60, looks_max=60, deadline_ms=60_000, try_ms=5_000)


class PlaneProcess:
    """One server. Its port stays the same over restarts."""

    def __init__(
        self,
        data: Path,
        *options: str,
        port: int = 0,
        wrap: tuple[str, ...] = (),
        python: Path | None = None,
    ) -> None:
        """`wrap` is what to put before the command, such as prlimit; `python` the interpreter of
        another version of Holdfast than this tree's.
        """
        self.data = data
        self.port = port or free_ports(1)[0]
        self._options = options
        self._wrap = wrap
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        path = self.data.with_suffix(".log")
        return path.read_text() if path.exists() else ""

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start it, without waiting for it to be ready."""
        log = self.data.with_suffix(".log").open("wb")
        python = self._python or sys.executable
        server = [str(python), "-m", "holdfast.host", "serve", "--data", str(self.data)]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if self._python is None:
            env["PYTHONPATH"] = str(ROOT / "src")
        with log:
            self._process = subprocess.Popen(
                [
                    *DIE_WITH_PARENT,
                    *self._wrap,
                    *server,
                    "--listen",
                    f"127.0.0.1:{self.port}",
                    *self._options,
                ],
                cwd=ROOT if self._python is None else self.data.parent,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self._process

    async def start(self) -> PlaneProcess:
        """Start it, and wait until it says that it is ready."""
        process = self.spawn()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not READY.search(self.log):
            assert process.poll() is None, f"it ended with {process.returncode}: {self.log}"
            assert time.monotonic() < deadline, f"it did not start: {self.log}"
            await asyncio.sleep(0.02)
        return self

    def kill(self) -> None:
        """As kill -9 does: nothing is finished, nothing is said."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, timeout_s)

    async def stop(self) -> None:
        """End it in order; it must end without an error."""
        if self._process is not None:
            self.send(signal.SIGTERM)
            assert await self.ended() == 0, self.log
            self._process = None

    def access(self, *others: PlaneProcess) -> Access:
        """The administrator's, to this server and perhaps others."""
        found = from_kubeconfig(self.data / "kubeconfig")
        return msgspec.structs.replace(found, servers=(self.url, *(o.url for o in others)))

    def client(self, *others: PlaneProcess, policy: RetryPolicy = PATIENT) -> AsyncClient:
        return AsyncClient(self.access(*others), policy=policy)

    def client_as(self, name: str, *groups: str) -> AsyncClient:
        """A client with a certificate of its own, issued by the plane's authority."""
        issued = CertificateAuthority.open(self.data / "pki").issue(name, groups=groups)
        access = msgspec.structs.replace(
            self.access(), certificate=issued.certificate, key=issued.key
        )
        return AsyncClient(access, policy=PATIENT)

    async def fetch(self, path: str, *, known: bool = True) -> tuple[int, str]:
        """Code and text of any path, as the administrator or without credentials."""
        access = self.access()
        if not known:
            access = msgspec.structs.replace(access, certificate=b"", key=b"")
        connector = aiohttp.TCPConnector(ssl=access.context())
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(self.url + path) as response,
        ):
            return response.status, await response.text()


async def until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait for what other tasks bring about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true in {timeout_s} s"
        await asyncio.sleep(0.01)


async def take_lease(client: AsyncClient, scope: str) -> Term:
    """Take a lease that is free or this client's already, and let the client write under it."""
    found = [it.spec for it in (await client.list(Lease)).objects if it.spec.scope == scope]
    seen = (found[0].epoch, found[0].renewals) if found else (0, 0)
    (lease,) = (await client.ask(AcquireLease(scope, 600_000, *seen))).objects
    assert isinstance(lease, Lease)
    client.term = Term(scope, lease.spec.epoch)
    return client.term


def workload(name: str, **spec: Any) -> Workload:
    """A small service in the default tenant."""
    document = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"command": ["sleep", "60"]}, **spec},
    }
    return decode_trusted(Workload, msgspec.json.encode(document))
