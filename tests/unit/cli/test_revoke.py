"""What is said when a node is revoked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from holdfast.cli.revoke import exposed_secrets
from holdfast.host.client import AsyncClient
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.template import EnvVar, File, Runtime, SecretRef, Template
from holdfast.model.meta import ObjectMeta


def replica(namespace: str, template: Template) -> Replica:
    meta = ObjectMeta(name="w-0-0", namespace=namespace)
    return Replica(meta, spec=ReplicaSpec(workload="w", workload_uid="u", template=template))


class Listed:
    """A client that has these replicas on the node n1."""

    def __init__(self, *found: Replica) -> None:
        self.found = found

    async def list(self, kind: type[Any], *, fields: str) -> Any:
        assert (kind, fields) == (Replica, "status.binding.node=n1")
        return SimpleNamespace(objects=self.found)


def test_every_secret_that_a_node_was_given_is_listed_once_for_rotation() -> None:
    """Variables, files and credentials of images, by namespace."""
    template = Template(
        command=("x",),
        runtime=Runtime.CONTAINER,
        image="r.example/a:1",
        image_pull_secret="registry",
        env=(EnvVar("A", secret=SecretRef("db", "a")), EnvVar("B", secret=SecretRef("db", "b"))),
        files=(File("tls.key", secret=SecretRef("tls", "key")),),
    )
    to = Listed(replica("risk", template), replica("risk", template), replica("acme", template))
    names = ("db", "registry", "tls")
    wanted = [(namespace, name) for namespace in ("acme", "risk") for name in names]
    assert asyncio.run(exposed_secrets(cast("AsyncClient", to), "n1")) == wanted
    plain = Listed(replica("risk", Template(command=("x",))))
    assert asyncio.run(exposed_secrets(cast("AsyncClient", plain), "n1")) == []
