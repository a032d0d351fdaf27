"""A network of its own for one node, behind a cable that can be pulled.

    with Wire() as wire:
        plane = WholePlane(folder, ("n1", "n2"), hosts=(wire.host,), wrap={"n1": wire.wrap})
        wire.cut()

The servers listen at `host`, which all parts here reach; a process behind `wrap` reaches
nothing else. A pulled cable loses packets without a word, as a real one does.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess

import pytest


class Wire:
    """Needs root and the right to make networks; otherwise the test is skipped with its reason."""

    def __init__(self) -> None:
        mark = secrets.token_hex(3)
        self._space, self._here, self._there = f"hf-{mark}", f"hfa{mark}", f"hfb{mark}"
        # A block that is free, cut into as many networks as tests could ever run at once.
        subnet = secrets.randbelow(64 * 256)
        base = f"100.{64 + subnet // 256}.{subnet % 256}"
        self.host, self._node = f"{base}.1", f"{base}.2"

    @property
    def wrap(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._space)

    def __enter__(self) -> Wire:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            pytest.skip("networks of their own need root and iproute2")
        try:
            self._run("ip", "netns", "add", self._space)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network of its own can be made here: {error.stderr.decode().strip()}")
        try:
            self._lay()
        except subprocess.CalledProcessError as error:
            self.__exit__()
            pytest.skip(f"no cable can be laid here: {error.stderr.decode().strip()}")
        return self

    def _lay(self) -> None:
        veth = ("type", "veth", "peer", "name", self._there, "netns", self._space)
        self._run("ip", "link", "add", self._here, *veth)
        self._run("ip", "addr", "add", f"{self.host}/24", "dev", self._here)
        self._run("ip", "link", "set", self._here, "up")
        inside = ("ip", "-n", self._space)
        self._run(*inside, "addr", "add", f"{self._node}/24", "dev", self._there)
        self._run(*inside, "link", "set", self._there, "up")
        self._run(*inside, "link", "set", "lo", "up")

    def __exit__(self, *_: object) -> None:
        subprocess.run(["ip", "link", "del", self._here], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self._space], capture_output=True, check=False)

    def cut(self) -> None:
        """From now on nothing passes, in either direction, without notice."""
        self._run("ip", "-n", self._space, "link", "set", self._there, "down")

    def mend(self) -> None:
        self._run("ip", "-n", self._space, "link", "set", self._there, "up")

    @staticmethod
    def _run(*command: str) -> None:
        subprocess.run(command, capture_output=True, check=True)
