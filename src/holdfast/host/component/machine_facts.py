"""What this computer offers, for its agent to register: measured here, or given by the operator.

Measured is what this process may use, not what the computer has: an agent in a container or under a
limit offers no more than it can provide.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast import __version__
from holdfast.agent.node_facts import NodeFacts
from holdfast.host.runtime.cgroups.groups import ceilings
from holdfast.host.runtime.devices import LocalDevice
from holdfast.model import quantity
from holdfast.model.errors import Invalid, invalid_option
from holdfast.model.kinds.node import Device, PortShare
from holdfast.model.meta import Quantity

FACTS_BYTES_MAX = 1 << 20
# The most files that are counted for the disk use of an agent's own work.
FILES_MAX = 100_000
STAT_BLOCK_BYTES = 512
IMAGES_MAX = 256
# The most nodes that may share one computer's ports.
SHARING_MAX = 1_000
_MEMORY = Path("/proc/meminfo")


class _Written(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Facts in a file, with the field names of a Node's spec."""

    region: str = ""
    zone: str = ""
    pool: str = NodeFacts().pool
    labels: dict[str, str] = {}
    cost_per_hour: Quantity = 0
    capacity: dict[str, Quantity] = {}
    reserved: dict[str, Quantity] = {}
    devices: tuple[Device, ...] = ()
    port_share: PortShare | None = None
    images: tuple[str, ...] = ()
    address: str = ""


def complete_facts(given: NodeFacts, data: Path | None = None) -> NodeFacts:
    """Return the facts as given, completed by what this computer has.

    `data` is the agent's directory; the disk that counts is the one below it.
    """
    measured: dict[str, Quantity] = {"cpu": _cpu(), "memory": _memory()}
    if data is not None:
        measured["disk"] = f"{_disk_bytes(data) >> 20}Mi"
    capacity = {**measured, **given.capacity}
    for name, amount in capacity.items():
        _check(name, amount)
    return msgspec.structs.replace(
        given,
        capacity=capacity,
        agent_version=given.agent_version or __version__,
        address=given.address or "127.0.0.1",
    )


def with_devices(given: NodeFacts, local: Sequence[LocalDevice]) -> NodeFacts:
    """Return the facts with these devices added. Raises Invalid for a duplicate id."""
    known = {device.id for device in given.devices}
    for device in local:
        if device.device.id in known:
            raise invalid_option("--device", device.device.id, "id: must be unique")
    devices = (*given.devices, *(device.device for device in local))
    return msgspec.structs.replace(given, devices=devices)


def images_in(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the root file systems for containers in these directories."""
    found = []
    for folder in folders:
        with suppress(OSError):
            found += sorted(str(path) for path in folder.absolute().iterdir() if path.is_dir())
    return tuple(found[:IMAGES_MAX])


def from_file(path: Path) -> NodeFacts:
    """Read facts from a JSON file. Raises Invalid."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise Invalid(f"the facts in {path} cannot be read: {error.strerror}") from error
    if len(text) > FACTS_BYTES_MAX:
        raise Invalid(f"the facts in {path} are larger than {FACTS_BYTES_MAX} bytes")
    try:
        written = msgspec.json.decode(text, type=_Written)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"the facts in {path} cannot be used: {error}") from error
    return NodeFacts(**{field: getattr(written, field) for field in written.__struct_fields__})


def pairs(option: str, given: list[str]) -> dict[str, str]:
    """Parse repeated `KEY=VALUE` options. Raises Invalid."""
    made = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise invalid_option(option, text, "must be KEY=VALUE")
        made[key] = value
    return made


def port_share(given: str) -> PortShare:
    """Parse `2/3`: the second of three nodes that share a network. Raises Invalid."""
    number, slash, count = given.partition("/")
    is_share = slash and all(it.isascii() and it.isdigit() for it in (number, count))
    if not is_share or not 1 <= int(number) <= int(count) <= SHARING_MAX:
        raise invalid_option("--port-share", given, f"must be NUMBER/COUNT, 1/1 to 1/{SHARING_MAX}")
    return PortShare(index=int(number) - 1, of=int(count))


def host_name() -> str:
    """Return this computer's host name as the name of a node."""
    return socket.gethostname().lower().partition(".")[0] or "node"


def _cpu() -> str:
    """Return the processors that this process may use, within the limits of its cgroups."""
    milli = len(os.sched_getaffinity(0)) * quantity.MILLI
    limit = ceilings().cpu_milli
    return quantity.render("cpu", milli if limit is None else max(1, min(milli, limit)))


def _disk_bytes(data: Path) -> int:
    """Return what is free there, plus what this agent's own work uses already.

    So an agent that restarts finds the same, and space that others use is never offered.
    """
    there = next(path for path in (data, *data.absolute().parents) if path.exists())
    about = os.statvfs(there)
    return about.f_bavail * about.f_frsize + used_bytes(data)


def used_bytes(folder: Path) -> int:
    used = seen = 0
    for at, _, names in os.walk(folder, onerror=None):
        for name in names:
            seen += 1
            if seen > FILES_MAX:
                # The rest counts as used by others: too little is offered, never too much.
                return used
            with suppress(OSError):
                used += os.lstat(os.path.join(at, name)).st_blocks * STAT_BLOCK_BYTES
    return used


def _memory() -> str:
    for line in _MEMORY.read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            limit = ceilings().memory_bytes
            whole = int(line.split()[1])
            return f"{whole if limit is None else min(whole, limit // 1024)}Ki"
    raise Invalid(f"{_MEMORY} does not state the size of the memory; give --capacity memory=…")


def _check(name: str, amount: str | float) -> None:
    try:
        quantity.capacity(name, amount)
    except Invalid as error:
        raise invalid_option("--capacity", f"{name}={amount}", error.message) from error
