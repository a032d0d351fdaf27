"""Every kubectl that is found, against one real server over TLS: the daily commands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.kubectls import Binary, Kubectl, binaries, ends, listed, params, role, workload
from tests.live.plane_process import PlaneProcess
from tests.scale import scaled

# One server for all of them, so all of them on one worker.
pytestmark = pytest.mark.xdist_group("kubectl-all")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneProcess]:
    process = PlaneProcess(tmp_path_factory.mktemp("kubectl") / "data")
    try:
        asyncio.run(process.start())
        yield process
    finally:
        process.kill()


@pytest.fixture(scope="module", params=params(scaled(ends(), binaries())))
def kubectl(
    request: pytest.FixtureRequest, plane: PlaneProcess, tmp_path_factory: object
) -> Kubectl:
    binary: Binary = request.param
    folder: Path = tmp_path_factory.mktemp("client")
    namespace = f"t{binaries().index(binary)}"
    found = Kubectl(binary, plane.data / "kubeconfig", namespace, folder)
    tenant = {"apiVersion": "holdfast.dev/v1", "kind": "Tenant", "metadata": {"name": namespace}}
    found("create", "-f", "-", given=tenant)
    return found


def test_what_there_is_can_be_found_out(kubectl: Kubectl) -> None:
    """[A1]"""
    rows = kubectl("api-resources", "--api-group", "holdfast.dev").splitlines()
    workloads = next(row for row in rows if row.startswith("workloads"))
    assert workloads.split() == ["workloads", "wl", "holdfast.dev/v1", "true", "Workload"]
    assert {row.split()[0] for row in rows} >= {"nodes", "replicas", "tenants", "quotas"}
    namespaces = kubectl("get", "ns").splitlines()
    assert any(row.split()[:2] == [kubectl.namespace, "Active"] for row in namespaces)


def test_an_object_is_made_shown_changed_and_scaled(kubectl: Kubectl) -> None:
    """[A1, A2]"""
    assert "workload.holdfast.dev/web created" in kubectl(
        "create", "-f", "-", given=workload("web", 2)
    )
    again = kubectl.refused("create", "-f", "-", given=workload("web"))
    assert 'workloads.holdfast.dev "web" already exists' in again

    head, row = kubectl("get", "wl").splitlines()
    assert head.split() == ["NAME", "TYPE", "READY", "SERVING", "PENDING", "ROLLOUT", "AGE"]
    assert row.split()[:3] == ["web", "Service", "0/2"]
    assert "kind: Workload" in kubectl("get", "workload", "web", "-o", "yaml")

    kubectl("label", "wl", "web", "tier=front")
    kubectl("annotate", "wl", "web", "note=seen")
    kubectl("patch", "wl", "web", "--type=merge", "-p", '{"spec":{"replicas":3}}')
    pointer = '[{"op":"replace","path":"/spec/replicas","value":4}]'
    kubectl("patch", "wl", "web", "--type=json", "-p", pointer)
    found = kubectl.get("wl", "web")
    assert found["metadata"]["labels"] == {"tier": "front"}
    assert found["metadata"]["annotations"]["note"] == "seen"
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (4, 3)

    assert "scaled" in kubectl("scale", "wl", "web", "--replicas=7")
    assert "scaled" in kubectl("scale", "wl", "web", "--replicas=8", "--current-replicas=7")
    assert "was 8" in kubectl.refused("scale", "wl", "web", "--replicas=9", "--current-replicas=7")
    assert kubectl.get("wl", "web")["spec"]["replicas"] == 8


def test_client_side_apply_creates_configures_and_leaves_alone(kubectl: Kubectl) -> None:
    assert "created" in kubectl("apply", "-f", "-", given=workload("csa", 1))
    assert "configured" in kubectl("apply", "-f", "-", given=workload("csa", 2))
    before = kubectl.get("wl", "csa")
    assert "unchanged" in kubectl("apply", "-f", "-", given=workload("csa", 2))
    assert kubectl.get("wl", "csa") == before


def test_server_side_apply_names_the_owner_and_yields_to_force(kubectl: Kubectl) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in kubectl(*apply, given=workload("ssa", 1))
    refused = kubectl.refused(*apply, "--field-manager=other", given=workload("ssa", 2))
    assert 'conflict with "kubectl"' in refused
    assert ".spec.replicas" in refused
    kubectl(*apply, "--field-manager=other", "--force-conflicts", given=workload("ssa", 2))
    found = kubectl.get("wl", "ssa")
    assert found["spec"]["replicas"] == 2


def test_client_side_apply_turns_into_server_side_apply_without_a_conflict(
    kubectl: Kubectl,
) -> None:
    """Newer kubectls rewrite the owners themselves, by a JSON patch of metadata."""
    kubectl("apply", "-f", "-", given=workload("turn", 1))
    done = kubectl.run("apply", "--server-side", "-f", "-", given=workload("turn", 3))
    assert (done.code, done.err) == (0, "")
    assert kubectl.get("wl", "turn")["spec"]["replicas"] == 3


def test_an_unknown_field_is_refused_with_its_name(kubectl: Kubectl) -> None:
    wrong = workload("wrong")
    wrong["spec"]["replicaz"] = 1
    for verb in ("create", "apply"):
        assert "replicaz" in kubectl.refused(verb, "-f", "-", given=wrong)
    assert "not found" in kubectl.refused("get", "wl", "wrong")


def test_deleted_objects_are_gone_when_delete_returns(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", given=listed(*(role(f"r{n}") for n in range(4))))
    assert 'role.holdfast.dev "r0" deleted' in kubectl("delete", "role", "r0")
    assert "NotFound" in kubectl.refused("get", "role", "r0")
    kubectl("delete", "roles", "--all")
    assert kubectl("get", "roles", "-o", "name") == ""
    assert kubectl("delete", "role", "r0", "--ignore-not-found") == ""


def test_what_one_may_do_is_reported(kubectl: Kubectl) -> None:
    """Kubectl from 1.32 on asks in protobuf."""
    assert kubectl("auth", "can-i", "create", "workloads.holdfast.dev").strip() == "yes"
    assert "*.*" in kubectl("auth", "can-i", "--list")
    if kubectl.is_at_least(28):
        assert "admin" in kubectl("auth", "whoami")
