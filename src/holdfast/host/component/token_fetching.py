"""How an agent gets the service tokens of its replicas from the servers."""

from __future__ import annotations

from pathlib import PurePath

import msgspec

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.client import paths
from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.request_calls import JSON, ApiCall
from holdfast.host.client.verdicts import refusal_of_answer, unreadable_answer
from holdfast.host.pki.kubeconfig import kubeconfig
from holdfast.host.pki.service_tokens import SignedServiceToken
from holdfast.host.runtime.service_tokens import Fetched, FetchToken
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.replica import Replica
from holdfast.model.registry import kind_of_struct
from holdfast.observe.watch_events import SERVERS

TIMEOUT_S = 10.0
USER = "workload"
_REPLICA = kind_of_struct(Replica)


def token_fetcher(api_client: ApiClient, identity: Identity) -> FetchToken:
    """Return a function that asks the servers as this agent and raises HoldfastErrors."""

    async def fetch(namespace: str, name: str, attempt: Attempt, file: str) -> Fetched:
        path = paths.one(_REPLICA, namespace, name, "token")
        body = msgspec.json.encode({"uid": attempt.uid, "attempt": attempt.number})
        wanted = ApiCall("POST", path, _read, body, headers={"Content-Type": JSON})
        answer = await api_client.run(identity, SERVERS, wanted, TIMEOUT_S)
        if isinstance(answer, HoldfastError):
            raise answer
        access = api_client.access(identity.name)
        # kubectl takes one address, and reads a file beside its kubeconfig by its name.
        beside = PurePath(file)
        config = kubeconfig(access.servers[0], access.ca, beside, user=USER, namespace=namespace)
        return Fetched(answer.token, answer.expires, config)

    return fetch


def _read(answer: HttpAnswer) -> SignedServiceToken | HoldfastError:
    if not answer.is_good:
        found = refusal_of_answer(answer, is_write=False)
        return found if isinstance(found, HoldfastError) else found.error()
    try:
        return msgspec.json.decode(answer.body, type=SignedServiceToken)
    except msgspec.DecodeError as error:
        return unreadable_answer(error)
