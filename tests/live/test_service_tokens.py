"""Service tokens of real work: what it may do with one, how it is replaced, and when it dies."""

from __future__ import annotations

import asyncio
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec

from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.model.kinds.access import RoleBinding, RoleRef, Subject
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import SYSTEM_NAMESPACE
from tests.lines import Line, Wish
from tests.live.plane_process import workload
from tests.live.whole_plane import LONG_FENCE, WholePlane
from tests.patience import STORY_S

GROUP = "/apis/holdfast.dev/v1"
OWN, OTHER = (f"{GROUP}/namespaces/{it}/workloads" for it in ("default", "other"))
# As any client would: server and authority are in the kubeconfig, and the token in the file that it
# names beside itself is read again for each request.
CALLER = f"""
import base64, json, os, ssl, time, urllib.error, urllib.request
where = os.environ["HOLDFAST_KUBECONFIG"]
while True:
    config = json.load(open(where))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
    token = open(os.path.join(os.path.dirname(where), user["tokenFile"])).read()
    assert token == open(os.environ["HOLDFAST_TOKEN_FILE"]).read()
    codes = []
    for path in ("{OWN}", "{OTHER}"):
        request = urllib.request.Request(
            cluster["server"] + path, headers={{"Authorization": "Bearer " + token}})
        try:
            with urllib.request.urlopen(
                request, context=ssl.create_default_context(cadata=ca)) as answer:
                codes.append(answer.status)
        except urllib.error.HTTPError as error:
            codes.append(error.code)
    with open("codes.new", "w") as file:
        json.dump(codes, file)
    os.replace("codes.new", "codes")
    time.sleep(0.2)
"""
FILE = "plane-token"


class Rig:
    """A plane with one replica that asks again and again."""

    def __init__(self, plane: WholePlane) -> None:
        self.plane = plane

    async def replica(self, *, restarts: int = 0) -> Replica:
        async def look() -> Replica | None:
            found = (await self.plane.client.list(Replica, "default")).objects
            running = [it for it in found if it.status.state is State.RUNNING]
            fitting = [it for it in running if it.status.process.restarts >= restarts]
            return fitting[0] if fitting else None

        return await self.plane.until(look)  # type: ignore[no-any-return]

    def folder(self, replica: Replica) -> Path:
        """The directory of the attempt that runs."""
        attempts = self.plane.folder / "n1" / replica.metadata.uid
        numbers = [int(it.name) for it in attempts.iterdir() if it.name.isdigit()]
        return attempts / str(max(numbers)) / "work"

    def token(self, replica: Replica) -> str:
        """What is in its file, which is for its owner alone."""
        file = self.folder(replica) / FILE
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        return file.read_text()

    async def until_codes(self, replica: Replica, *codes: int) -> None:
        async def look() -> bool:
            file = self.folder(replica) / "codes"
            return file.exists() and msgspec.json.decode(file.read_bytes()) == list(codes)

        await self.plane.until(look)

    async def code(self, token: str, path: str = OWN) -> int:
        ca = CertificateAuthority.open(self.plane.folder / "pki").pem
        async with Line(self.plane.access_urls[0], ca, None, token) as line:
            return (await line.send_patiently(Wish("GET", path))).code

    async def until_refused(self, token: str) -> None:
        async def look() -> bool:
            return await self.code(token) == 401

        await self.plane.until(look)


def test_work_asks_the_plane_by_its_own_token_for_as_long_as_it_lives(tmp_path: Path) -> None:
    """It may what a binding gives its workload, its token is replaced, and dies with its attempt
    and its replica."""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1",), fence=LONG_FENCE) as plane:
            await _story(Rig(plane))

    asyncio.run(asyncio.wait_for(story(), STORY_S))


async def _story(rig: Rig) -> None:
    client = rig.plane.client
    spec: dict[str, Any] = {
        "command": [_python(), "-c", CALLER],
        "serviceToken": {"file": FILE},
        "resources": {"cpu": "10m"},
    }
    await client.create(workload("caller", replicas=1, template=spec))
    replica = await rig.replica()
    # It is known, and may nothing.
    await rig.until_codes(replica, 403, 403)
    await client.create(
        RoleBinding(
            metadata=ObjectMeta(name="caller", namespace="default"),
            subjects=(Subject(kind="ServiceAccount", name="workload:caller"),),
            role_ref=RoleRef(name="tenant-viewer", namespace=SYSTEM_NAMESPACE),
        )
    )
    await rig.until_codes(replica, 200, 403)
    old = rig.token(replica)
    assert await rig.code(old) == 200
    await _agent_restarts(rig, replica)
    await _work_restarts(rig, replica, old)
    await _work_is_over(rig)


async def _agent_restarts(rig: Rig, replica: Replica) -> None:
    """An agent that adopts work replaces its token, of which it does not know the end."""
    old = rig.token(replica)
    rig.plane.kill(replica, "agent")

    async def replaced() -> bool:
        return rig.token(replica) != old

    await rig.plane.until(replaced)
    await rig.until_codes(replica, 200, 403)
    assert (await rig.replica()).status.process.restarts == 0
    assert await rig.code(rig.token(replica)) == 200


async def _work_restarts(rig: Rig, replica: Replica, old: str) -> None:
    """A token of the attempt before does not count for the next one."""
    rig.plane.kill(replica, "work")
    again = await rig.replica(restarts=1)
    assert again.metadata.uid == replica.metadata.uid

    async def begun() -> bool:
        # The restart is reported when it is decided, and the old token ends with that.
        return rig.folder(again).parent.name == "1"

    await rig.plane.until(begun)
    await rig.until_codes(again, 200, 403)
    await rig.until_refused(old)


async def _work_is_over(rig: Rig) -> None:
    token = rig.token(await rig.replica())
    assert await rig.code(token) == 200
    await rig.plane.client.delete(Workload, "caller", "default")
    await rig.until_refused(token)


def _python() -> str:
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
