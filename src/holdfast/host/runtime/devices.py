"""The devices of this machine, and the variables and rules for work that owns some of them.

`host/component/machine_facts` reports them to the servers; `starting` gives work those that its
binding names. A device has a path if its file in /dev is known: then other work can be denied it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence

import msgspec

from holdfast.model.errors import FieldError, Invalid
from holdfast.model.kinds.node import GPU, Device
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.validation.node import DEVICES_MAX

VARIABLE, GPU_VARIABLE = "HOLDFAST_DEVICES", "CUDA_VISIBLE_DEVICES"
NVIDIA_SMI = "nvidia-smi"
NVIDIA_TIMEOUT_S = 20
_QUERY = ("--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits")
_FIELDS = ("class", "id", "model", "memory", "numa", "path")
_ID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


class LocalDevice(msgspec.Struct, frozen=True):
    """A device as its machine knows it: what the servers get to know, and its path here."""

    device: Device
    path: str = ""


def parse(text: str) -> LocalDevice:
    """`class=fpga,id=fpga0,model=x,memory=8Gi,numa=1,path=/dev/fpga0`. Raises Invalid."""
    fields = {}
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if not equals or not value or key not in _FIELDS or key in fields:
            raise _wrong(text, f"must be KEY=VALUE, each once, of {', '.join(_FIELDS)}")
        fields[key] = value
    for key in ("class", "id"):
        if not _ID.fullmatch(fields.get(key, "")):
            raise _wrong(text, f"must give {key}: letters, digits, '-', '_' and '.', at most 63")
    path = fields.get("path", "")
    if path and rule_of(path) is None:
        raise _wrong(text, f"path: {path} must be a device file of this machine")
    numa = fields.get("numa", "0")
    if not (numa.isascii() and numa.isdecimal() and len(numa) <= 4):
        raise _wrong(text, "numa: must be the number of a NUMA node")
    device = Device(
        id=fields["id"],
        device_class=fields["class"],
        model=fields.get("model", ""),
        memory=fields.get("memory", 0),
        numa=int(numa),
    )
    return LocalDevice(device, path)


def parse_all(texts: Sequence[str]) -> tuple[LocalDevice, ...]:
    """All devices given as options. Raises Invalid for two with the same id."""
    if len(texts) > DEVICES_MAX:
        raise _wrong(f"{len(texts)} devices", f"must be at most {DEVICES_MAX}")
    made: dict[str, LocalDevice] = {}
    for text in texts:
        device = parse(text)
        if device.device.id in made:
            raise _wrong(text, "id: must be unique; another device has it")
        made[device.device.id] = device
    return tuple(made.values())


def gpus() -> tuple[LocalDevice, ...]:
    """The GPUs that NVIDIA's driver reports; none if it is not installed or fails."""
    program = shutil.which(NVIDIA_SMI)
    if program is None:
        return ()
    try:
        asked = subprocess.run(
            [program, *_QUERY], capture_output=True, text=True, timeout=NVIDIA_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(asked.stdout)


def parse_gpus(text: str) -> tuple[LocalDevice, ...]:
    """The GPUs in the output of nvidia-smi; malformed lines are ignored."""
    found = []
    for line in text.splitlines()[:DEVICES_MAX]:
        words = [word.strip() for word in line.split(",")]
        if len(words) != 3 or not words[0].isdecimal():
            continue
        index, model, memory = words
        size = f"{memory}Mi" if memory.isdecimal() else 0
        device = Device(id=f"gpu{index}", device_class=GPU, model=model[:253], memory=size)
        path = f"/dev/nvidia{index}"
        found.append(LocalDevice(device, path if rule_of(path) is not None else ""))
    return tuple(found)


def rule_of(path: str) -> str | None:
    """The device at this path as control groups name it; None when there is none."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    kind = "c" if stat.S_ISCHR(about.st_mode) else "b" if stat.S_ISBLK(about.st_mode) else ""
    return f"{kind} {os.major(about.st_rdev)}:{os.minor(about.st_rdev)} rwm" if kind else None


def variables(local: Sequence[LocalDevice], owned: Sequence[DeviceShare]) -> dict[str, str]:
    """The variables that name the devices of the work.

    On a machine with GPUs, work that owns none gets an empty list: that hides them, and a missing
    variable would show all.
    """
    ids = [share.device for share in owned]
    found = {VARIABLE: ",".join(ids)}
    cards = [it.device.id for it in local if it.device.device_class == GPU]
    if cards:
        found[GPU_VARIABLE] = ",".join(str(cards.index(it)) for it in ids if it in cards)
    return found


def deny_rules(local: Sequence[LocalDevice], owned: Sequence[DeviceShare]) -> tuple[str, ...]:
    """Rules for the devices of this machine that the work does not own."""
    ids = {share.device for share in owned}
    rules = (rule_of(it.path) for it in local if it.path and it.device.id not in ids)
    return tuple(dict.fromkeys(rule for rule in rules if rule is not None))


def paths(local: Sequence[LocalDevice], owned: Sequence[DeviceShare]) -> tuple[str, ...]:
    """The paths of the devices that the work owns."""
    ids = {share.device for share in owned}
    return tuple(it.path for it in local if it.path and it.device.id in ids)


def _wrong(value: str, rule: str) -> Invalid:
    error = FieldError("--device", value[:80], rule)
    return Invalid(str(error), (error,))
