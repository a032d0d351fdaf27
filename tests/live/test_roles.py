"""Roles as people meet them: the newest kubectl, certificates, one real server over TLS."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.kubeconfig import kubeconfig
from holdfast.model.access.roles import HELD_BY, ROLES
from tests.live.kubectls import Binary, Kubectl, binaries, params, workload
from tests.live.plane_process import PlaneProcess
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.xdist_group("kubectl-roles")
SYSTEM = "holdfast-system"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneProcess]:
    process = PlaneProcess(tmp_path_factory.mktemp("roles") / "data")
    try:
        asyncio.run(process.start())
        yield process
    finally:
        process.kill()


class People:
    """The administrator of a plane, and other users with a certificate."""

    def __init__(self, binary: Binary, plane: PlaneProcess, folder: Path) -> None:
        self._binary, self._plane, self._folder = binary, plane, folder
        self.admin = Kubectl(binary, plane.data / "kubeconfig", "risk", folder / "admin")

    def known(self, name: str, *groups: str) -> Kubectl:
        authority = CertificateAuthority.open(self._plane.data / "pki")
        issued = authority.issue(name, groups=groups)
        path = self._folder / f"{name}.kubeconfig"
        path.write_bytes(kubeconfig(self._plane.url, authority.pem, issued, user=name))
        path.chmod(0o600)
        return Kubectl(self._binary, path, "risk", self._folder / name)


@pytest.fixture(scope="module", params=params(binaries()[-1:]))
def people(
    request: pytest.FixtureRequest,
    plane: PlaneProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> People:
    found = People(request.param, plane, tmp_path_factory.mktemp("people"))
    found.admin("create", "-f", "-", given=document("Tenant", "risk"))
    return found


def document(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": {"name": name}, **more}


RULES = [
    {"resources": ["workloads"], "verbs": ["get", "list", "watch", "create"]},
    {"resources": ["workloads"], "resourceNames": ["web"], "verbs": ["delete"]},
]


def test_a_role_gives_what_it_says_until_it_is_taken_away(people: People) -> None:
    """And a watcher notices within seconds."""
    admin, bob = people.admin, people.known("bob")
    assert "forbidden" in bob.refused("get", "workloads")
    assert bob.run("auth", "can-i", "create", "workloads.holdfast.dev").out.strip() == "no"
    admin("apply", "-f", "-", given=document("Role", "makers", rules=RULES))
    subjects = [{"kind": "User", "name": "bob"}]
    given = document("RoleBinding", "makers", subjects=subjects, roleRef={"name": "makers"})
    admin("apply", "-f", "-", given=given)

    assert bob("auth", "can-i", "create", "workloads.holdfast.dev").strip() == "yes"
    assert bob.run("auth", "can-i", "delete", "workloads.holdfast.dev").out.strip() == "no"
    assert bob("auth", "can-i", "delete", "workloads.holdfast.dev/web").strip() == "yes"
    told = bob("auth", "can-i", "--list")
    assert "workloads.holdfast.dev" in told
    assert "[web]" in told
    bob("create", "-f", "-", given=workload("web"))
    bob("create", "-f", "-", given=workload("api"))
    bob("delete", "workload", "web", "--wait=false")
    assert "forbidden" in bob.refused("delete", "workload", "api", "--wait=false")
    assert "forbidden" in bob.refused("get", "workloads", "-n", "default")
    more = document("Role", "more", rules=[{"resources": ["*"], "verbs": ["*"]}])
    assert "forbidden" in bob.refused("create", "-f", "-", given=more)

    watching = bob.command("get", "workloads", "--watch", "--output-watch-events")
    with subprocess.Popen(watching, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            while "api" not in process.stdout.readline():
                assert process.poll() is None
            admin("delete", "rolebinding", "makers")
            process.wait(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert "forbidden" in bob.refused("get", "workloads")


def test_what_is_built_in_is_shown_and_stays_as_it_is(people: People) -> None:
    admin = people.admin
    shown = admin("get", "roles", "-n", SYSTEM, "-o", "name").splitlines()
    assert {f"role.holdfast.dev/{name}" for name in ROLES} <= set(shown)
    held = admin("get", "rolebindings", "-n", SYSTEM).splitlines()[1:]
    assert {row.split()[0] for row in held} >= set(HELD_BY)
    assert "is built in" in admin.refused("delete", "role", "tenant-editor", "-n", SYSTEM)
    assert "is built in" in admin.refused("delete", "rolebinding", "admin", "-n", SYSTEM)
    editors = document(
        "RoleBinding",
        "editors",
        subjects=[{"kind": "Group", "name": "devs"}],
        roleRef={"name": "tenant-editor", "namespace": SYSTEM},
    )
    admin("apply", "-f", "-", given=editors)
    dora = people.known("dora", "devs")
    dora("create", "-f", "-", given=workload("doras"))
    dora("scale", "workload", "doras", "--replicas=0")
    dora("delete", "workload", "doras", "--wait=false")
    assert "forbidden" in dora.refused("get", "nodes")


def test_no_caller_speaks_for_another(people: People) -> None:
    """Neither an administrator."""
    said = people.admin.refused("get", "workloads", "--as", "bob")
    assert "impersonation (--as) is not supported" in said


def test_auditors_and_operators_are_groups(people: People) -> None:
    eve, oz = people.known("eve", "system:auditors"), people.known("oz", "system:operators")
    eve("get", "workloads,roles,rolebindings", "-A")
    assert "forbidden" in eve.refused("get", "secrets")
    assert "forbidden" in eve.refused("create", "-f", "-", given=workload("x"))
    oz("create", "-f", "-", given=document("Tenant", "billing"))
    assert "forbidden" in oz.refused("create", "-f", "-", given=document("Secret", "s"))
    root = document(
        "RoleBinding",
        "me",
        subjects=[{"kind": "User", "name": "oz"}],
        roleRef={"name": "admin", "namespace": SYSTEM},
    )
    assert "forbidden" in oz.refused("create", "-f", "-", given=root)
