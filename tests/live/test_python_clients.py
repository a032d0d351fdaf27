"""Clients from PyPI that are not ours: the `kubernetes` package, and operators under kopf."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config, dynamic
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError

from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.kubeconfig import kubeconfig
from tests.live.kubectls import role, workload
from tests.live.part import ROOT
from tests.live.plane_process import PlaneProcess
from tests.patience import PATIENCE_S


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[PlaneProcess]:
    process = PlaneProcess(tmp_path / "data")
    try:
        asyncio.run(process.start())
        yield process
    finally:
        process.kill()


def _resource(plane: PlaneProcess, kind: str) -> Any:
    api = config.new_client_from_config(str(plane.data / "kubeconfig"))
    client = dynamic.DynamicClient(api)
    return client.resources.get(api_version="holdfast.dev/v1", kind=kind)


def _commitment(name: str, serving: int) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Commitment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"promise": {"workload": "web", "serving": serving}},
    }


def test_the_dynamic_client_creates_reads_changes_and_deletes(plane: PlaneProcess) -> None:
    """[A2]"""
    workloads = _resource(plane, "Workload")
    made = workloads.create(body=workload("web", 2), namespace="default")
    seen = workloads.get(name="web", namespace="default")
    assert seen.to_dict() == made.to_dict()
    with pytest.raises(ConflictError) as exists:
        workloads.create(body=workload("web", 2), namespace="default")
    assert exists.value.summary().find("already exists") > 0

    patch = {"spec": {"replicas": 3}}
    kind = "application/merge-patch+json"
    workloads.patch(name="web", namespace="default", body=patch, content_type=kind)
    stale = made.to_dict()
    stale["spec"]["replicas"] = 9
    with pytest.raises(ConflictError):
        workloads.replace(body=stale, namespace="default")
    fresh = workloads.get(name="web", namespace="default").to_dict()
    fresh["spec"]["replicas"] = 4
    assert workloads.replace(body=fresh, namespace="default").spec.replicas == 4
    applied = workloads.server_side_apply(
        body=workload("web", 5), namespace="default", field_manager="sdk", force_conflicts=True
    )
    assert applied.spec.replicas == 5

    roles = _resource(plane, "Role")
    for n in range(5):
        roles.create(body=role(f"r{n}"), namespace="default")
    page = roles.get(namespace="default", limit=2)
    rest = roles.get(namespace="default", limit=5, _continue=page.metadata["continue"])
    names = [item.metadata.name for item in (*page.items, *rest.items)]
    assert names == [f"r{n}" for n in range(5)]
    roles.delete(name="r0", namespace="default")
    with pytest.raises(NotFoundError):
        roles.get(name="r0", namespace="default")


def test_a_watch_of_the_dynamic_client_goes_on_over_a_restart(plane: PlaneProcess) -> None:
    """Nothing is missed and nothing is repeated when the client resumes or lists again."""
    roles = _resource(plane, "Role")
    told: list[str] = []

    def follow() -> None:
        # A client that lists again hears of what is there by name, so the names are in order too.
        deadline, version = time.monotonic() + PATIENCE_S, "0"
        while time.monotonic() < deadline and "second" not in told:
            # What a client does that follows by itself: go on where it was, list again on 410.
            try:
                for event in roles.watch(
                    namespace="default", timeout=5, resource_version=version, watcher=None
                ):
                    version = event["object"].metadata.resourceVersion
                    told.append(event["object"].metadata.name)
                    if told[-1] == "second":
                        return
            except ApiException as error:
                if error.status == 410:
                    version = "0"
                    told.clear()
            except Exception:  # noqa: BLE001 - a server that is away has many faces in urllib3
                time.sleep(0.1)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    roles.create(body=role("first"), namespace="default")
    plane.kill()
    asyncio.run(plane.start())
    roles.create(body=role("second"), namespace="default")
    follower.join(PATIENCE_S)
    assert told == ["first", "second"]


class Operator:
    """`kopf run` as a process of its own."""

    def __init__(
        self, file: str, plane: PlaneProcess, folder: Path, name: str, *groups: str
    ) -> None:
        authority = CertificateAuthority.open(plane.data / "pki")
        own = kubeconfig(plane.url, authority.pem, authority.issue(name, groups=groups), user=name)
        path = folder / f"{file}.kubeconfig"
        path.write_bytes(own)
        self._log = folder / f"{file}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "kopf", "run", "--standalone", "-n", "default"),
                    str(ROOT / "tests" / "live" / "operators" / file),
                ],
                env={**os.environ, "KUBECONFIG": str(path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )

    def says(self, text: str) -> None:
        """Wait until it has said so."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self._log.read_text().splitlines():
            assert time.monotonic() < deadline, self._log.read_text()
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.05)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def test_an_unmodified_operator_handles_and_recovers(plane: PlaneProcess, tmp_path: Path) -> None:
    """Created, updated, deleted, and status, over a restart that forgets its place. [A1]

    Metadata belongs to people and status to a controller, so two operators share the work.
    """
    commitments = _resource(plane, "Commitment")
    with contextlib.ExitStack() as stack:
        operator = Operator("commitments.py", plane, tmp_path, "ops", "system:masters")
        stack.callback(operator.end)
        witness = Operator("evidence.py", plane, tmp_path, "system:controller:review")
        stack.callback(witness.end)
        commitments.create(body=_commitment("one", 1), namespace="default")
        operator.says("created one")
        _until(lambda: _evidence(commitments, "one") == "seen by kopf")
        patch, kind = {"spec": {"promise": {"serving": 2}}}, "application/merge-patch+json"
        commitments.patch(name="one", namespace="default", body=patch, content_type=kind)
        operator.says("updated one 2")

        plane.kill()
        asyncio.run(plane.start())
        commitments = _resource(plane, "Commitment")
        commitments.create(body=_commitment("two", 1), namespace="default")
        operator.says("created two")
        _until(lambda: _evidence(commitments, "two") == "seen by kopf")
        commitments.delete(name="one", namespace="default")
        operator.says("deleted one")
        _until(lambda: _is_gone(commitments, "one"))


def _evidence(commitments: Any, name: str) -> str:
    found = commitments.get(name=name, namespace="default").to_dict()
    return str(found.get("status", {}).get("evidence", ""))


def _is_gone(commitments: Any, name: str) -> bool:
    try:
        commitments.get(name=name, namespace="default")
    except NotFoundError:
        return True
    return False


def _until(is_so: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
