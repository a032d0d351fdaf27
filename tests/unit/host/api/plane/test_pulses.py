"""Pulses over HTTP: who may send them, who may read them, and what is too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.model.pulse import BEATS_MAX, Beat, Pulse, Pulses
from tests.unit.host.api.api_rig import GROUP, ApiRig, play, store_of

PULSES = f"{GROUP}/pulses"
TEAM = "system:controller:workload"
PULSE = Pulse("controllers main", (Beat("controller:workload", 3),))


@pytest.fixture
def run(tmp_path: Path) -> Any:
    async def played(story: Any) -> None:
        async with ApiRig(await store_of("memory", tmp_path)) as rig:
            await story(rig)

    return lambda story: play(played(story))


def test_components_send_pulses_and_operators_read_them(run: Any) -> None:
    """And no other caller. [H3]"""

    async def story(rig: ApiRig) -> None:
        for user in ("ada", "admin", "system:node:n1", "system:server:one", "prometheus"):
            assert (await rig.send("POST", PULSES, PULSE, user=user)).code == 403, user
        nobody = "system:controller:none-such"
        assert (await rig.send("POST", PULSES, PULSE, user=nobody)).code == 401
        other = await rig.send("POST", PULSES, PULSE, user="system:scheduler:main")
        assert (other.code, "beats[0].scope" in other.body["message"]) == (403, True)
        assert (await rig.send("POST", PULSES, PULSE, user=TEAM)).code == 200
        for user in ("admin", "prometheus"):
            answer = await rig.send("GET", PULSES, user=user)
            (felt,) = msgspec.json.decode(answer.raw, type=Pulses).felt
            assert (felt.sender, felt.pulse) == (TEAM, PULSE)
            assert 0 <= felt.age_ms < 60_000
        for user in ("ada", "system:node:n1", TEAM):
            assert (await rig.send("GET", PULSES, user=user)).code == 403, user

    run(story)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"process":""}',
        msgspec.json.encode(Pulse("x" * 254)),
        msgspec.json.encode(Pulse("x", tuple(Beat("x") for _ in range(BEATS_MAX + 1)))),
        b'{"process":"x","beats":[{"scope":"x","epoch":-1}]}',
        msgspec.json.encode(Pulse("x", (Beat("x", refused={str(n): 1 for n in range(129)}),))),
    ],
)
def test_what_is_no_pulse_is_refused(run: Any, body: bytes) -> None:
    async def story(rig: ApiRig) -> None:
        answer = await rig.send("POST", PULSES, body or b" ", user=TEAM)
        assert answer.code in (400, 422), answer.body
        assert (await rig.send("GET", PULSES)).body["felt"] == []

    run(story)
