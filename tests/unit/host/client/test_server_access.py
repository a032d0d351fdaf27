"""Kubeconfigs of Holdfast and of others, and the messages when one cannot be used."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.host.client import Access, from_kubeconfig
from holdfast.host.pki.first_trust import establish, write_kubeconfig
from holdfast.host.server.settings import ServerSettings
from holdfast.model.errors import Invalid


def test_the_kubeconfig_of_a_first_start_is_all_that_a_client_needs(tmp_path: Path) -> None:
    settings = ServerSettings(data=tmp_path / "data", name="one")
    trust = establish(settings)
    path = write_kubeconfig(settings, trust, "https://127.0.0.1:6443")
    access = from_kubeconfig(path)
    assert access.servers == ("https://127.0.0.1:6443",)
    assert (access.certificate, access.key) == (trust.admin.certificate, trust.admin.key)
    assert access.namespace == "default"
    assert "PRIVATE" not in repr(access)
    access.context()


def test_files_and_tokens_that_a_kubeconfig_names_are_read_beside_it(tmp_path: Path) -> None:
    trust = establish(ServerSettings(data=tmp_path / "data", name="one"))
    (tmp_path / "ca.crt").write_bytes(trust.authorities.pem)
    (tmp_path / "token").write_text("a.b.c\n")
    path = tmp_path / "config"
    path.write_text(
        """
current-context: far
contexts: [{name: far, context: {cluster: c, user: u, namespace: acme}}]
clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443/", certificate-authority: ca.crt}}]
users: [{name: u, user: {tokenFile: token}}]
"""
    )
    access = from_kubeconfig(path)
    assert access.origin == (path, "")
    assert msgspec.structs.replace(access, origin=None) == Access(
        servers=("https://10.0.0.1:6443",),
        ca=trust.authorities.pem,
        token="a.b.c",
        namespace="acme",
    )


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("[1, 2]", "holds no configuration"),
        ("a: [", "is not YAML"),
        ("current-context: x", "has no context 'x'"),
        (
            (
                "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],"
                " clusters: [{name: c, cluster: {server: 'http://h:1'}}], users: [{name: u}]}"
            ),
            "is not an https address",
        ),
        (
            (
                "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],"
                " clusters: [{name: c, cluster: {certificate-authority-data: '?'}}],"
                " users: [{name: u}]}"
            ),
            "certificate-authority of the kubeconfig",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_refused_in_a_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(Invalid, match=sentence):
        from_kubeconfig(path)


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="nowhere cannot be read"):
        from_kubeconfig(tmp_path / "nowhere")
