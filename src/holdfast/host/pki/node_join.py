"""How a node joins: it creates a key that never leaves it, and gets a certificate from the plane.

An agent calls `join_or_load` at every start. The first time it needs a join token; then its
directory has what it needs, readable only by its user. `renew_certificate` gets the next
certificate for the same key, at a start and while it runs (`component_credentials`). A node whose
certificate was revoked, or that was deleted, joins again with a new token and a new key. The key is
on disk before it is used, so that an agent that crashes in between joins again with the same key
and token.

A joining node does not know the servers yet. The token holds the hash of the plane's authority: its
certificate is fetched from any server, and trusted only if it has that hash. The secret is sent
only to servers of the plane's authorities. During a rotation there are two; the one with the hash
vouches for the other by its signature (`trust_bundle`). The bundle must not be older than the
token: a removed authority was in bundles with the same signature. A node that was away while the
authority was rotated joins again with a token, and keeps its key.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.host.client.http_session import HttpSession
from holdfast.host.client.server_access import Access
from holdfast.host.client.transport import Transport
from holdfast.host.pki import join_tokens, trust_bundle
from holdfast.host.pki.certificates import RENEW_FROM, moment
from holdfast.host.pki.join_protocol import (
    AUTHORITY_PATH,
    BUNDLE_PATH,
    JOIN_PATH,
    Joined,
    JoinRequest,
)
from holdfast.host.pki.join_tokens import JoinToken
from holdfast.host.process.files import private_directory, write_private
from holdfast.model.access import identity as who
from holdfast.model.errors import HoldfastError, Invalid, Unavailable

TRY_S = 15.0
# Where servers say which identity a caller has.
WHO_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
AUTHORITY_BYTES_MAX = 64 << 10
REFUSED = 401
# How moments are shown to people.
MOMENT = "%Y-%m-%dT%H:%M:%SZ"

Say = Callable[[str], None]


class NodeFiles(msgspec.Struct, frozen=True):
    """The files with an agent's credentials."""

    directory: Path

    @property
    def key(self) -> Path:
        return self.directory / "node.key"

    @property
    def certificate(self) -> Path:
        return self.directory / "node.crt"

    @property
    def authority(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def bundle(self) -> Path:
        return self.directory / "ca.bundle"

    @property
    def generation(self) -> int:
        """Return the generation of the trust bundle in these files. Raises Invalid."""
        text = self.bundle.read_bytes() if self.bundle.exists() else b""
        return trust_bundle.bundle_of_files(self.authority.read_bytes(), text).generation


async def join_or_load(
    servers: tuple[str, ...],
    node: str,
    directory: Path,
    token: str = "",
    say: Say = lambda text: None,
) -> Access:
    """Return the access of a node's agent, from its files or by joining. Raises what failed."""
    files = NodeFiles(directory)
    found = await asyncio.to_thread(_found, files, servers, node)
    # Only with a new token is it worth asking whether the old certificate was revoked.
    if found is not None and token:
        code = await _asked(found)
        if code == REFUSED:
            await asyncio.to_thread(_forget, files)
            found = None
        elif not code and await asyncio.to_thread(_is_newer, token, files):
            # The authority may have been rotated while this node was away.
            try:
                return await _join(servers, node, files, token)
            except HoldfastError as error:
                say(f"Node {node} cannot join again and continues as before: {error.message}")
    if found is not None:
        return await _renewed_if_due(found, node, files, say)
    if not token:
        raise Invalid(
            f"node {node} has no certificate in {directory}; give it a join token (an "
            "administrator creates one with: token create)"
        )
    return await _join(servers, node, files, token)


async def _join(servers: tuple[str, ...], node: str, files: NodeFiles, token: str) -> Access:
    given = join_tokens.parse(token)
    authority, bundle = await _authority(servers, given)
    key = await asyncio.to_thread(_kept_key, files)
    access = Access(servers=servers, ca=authority)
    return await _ask(access, node, files, key, token, bundle)


async def is_refused(access: Access) -> bool:
    """Return whether the servers refuse us. If none answers, they may still accept us."""
    return await _asked(access) == REFUSED


async def _asked(access: Access) -> int:
    """Return a server's HTTP code for our identity; 0 if none answers."""
    async with Transport(access) as transport:
        try:
            answer = await transport.send("POST", WHO_PATH, body=b"{}", timeout_s=TRY_S)
        except HoldfastError:
            return 0
    return answer.code


def _is_newer(token: str, files: NodeFiles) -> bool:
    """Return whether a token is of a later generation than what is trusted here. A token that was
    used for an earlier join never is.
    """
    try:
        return join_tokens.parse(token).generation > files.generation
    except Invalid:
        return False


def _forget(files: NodeFiles) -> None:
    """Remove the key too: an attacker with the certificate may have the key as well."""
    files.certificate.unlink(missing_ok=True)
    files.key.unlink(missing_ok=True)


async def renew_certificate(access: Access, node: str, directory: Path) -> Access:
    """Return the access with a new certificate. Raises what failed; the old one stays valid."""
    files = NodeFiles(directory)
    key = await asyncio.to_thread(_kept_key, files)
    return await _ask(access, node, files, key, "")


async def _renewed_if_due(access: Access, node: str, files: NodeFiles, say: Say) -> Access:
    if datetime.now(UTC) < moment(access.certificate, RENEW_FROM):
        return access
    try:
        return await renew_certificate(access, node, files.directory)
    except HoldfastError as error:
        # It is valid for a while, and the running agent tries again.
        ends = moment(access.certificate, 1)
        say(f"The certificate of node {node} expires at {ends:{MOMENT}}: {error.message}")
        return access


async def _ask(
    access: Access,
    node: str,
    files: NodeFiles,
    key: ec.EllipticCurvePrivateKey,
    token: str,
    bundle: bytes = b"",
) -> Access:
    """Get a certificate for the key from the first server that answers, and store it."""
    body = msgspec.json.encode(JoinRequest(node, signing_request(node, key), token))
    failure: HoldfastError = Unavailable("no server is configured")
    async with Transport(access) as transport:
        for _ in access.servers:
            try:
                answer = await transport.send(
                    "POST",
                    JOIN_PATH,
                    body=body,
                    headers={"Content-Type": "application/json"},
                    timeout_s=TRY_S,
                )
            except HoldfastError as error:
                # Also when it may have happened: the same key may ask again.
                failure = error
                continue
            if not answer.is_good:
                raise answer.error(may_have_happened=False)
            found = await asyncio.to_thread(_read, answer.body, key)
            if token:
                await asyncio.to_thread(_keep_trust, access, files, bundle)
            await asyncio.to_thread(write_private, files.certificate, found)
            return msgspec.structs.replace(access, certificate=found, key=_pem(key), token="")
    raise failure


def _read(body: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the certificate in an answer. Raises Unavailable."""
    try:
        found = msgspec.json.decode(body, type=Joined)
        certificate = x509.load_pem_x509_certificate(found.certificate.encode())
    except (msgspec.DecodeError, ValueError) as error:
        raise Unavailable(f"the answer cannot be decoded: {error}") from error
    if certificate.public_key() != key.public_key():
        raise Unavailable("the server sent a certificate for another key")
    return found.certificate.encode()


def _keep_trust(access: Access, files: NodeFiles, bundle: bytes) -> None:
    """Store the verified bundle, never what an answer names. A renewal leaves it alone: it may have
    begun before the last bundle was stored.
    """
    if bundle:
        write_private(files.bundle, bundle)
    write_private(files.authority, access.ca)


def _found(files: NodeFiles, servers: tuple[str, ...], node: str) -> Access | None:
    """Return the access that an earlier start left, if it is still usable."""
    if not (files.certificate.exists() and files.key.exists() and files.authority.exists()):
        return None
    pem = files.certificate.read_bytes()
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError as error:
        raise Invalid(f"{files.certificate} is not a certificate: {error}") from error
    name = str(names[0].value) if names else ""
    if name != who.agent(node).name:
        raise Invalid(
            f"the certificate in {files.directory} is for {name}, not for node {node}; give this "
            "node its own directory"
        )
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        return None
    return Access(
        servers=servers,
        ca=files.authority.read_bytes(),
        certificate=pem,
        key=files.key.read_bytes(),
    )


def _kept_key(files: NodeFiles) -> ec.EllipticCurvePrivateKey:
    """Return the node's key; create it if there is none."""
    private_directory(files.directory)
    if not files.key.exists():
        write_private(files.key, _pem(ec.generate_private_key(ec.SECP256R1())))
    try:
        key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
    except ValueError as error:
        raise Invalid(f"{files.key} is not a key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Invalid(f"{files.key} is not a key on an elliptic curve")
    return key


def signing_request(node: str, key: ec.EllipticCurvePrivateKey) -> str:
    """The certificate signing request of a node, in PEM. Raises Invalid for an unusable name."""
    try:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who.agent(node).name)])
    except ValueError as error:
        raise Invalid(f"node {node[:63]!r} cannot have a certificate: {error}") from error
    made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


