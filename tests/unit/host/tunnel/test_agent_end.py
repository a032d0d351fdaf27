"""How many logs and commands an agent serves at once, in all and for each tenant."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast.host.runtime.logs.reading import LogQuery
from holdfast.host.tunnel import agent_end
from holdfast.host.tunnel.agent_end import AgentTunnel
from holdfast.host.tunnel.protocol import ReadLog, RunCommand, TunnelRequest, encode_message

LOG, COMMAND = ReadLog("u", LogQuery()), RunCommand("u", ("sh",))


class Counting(AgentTunnel):
    """An agent that serves nothing, and records what it would have refused."""

    def __init__(self) -> None:
        super().__init__("n1", lambda: None, None, lambda: ())  # type: ignore[arg-type, return-value]
        self.refused: list[str] = []
        self.begun: list[Coroutine[Any, Any, None]] = []

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        assert work.cr_frame is not None
        self.refused.append(work.cr_frame.f_locals["excess"])
        self.begun.append(work)

    def ask(self, wanted: ReadLog | RunCommand, tenant: str) -> str:
        self._take("https://a", encode_message(TunnelRequest("x", wanted, tenant)))
        return self.refused[-1]

    def end(self) -> None:
        for it in self.begun:
            it.close()


@pytest.mark.parametrize(
    "wanted, most, most_of_all",
    [
        (LOG, agent_end.TENANT_LOGS_MAX, agent_end.LOGS_MAX),
        (COMMAND, agent_end.TENANT_COMMANDS_MAX, agent_end.COMMANDS_MAX),
    ],
)
def test_one_tenant_leaves_room_for_the_people_of_others(
    wanted: ReadLog | RunCommand, most: int, most_of_all: int
) -> None:
    it = Counting()
    assert [it.ask(wanted, "acme") for _ in range(most)] == [""] * most
    assert f"{most} " in it.ask(wanted, "acme")
    assert "for tenant acme" in it.refused[-1]
    assert it.ask(wanted, "rival") == ""
    # A server of an earlier version does not say whose it is: only the sum counts.
    while len(it.refused) < most_of_all:
        assert it.ask(wanted, "") == ""
    assert "on node n1 already" in it.ask(wanted, "other")
    it.end()
