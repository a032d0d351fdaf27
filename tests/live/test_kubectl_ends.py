"""The oldest and the newest kubectl that are found: everything else that people do with one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.model.kinds.access import Role
from tests.live.kubectls import Kubectl, binaries, ends, listed, params, role, workload
from tests.live.plane_process import PlaneProcess, take_lease

# One server for all of them, so all of them on one worker.
pytestmark = pytest.mark.xdist_group("kubectl-ends")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneProcess]:
    process = PlaneProcess(tmp_path_factory.mktemp("kubectl") / "data")
    try:
        asyncio.run(process.start())
        yield process
    finally:
        process.kill()


@pytest.fixture(scope="module", params=params(ends()))
def kubectl(
    request: pytest.FixtureRequest, plane: PlaneProcess, tmp_path_factory: pytest.TempPathFactory
) -> Kubectl:
    namespace = f"t{binaries().index(request.param)}"
    folder = tmp_path_factory.mktemp("client")
    found = Kubectl(request.param, plane.data / "kubeconfig", namespace, folder)
    tenant = {"apiVersion": "holdfast.dev/v1", "kind": "Tenant", "metadata": {"name": namespace}}
    found("create", "-f", "-", given=tenant)
    return found


def _names(printed: str) -> list[str]:
    return [row.split()[0] for row in printed.splitlines()[1:]]


def test_lists_are_selected_sorted_widened_and_cut_into_chunks(kubectl: Kubectl) -> None:
    many = [
        workload(f"w{n}", 9 - n, labels={"parity": "odd" if n % 2 else "even"}) for n in range(7)
    ]
    kubectl("create", "-f", "-", given=listed(*many))
    assert _names(kubectl("get", "wl", "--chunk-size=2")) == [f"w{n}" for n in range(7)]
    assert _names(kubectl("get", "wl", "-l", "parity=odd")) == ["w1", "w3", "w5"]
    assert _names(kubectl("get", "wl", "-l", "parity in (odd, none),x!=y")) == ["w1", "w3", "w5"]
    assert _names(kubectl("get", "wl", "--field-selector", "metadata.name=w4")) == ["w4"]
    by_replicas = _names(kubectl("get", "wl", "--sort-by=.spec.replicas"))
    assert by_replicas == [f"w{n}" for n in reversed(range(7))]
    head = kubectl("get", "wl", "w0", "-o", "wide").splitlines()[0]
    assert "LAST ERROR" in head
    assert "LAST ERROR" not in kubectl("get", "wl", "w0").splitlines()[0]
    everywhere = kubectl("get", "wl", "-A").splitlines()
    assert everywhere[0].startswith("NAMESPACE")
    assert kubectl("get", "wl", "-l", "parity=odd", "-o", "jsonpath={.items[*].spec.replicas}") == (
        "8 6 4"
    )
    assert "bogus" in kubectl.refused("get", "wl", "--field-selector", "bogus=1")
    assert "workload.holdfast.dev/w0" in kubectl("get", "all", "-o", "name").splitlines()


def test_a_watch_shows_changes_as_they_happen(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", given=workload("watched", 1))
    with kubectl.following("get", "wl", "-w", "--field-selector", "metadata.name=watched") as lines:
        lines.until("NAME")
        assert lines.until("watched").split()[2] == "0/1"
        kubectl("scale", "wl", "watched", "--replicas=5")
        assert lines.until("0/5").startswith("watched")
    with kubectl.following("get", "roles", "-w", "--output-watch-events", "-o", "name") as lines:
        kubectl("create", "-f", "-", given=role("seen"))
        lines.until("seen")
        kubectl("delete", "role", "seen")
        lines.until("seen")


def test_describe_and_explain_speak_of_the_object_and_its_kind(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", given=workload("told", 3, annotations={"note": "yes"}))
    said = kubectl("describe", "wl", "told")
    assert "note: yes" in said
    assert "Replicas:  3" in said
    assert "Events:" in said
    assert "replicas" in kubectl("explain", "workload.spec")
    assert "program and its arguments" in kubectl("explain", "wl.spec.template.command")
    assert "resources" in kubectl("explain", "roles", "--recursive")


def test_diff_shows_what_apply_would_do_and_dry_run_does_nothing(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=workload("same", 2))
    assert kubectl("diff", "-f", "-", given=workload("same", 2)) == ""
    found = kubectl.run("diff", "-f", "-", given=workload("same", 3))
    assert (found.code, "+  replicas: 3" in found.out) == (1, True)
    found = kubectl.run("diff", "--server-side", "-f", "-", given=workload("new", 3))
    assert (found.code, "+  replicas: 3" in found.out) == (1, True)
    kubectl("apply", "--dry-run=server", "-f", "-", given=workload("new"))
    assert kubectl.get("wl", "same")["spec"]["replicas"] == 2
    assert "NotFound" in kubectl.refused("get", "wl", "new")


def test_replace_and_patches_honour_the_version_that_was_seen(kubectl: Kubectl) -> None:
    """[A2]"""
    kubectl("create", "-f", "-", given=workload("one", 1))
    seen = kubectl.get("wl", "one")
    kubectl("label", "wl", "one", "changed=since")
    assert "the object has been modified" in kubectl.refused("replace", "-f", "-", given=seen)
    test = [{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}]
    kubectl.refused("patch", "wl", "one", "--type=json", "-p", json.dumps(test))
    kubectl("replace", "-f", "-", given=kubectl.get("wl", "one"))
    assert "merge-patch+json" in kubectl.refused(
        "patch", "wl", "one", "-p", '{"spec":{"replicas":2}}'
    )


def test_a_finalizer_holds_an_object_until_it_is_taken_away(kubectl: Kubectl) -> None:
    """[A2]"""
    kubectl("create", "-f", "-", given=role("held", finalizers=["example.com/hold"]))
    kubectl("delete", "role", "held", "--wait=false")
    assert kubectl.get("role", "held")["metadata"]["deletionTimestamp"]
    assert "timed out" in kubectl.refused("delete", "role", "held", "--timeout=1s")
    # It says which requests it makes, so that the test knows when it has begun to wait.
    wait = ("wait", "role/held", "--for=delete", "--timeout=20s", "-v=6")
    with kubectl.following(*wait) as lines:
        lines.until("watch=true")
        kubectl("patch", "role", "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        lines.until("condition met")
    assert "NotFound" in kubectl.refused("get", "role", "held")


def test_foreground_deletion_waits_for_the_garbage_collector(
    kubectl: Kubectl, plane: PlaneProcess
) -> None:
    """[A2]"""
    kubectl("create", "-f", "-", given=role("owner"))
    kubectl("delete", "role", "owner", "--cascade=foreground", "--wait=false")
    assert kubectl.get("role", "owner")["metadata"]["finalizers"] == ["foregroundDeletion"]

    async def collect() -> None:
        async with plane.client_as("system:controller:garbage") as garbage:
            await take_lease(garbage, "controller:garbage")
            owner = await garbage.get(Role, "owner", kubectl.namespace)
            metadata = msgspec.structs.replace(owner.metadata, finalizers=())
            await garbage.update(msgspec.structs.replace(owner, metadata=metadata))

    asyncio.run(collect())
    assert "NotFound" in kubectl.refused("get", "role", "owner")


def test_wait_sees_a_field_reach_its_value(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", given=workload("slow", 1))
    refused = kubectl.refused("wait", "wl/slow", "--for=condition=Ready", "--timeout=1s")
    assert "timed out" in refused
    if kubectl.is_at_least(23):
        field = "--for=jsonpath={.spec.replicas}=4"
        with kubectl.following("wait", "wl/slow", field, "--timeout=20s") as lines:
            kubectl("scale", "wl", "slow", "--replicas=4")
            lines.until("condition met")


def test_a_caller_without_rights_gets_that_answer(
    kubectl: Kubectl, plane: PlaneProcess, tmp_path: Path
) -> None:
    issued = CertificateAuthority.open(plane.data / "pki").issue(
        "eve", groups=("tenant:elsewhere",)
    )
    (tmp_path / "eve.crt").write_bytes(issued.certificate)
    (tmp_path / "eve.key").write_bytes(issued.key)
    eve = (
        "--kubeconfig=/dev/null",
        f"--server={plane.url}",
        f"--certificate-authority={plane.data}/pki/ca.crt",
        f"--client-certificate={tmp_path}/eve.crt",
        f"--client-key={tmp_path}/eve.key",
    )
    assert kubectl("auth", "can-i", "delete", "nodes.holdfast.dev").strip() == "yes"
    asked = kubectl.run("auth", "can-i", "list", "workloads.holdfast.dev", *eve)
    assert (asked.code, asked.out.strip()) == (1, "no"), asked.err
    refused = kubectl.refused("get", "wl", *eve)
    assert 'User "eve" cannot list' in refused
