"""The configuration for runc, and which images are valid."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.runtime_protocol import Attempt, Launch
from holdfast.host.runtime.containers import containers
from holdfast.host.runtime.containers.container_network import ContainerNetwork
from holdfast.host.runtime.containers.image_stores import NODE_STORE
from holdfast.host.runtime.containers.images import Image, local
from holdfast.host.runtime.containers.oci_spec import Container, config
from holdfast.host.runtime.surroundings import Surroundings, User, surroundings
from holdfast.model.errors import Invalid, Unavailable
from holdfast.model.kinds.template import EnvVar, Runtime, Template


def launch(**fields: Any) -> Launch:
    template = Template(runtime=Runtime.CONTAINER, image="/images/a", **fields)
    return Launch(Attempt("u1", 0), "team", "web-0", template, 7, None, 500)


def spec(**fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "name": "web-0",
        "work": Path("/data/work"),
        "working_dir": "/holdfast",
        "user": None,
        "group": "/holdfast/n1/u1-0",
        **fields,
    }
    made = config(Container(**given), Surroundings(("sh", "-c", "x"), ("A=b",)))
    found: dict[str, Any] = json.loads(made)
    return found


def test_a_container_has_namespaces_of_its_own() -> None:
    """The node's network only where that is said, and users of its own where tenants are."""
    plain, apart = spec()["linux"], spec(first=70_000, has_host_network=True)["linux"]
    assert {it["type"] for it in plain["namespaces"]} == {"pid", "mount", "ipc", "uts", "network"}
    assert "uidMappings" not in plain
    assert {it["type"] for it in apart["namespaces"]} == {"pid", "mount", "ipc", "uts", "user"}
    mapping = [{"containerID": 0, "hostID": 70_000, "size": 65_536}]
    assert apart["uidMappings"] == apart["gidMappings"] == mapping


def test_what_is_mounted_from_the_node_has_no_devices_and_no_powers() -> None:
    mounts = {it["destination"]: it["options"] for it in spec(lookups=("/etc/hosts",))["mounts"]}
    for at in ("/holdfast", "/etc/hosts", "/proc", "/sys"):
        assert {"nosuid", "nodev"} <= set(mounts[at])
    assert "ro" in mounts["/etc/hosts"]


DANGEROUS = (
    *("mount", "umount2", "move_mount", "fsopen", "open_tree", "mount_setattr", "pivot_root"),
    *("unshare", "setns", "clone3", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp"),
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "open_by_handle_at"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"),
    *("keyctl", "add_key", "request_key", "settimeofday", "clock_settime", "swapon", "pidfd_getfd"),
)


def test_a_container_asks_the_kernel_for_nothing_that_reaches_beyond_it() -> None:
    """What is not listed is refused, and a new process gets no new namespace."""
    profile = spec()["linux"]["seccomp"]
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = [it for it in profile["syscalls"] if it["action"] == "SCMP_ACT_ALLOW"]
    free = {name for it in allowed if "args" not in it for name in it["names"]}
    assert {"read", "execve", "futex", "openat", "epoll_pwait2", "mknod"} <= free
    assert not free & {*DANGEROUS, "clone", "socket", "personality"}
    bounded = {name for it in allowed if "args" in it for name in it["names"]}
    assert bounded == {"clone", "socket", "personality"}
    (clone,) = [it["args"] for it in allowed if it["names"] == ["clone"]]
    namespaces = sum(getattr(os, name, 0) for name in ("CLONE_NEWUSER", "CLONE_NEWNET"))
    assert clone[0]["op"] == "SCMP_CMP_MASKED_EQ"
    assert clone[0]["value"] & (namespaces or 0x5000_0000)
    assert clone[0]["valueTwo"] == 0


def test_a_container_gains_nothing_and_an_ordinary_user_has_no_capability() -> None:
    root = spec()["process"]
    assert root["noNewPrivileges"] is True
    assert "CAP_SYS_ADMIN" not in root["capabilities"]["bounding"]
    assert "CAP_SYS_PTRACE" not in root["capabilities"]["bounding"]
    other = spec(user=User(7, 8, (8, 9), "/home/x"))["process"]
    assert other["user"] == {"uid": 7, "gid": 8, "additionalGids": [9]}
    assert set(map(tuple, other["capabilities"].values())) == {()}


def test_a_container_may_use_no_device_but_its_own() -> None:
    first, *others = spec(devices=("/dev/zero",))["linux"]["resources"]["devices"]
    assert first == {"allow": False, "access": "rwm"}
    assert others == [{"allow": True, "access": "rwm", "type": "c", "major": 1, "minor": 5}]


def test_what_an_image_says_is_literal_and_yields_to_the_template() -> None:
    image = Image((Path("/i"),), ("run",), ("$(A)",), {"A": "$(HOLDFAST_NODE)", "B": "image"})
    of = containers.with_image_defaults(launch(env=(EnvVar("B", "own"),)), image)
    found = surroundings(of, "n1", "/holdfast", {}, "")
    assert found.arguments == ("run", "$(A)")
    assert {"A=$(HOLDFAST_NODE)", "B=own"} <= set(found.variables)
    assert containers.with_image_defaults(launch(command=("x",)), image).template.command == ("x",)


@pytest.mark.parametrize(
    "text", ["", "x" * 300_000, 'quotes " and $(date) `id` \\n\n%s\u00e4\u20ac']
)
def test_the_arguments_of_runc_survive_the_shell(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is and whatever is in it."""
    monkeypatch.setattr(containers, "BOX", tmp_path / "box")
    (tmp_path / "box").mkdir()
    image, program = Image((Path("/i"),)), Path("/shim")
    boxing = containers.Boxing(
        tmp_path, tmp_path / "work", "/g", image, None, (), program, ContainerNetwork()
    )
    found = containers.in_container(launch(), boxing, Surroundings(("a", text), ()))
    script = found.arguments[-1]
    printed = next(line for line in script.splitlines() if line.startswith("printf"))
    variables = dict(pair.split("=", 1) for pair in found.variables)
    subprocess.run(["/bin/sh", "-e", "-c", printed], env=variables, check=True)
    written = json.loads((tmp_path / "box" / "config.json").read_bytes())
    assert written["process"]["args"] == ["a", text]


def test_an_image_lies_below_one_of_the_directories_of_images(tmp_path: Path) -> None:
    """A link within them is fine."""
    (tmp_path / "a" / "one").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to("one")
    folders = (tmp_path / "a",)
    for name in ("one", "link"):
        found = local(str(tmp_path / "a" / name), folders, NODE_STORE)
        assert found == Image((tmp_path / "a" / "one",))
    for text in (str(tmp_path / "a"), str(tmp_path), "/", "", "-x", "a b"):
        with pytest.raises(Invalid, match="image"):
            local(text, folders, NODE_STORE)
    with pytest.raises(Invalid, match="image"):
        local(str(tmp_path / "a" / "one"), (), NODE_STORE)


def test_a_reference_needs_podman(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="needs podman, which is not installed"):
        local("docker.io/library/busybox:1", (), NODE_STORE)
