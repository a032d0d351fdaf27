"""Images are waited for by tenant: what is here is found at once, what is not is pulled in turn."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.runtime_protocol import Attempt, Launch, SecretValues
from holdfast.host.runtime.attempts import AttemptFolders, lock
from holdfast.host.runtime.containers import containers, image_stores, image_waits, images
from holdfast.host.runtime.containers.image_stores import FRESH_S, IDLE_S, STORES, USERS
from holdfast.host.runtime.containers.image_waits import Images
from holdfast.host.runtime.containers.images import Image
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.template import PULL_KEY, Runtime, Template
from tests.workshop import eventually

# A podman of which a directory is the store: each image is a directory in it. It pulls what is
# private for the right credentials only, and what is slow when it may.
PODMAN = """#!/bin/sh
store={node}
while test $# -gt 0; do
  case "$1" in
    --root) store=$2; shift 2;;
    --runroot|--cgroup-manager|--runtime) shift 2;;
    *) break;;
  esac
done
verb=$1; shift
case "$verb" in
  pull)
    auth=; for word; do test "$last" = --authfile && auth=$word; last=$word; done
    case "$last" in docker://*) last=${{last#docker://}};; *) echo file >&2; exit 1;; esac
    echo "$last" >> {log}
    case "$last" in
      */private*) grep -q acme-token "$auth" || {{ echo denied >&2; exit 1; }};;
      */big*) sleep 600 & echo $! > {pid}
        mkdir -p "$store"; head -c 3000000 /dev/zero > "$store/blob"; wait;;
      */slow*) until test -e {go}; do sleep 0.02; done;;
    esac
    echo "done $last" >> {log}
    at=$store/$(echo "$last" | tr : -); mkdir -p "$at/diff" "$at/below";;
  image)
    at=$store/$(echo "$2" | tr : -); test -d "$at" || exit 1
    test "$1" = exists && exit 0
    echo '[{{"Id": "x", "GraphDriver": {{"Name": "overlay", "Data":' \\
      '{{"UpperDir": "'"$at/diff"'", "LowerDir": "'"$at/below"'"}}}}}}]';;
