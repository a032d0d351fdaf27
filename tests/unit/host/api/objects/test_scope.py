"""What an agent gets to see of pages and of what is kept beside the store."""

from __future__ import annotations

from base64 import urlsafe_b64decode

from holdfast.commit.record_encoding import encode as stored
from holdfast.model import keys
from holdfast.model.kinds.replica import Binding, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import Template
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.transaction import Put, Transaction
from tests.unit.host.api.api_rig import GROUP, ApiRig, with_tenant

AGENT = "system:node:n1"


async def put(rig: ApiRig, name: str, node: str) -> None:
    spec = ReplicaSpec(workload="web", workload_uid="u", template=Template(command=("sleep",)))
    status = ReplicaStatus(state=State.BOUND, binding=Binding(node=node, node_uid="n"))
    meta = ObjectMeta(name=name, namespace="acme", uid=f"uid-{name}")
    replica = Replica(meta, spec=spec, status=status)
    await rig.store.txn(Transaction((), (Put(keys.key_of(replica), stored(replica)),)))


def test_the_pages_of_an_agent_name_nothing_that_is_not_its_own() -> None:
    """Where the next page begins is in its token, which any client can read."""

    async def story(rig: ApiRig) -> None:
        for name in ("b-mine", "d-mine", "f-mine"):
            await put(rig, name, "n1")
        for name in ("a-yours", "c-yours", "e-yours", "g-yours"):
            await put(rig, name, "n2")
        seen, token = list[str](), ""
        for _ in range(4):
            query = {"limit": "1"} | ({"continue": token} if token else {})
            path = f"{GROUP}/namespaces/acme/replicas"
            answer = await rig.send("GET", path, user=AGENT, **query)
            assert answer.code == 200
            seen += [it["metadata"]["name"] for it in answer.body["items"]]
            token = answer.body["metadata"].get("continue", "")
            assert b"yours" not in urlsafe_b64decode(token)
            if not token:
                break
        assert seen == ["b-mine", "d-mine", "f-mine"]
        assert not token

    with_tenant(story)


def test_an_agent_gets_no_decision_by_name_either() -> None:
    async def story(rig: ApiRig) -> None:
        for path in ("decisions", "decisions/any"):
            answer = await rig.send("GET", f"{GROUP}/namespaces/acme/{path}", user=AGENT)
            assert answer.code == 403

    with_tenant(story)
