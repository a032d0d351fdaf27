"""Tenants do not see or influence each other, except through capacity that they share.

Two whole servers over TLS: in one there is a neighbour, in the other there never was. A thousand
random programs of a tenant run in both, and its neighbour's in between in the first. Every answer
to the tenant must be the same in both, to the letter, but for what EXCEPTED names: texts of errors
and lists too, so that no name of its neighbour's is in them, and no 404 where there was a 403. In
the end its namespace holds the same. `HOLDFAST_HYPOTHESIS=long` runs twenty times as many.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.commit import dispatch
from holdfast.host.server.caller_rights import Rights
from tests.inner_plane import GROUP, InnerPlane, inner_plane
from tests.lines import Answer, Wish
from tests.scale import scaled
from tests.two_tenants import PLURALS, Tenant

LONG = os.environ.get("HOLDFAST_HYPOTHESIS") == "long"
PROGRAMS = 20_000 if LONG else scaled(300, 1_000)
# A planted bug ends its search, so that more of them cost nothing.
BUG_PROGRAMS = 20_000 if LONG else 1_000
STEPS = 6
# This many programs share operation ids.
ERA = 1_000
PAIRS = 4
# What an explanation says may depend on how long ago something was, and the two planes were not
# furnished in the same second. Who reads again a little later reads the same in both.
LOOKS_MAX, LOOK_S = 4, 2.0

# All that may tell a tenant that it is not alone. Nothing of it has a name of its neighbour's.
EXCEPTED = {
    "resourceVersion": "counts the commits of the whole plane; so do revisions and token",
    "uid": "is random, and so is the digest of a request that names one",
    "timestamps": "two planes are not asked at the same moment; ages differ as well",
    "generated names": "are random",
    "continue": "holds a revision; where it goes on must be the same",
    "allowedTenants, protectedFor": "an operator says in public for whom a class or a pool is",
    "capacity": "a bind that does not fit any more says how much is free, never who has the rest",
    "rounds": "a scheduler decides for all tenants at once; how many, its decisions' names tell",
    "cohort": "a bind beyond what a cohort has together says what it has, never who took it",
    "preemption": "who is stopped learns the priority of what it makes way for",
}

_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)|\d+ m?s\b")
_MADE = re.compile(r"(made-\d+-)[a-z0-9]{5}")
_VERSION = re.compile(r"(resourceVersion in the precondition is |the object's is |revision |@)\d+")
_VERSIONS = ("resourceVersion", "revision", "usedRevision", "token", "digest")
_AGES = ("ageMs", "lateMs")
_PUBLISHED = ("allowedTenants", "protectedFor")


def plain(value: Any) -> Any:
    """A body without what EXCEPTED allows to differ."""
    if isinstance(value, dict):
        found = {}
        for key, part in value.items():
            if key in _AGES:
                continue
            if key in _VERSIONS or key in _PUBLISHED:
                found[key] = "any"
            elif key == "continue" and part:
                found[key] = plain(msgspec.json.decode(base64.urlsafe_b64decode(part))["start"])
            else:
                found[plain(key)] = plain(part)
        if found.get("field") == "resourceVersion":
            found["message"] = "any"
        return found
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, str):
        text = _MADE.sub(r"\1any", _MOMENT.sub("<at>", _UID.sub("<uid>", value)))
        return _VERSION.sub(r"\1any", text)
    return value


def told(answer: Answer) -> Any:
    """All of an answer that a client can see."""
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name not in ("date", "content-length", "transfer-encoding")
    }
    lines = [it for it in answer.raw.split(b"\n") if it]
    try:
        body: Any = [plain(msgspec.json.decode(line)) for line in lines]
    except msgspec.DecodeError:
        body = answer.raw
    return answer.code, plain(headers), body


def difference(one: Any, other: Any, at: str = "") -> str:
    """Where two bodies begin to differ, and in what; nothing if they are the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(key, one.get(key), other.get(key)) for key in {**one, **other}]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return f"{at}: {len(one)} and {len(other)} parts"
        pairs = [(str(n), *both) for n, both in enumerate(zip(one, other, strict=True))]
    else:
        return "" if one == other else f"{at}: {one!r} and {other!r}"
    return next((it for key, *both in pairs if (it := difference(*both, f"{at}/{key}"))), "")


TEMPLATE = {"command": ["sleep", "60"], "resources": {"cpu": "100m"}}


async def as_tenant(plane: InnerPlane, tenant: str, wish: Wish) -> Answer:
    """A wish of the tenant's, with the uids of this plane."""
    return await plane.line(f"user-{tenant}").send_patiently(_filled(wish, plane.uids))


