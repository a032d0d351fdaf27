"""How the machines of one plane reach each other.

A shell performs `Ask` through whatever `Peers` it was given. Here is the table for machines that
live in one process; between processes the same call goes over the network.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from holdfast.model.access.identity import Identity
from holdfast.model.errors import Unavailable


class Peers(Protocol):
    """A way to other machines."""

    def submit(
        self, sender: Identity, to: str, body: Any, timeout_s: float
    ) -> asyncio.Future[Any] | None:
        """The same without a task of its own, where many questions travel in one.

        The future gets the answer within that time, with errors as values. None: use `ask`.
        """
        return None

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        """The answer of another machine.

        Raises Unavailable when the request certainly was not taken in, OutcomeUnknown when it may
        have been and no answer came.
        """
        ...


class NoPeers(Peers):
    """For machines without neighbours: nobody can be reached, and that is certain."""

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        raise Unavailable(f"there is no way to {to}")


class Askable(Protocol):
    """Whoever can be asked: a shell, or something that stands for one."""

    async def ask(self, sender: Identity, body: Any, timeout_s: float) -> Any: ...


class PeerTable(Peers):
    """All machines of this process by name. The asker's identity is known, so it is not proven."""

    def __init__(self) -> None:
        self._shells: dict[str, Askable] = {}

    def add(self, name: str, shell: Askable) -> None:
        """Let a machine be reached; a later one of that name takes its place."""
        self._shells[name] = shell

    def remove(self, name: str) -> None:
        """Let nobody be reached under this name."""
        self._shells.pop(name, None)

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        shell = self._shells.get(to)
        if shell is None:
            raise Unavailable(f"{to} is not known here")
        return await shell.ask(sender, body, timeout_s)