async def _authority(servers: tuple[str, ...], token: JoinToken) -> tuple[bytes, bytes]:
    """Return the authorities that the one in the token vouches for, and the signed bundle if there
    is one, from any server. Raises what is wrong.
    """
    failure: HoldfastError = Unavailable("no server is configured")
    # No server is trusted yet, so nothing is verified and nothing is sent; the hash decides.
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    async with contextlib.aclosing(HttpSession(unverified)) as session:
        for server in servers:
            try:
                pem = await _got(session, server, AUTHORITY_PATH)
                text = await _got(session, server, BUNDLE_PATH)
            except Unavailable as error:
                failure = error
                continue
            found = verified_authorities(pem, text, token)
            if found is not None:
                return found
            failure = Invalid(
                f"{server} does not belong to the plane of the join token: its authority has "
                "another hash"
            )
    raise failure


async def _got(session: HttpSession, server: str, path: str) -> bytes:
    """Return a document; nothing for one that is missing or too large."""
    answer = await session.exchange(
        server.rstrip("/"), "GET", path, timeout_s=TRY_S, bytes_max=AUTHORITY_BYTES_MAX
    )
    return answer.body if answer.code == 200 else b""


def verified_authorities(pem: bytes, text: bytes, token: JoinToken) -> tuple[bytes, bytes] | None:
    """Return the authorities that the one in the token vouches for, or that one alone: everything
    else in the answer is unverified.
    """
    try:
        found = trust_bundle.certificates(pem)
    except Invalid:
        return None
    for certificate in found:
        if trust_bundle.fingerprint(certificate) == token.authority:
            alone = certificate.public_bytes(serialization.Encoding.PEM)
            try:
                bundle = trust_bundle.verify_bundle(text, [certificate])
            except Invalid:
                # A server of the previous version has no bundle, and so no other authority.
                return alone, b""
            return (bundle.pem, text) if bundle.generation >= token.generation else (alone, b"")
    return None
