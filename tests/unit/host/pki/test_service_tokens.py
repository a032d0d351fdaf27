"""Service tokens of replicas: their identity, and all that ends them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.host.oidc.envelope import text64
from holdfast.host.oidc.issuers import Issuers
from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.service_tokens import HEAD, SKEW_S, ServiceTokens, is_service_token
from holdfast.host.pki.trust_bundle import (
    begin_rotation,
    finish_rotation,
    switch_servers,
    switch_signer,
)
from holdfast.host.server.authentication import TokenUnknown
from holdfast.model.access.identity import Identity
from holdfast.model.access.rights import subjects_of
from holdfast.model.access.roles import built_in_roles
from holdfast.model.encoding.wire import encode
from holdfast.model.errors import Forbidden
from holdfast.model.kinds.replica import Binding, Process, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import Template
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from tests.oidc_issuer import Signer

NOW_S = 1_800_000_000.0
LIFE_S = 3_600.0


class Record:
    """What the hub has of an object."""

    def __init__(self, replica: Replica) -> None:
        self.data = encode(replica)


def replica(
    state: State = State.RUNNING, *, uid: str = "u1", node: str = "n1", restarts: int = 0
) -> Replica:
    return Replica(
        metadata=ObjectMeta(name="web-0-0", namespace="risk", uid=uid),
        spec=ReplicaSpec(workload="web", workload_uid="w", ordinal=0, template=Template()),
        status=ReplicaStatus(
            state=state,
            binding=Binding(node, "node-uid") if node else None,
            process=Process(restarts=restarts),
        ),
    )


class Rig:
    def __init__(self, folder: Path) -> None:
        self.now_s = NOW_S
        self.authorities = CertificateAuthorities.open(folder)
        self.tokens = ServiceTokens(self.authorities, lambda: self.now_s)
        self.record: Record | None = Record(replica())
        self.revoked: dict[str, int] = {}

    def issue(self, attempt: int = 0) -> str:
        return self.tokens.issue(replica(), "n1", attempt, LIFE_S).token

    def identity(self, token: str) -> Identity:
        def find(namespace: str, name: str) -> Any:
            assert (namespace, name) == ("risk", "web-0-0")
            return self.record

        return self.tokens.identity(
            token, find, lambda user, issued_ms: issued_ms <= self.revoked.get(user, 0)
        )

    def refuses(self, token: str) -> bool:
        with pytest.raises(Forbidden, match=r"^the bearer token is not valid here: [a-z`, ]+$"):
            self.identity(token)
        return True


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_replica_is_its_workloads_account_and_has_only_the_rights_of_every_caller(
    rig: Rig,
) -> None:
    """Its groups make it no member of the tenant."""
    token = rig.issue()
    assert is_service_token(token)
    found = rig.identity(token)
    assert found.name == "tenant:risk:workload:web"
    assert (found.groups, found.tenants) == (("tenant:risk:workloads",), ())
    assert [role for role, _ in built_in_roles(found)] == ["everybody"]
    assert "User:tenant:risk:workload:web" in subjects_of(found)


def test_another_server_with_the_same_authority_takes_it_and_another_plane_does_not(
    rig: Rig, tmp_path: Path
) -> None:
    token = rig.issue()
    rig.tokens = ServiceTokens(CertificateAuthorities.open(tmp_path), lambda: rig.now_s)
    assert rig.identity(token).name == "tenant:risk:workload:web"
    rig.tokens = ServiceTokens(CertificateAuthorities.open(tmp_path / "other"), lambda: rig.now_s)
    assert rig.refuses(token)


def test_during_a_rotation_tokens_of_both_authorities_count_and_then_the_new_ones_alone(
    rig: Rig,
) -> None:
    """Also one that was verified before: the cache gives no permission."""
    shown: list[str] = []
    old, (new, _) = rig.authorities.signer, CertificateAuthority.new()
    both = begin_rotation(rig.authorities.bundle, new.pem)
    held = {it.fingerprint: it for it in (old, new)}
    rig.tokens = ServiceTokens(
        rig.authorities, lambda: rig.now_s, lambda account, replica, known: shown.append(known)
    )
    first = rig.issue()
    rig.authorities.take(CertificateAuthorities(both, held))
    early = rig.issue()
    rig.authorities.take(CertificateAuthorities(switch_signer(both), held))
    late = rig.issue()
    for token in (first, early, late):
        assert rig.identity(token).name == "tenant:risk:workload:web"
    assert shown == [old.fingerprint, old.fingerprint, new.fingerprint]
    after = finish_rotation(switch_servers(switch_signer(both)))
    rig.authorities.take(CertificateAuthorities(after, {new.fingerprint: new}))
    assert rig.identity(late).name == "tenant:risk:workload:web"
    assert rig.refuses(first)
    assert rig.refuses(early)


def test_it_counts_for_its_life_and_servers_clocks_may_differ_a_little(rig: Rig) -> None:
    token = rig.issue()
    rig.now_s = NOW_S - SKEW_S
    assert rig.identity(token).name
    rig.now_s = NOW_S - SKEW_S - 1
    assert rig.refuses(token)
    rig.now_s = NOW_S + LIFE_S - 1
    assert rig.identity(token).name
    rig.now_s = NOW_S + LIFE_S
    assert rig.refuses(token)


@pytest.mark.parametrize("state", State)
def test_it_counts_while_the_replica_may_run(rig: Rig, state: State) -> None:
    """Also a token that was valid a moment ago."""
    token = rig.issue()
    assert rig.identity(token).name
    rig.record = Record(replica(state))
    if state in (State.BOUND, State.RUNNING, State.STOPPING, State.UNKNOWN):
        assert rig.identity(token).name
    else:
        assert rig.refuses(token)


@pytest.mark.parametrize(
    "changed", [{"uid": "u2"}, {"node": "n2"}, {"node": ""}, {"restarts": 1}], ids=str
)
def test_it_dies_with_its_replica_its_place_and_its_attempt(
    rig: Rig, changed: dict[str, Any]
) -> None:
    token = rig.issue()
    assert rig.identity(token).name
    rig.record = Record(replica(**changed))
    assert rig.refuses(token)


def test_the_token_of_an_attempt_that_is_not_reported_yet_counts(rig: Rig) -> None:
    """Work uses its token before its agent has reported that it runs."""
    token = rig.issue(attempt=2)
    rig.record = Record(replica(State.BOUND, restarts=1))
    assert rig.identity(token).name


def test_a_replica_that_is_not_known_yet_may_become_known(rig: Rig) -> None:
    token = rig.issue()
    rig.record = None
    with pytest.raises(TokenUnknown):
        rig.identity(token)


@pytest.mark.parametrize("user", ["tenant:risk:workload:web", "system:node:n1"])
def test_a_revocation_of_the_workload_or_of_its_node_ends_it(rig: Rig, user: str) -> None:
    """An attacker who took over a node keeps nothing of its replicas."""
    token = rig.issue()
    rig.revoked[user] = int(NOW_S * 1_000)
    assert rig.refuses(token)
    rig.now_s += 1
    assert rig.identity(rig.issue()).name


def test_nothing_else_passes_for_one(rig: Rig) -> None:
    """Another key, other claims, another form. [B5]"""
    head, claims, signature = rig.issue().split(".")
    stranger = Signer("")
    told = msgspec.json.decode(_bytes(claims))
    for forged in (
        stranger.token_of(HEAD, msgspec.json.encode(told)),
        f"{head}.{claims}.",
        f"{head}.{claims}.{signature[:-4]}AAAA",
        f"{head}.{_text({**told, 'sub': 'system:node:n1'})}.{signature}",
        f"{head}.{claims}.{signature}.{signature}",
        f"{head}..{signature}",
    ):
        assert is_service_token(forged)
        assert rig.refuses(forged)
    # Claims that no server has written do not count, whichever key has signed them.
    ours = Signer("")
    ours.key = rig.authorities.signer.derived_key("holdfast service tokens of replicas, version 1")
    for wrong in ({**told, "more": 1}, {**told, "aud": "other"}, {**told, "attempt": "0"}):
        assert rig.refuses(ours.token_of(HEAD, msgspec.json.encode(wrong)))
    assert rig.identity(ours.token_of(HEAD, msgspec.json.encode(told))).name


def test_an_issuer_of_people_cannot_make_one(rig: Rig) -> None:
    """A service token is not a token of an issuer either."""
    assert not is_service_token(Signer("one").token({"iss": "x"}))
    with pytest.raises(Forbidden):
        Issuers(()).identity(rig.issue())


def test_the_key_is_another_one_than_the_authoritys(rig: Rig) -> None:
    derived = rig.authorities.signer.derived_key("a purpose")
    other = rig.authorities.signer.derived_key("another purpose")
    assert isinstance(derived.curve, ec.SECP256R1)
    numbers = {it.private_numbers().private_value for it in (derived, other)}
    assert len(numbers) == 2
    signer = x509.load_pem_x509_certificate(rig.authorities.signer.pem).public_key()
    assert isinstance(signer, ec.EllipticCurvePublicKey)
    for key in (derived, other):
        assert key.public_key().public_numbers() != signer.public_numbers()


def test_no_token_is_printed(rig: Rig) -> None:
    issued = rig.tokens.issue(replica(), "n1", 0, LIFE_S)
    assert issued.token not in repr(issued)


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _text(claims: dict[str, Any]) -> str:
    return text64(msgspec.json.encode(claims))
