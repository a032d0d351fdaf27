"""How the machines of one plane reach each other.

A shell performs `Ask` through the `Peers` that it was given. Here is the table for machines in one
process; between processes the same call goes over the network.
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
        """Ask without a task of its own, where many requests are sent in one.

        The future gets the answer within that time, with errors as values. None: use `ask`.
        """
        return None

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        """Return the answer of another machine.

        Raises Unavailable when the request certainly was not received, OutcomeUnknown when it may
        have been and no answer came.
        """
        ...


class NoPeers(Peers):
    """For machines without peers: every request certainly fails."""

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        raise Unavailable(f"{to} cannot be reached from here")


class Askable(Protocol):
    """Something that answers requests: a shell, or a stand-in for one."""

    async def ask(self, sender: Identity, body: Any, timeout_s: float) -> Any: ...


class PeerTable(Peers):
    """All machines of this process by name. Identities are not verified within a process."""

    def __init__(self) -> None:
        self._shells: dict[str, Askable] = {}

    def add(self, name: str, shell: Askable) -> None:
        """Make a machine reachable; a later one of that name replaces it."""
        self._shells[name] = shell

    def remove(self, name: str) -> None:
        """Make a name unreachable."""
        self._shells.pop(name, None)

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        shell = self._shells.get(to)
        if shell is None:
            raise Unavailable(f"{to} is not known here")
        return await shell.ask(sender, body, timeout_s)
