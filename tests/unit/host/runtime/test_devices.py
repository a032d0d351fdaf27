"""Devices: how options describe them, and what work learns of its own."""

from __future__ import annotations

import pytest

from holdfast.host.runtime import devices
from holdfast.host.runtime.devices import LocalDevice
from holdfast.model.errors import Invalid
from holdfast.model.kinds.node import Device
from holdfast.model.kinds.replica import DeviceShare

G0 = LocalDevice(Device(id="g0", device_class="gpu"), "/dev/null")
F0 = LocalDevice(Device(id="f0", device_class="fpga"))
G1 = LocalDevice(Device(id="g1", device_class="gpu"), "/dev/zero")


def test_a_device_is_what_its_text_says() -> None:
    text = "class=fpga,id=fpga0,model=x y,memory=8Gi,numa=1,path=/dev/null"
    told = Device(id="fpga0", device_class="fpga", model="x y", memory="8Gi", numa=1)
    assert devices.parse(text) == LocalDevice(told, "/dev/null")
    assert devices.parse("class=gpu,id=a") == LocalDevice(Device(id="a", device_class="gpu"))


@pytest.mark.parametrize(
    "text, rule",
    [
        ("", "KEY=VALUE"),
        ("class=gpu", "must give id"),
        ("id=a", "must give class"),
        ("class=gpu,id=a,id=b", "each once"),
        ("class=gpu,id=a,speed=9", "KEY=VALUE"),
        ("class=gpu,id=a b", "must give id"),
        ("class=gpu,id=" + "a" * 64, "must give id"),
        ("class=gpu,id=a,path=/etc/passwd", "must be a device file"),
        ("class=gpu,id=a,path=/dev/nothing-there", "must be a device file"),
        ("class=gpu,id=a,numa=-1", "numa"),
    ],
)
def test_a_wrong_device_is_refused_by_its_rule(text: str, rule: str) -> None:
    with pytest.raises(Invalid, match=rule):
        devices.parse(text)


def test_an_id_is_there_once() -> None:
    with pytest.raises(Invalid, match="must be unique"):
        devices.parse_all(["class=gpu,id=a", "class=fpga,id=a"])


def test_work_gets_its_devices_as_variables_and_gpus_of_others_are_hidden() -> None:
    """Their index is that among the GPUs, whatever else there is."""
    local = (G0, F0, G1)
    owned = (DeviceShare("f0", "fpga", 1000), DeviceShare("g1", "gpu", 500))
    assert devices.variables(local, owned) == {
        "HOLDFAST_DEVICES": "f0,g1",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    none = {"HOLDFAST_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}
    assert devices.variables(local, ()) == none
    assert devices.variables((F0,), ()) == {"HOLDFAST_DEVICES": ""}


def test_work_is_kept_from_the_devices_that_it_does_not_own() -> None:
    owned = (DeviceShare("g1", "gpu", 1000),)
    assert devices.deny_rules((G0, F0, G1), owned) == ("c 1:3 rwm",)
    assert devices.paths((G0, F0, G1), owned) == ("/dev/zero",)
    assert devices.deny_rules((G0, F0, G1), ()) == ("c 1:3 rwm", "c 1:5 rwm")


def test_gpus_are_read_from_the_driver_and_nonsense_is_not() -> None:
    text = "0, NVIDIA A100-SXM4-40GB, 40960\n1, Old One, [N/A]\nNo devices were found\n"
    assert [it.device for it in devices.parse_gpus(text)] == [
        Device(id="gpu0", device_class="gpu", model="NVIDIA A100-SXM4-40GB", memory="40960Mi"),
        Device(id="gpu1", device_class="gpu", model="Old One"),
    ]
