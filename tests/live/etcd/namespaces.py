"""Network namespaces joined by a bridge, so that members can be cut off from each other."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

import pytest


class Namespaces:
    """One namespace for each member and a bridge that this process reaches them over."""

    def __init__(self, count: int) -> None:
        # Several test processes may do this at once on one machine. Names of links are short.
        self._tag = f"hf{os.getpid() % 100_000}"
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.names = [f"{self._tag}n{i}" for i in range(count)]
        self.hosts = [f"{self._net}.{i + 1}" for i in range(count)]

    def __enter__(self) -> Namespaces:
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        missing = [tool for tool in ("ip", "iptables") if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"no {' and '.join(missing)} here")
        try:
            self._set_up()
        except subprocess.CalledProcessError as error:
            self._tear_down()
            pytest.skip(f"this machine allows no network namespaces: {error.stderr!r}")
        return self

    def __exit__(self, *_: object) -> None:
        self._tear_down()

    def wrap(self, index: int) -> list[str]:
        return ["ip", "netns", "exec", self.names[index]]

    def cut(self, index: int, others: Iterable[int], *, one_way: bool = False) -> None:
        """Drop all that the member gets from the others, and what it sends to them."""
        for other in others:
            self._filter(index, "-I", "INPUT", "-s", self.hosts[other])
            if not one_way:
                self._filter(index, "-I", "OUTPUT", "-d", self.hosts[other])

    def cut_from_us(self, index: int) -> None:
        self._filter(index, "-I", "INPUT", "-s", f"{self._net}.254")

    def heal(self, index: int) -> None:
        _run(*self.wrap(index), "iptables", "-F")

    def _filter(self, index: int, *rule: str) -> None:
        _run(*self.wrap(index), "iptables", *rule, "-j", "DROP")

    def _set_up(self) -> None:
        bridge = f"{self._tag}br"
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self._net}.254/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for i, name in enumerate(self.names):
            _run("ip", "netns", "add", name)
            inside = ("ip", "-n", name)
            pair = (f"{self._tag}v{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "add", *pair)
            _run("ip", "link", "set", f"{self._tag}v{i}", "master", bridge, "up")
            _run(*inside, "addr", "add", f"{self.hosts[i]}/24", "dev", "eth0")
            _run(*inside, "link", "set", "eth0", "up")
            _run(*inside, "link", "set", "lo", "up")
            _run(*self.wrap(i), "iptables", "-L")

    def _tear_down(self) -> None:
        for i, name in enumerate(self.names):
            # A namespace goes away some time after its last process; its link must not wait.
            subprocess.run(["ip", "link", "del", f"{self._tag}v{i}"], capture_output=True)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self._tag}br"], capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
