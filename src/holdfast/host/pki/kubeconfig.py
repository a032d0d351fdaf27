"""The kubeconfig: one private file with all that kubectl needs to reach a plane."""

from __future__ import annotations

import base64
from pathlib import PurePath

import msgspec

from holdfast.host.pki.certificates import IssuedCertificate

CONTEXT = "holdfast"


def kubeconfig(
    server: str,
    authority_pem: bytes,
    client: IssuedCertificate | str | PurePath,
    *,
    user: str,
    namespace: str = "default",
) -> bytes:
    """Return the file's content, with a certificate, a bearer token, or a file that holds one.

    JSON is valid YAML, and needs no YAML library.
    """
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CONTEXT,
        "clusters": [
            {
                "name": CONTEXT,
                "cluster": {"server": server, "certificate-authority-data": _base64(authority_pem)},
            }
        ],
        "users": [
            {
                "name": user,
                "user": _credential(client),
            }
        ],
        "contexts": [
            {
                "name": CONTEXT,
                "context": {"cluster": CONTEXT, "user": user, "namespace": namespace},
            }
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _credential(client: IssuedCertificate | str | PurePath) -> dict[str, str]:
    if isinstance(client, str):
        return {"token": client}
    if isinstance(client, PurePath):
        return {"tokenFile": str(client)}
    return {
        "client-certificate-data": _base64(client.certificate),
        "client-key-data": _base64(client.key),
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
