"""The client: everything that a component asks of a plane's servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.host.client.typed_requests import Verdict, ask_each
from holdfast.host.client.writing import WritingClient
from holdfast.model.requests import Accepted, Bind


class Client(WritingClient):
    """Objects by kind, and the typed requests of `model.requests`."""

    async def ask(self, request: Any) -> Accepted:
        """Make a typed request. Raises what was refused."""
        (verdict,) = await ask_each(self, (request,))
        if not isinstance(verdict, Accepted):
            raise verdict
        return verdict

    async def ask_all(self, requests: Iterable[Any]) -> list[Verdict]:
        """Make many requests. Return the verdicts in their order, with refusals as values."""
        return await ask_each(self, tuple(requests))

    async def bind(self, bind: Bind) -> Accepted:
        """Bind one replica to its node. Raises what was refused."""
        return await self.ask(bind)

    async def bind_all(self, binds: Iterable[Bind]) -> list[Verdict]:
        """Bind many replicas to their nodes, each decided separately."""
        return await self.ask_all(binds)
