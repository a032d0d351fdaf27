"""Waits for images without delaying anything else.

`runtime` asks for the image of each attempt before it starts it. Threads that never wait for a
network find images that are here already, so no pull delays a start that needs none. A tenant pulls
one image at a time, so that no tenant takes all the pulling threads.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from holdfast.agent.runtime_protocol import Launch
from holdfast.host.runtime.cgroups import disk
from holdfast.host.runtime.containers import containers, images
from holdfast.host.runtime.containers.image_stores import (
    BYTES_MAX,
    NODE_STORE,
    SWEEP_S,
    ImageStores,
)
from holdfast.host.runtime.containers.images import Image
from holdfast.host.runtime.starting import StartContext
from holdfast.model.errors import FieldError, Invalid, Unavailable
from holdfast.model.kinds.template import PULL_KEY, Runtime

_log = logging.getLogger(__name__)

LOOKS_MAX = 2
# More pulls at once would only share the same network.
PULLS_MAX = 4


class Images:
    """`root` holds the attempts, `folders` are the operator's directories of root file systems.

    `bytes_max` bounds the images that are pulled for one tenant.
    """

    def __init__(self, root: Path, folders: tuple[Path, ...], bytes_max: int = BYTES_MAX) -> None:
        self._root, self._folders = root, folders
        self._stores = ImageStores(root, bytes_max)
        self._looks = ThreadPoolExecutor(LOOKS_MAX, thread_name_prefix="images")
        self._pulls = ThreadPoolExecutor(PULLS_MAX, thread_name_prefix="pulls")
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        # Only success is cached: runc may be installed at any time.
        self._are_possible = False

    async def of(self, launch: Launch, place: StartContext) -> Image | None:
        """The image of this work; None if it is a process. Raises Invalid or Unavailable."""
        template, tenant = launch.template, launch.namespace
        if template.runtime is not Runtime.CONTAINER:
            return None
        loop = asyncio.get_running_loop()
        if not self._are_possible:
            first = place.confinement.block_first if place.confinement is not None else 0
            check = (self._root, place.groups, place.program, first)
            await loop.run_in_executor(self._looks, containers.check, *check)
            self._are_possible = True
        credentials, store = _credentials(launch), NODE_STORE
        whose = (tenant, credentials, launch.attempt)
        if not template.image.startswith("/"):
            store = await loop.run_in_executor(self._looks, self._stores.of, *whose)
        find, look = images.local, (template.image, self._folders, store)
        found = await loop.run_in_executor(self._looks, find, *look)
        if found is not None:
            return found
        self._waiting[tenant] += 1
        try:
            async with self._turns.setdefault(tenant, asyncio.Lock()):
                # The wait may have been for another replica with the same image.
                found = await loop.run_in_executor(self._looks, find, *look)
                if found is not None:
                    return found
                lack = await loop.run_in_executor(self._looks, disk.lack, self._root)
                if lack is not disk.DiskShortage.NOTHING:
                    raise Unavailable("the disk of this node is nearly full: no images are pulled")
                # It may have waited for long, so the store is marked once more.
                await loop.run_in_executor(self._looks, self._stores.of, *whose)
                await loop.run_in_executor(self._pulls, self._stores.make_room, tenant)
                is_full = partial(self._stores.is_full, tenant)
                words = (template.image, store, credentials, is_full)
                return await loop.run_in_executor(self._pulls, images.pull, *words)
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant], self._turns[tenant]

    async def sweep_for_ever(self) -> None:
        """Remove images that nothing has used for long."""
        while True:
            await asyncio.sleep(SWEEP_S)
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._pulls, self._stores.sweep)
            except OSError as error:
                _log.warning("images that nothing uses cannot be removed: %s", error)

    def close(self) -> None:
        """Stop all waits."""
        for pool in (self._looks, self._pulls):
            pool.shutdown(wait=False, cancel_futures=True)


def _credentials(of: Launch) -> bytes:
    """The registry credentials of the tenant's own Secret; empty without one."""
    name = of.template.image_pull_secret
    if not name:
        return b""
    text = of.secrets.values.get(f"{name}/{PULL_KEY}", "")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        error = FieldError("imagePullSecret", name, f"its key {PULL_KEY} is not base64")
        raise Invalid(str(error), (error,)) from None
