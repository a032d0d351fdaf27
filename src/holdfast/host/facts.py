"""What this computer is, for its agent to present: found out here, or said by whoever starts it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from holdfast import __version__
from holdfast.agent.facts import Facts
from holdfast.model import quantity
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.kinds.node import Device
from holdfast.model.meta import Quantity

FACTS_BYTES_MAX = 1 << 20
_MEMORY = Path("/proc/meminfo")


class _Written(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Facts in a file, in the words of a Node's spec."""

    region: str = ""
    zone: str = ""
    pool: str = Facts().pool
    labels: dict[str, str] = {}
    cost_per_hour: Quantity = 0
    capacity: dict[str, Quantity] = {}
    reserved: dict[str, Quantity] = {}
    devices: tuple[Device, ...] = ()
    images: tuple[str, ...] = ()
    address: str = ""


def found(given: Facts) -> Facts:
    """The facts as given, with what was left out as this computer has it."""
    capacity = {"cpu": str(len(os.sched_getaffinity(0))), "memory": _memory(), **given.capacity}
    for name, amount in capacity.items():
        _check(name, amount)
    return msgspec.structs.replace(
        given,
        capacity=capacity,
        agent_version=given.agent_version or __version__,
        address=given.address or "127.0.0.1",
    )


def from_file(path: Path) -> Facts:
    """Facts that somebody wrote down, as JSON. Raises Invalid."""
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
    return Facts(**{field: getattr(written, field) for field in written.__struct_fields__})


def pairs(option: str, given: list[str]) -> dict[str, str]:
    """`KEY=VALUE` as often as it was given. Raises Invalid."""
    made = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise _wrong(option, text, "must read KEY=VALUE")
        made[key] = value
    return made


def host_name() -> str:
    """What this computer calls itself, as the name of a node."""
    return socket.gethostname().lower().partition(".")[0] or "node"


def _memory() -> str:
    for line in _MEMORY.read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return f"{line.split()[1]}Ki"
    raise Invalid(f"{_MEMORY} does not say how much memory there is; give --capacity memory=…")


def _check(name: str, amount: str | float) -> None:
    try:
        quantity.capacity(name, amount)
    except Invalid as error:
        raise _wrong("--capacity", f"{name}={amount}", error.message) from error


def _wrong(option: str, value: str, rule: str) -> Invalid:
    error = FieldError(option, value[:80], rule)
    return Invalid(str(error), (error,))