async def furnish(plane: InnerPlane, friends: tuple[str, ...]) -> None:
    """A node, a region with a pool that is kept, and a class that is for few."""
    pools = [{"name": "kept", "protectedFor": {"tenants": list(friends)}}]
    region = {"metadata": {"name": "eu"}, "spec": {"pools": pools}}
    await plane.make("admin", f"{GROUP}/regions", region)
    few = {"value": 9, "allowedTenants": list(friends)}
    vip = {"metadata": {"name": "vip"}, "spec": few}
    await plane.make("admin", f"{GROUP}/priorityclasses", vip)
    await plane.place("n1")


async def settle(plane: InnerPlane, tenant: str) -> None:
    """A tenant with a secret, and work of which some runs."""
    await plane.tenant(tenant)
    secret = {"metadata": {"name": "db"}, "stringData": {"k": f"secret-of-{tenant}"}}
    await plane.make(f"user-{tenant}", f"{GROUP}/namespaces/{tenant}/secrets", secret)
    for name in ("web", "db"):
        await plane.workload(tenant, name, TEMPLATE, replicas=3)
        replica = await plane.replica(tenant, name, 0, TEMPLATE)
        await plane.bound(replica, "n1")
        await plane.replica(tenant, name, 1, TEMPLATE)


async def held(plane: InnerPlane, tenant: str) -> Any:
    """All that is in a namespace, as an administrator sees it."""
    found = []
    for plural in PLURALS:
        path = f"{GROUP}/namespaces/{tenant}/{plural}"
        found.append((plural, told(await plane.line("admin").ask("GET", path))))
    return found


def _filled(wish: Wish, uids: dict[str, str]) -> Wish:
    if wish.body is None:
        return wish
    text = msgspec.json.encode(wish.body).decode()
    nobody = "11111111-1111-4111-8111-111111111111"
    text = re.sub(r"\{uid:([^}]*)\}", lambda found: uids.get(found[1], nobody), text)
    return msgspec.structs.replace(wish, body=text.encode())


async def compared(
    crowded: InnerPlane, alone: InnerPlane, tenant: str, wish: Wish
) -> tuple[int, str]:
    """The code that a tenant was answered in the first, and where the answers differ."""
    for _ in range(LOOKS_MAX):
        one, other = await as_tenant(crowded, tenant, wish), await as_tenant(alone, tenant, wish)
        found = difference(told(one), told(other))
        if not found or wish.method != "GET":
            break
        await asyncio.sleep(LOOK_S)
    return one.code, found


async def play(crowded: InnerPlane, alone: InnerPlane, programs: int, pairs: int) -> Counter[int]:
    """Run all programs; how often each code was answered to the tenant."""
    codes: Counter[int] = Counter()
    for pair in range(pairs):
        await settle(crowded, f"a{pair}")
        for one in (crowded, alone):
            await settle(one, f"b{pair}")
    for seed in range(programs):
        rng = random.Random(seed)
        a, b = f"a{seed % pairs}", f"b{seed % pairs}"
        neighbour = Tenant(a, b, rng, seed // ERA).program(STEPS // 2)
        for number, wish in enumerate(Tenant(b, a, rng, seed // ERA).program(STEPS)):
            if number % 2:
                await as_tenant(crowded, a, next(neighbour))
            code, found = await compared(crowded, alone, b, wish)
            assert not found, (found, seed, number, wish)
            codes[code] += 1
    for pair in range(pairs):
        assert not difference(await held(crowded, f"b{pair}"), await held(alone, f"b{pair}"))
    return codes


def campaign(folder: Path, programs: int, pairs: int) -> Counter[int]:
    """Two planes from their beginning to their end."""

    async def story() -> Counter[int]:
        friends = tuple(f"a{pair}" for pair in range(pairs))
        async with (
            inner_plane(folder / "crowded") as crowded,
            inner_plane(folder / "alone") as alone,
        ):
            await furnish(crowded, friends)
            await furnish(alone, ("nobody",))
            return await play(crowded, alone, programs, pairs)

    return asyncio.run(story())


@pytest.mark.timeout(3_600 if LONG else 600)
def test_a_tenant_cannot_find_out_whether_it_has_a_neighbour(tmp_path: Path) -> None:
    codes = campaign(tmp_path, PROGRAMS, PAIRS)
    assert sum(codes.values()) == PROGRAMS * STEPS
    assert {200, 201, 400, 403, 404, 409, 422} <= set(codes)
    # Nothing that a tenant asks for is a fault of the server's.
    assert not [code for code in codes if code >= 500 and code != 502], codes


@pytest.mark.parametrize(
    "whose, name, careless",
    [
        (dispatch, "request_refusal", lambda draft, context, request: None),
        (Rights, "may", lambda self, identity, deed: True),
    ],
    ids=["requests", "reads"],
)
def test_a_check_that_is_left_out_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: Any, name: str, careless: Any
) -> None:
    monkeypatch.setattr(whose, name, careless)
    with pytest.raises(AssertionError):
        campaign(tmp_path, BUG_PROGRAMS, 1)
