"""Admits new nodes: a join token and a key for a certificate, each token for one key.

`server_process` gives the handlers to the HTTP server, outside the API: a node that joins has no
identity yet. A token is used up by a compare-and-swap on its object before anything is issued, so
several servers cannot admit two nodes with it. When the answer is lost, the same key may ask again
and gets its certificate; any other key is refused. A node with a certificate gets a new one by
presenting it. Credentials from before a revocation (`model/access/credential_life`) are refused
here: both the certificate and a token that was used before it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.commit.record_encoding import decode, with_version
from holdfast.host.api import status_objects
from holdfast.host.api.call import reply, source_of
from holdfast.host.api.flow.connections import read_body
from holdfast.host.audit.accesses import ISSUE, RENEW, AccessRecorder, certificate_record
from holdfast.host.pki import join_tokens
from holdfast.host.pki.ca_keys import CertificateAuthorities
from holdfast.host.pki.certificates import LEAF_LIFE
from holdfast.host.pki.join_protocol import (
    AUTHORITY_PATH,
    BUNDLE_PATH,
    JOIN_PATH,
    Joined,
    JoinRequest,
)
from holdfast.host.pki.join_requests import decode_join_request, identity_name, signed_key
from holdfast.host.process.shell import Shell
from holdfast.host.server import authentication
from holdfast.model import keys
from holdfast.model.access.credential_life import JOIN_LIFE_MAX_MS, ends_at, revocation_name
from holdfast.model.access.identity import Identity
from holdfast.model.errors import (
    Forbidden,
    HoldfastError,
    Invalid,
    RecordUnreadable,
    Rejected,
    Unavailable,
)
from holdfast.model.kinds.access import Revocation, Token, TokenPurpose, TokenStatus
from holdfast.model.kinds.node import Node
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of_struct
from holdfast.model.requests import Update
from holdfast.model.time import wall_ms
from holdfast.store.contract import Store

BODY_MAX = 16 << 10
# The token was used or revoked concurrently; read it again.
TRIES_MAX = 3
TIMEOUT_S = 10.0
# A certificate must be issued after the last revocation. Servers' clocks differ by no more.
WAIT_MAX_S = 3.0
TOKENS_PAGE = 500
# Requests whose signatures are verified and signed at the same time.
SIGNED_AT_ONCE = 4

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
# Returns the peer's identity by its certificate alone. Raises Forbidden.
ClientCertificate = Callable[[Any], authentication.ClientCertificate | None]


class JoinAdmission:
    """See the module's docstring. `identity` is this server's, which marks tokens as used."""

    def __init__(
        self,
        identity: Identity,
        authority: Shell,
        store: Store,
        issuers: CertificateAuthorities,
        shown: ClientCertificate,
        life: timedelta = LEAF_LIFE,
        accesses: AccessRecorder | None = None,
    ) -> None:
        self._identity, self._authority, self._store = identity, authority, store
        self._issuers, self._shown, self._life = issuers, shown, life
        self._signing = asyncio.Semaphore(SIGNED_AT_ONCE)
        self._accesses = accesses

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by path."""
        return {
            JOIN_PATH: self._join,
            AUTHORITY_PATH: self._show,
            BUNDLE_PATH: self._show_bundle,
        }

    async def _show(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send the certificates, which are not secret; a token says which one to trust."""
        return web.Response(body=self._issuers.pem, content_type="application/x-pem-file")

    async def _show_bundle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send the signed bundle: a client that trusts one authority in it can trust all."""
        return reply(200, self._issuers.text)

    async def _join(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            if request.method != "POST":
                raise Rejected("use POST to join a node", code=status_objects.METHOD_NOT_ALLOWED)
            shown = self._shown(request.transport)
            wanted = decode_join_request(await read_body(request, BODY_MAX))
            joined = await self.join(shown, wanted, source_of(request))
        except HoldfastError as error:
            return reply(*status_objects.of(error))
        return reply(200, msgspec.json.encode(joined))

    async def join(
        self, shown: authentication.ClientCertificate | None, wanted: JoinRequest, source: str = ""
    ) -> Joined:
        """Return the certificate of a node that may have it. Raises what is wrong."""
        name = identity_name(wanted.node)
        # Checked first: verifying a signature is expensive, and callers are anonymous.
        if wanted.token:
            await self._known(wanted.token)
        elif shown is None or shown.identity.node != wanted.node:
            raise Forbidden(
                "a node joins with a token or with its current certificate",
                code=Reason.UNAUTHENTICATED,
            )
        async with self._signing:
            return await self._certified(name, wanted, shown, source)

    async def _certified(
        self,
        name: str,
        wanted: JoinRequest,
        shown: authentication.ClientCertificate | None,
        source: str,
    ) -> Joined:
        key = await asyncio.to_thread(signed_key, wanted.request)
        revoked = await self._revoked_until(name)
        if wanted.token:
            await self._use(wanted, key, revoked)
        else:
            _demand_unrevoked(shown, revoked)
            if await self._read(Node, "", wanted.node) is None:
                raise Forbidden(f"node {wanted.node} does not exist; join with a token", code=_NO)
        await _until_after(revoked)
        signer = self._issuers.signer
        certificate = await asyncio.to_thread(signer.certify, key, name, life=self._life)
        # A revocation between the check and the issue is dated before the certificate, and would
        # not end it.
        if await self._revoked_until(name) != revoked:
            raise Unavailable(f"{name} was revoked while its certificate was issued; try again")
        if self._accesses is not None:
            verb = ISSUE if wanted.token else RENEW
            await self._accesses.record(certificate_record(verb, certificate, name, source))
        return Joined(wanted.node, certificate.decode(), self._issuers.pem.decode())

    async def _revoked_until(self, name: str) -> datetime | None:
        """Return the moment of this identity's last revocation, if there is one."""
        found = await self._read(Revocation, "", revocation_name(name))
        return found.spec.before if isinstance(found, Revocation) else None

    async def _use(
        self, wanted: JoinRequest, key: ec.EllipticCurvePublicKey, revoked: datetime | None
    ) -> None:
        """Use the token up for this key. Raises Forbidden for any other."""
        hashed = join_tokens.key_hash(
            key.public_bytes(
                serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        for _ in range(TRIES_MAX):
            token = await self._known(wanted.token)
            if _is_again(token, wanted.node, hashed, revoked):
                return await self._demand_first(token, wanted.node, hashed, revoked)
            _demand_good(token, wanted.node)
            if not token.spec.node and await self._read(Node, "", wanted.node) is not None:
                raise Forbidden(
                    f"node {wanted.node} exists already; only a token for that node lets it join "
                    "again",
                    code=_NO,
                )
            used = TokenStatus(
                used_at=datetime.now(UTC).replace(microsecond=0), used_by=wanted.node, key=hashed
            )
            marked = msgspec.structs.replace(token, status=used)
            verdict = await self._authority.ask(
                self._identity, Update(marked, "status", "holdfast"), TIMEOUT_S
            )
            if not isinstance(verdict, Refusal):
                return await self._demand_first(token, wanted.node, hashed, revoked)
            if verdict.reason is not Reason.STALE_OBJECT:
                raise verdict.error()
        raise Forbidden("other nodes are using the join token; try again", code=Reason.CONTENTION)

    async def _demand_first(
        self, token: Token, node: str, key: str, revoked: datetime | None
    ) -> None:
        """Refuse a second machine under the same name with another token. Raises Forbidden.

        Each caller marks its token before it checks, so the later of two sees the other.
        """
        if token.spec.node:
            return
        used = [it async for it in self._used_tokens(node, revoked)]
        mine = max((at for at, it in used if it.name == token.name), default=0)
        if any(at < mine and it.status.key != key for at, it in used):
            raise Forbidden(
                f"another machine is joining as node {node}; only a token for that node lets it "
                "join again",
                code=_NO,
            )

    async def _used_tokens(
        self, node: str, revoked: datetime | None
    ) -> AsyncIterator[tuple[int, Token]]:
        """Yield the tokens used for a node since its last revocation, with their revisions."""
        prefix = keys.kind_prefix(kind_of_struct(Token), SYSTEM_NAMESPACE)
        start: str | None = prefix
        while start is not None:
            page = await self._store.range(start, keys.after_prefix(prefix), limit=TOKENS_PAGE)
            for record in page.records:
                try:
                    it: Token = decode(record.key, record.value)
                except RecordUnreadable as error:
                    # It may be one that was used for this node.
                    raise Unavailable(f"{error.message}; join with a token for a node") from error
                at = it.status.used_at
                if it.status.used_by == node and at and (revoked is None or at > revoked):
                    yield record.modified, it
            start = page.more_from

    async def _known(self, text: str) -> Token:
        """Return the token behind a text. All causes of a refusal have one message."""
        refused = Forbidden("the join token is not valid here", code=Reason.UNAUTHENTICATED)
        try:
            given = join_tokens.parse(text)
        except Invalid:
            raise refused from None
        found = await self._read(Token, SYSTEM_NAMESPACE, given.name)
        # The hash is computed and compared even for a token that does not exist.
        expected = found.spec.hash if isinstance(found, Token) else authentication.secret_hash("")
        is_right = hmac.compare_digest(expected, authentication.secret_hash(given.secret))
        if not isinstance(found, Token) or not is_right:
            raise refused
        if found.spec.purpose is not TokenPurpose.JOIN:
            raise refused
        return found

    async def _read(self, cls: type[Object], namespace: str, name: str) -> Object | None:
        """Read an object and its version from the store. The hub may be outdated."""
        key = keys.object_key(kind_of_struct(cls), namespace, name)
        page = await self._store.range(key, key + "\0", limit=1)
        for record in page.records:
            try:
                return with_version(decode(record.key, record.value), record.modified)
            except RecordUnreadable as error:
                raise Unavailable(error.message) from error
        return None


_NO = Reason.NOT_ALLOWED


def _demand_unrevoked(
    shown: authentication.ClientCertificate | None, revoked: datetime | None
) -> None:
    """Refuse a renewal with a revoked certificate: it would outlive the revocation, of which the
    hub, which checked the connection, may not know yet. Raises Forbidden.
    """
    if shown is not None:
        authentication.demand_current(
            shown, lambda _, issued_ms: revoked is not None and issued_ms <= wall_ms(revoked)
        )


def _is_again(token: Token, node: str, key: str, revoked: datetime | None) -> bool:
    """Return whether this key used the token before, and its answer was lost.

    If that was revoked since, the token gives no second certificate.
    """
    used = token.status
    same = hmac.compare_digest(used.key.encode(), key.encode()) and used.used_by == node
    if not used.key or not same or token.spec.revoked or used.used_at is None:
        return False
    return revoked is None or used.used_at > revoked


async def _until_after(revoked: datetime | None) -> None:
    """Wait until the clock is past a revocation. Raises Unavailable if that takes too long."""
    if revoked is None:
        return
    left_s = (revoked - datetime.now(UTC)).total_seconds() + 0.001
    if left_s > WAIT_MAX_S:
        raise Unavailable(f"the clock of this server is {left_s:.0f} s behind a revocation")
    if left_s > 0:
        await asyncio.sleep(left_s)


def _demand_good(token: Token, node: str) -> None:
    """Tell a caller that knows its secret what is wrong with a token. Raises Forbidden."""
    spec, ends = token.spec, ends_at(token, JOIN_LIFE_MAX_MS)
    problem = ""
    if token.status.used_at is not None:
        problem = f"was used by node {token.status.used_by} already"
    elif spec.revoked or token.metadata.deletion_timestamp is not None:
        problem = "was revoked"
    elif ends is None or datetime.now(UTC) >= ends:
        problem = "has expired"
    elif spec.node and spec.node != node:
        problem = f"is for node {spec.node}, not for {node}"
    if problem:
        raise Forbidden(f"the join token {problem}; ask for a new one", code=_NO)
