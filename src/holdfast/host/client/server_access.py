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
from datetime import UTC, datetime
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
    origin: the kubeconfig that it was read from, if it was, and the name of the context.
    refuses: returns why not to use a server, by its certificate; empty if it may be used.
    """

    servers: tuple[str, ...]
    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    namespace: str = "default"
    origin: tuple[Path, str] | None = None
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

    @property
    def advice(self) -> str:
        """Return why servers may refuse these credentials already in the handshake; mostly none."""
        if not self.certificate:
            return ""
        # Loaded only after a fault: it takes a sixth of the time in which a command starts.
        from cryptography import x509

        # A handshake in TLS 1.3 ends for the client before the server refuses it, without a reason.
        ends = x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc
        if ends > datetime.now(UTC):
            return ""
        return (
            f"; our certificate has expired on {ends:%Y-%m-%d}: get a new kubeconfig or certificate"
        )

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


# Where a kubeconfig is looked for. Inside a replica the first names that of its service token.
OWN_VARIABLE, KUBECTL_VARIABLE, DATA_VARIABLE = "HOLDFAST_KUBECONFIG", "KUBECONFIG", "HOLDFAST_DATA"
DATA = "data"


def find_kubeconfig() -> Path:
    """Return the kubeconfig that the environment names. Raises Invalid when there is none.

    HOLDFAST_KUBECONFIG comes first, then KUBECONFIG, then the file that `holdfast up` writes into
    its data directory.
    """
    for variable in (OWN_VARIABLE, KUBECTL_VARIABLE):
        # As with kubectl it may be a list; missing files are skipped.
        named = [Path(it) for it in os.environ.get(variable, "").split(os.pathsep) if it]
        for path in named:
            if path.exists():
                return path
        if named:
            raise Invalid(
                f"{variable}: {named[0]} does not exist; `holdfast up` prints the path of its own"
            )
    path = Path(os.environ.get(DATA_VARIABLE) or DATA) / "kubeconfig"
    if not path.exists():
        raise Invalid(
            f"no kubeconfig: {path} does not exist, {KUBECTL_VARIABLE} is not set and none is given"
            "; `holdfast up` prints the path of its own"
        )
    return path


def find_access(kubeconfig: Path | str | None = None, context: str = "") -> Access:
    """Return the access of a kubeconfig: the given one, or that which the environment names."""
    return from_kubeconfig(find_kubeconfig() if kubeconfig is None else kubeconfig, context)


def from_kubeconfig(path: Path | str, context: str = "") -> Access:
    """Return the access that a kubeconfig describes, in its current context or another."""
    path = Path(path)
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
        origin=(path, context),
    )
    access.check()
    return access


def read_again(access: Access) -> Access | None:
    """Return the access with other credentials that its kubeconfig has by now; None without any.

    Service tokens and certificates are replaced in their files before they expire.
    """
    if access.origin is None:
        return None
    try:
        found = from_kubeconfig(*access.origin)
    except Invalid:
        # The file may just be being replaced; the refusal says what is wrong.
        return None
    fresh = msgspec.structs.replace(found, servers=access.servers, refuses=access.refuses)
    return None if fresh == access else fresh


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
