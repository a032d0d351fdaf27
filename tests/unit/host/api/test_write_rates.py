"""How many bytes a tenant may write in a second: a small patch of a large object counts whole."""

from __future__ import annotations

from typing import Any

from tests.unit.host.api.api_rig import GROUP, MERGE, ApiRig, named, with_tenant, workloads

LARGE = "x" * 200_000
# Thirty seconds of the rate may be written at once.
RATE, BURST_S = 20_000, 30
ADA = {"user": "ada"}


def test_patches_of_a_large_object_are_charged_what_they_write() -> None:
    """Few bytes are sent, many are stored; who has stored too much may still delete. [B6]"""

    async def story(rig: ApiRig) -> None:
        quota = {
            "kind": "Quota",
            "metadata": {"name": "default"},
            "spec": {"writeBytesPerSecond": RATE},
        }
        answer = await rig.send("POST", f"{GROUP}/namespaces/acme/quotas", quota)
        assert answer.code == 201, answer.body
        large = named("large", annotations={"example.com/note": LARGE})
        assert (await rig.create(large, **ADA)).code == 201
        codes, refusal = [], {}
        for number in range(8):
            body: dict[str, Any] = {"metadata": {"labels": {"n": str(number)}}}
            path, headers = workloads(name="large"), {"Content-Type": MERGE}
            answer = await rig.send("PATCH", path, body, headers=headers, **ADA)
            codes.append(answer.code)
            refusal = answer.body
        # Its creation counts as well. The rate goes on meanwhile, which may be one more.
        allowed = RATE * BURST_S // len(LARGE) - 1
        assert codes.count(200) in (allowed, allowed + 1)
        assert codes[-1] == 429
        assert "bytes written per second exceed" in refusal["message"]
        assert (await rig.send("GET", workloads(name="large"), **ADA)).code == 200
        assert (await rig.send("DELETE", workloads(name="large"), **ADA)).code == 200
        # Operators are not held to it: they mend what is wrong.
        assert (await rig.create(named("other"))).code == 201

    with_tenant(story)
