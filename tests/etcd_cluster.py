"""Real etcd clusters on this machine, for tests and benchmarks.

A cluster has one member or three, each with ports and a data directory of its own, on loopback or
in network namespaces. Members are real processes that sync to disk; they die with the process that
started them, whatever becomes of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.outcomes import Skipped

from holdfast.store.etcd import EtcdStore
from tests.free_ports import free_ports
from tests.patience import PATIENCE_S

# A member answers within this, on a busy machine, after it was started or restarted.
START_TIMEOUT_S = 120.0
PORT_TRIES_MAX = 5
# `ip netns exec` and etcd itself keep the wish to die with the parent when they are exec'ed.
_DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
# Loses committed writes when killed under load: no test could be trusted.
REFUSED = re.compile(r"3\.5\.[012]\b")


class NoEtcd(Skipped):
    """There is no etcd here. A test that meets it is skipped with the reason."""


def find_etcd() -> str:
    """The etcd to test with. HOLDFAST_ETCD names another than the system's."""
    binary = os.environ.get("HOLDFAST_ETCD") or _which() or _install()
    if binary is None:
        raise NoEtcd("no etcd: install etcd-server or set HOLDFAST_ETCD (we are not root)")
    version = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
    if REFUSED.search(version):
        pytest.fail(f"{binary} is a version that loses committed writes (etcd#13766): {version}")
    return binary


def _which() -> str | None:
    return shutil.which("etcd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/bin")


def _install() -> str | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # apt-get waits for another one by itself when told how long.
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "install", "-y", "-qq", "etcd-server"]
    subprocess.run(command, env=environment, capture_output=True, stdin=subprocess.DEVNULL)
    return _which()


class EtcdMember:
    """One process."""

    def __init__(self, name: str, folder: Path, client_url: str, peer_url: str) -> None:
        self.name = name
        self.folder = folder
        self.client_url = client_url
        self.peer_url = peer_url
        self.command: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        return self.client_url.split("://")[1]

    def spawn(self) -> None:
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text(errors="replace")


class EtcdCluster:
    """Members that form a cluster. Use as a context manager."""

    def __init__(
        self,
        folder: Path,
        *,
        size: int = 1,
        hosts: Sequence[str] = (),
        wrap: Callable[[int], list[str]] = lambda index: [],
        tls: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.binary = find_etcd()
        self.folder = folder
        self.size = size
        self._hosts = list(hosts) or ["127.0.0.1"] * size
        # What to put before the command of a member, such as `ip netns exec`.
        self._wrap = wrap
        # A directory with ca.pem, server.pem and server.key; clients need certificates then.
        self.tls = tls
        self._flags = list(flags)
        self.members: list[EtcdMember] = []

    def __enter__(self) -> EtcdCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.client_url for member in self.members)

    def start(self) -> None:
        for attempt in range(PORT_TRIES_MAX):
            self._lay_out(attempt)
            for member in self.members:
                member.spawn()
            try:
                for index in range(self.size):
                    self.wait_healthy(index)
            except PortTaken:
                self.stop()
            else:
                return
        raise RuntimeError("no free ports for etcd")

    def stop(self) -> None:
        for member in self.members:
            member.kill()

    def kill(self, index: int) -> None:
        """As a power cut would, save for what the kernel still holds."""
        self.members[index].kill()

    def restart(self, index: int) -> None:
        self.members[index].kill()
        self.members[index].spawn()

    def pause(self, index: int) -> None:
        """Returns when every thread of the member has stopped."""
        process = self.members[index].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    def resume(self, index: int) -> None:
        process = self.members[index].process
        assert process is not None
        process.send_signal(signal.SIGCONT)

    def leader(self) -> int | None:
        """The member that says it leads; None while there is none."""
        for index in range(self.size):
            status = self.post(index, "/v3/maintenance/status")
            if status and status.get("leader") == status["header"]["member_id"]:
                return index
        return None

    def wait_leader(self, timeout_s: float = START_TIMEOUT_S) -> int:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            leader = self.leader()
            if leader is not None:
                return leader
            time.sleep(0.1)
        raise RuntimeError(f"no etcd leader within {timeout_s} s")

    def wait_healthy(self, index: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until the member answers and sees a leader."""
        member = self.members[index]
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert member.process is not None
            if member.process.poll() is not None:
                if "address already in use" in member.log():
                    raise PortTaken
                raise RuntimeError(f"{member.name} ended: {member.log()[-2000:]}")
            if b'"true"' in (self._get(index, "/health") or b""):
                return
            time.sleep(0.05)
        raise RuntimeError(f"{member.name} is not healthy: {member.log()[-2000:]}")

    def post(self, index: int, path: str, body: str = "{}", token: str = "") -> Any:
        """Call etcd's JSON gateway, for what the store itself never does; None when it fails."""
        answer = self._get(index, path, body.encode(), token, within_s=PATIENCE_S)
        return None if answer is None else json.loads(answer)

    def _get(
        self,
        index: int,
        path: str,
        body: bytes | None = None,
        token: str = "",
        *,
        within_s: float = 1.0,
    ) -> bytes | None:
        request = urllib.request.Request(self.members[index].client_url + path, data=body)
        if token:
            request.add_header("Authorization", token)
        handlers: list[Any] = [urllib.request.ProxyHandler({})]
        if self.tls:
            context = ssl.create_default_context(cafile=str(self.tls / "ca.pem"))
            context.load_cert_chain(self.tls / "client.pem", self.tls / "client.key")
            handlers.append(urllib.request.HTTPSHandler(context=context))
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=within_s) as answer:
                return bytes(answer.read())
        except (urllib.error.URLError, OSError):
            return None

    def _lay_out(self, attempt: int) -> None:
        folder = self.folder / f"etcd{attempt}"
        folder.mkdir(parents=True)
        ports = free_ports(2 * self.size)
        scheme = "https" if self.tls else "http"
        self.members = [
            EtcdMember(
                f"m{i}",
                folder,
                f"{scheme}://{host}:{ports[2 * i]}",
                f"http://{host}:{ports[2 * i + 1]}",
            )
            for i, host in enumerate(self._hosts)
        ]
        initial = ",".join(f"{m.name}={m.peer_url}" for m in self.members)
        for i, member in enumerate(self.members):
            member.command = [
                *_DIE_WITH_PARENT,
                *self._wrap(i),
                self.binary,
                *self._arguments(member, initial),
            ]

    def _arguments(self, member: EtcdMember, initial: str) -> list[str]:
        arguments = [
            f"--name={member.name}",
            f"--data-dir={member.folder / member.name}",
            f"--listen-client-urls={member.client_url}",
            f"--advertise-client-urls={member.client_url}",
            f"--listen-peer-urls={member.peer_url}",
            f"--initial-advertise-peer-urls={member.peer_url}",
            f"--initial-cluster={initial}",
            "--initial-cluster-state=new",
            f"--initial-cluster-token={member.folder}",
            "--logger=zap",
            "--log-level=warn",
            *self._flags,
        ]
        if self.tls:
            arguments += [
                f"--cert-file={self.tls / 'server.pem'}",
                f"--key-file={self.tls / 'server.key'}",
                f"--trusted-ca-file={self.tls / 'ca.pem'}",
                "--client-cert-auth",
            ]
        return arguments


def call_next(store: EtcdStore, index: int) -> None:
    """Let the store send its next call to this member, as after a failure of the one before."""
    store.cluster.blame(store.cluster.members[index - 1])
    for member in store.cluster.members:
        store.cluster.praise(member)


class PortTaken(Exception):
    """Another process got the port between our check and etcd's bind."""
