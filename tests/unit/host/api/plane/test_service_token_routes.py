"""Who gets the service token of a replica, and of which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.commit.record_encoding import encode as stored
from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.service_tokens import ServiceTokens, is_service_token
from holdfast.model import keys
from holdfast.model.kinds.replica import Binding, Process, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import ServiceToken, Template
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.transaction import Put, Transaction
from tests.unit.host.api.api_rig import GROUP, Answer, ApiRig, with_tenant

AGENT, OTHER = "system:node:n1", "system:node:n2"
PATH = f"{GROUP}/namespaces/acme/replicas/web-0-0/token"
ASKED = {"uid": "u1", "attempt": 1}


async def put(rig: ApiRig, state: State = State.BOUND, *, wants: bool = True) -> None:
    template = Template(command=("sleep",), service_token=ServiceToken("token") if wants else None)
    replica = Replica(
        metadata=ObjectMeta(name="web-0-0", namespace="acme", uid="u1"),
        spec=ReplicaSpec(workload="web", workload_uid="w", template=template),
        status=ReplicaStatus(
            state=state, binding=Binding(node="n1", node_uid="n"), process=Process(restarts=1)
        ),
    )
    await rig.store.txn(Transaction((), (Put(keys.key_of(replica), stored(replica)),)))


async def ask(rig: ApiRig, folder: Path, body: Any = None, user: str = AGENT) -> Answer:
    rig.api.services.service_tokens = ServiceTokens(CertificateAuthorities.open(folder))
    return await rig.send("POST", PATH, ASKED if body is None else body, user=user)


def test_only_the_agent_of_its_node_gets_the_token_of_a_replica(tmp_path: Path) -> None:
    """Its bearer acts as that workload, so no role grants it."""

    async def story(rig: ApiRig) -> None:
        await put(rig)
        answer = await ask(rig, tmp_path)
        assert answer.code == 201
        assert is_service_token(answer.body["token"])
        assert (await ask(rig, tmp_path, user=OTHER)).code == 404
        for user in ("admin", "ada", "system:scheduler:one", "system:controller:workload"):
            refused = await ask(rig, tmp_path, user=user)
            assert (user, refused.code) == (user, 403)

    with_tenant(story)


@pytest.mark.parametrize("state", State)
def test_only_work_that_is_bound_and_not_over_gets_one(tmp_path: Path, state: State) -> None:
    async def story(rig: ApiRig) -> None:
        await put(rig, state)
        good = state in (State.BOUND, State.RUNNING, State.STOPPING)
        assert (await ask(rig, tmp_path)).code == (201 if good else 409)

    with_tenant(story)


def test_another_replica_another_attempt_and_one_that_did_not_ask_get_none(tmp_path: Path) -> None:
    async def story(rig: ApiRig) -> None:
        await put(rig)
        assert (await ask(rig, tmp_path, {**ASKED, "uid": "u2"})).code == 409
        assert (await ask(rig, tmp_path, {**ASKED, "attempt": 0})).code == 409
        for body in (b"{", b"[]", {"uid": "u1"}, {**ASKED, "more": 1}, {**ASKED, "attempt": -1}):
            assert (await ask(rig, tmp_path, body)).code == 400
        await put(rig, wants=False)
        assert (await ask(rig, tmp_path)).code == 403

    with_tenant(story)
