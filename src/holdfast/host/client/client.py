"""The client: everything that a component asks of a plane's servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.host.client.typed_requests import Verdict, ask_each
from holdfast.host.client.writing import WritingClient
from holdfast.model.requests import Accepted, Bind


class Client(WritingClient):
    """Objects by their kinds, and the typed requests of `model.requests`."""

    async def ask(self, request: Any) -> Accepted:
        """The yes to a typed request. Raises what was refused."""
        (verdict,) = await ask_each(self, (request,))
        if not isinstance(verdict, Accepted):
            raise verdict
        return verdict

    async def ask_all(self, requests: Iterable[Any]) -> list[Verdict]:
        """The verdict on each of many, in their order, with refusals as values."""
        return await ask_each(self, tuple(requests))

    async def bind(self, bind: Bind) -> Accepted:
        """Give one replica its place. Raises what was refused."""
        return await self.ask(bind)

    async def bind_all(self, binds: Iterable[Bind]) -> list[Verdict]:
        """Give many replicas their places, each decided by itself."""
        return await self.ask_all(binds)