esac
"""


ATTEMPT = Attempt("u", 0)


class Rig:
    """One agent's images."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.go = folder, folder / "log", folder / "go"
        self.node, self.pid = folder / "node", folder / "pid"
        self.images = Images(folder / "agent", (folder / "local",), 1 << 20)
        self.place: Any = Place()

    def pulled(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def stores(self, tenant: str) -> list[Path]:
        above = self.folder / "agent" / STORES / tenant
        return sorted(above.iterdir()) if above.exists() else []

    def age(self, by_s: float) -> None:
        """Let so much time pass for all that lies there."""
        for path in (self.folder / "agent" / STORES).rglob("*"):
            at = path.stat().st_mtime - by_s
            os.utime(path, (at, at))

    async def of(
        self, tenant: str, image: str, credentials: bytes = b"", attempt: Attempt = ATTEMPT
    ) -> Image | None:
        secret = {"image_pull_secret": "registry"} if credentials else {}
        template = Template(runtime=Runtime.CONTAINER, image=image, **secret)
        text = base64.b64encode(credentials).decode()
        sealed = SecretValues({f"registry/{PULL_KEY}": text} if credentials else {})
        of = Launch(attempt, tenant, "w-0", template, 1, None, 0, secrets=sealed)
        return await self.images.of(of, self.place)


class Place:
    """What of an agent's place the images look at."""

    confinement = groups = program = None


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    it = Rig(tmp_path)
    program = tmp_path / "bin" / "podman"
    program.parent.mkdir()
    program.write_text(PODMAN.format(node=it.node, log=it.log, go=it.go, pid=it.pid))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(containers, "check", lambda *_: None)
    yield it
    it.go.touch()
    it.images.close()


def test_a_private_image_is_pulled_with_the_tenant_s_own_credentials_and_is_its_alone(
    rig: Rig,
) -> None:
    """That it lies on the node already helps no one who may not pull it."""

    async def story() -> None:
        image, token = "r.example/private:1", b'{"auths": "acme-token"}'
        found = await rig.of("acme", image, token)
        assert found is not None
        (store,) = rig.stores("acme")
        store = store / "images" / "r.example/private-1"
        # The topmost layer comes first, and none of them is a mount.
        assert found.layers == (store / "diff", store / "below")
        for credentials in (b"", b'{"auths": "rival-token"}'):
            with pytest.raises(Unavailable, match="cannot be pulled: denied"):
                await rig.of("rival", image, credentials)
        assert await rig.of("acme", image, token) == found
        assert rig.pulled().count(f"done {image}") == 1
        # A later tenant of the same name, or work without the Secret, has it no more than others.
        for credentials in (b"", b'{"auths": "rival-token"}'):
            with pytest.raises(Unavailable, match="cannot be pulled: denied"):
                await rig.of("acme", image, credentials)
        # Who reads the path from inside a container does not learn of which text it is the hash.
        digest = hashlib.sha256(token).hexdigest()
        assert digest[:16] not in str(found.layers[0])

    asyncio.run(story())


def test_what_the_operator_has_loaded_is_for_every_tenant(rig: Rig) -> None:
    """And nothing is ever pulled into that store."""
    (rig.node / "r.example/base-1" / "diff").mkdir(parents=True)
    (rig.node / "r.example/base-1" / "below").mkdir()

    async def story() -> None:
        one, two = await rig.of("acme", "r.example/base:1"), await rig.of("b", "r.example/base:1")
        assert one == two is not None
        await rig.of("acme", "r.example/own:1")
        assert sorted(it.name for it in (rig.node / "r.example").iterdir()) == ["base-1"]

    asyncio.run(story())


def test_a_tenant_pulls_one_image_at_a_time_and_delays_no_other(rig: Rig) -> None:
    """However many it asks for. What is here is found meanwhile, its own as well."""
    (rig.folder / "local" / "box").mkdir(parents=True)

    async def story() -> None:
        count = 2 * image_waits.PULLS_MAX
        asked = [
            asyncio.ensure_future(rig.of("acme", f"r.example/slow:{number}"))
            for number in range(count)
        ]
        await eventually(lambda: bool(rig.pulled()))
        assert await rig.of("rival", "r.example/quick:1") is not None
        for tenant in ("acme", "rival"):
            assert await rig.of(tenant, str(rig.folder / "local" / "box")) is not None
        begun = [line for line in rig.pulled() if line.startswith("r.example/slow")]
        assert len(begun) == 1
        rig.go.touch()
        await asyncio.gather(*asked)
        slow = [line for line in rig.pulled() if "/slow" in line]
        # Each has ended before the next began.
        assert [line.startswith("done") for line in slow] == [False, True] * count

    asyncio.run(story())


def test_replicas_of_one_image_wait_for_one_pull(rig: Rig) -> None:
    async def story() -> None:
        asked = [asyncio.ensure_future(rig.of("acme", "r.example/slow:1")) for _ in range(5)]
        await eventually(lambda: bool(rig.pulled()))
        rig.go.touch()
        assert len({it.layers for it in await asyncio.gather(*asked) if it is not None}) == 1
        assert rig.pulled() == ["r.example/slow:1", "done r.example/slow:1"]

    asyncio.run(story())


def test_a_pull_ends_when_its_tenant_s_images_have_no_room(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is under way; no other tenant notices, and what it needs no more makes room."""
    monkeypatch.setattr(images, "PULL_LOOK_S", 0.05)

    async def story() -> None:
        assert await rig.of("acme", "r.example/a:1") is not None
        with pytest.raises(Unavailable, match="no room"):
            await rig.of("acme", "r.example/big:1")
        # What it had started is gone as well.
        await eventually(lambda: not Path("/proc", rig.pid.read_text().strip()).exists())
        with pytest.raises(Unavailable, match=r"exceed 1 MiB.*--tenant-images-mib"):
            await rig.of("acme", "r.example/b:1")
        assert await rig.of("rival", "r.example/b:1") is not None
        rig.age(FRESH_S + 1)
        assert await rig.of("acme", "r.example/b:1", b'{"auths": "other"}') is not None
        assert len(rig.stores("acme")) == 1

    asyncio.run(story())


@pytest.mark.parametrize("tenant", ["key", "last", "used"])
def test_no_name_of_a_tenant_is_taken_by_a_file_of_the_stores(rig: Rig, tenant: str) -> None:
    asyncio.run(rig.of(tenant, "r.example/a:1", attempt=Attempt("a", 0)))
    assert rig.stores(tenant)


def test_images_are_removed_when_nothing_has_used_them_for_long(rig: Rig) -> None:
    """Those that work lives on stay, whenever it was started."""
    attempts = AttemptFolders(rig.folder / "agent")
    attempts.prepare()
    stores = image_stores.ImageStores(rig.folder / "agent")

    async def story() -> None:
        for tenant in ("acme", "rival", "late"):
            await rig.of(tenant, "r.example/a:1", attempt=Attempt(tenant, 0))

    asyncio.run(story())
    attempts.make(Attempt("acme", 0), 0o700)
    with attempts.of(Attempt("acme", 0)) as fd:
        held = lock(fd)
        assert held is not None
        rig.age(IDLE_S - 60)
        stores.sweep()
        assert all(rig.stores(tenant) for tenant in ("acme", "rival", "late"))
        asyncio.run(rig_again(rig))
        rig.age(FRESH_S + 120)
        stores.sweep()
        assert not rig.stores("rival")
        assert rig.stores("acme")
        # What used it is forgotten, and that it was used is not.
        (late,) = rig.stores("late")
        assert not list((late / USERS).iterdir())
        os.close(held)
    stores.sweep()
    assert not rig.stores("acme")


async def rig_again(rig: Rig) -> None:
    await rig.of("late", "r.example/a:1", attempt=Attempt("late", 1))
