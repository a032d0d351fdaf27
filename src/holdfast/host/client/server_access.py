"""Where the servers are and which credentials to use: given directly, or from a kubeconfig.

A client is given an `Access` and nothing else. It is never printed: it holds keys and tokens.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from holdfast.host.client.paths import FINGERPRINT_SHORT
from holdfast.model.errors import Invalid

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
KUBECONFIG_BYTES_MAX = 1 << 20


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to reach a plane.

    servers: base addresses such as `https://10.0.0.1:6443`, any of which may be asked.
    ca: the authority to trust, as PEM; by default those of the system.
    certificate, key: our credentials, as PEM; or `token`, a bearer token.
    namespace: the default namespace.
    refuses: returns why not to use a server, by its certificate; empty if it may be used.
    """

    servers: tuple[str, ...]
    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    namespace: str = "default"
    refuses: Callable[[Mapping[str, Any] | None], str] | None = None

    def __repr__(self) -> str:
        return f"Access(servers={self.servers!r})"

    def check(self) -> None:
        """Check that it can work. Raises Invalid."""
        if not self.servers:
            raise Invalid("no server is configured: give at least one https address")
        for server in self.servers:
            if not server.startswith("https://"):
                raise Invalid(f"{server!r} is not an https address: servers use TLS only")
        if bool(self.certificate) != bool(self.key):
            raise Invalid("a client certificate needs its key, and a key its certificate")

    @property
    def trusts(self) -> str:
        """Return the trusted authorities as told to servers; empty for those of the system."""
        try:
            found = [ssl.PEM_cert_to_DER_cert(it) for it in _CERTIFICATE.findall(self.ca.decode())]
        except ValueError:
            return ""
        return ",".join(hashlib.sha256(it).hexdigest()[:FINGERPRINT_SHORT] for it in found)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context: servers must prove their identity, and we ours if we have one."""
        try:
            context = ssl.create_default_context(cadata=self.ca.decode() or None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate:
                _load_chain(context, self.certificate + b"\n" + self.key)
        except (ssl.SSLError, ValueError) as error:
            raise Invalid(f"the certificates cannot be used: {error}") from error
        if self.refuses is not None:
            context.sslobject_class = _refusing(self.refuses)
        return context


def _refusing(refuses: Callable[[Mapping[str, Any] | None], str]) -> type[ssl.SSLObject]:
    """Return an SSL object whose handshake fails if `refuses` names a reason."""

    class Refusing(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            why = refuses(self.getpeercert())
            if why:
                raise ssl.SSLCertVerificationError(why)

    return Refusing


def _load_chain(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a chain. Python's ssl reads certificates only from files, so a temporary one is used."""
    handle, name = tempfile.mkstemp(prefix="holdfast-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink(missing_ok=True)


def from_kubeconfig(path: Path, context: str = "") -> Access:
    """Return the access that a kubeconfig describes, in its current context or another."""
    document = _document(path)
    chosen = context or str(document.get("current-context") or "")
    where = _named(document, "contexts", "context", chosen, path)
    cluster = _named(document, "clusters", "cluster", str(where.get("cluster", "")), path)
    user = _named(document, "users", "user", str(where.get("user", "")), path)
    server = str(cluster.get("server", "")).rstrip("/")
    access = Access(
        servers=(server,) if server else (),
        ca=_pem(cluster, "certificate-authority", path),
        certificate=_pem(user, "client-certificate", path),
        key=_pem(user, "client-key", path),
        token=_token(user, path),
        namespace=str(where.get("namespace") or "default"),
    )
    access.check()
    return access


def with_authorities(path: Path, ca: bytes) -> bytes:
    """Return a kubeconfig with other authorities for the cluster of its current context."""
    document = _document(path)
    chosen = str(document.get("current-context") or "")
    where = _named(document, "contexts", "context", chosen, path)
    cluster = _named(document, "clusters", "cluster", str(where.get("cluster", "")), path)
    cluster.pop("certificate-authority", None)
    cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    # JSON is valid YAML.
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _document(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise Invalid(f"the kubeconfig {path} cannot be read: {error.strerror}") from error
    if len(text) > KUBECONFIG_BYTES_MAX:
        raise Invalid(f"the kubeconfig {path} is larger than {KUBECONFIG_BYTES_MAX} bytes")
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Invalid(f"the kubeconfig {path} is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise Invalid(f"the kubeconfig {path} holds no configuration")
    return document


def _named(
    document: dict[str, Any], plural: str, singular: str, name: str, path: Path
) -> dict[str, Any]:
    for entry in document.get(plural) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry.get(singular) or {}
    raise Invalid(f"the kubeconfig {path} has no {singular} {name!r}")


def _pem(entry: dict[str, Any], field: str, path: Path) -> bytes:
    """Return a certificate or key, from the kubeconfig or from a file that it names."""
    data = entry.get(f"{field}-data")
    try:
        if data:
            return base64.b64decode(data, validate=True)
        if entry.get(field):
            return (path.parent / str(entry[field])).read_bytes()
    except (OSError, ValueError, binascii.Error) as error:
        raise Invalid(f"{field} of the kubeconfig {path} cannot be read: {error}") from error
    return b""


def _token(user: dict[str, Any], path: Path) -> str:
    if user.get("token"):
        return str(user["token"])
    if not user.get("tokenFile"):
        return ""
    try:
        return (path.parent / str(user["tokenFile"])).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise Invalid(f"the token file of {path} cannot be read: {error}") from error
