"""Callers without an identity are counted by address and in total, before they cost anything."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from holdfast.commit.flow.overload import Overloaded
from holdfast.commit.flow.rates import Rate
from holdfast.host.api.flow import anonymous_limits
from holdfast.host.api.flow.anonymous_limits import AnonymousLimits
from holdfast.host.pki import join_admission
from holdfast.host.pki.join_admission import JoinAdmission
from holdfast.host.pki.join_protocol import JOIN_PATH, JoinRequest
from holdfast.model.access.identity import ANONYMOUS, server
from holdfast.model.errors import Forbidden
from holdfast.store.memory import MemoryStore
from tests.unit.host.api.api_rig import ApiRig, play, with_tenant, workloads

WITHOUT_CREDENTIALS = {"user": ANONYMOUS}
FEW = Rate(1, 3)


class From:
    """A request from an address."""

    def __init__(self, address: str) -> None:
        self.transport = self
        self._address = address

    def get_extra_info(self, name: str) -> Any:
        assert name == "peername"
        return (self._address, 4711)


def demanded(limits: AnonymousLimits, address: str, times: int) -> int:
    """How many of this number of requests are let through."""
    allowed = 0
    for _ in range(times):
        try:
            limits.demand(From(address))  # type: ignore[arg-type]
        except Overloaded:
            continue
        allowed += 1
    return allowed


def test_an_address_has_its_share_and_no_more() -> None:
    """Another one is served meanwhile; those of one IPv6 network are one."""
    limits = AnonymousLimits(FEW, Rate(100, 100))
    assert demanded(limits, "10.0.0.1", 20) == 3
    assert demanded(limits, "10.0.0.2", 20) == 3
    assert demanded(limits, "2001:db8::1", 20) == 3
    assert demanded(limits, "2001:db8::2", 20) == 0
    assert demanded(limits, "2001:db8:0:1::1", 20) == 3


def test_all_addresses_together_have_a_share() -> None:
    """And health checks are not refused for what other clients do."""
    limits = AnonymousLimits(FEW, Rate(1, 5))
    assert sum(demanded(limits, f"10.0.0.{n}", 1) for n in range(20)) == 5
    limits.demand_health(From("10.0.1.1"))  # type: ignore[arg-type]


def test_a_client_without_credentials_is_throttled_and_a_known_one_is_served() -> None:
    """A flood of 401s from one address costs that address its connections."""

    async def story(rig: ApiRig) -> None:
        rig.api.anonymous_limits = AnonymousLimits(FEW, FEW)
        answers = [await rig.send("GET", workloads(), **WITHOUT_CREDENTIALS) for _ in range(6)]
        assert [it.code for it in answers] == [401, 401, 401, 429, 429, 429]
        assert answers[-1].headers["Connection"] == "close"
        assert int(answers[-1].headers["Retry-After"]) >= 1
        assert (await rig.send("GET", workloads(), user="ada")).code == 200
        assert rig.api.anonymous_limits.refused == 3

    with_tenant(story)


@pytest.mark.parametrize(
    "path, is_early", [(JOIN_PATH, True), ("/readyz", True), ("/other", False)]
)
def test_open_paths_outside_the_api_are_counted(path: str, is_early: bool) -> None:
    async def fine(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="ok")

    async def story(rig: ApiRig) -> None:
        rig.api.anonymous_limits = AnonymousLimits(FEW, FEW)
        rig.api.extras[path] = fine
        codes = [(await rig.send("GET", path)).code for _ in range(4)]
        assert codes == [200, 200, 200, 429 if is_early else 200]

    with_tenant(story)


def test_a_wrong_token_is_refused_before_any_signature_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is one looked at for who shows neither token nor certificate."""
    looked_at: list[str] = []

    def counted(pem: str) -> Any:
        looked_at.append(pem)
        raise AssertionError("an anonymous caller made the server sign")

    monkeypatch.setattr(join_admission, "signed_key", counted)

    async def story() -> None:
        unused: Any = None
        admission = JoinAdmission(server("one"), unused, MemoryStore(), unused, unused)
        for token in ("", "nonsense", "hf1.abc.def"):
            with pytest.raises(Forbidden):
                await admission.join(None, JoinRequest("web-1", "a request", token))
        assert looked_at == []

    play(story())


def test_the_defaults_let_a_rack_of_machines_join() -> None:
    """They must not be so few that a plane cannot grow."""
    assert anonymous_limits.PER_ADDRESS.per_s * anonymous_limits.PER_ADDRESS.burst_s >= 200
