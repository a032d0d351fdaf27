"""`/ca/rotation`: the steps with which an administrator replaces the certificate authority.

    begin    all trust the new authority, which signs nothing yet
    switch   it signs: nodes, components and administrators get new certificates early
    finish   servers present its certificates, then the old authority is no longer trusted
    abort    before the switch: everything is as it was

Each step is a trust bundle of the next generation, written to the store by a compare-and-swap. All
servers follow it (`trust_upkeep`), and then all components (`trust_seen`). After a crash a step is
done or not done, and it can be repeated. Any server that holds the keys can do any step. A step
that would disconnect a client is refused with a list of reasons (`rotation_readiness`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web

from holdfast.host.api import status_objects
from holdfast.host.api.call import reply, source_of
from holdfast.host.api.flow.connections import read_body
from holdfast.host.audit.accesses import AccessRecorder
from holdfast.host.client.known_servers import KnownServer
from holdfast.host.pki import rotation_readiness as readiness
from holdfast.host.pki import trust_bundle
from holdfast.host.pki.ca_keys import key_file
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.rotation_readiness import RotationFacts, TrustReport
from holdfast.host.pki.trust_bundle import SHORT, RotationPhase, TrustBundle
from holdfast.host.pki.trust_seen import ClientSort, SeenClient, SeenClients
from holdfast.host.pki.trust_upkeep import TrustUpkeep, publish_bundle, stored_bundle
from holdfast.host.process.files import remove, write_private
from holdfast.host.server.authenticator import Authenticator
from holdfast.host.server.forwarding import refusal_reason
from holdfast.host.server.other_servers import OtherServers
from holdfast.model.access.identity import ADMINS, Identity, acts_as
from holdfast.model.audit.audit_records import Mutation
from holdfast.model.encoding.wire import readable
from holdfast.model.errors import Conflict, Forbidden, HoldfastError, Invalid, Unavailable
from holdfast.model.kinds.access import Token
from holdfast.model.kinds.node import Node
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason
from holdfast.model.registry import kind_of_struct
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.contract import Store

PATH, PEERS_PATH = "/ca/rotation", "/peers/trust"
BODY_MAX = 4 << 10
ASK_S = 3.0
# How long a step waits for the other servers to follow; repeated, it continues from there.
FOLLOW_S, LOOK_S = 30.0, 0.2
VERB = "RotateAuthority"
_MEANWHILE = "another step was made meanwhile; see `holdfast ca status`"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Kept = TypeVar("Kept", bound=Object)


class RotationStep(Enum):
    BEGIN = "begin"
    SWITCH = "switch"
    FINISH = "finish"
    ABORT = "abort"


class RotationRequest(msgspec.Struct, frozen=True):
    """What an administrator asks for. `force` finishes even if that disconnects clients."""

    step: RotationStep
    force: bool = False


class TrustedAuthority(msgspec.Struct, frozen=True, rename="camel"):
    """One authority and its present role."""

    fingerprint: str
    expires: datetime
    signs: bool
    serves: bool


class RotationStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The state of a rotation.

    against_switch, against_finish: why that step is refused now.
    unknown: clients that may be disconnected by the end of the old authority.
    cut_off: of a forced finish, the clients that were known to be disconnected by it.
    """

    generation: int
    phase: RotationPhase
    authorities: tuple[TrustedAuthority, ...]
    begun: datetime | None
    switched: datetime | None
    servers: tuple[TrustReport, ...]
    parts: tuple[SeenClient, ...]
    against_switch: tuple[str, ...] = ()
    against_finish: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    cut_off: tuple[str, ...] = ()


class CaRotation:
    """See the module's docstring. One for each server."""

    def __init__(
        self,
        server: str,
        directory: Path,
        store: Store,
        hub: WatchHub,
        upkeep: TrustUpkeep,
        seen: SeenClients,
        peers: OtherServers,
        live: Callable[[], Iterable[KnownServer]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`directory` holds the keys; `live` returns the servers that renew their leases."""
        self._server, self._directory = server, directory
        self._store, self._hub, self._upkeep = store, hub, upkeep
        self._seen, self._peers, self._live = seen, peers, live
        self._turn, self._now = asyncio.Lock(), now

    def report(self) -> TrustReport:
        """Return this server's report for another server."""
        mine = self._upkeep.authorities
        return TrustReport(
            server=self._server,
            generation=mine.bundle.generation,
            held=tuple(mine.held),
            observed_s=self._seen.observed_s,
            seen=self._seen.all(),
        )

    async def standing(self, cut_off: Iterable[str] = ()) -> RotationStatus:
        """Return the state of the rotation, as all servers know it. Raises HoldfastError."""
        facts = await self._facts()
        bundle = facts.bundle
        trusted = (
            TrustedAuthority(
                known, it.not_valid_after_utc, known == bundle.signs, known == bundle.serves
            )
            for known, it in zip(
                bundle.fingerprints, trust_bundle.certificates(bundle.pem), strict=True
            )
        )
        return RotationStatus(
            bundle.generation,
            bundle.phase,
            tuple(trusted),
            bundle.begun,
            bundle.switched,
            tuple(msgspec.structs.replace(it, seen=()) for it in facts.reports),
            tuple(sorted(readiness.latest_seen(facts.reports).values(), key=_order)),
            tuple(readiness.against_switch(facts)) if bundle.phase is RotationPhase.BEGUN else (),
            () if bundle.phase in (RotationPhase.STABLE, RotationPhase.BEGUN) else _finish(facts),
            tuple(readiness.unknown_clients(facts)),
            tuple(cut_off),
        )

    async def make(self, wish: RotationRequest) -> RotationStatus:
        """Make a step. Raises Conflict with all reasons against it."""
        if wish.force and wish.step is not RotationStep.FINISH:
            raise Invalid("force: only applies to finish; the other steps disconnect no client")
        async with self._turn:
            cut_off: list[str] = []
            match wish.step:
                case RotationStep.BEGIN:
                    await self._begin()
                case RotationStep.SWITCH:
                    await self._switch()
                case RotationStep.FINISH:
                    cut_off = await self._finish(force=wish.force)
                case RotationStep.ABORT:
                    await self._abort()
            return await self.standing(cut_off)

    # The steps -----------------------------------------------------------------------------------

    async def _begin(self) -> None:
        facts = await self._facts()
        _demand("begin", readiness.against_begin(facts))
        made, pem = CertificateAuthority.new()
        file = self._directory / key_file(made.fingerprint)
        # The key is written before the bundle that names it, or a crash could lose it.
        await asyncio.to_thread(write_private, file, pem.key)
        try:
            bundle = trust_bundle.begin_rotation(facts.bundle, made.pem)
            await self._publish(bundle, (*self._upkeep.authorities.held.values(), made))
        except Conflict:
            await asyncio.to_thread(remove, file)
            raise
        await self._followed(wait=False)

    async def _switch(self) -> None:
        facts = await self._facts()
        if facts.bundle.phase is RotationPhase.SWITCHED:
            return
        _demand("switch", readiness.against_switch(facts))
        await self._publish(trust_bundle.switch_signer(facts.bundle))
        await self._followed(wait=False)

    async def _finish(self, *, force: bool) -> list[str]:
        facts = await self._facts()
        if facts.bundle.phase not in (RotationPhase.SWITCHED, RotationPhase.FINISHING):
            _demand("finish", readiness.against_finish(facts))
        cut_off = list(_finish(facts))
        if not force:
            _demand("finish", cut_off)
        if facts.bundle.phase is RotationPhase.SWITCHED:
            await self._publish(trust_bundle.switch_servers(facts.bundle))
        # A client that trusts only the new authority must not meet a server with the old one.
        try:
            await self._followed(wait=True)
        except Unavailable as error:
            if not force:
                raise Unavailable(
                    f"{error.message}. No client is cut off yet; run finish again once they do"
                ) from error
            cut_off.append(error.message)
        # Another server may have finished this rotation meanwhile, and even begun the next one.
        now = self._upkeep.authorities.bundle
        if now.authorities == facts.bundle.authorities:
            await self._publish(trust_bundle.finish_rotation(now))
        elif now.fingerprints != (facts.new,):
            raise Conflict(_MEANWHILE)
        # Until then some server would still accept a certificate of the old authority.
        try:
            await self._followed(wait=True)
        except Unavailable as error:
            cut_off.append(error.message)
        return cut_off

    async def _abort(self) -> None:
        bundle = self._upkeep.authorities.bundle
        if bundle.phase is not RotationPhase.BEGUN:
            raise Conflict(
                f"the rotation is in the phase {bundle.phase.value!r} and cannot be aborted: "
                "certificates of the new authority are in use. Finish it, then rotate again"
            )
        await self._publish(trust_bundle.abort_rotation(bundle))
        await self._followed(wait=False)

    async def _publish(
        self, bundle: TrustBundle, signers: Iterable[CertificateAuthority] = ()
    ) -> None:
        """Write the next bundle. Raises Conflict if another one was written meanwhile."""
        held = {it.fingerprint: it for it in signers} or self._upkeep.authorities.held
        missing = [it[:SHORT] for it in bundle.fingerprints if it not in held]
        if missing:
            raise Conflict(
                f"server {self._server} has no key of the certificate authority {missing[0]}: ask "
                "another server, or copy the key into its pki directory and restart it"
            )
        text, revision = await stored_bundle(self._store)
        there = trust_bundle.decode_bundle(text).generation if text else 0
        made = trust_bundle.sign_bundle(bundle, [held[it] for it in bundle.fingerprints])
        if there != bundle.generation - 1 or not await publish_bundle(self._store, made, revision):
            raise Conflict(_MEANWHILE)

    async def _followed(self, *, wait: bool) -> None:
        """Use the bundle here and, with `wait`, wait until all servers do. Raises Unavailable."""
        await self._upkeep.look()
        deadline_s = asyncio.get_running_loop().time() + FOLLOW_S
        wanted = self._upkeep.authorities.bundle.generation
        while wait:
            late = [it.server for it in await self._reports() if it.generation < wanted]
            if not late:
                return
            if asyncio.get_running_loop().time() > deadline_s:
                raise Unavailable(
                    f"these servers do not follow generation {wanted}: {', '.join(late)}. They "
                    "trust and present an older generation until they do"
                )
            await asyncio.sleep(LOOK_S)

    # Evidence for a step -------------------------------------------------------------------------

    async def _facts(self) -> RotationFacts:
        # The decision must be based on what the store says now.
        await self._upkeep.look()
        return RotationFacts(
            self._upkeep.authorities.bundle,
            await self._reports(),
            _all(self._hub, Node),
            _all(self._hub, Token),
            self._now(),
        )

    async def _reports(self) -> tuple[TrustReport, ...]:
        others = sorted({it.server for it in self._live()} - {self._server})
        reports = await asyncio.gather(*(self._asked(it) for it in others))
        return (self.report(), *reports)

    async def _asked(self, server: str) -> TrustReport:
        try:
            body = await self._peers.read(server, PEERS_PATH, ASK_S)
            return msgspec.json.decode(body, type=TrustReport)
        except HoldfastError as error:
            return TrustReport(server=server, trouble=error.message)
        except msgspec.DecodeError:
            return TrustReport(
                server=server, trouble="its answer cannot be decoded: is it another version?"
            )


def handlers(
    rotation: CaRotation,
    authenticator: Authenticator,
    may_path: Callable[[Identity, str, str], bool],
    accesses: AccessRecorder,
    is_current: Callable[[], Awaitable[bool]],
) -> dict[str, Handler]:
    """Return the handlers by path. `is_current` says whether this server knows of every
    revocation.
    """

    async def demand_admin(request: web.BaseRequest, verb: str) -> Identity:
        identity = authenticator(request)
        if not acts_as(identity):
            raise Forbidden(
                "authentication required: present a client certificate or bearer token",
                code=Reason.UNAUTHENTICATED,
            )
        if not may_path(identity, verb, PATH):
            raise Forbidden(
                f"{identity.name} may not {verb} {PATH}; administrators (group {ADMINS}) may",
                code=Reason.NOT_ALLOWED,
            )
        await _demand_current(is_current)
        return identity

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        try:
            if request.method == "GET":
                await demand_admin(request, "get")
                return reply(200, msgspec.json.encode(await rotation.standing()))
            identity = await demand_admin(request, "post")
            if request.method != "POST":
                raise Invalid("use GET to read a rotation, POST to make a step")
            wish = msgspec.json.decode(await read_body(request, BODY_MAX), type=RotationRequest)
            await accesses.record(
                Mutation(
                    who=identity.name,
                    groups=identity.groups,
                    verb=VERB,
                    kind="certificateauthorities",
                    name=wish.step.value,
                    forced=wish.force,
                    source=source_of(request),
                    credential=authenticator.credential(request),
                )
            )
            return reply(200, msgspec.json.encode(await rotation.make(wish)))
        except msgspec.DecodeError as error:
            return reply(*status_objects.of(Invalid(f"unknown step of a rotation: {error}")))
        except HoldfastError as error:
            return reply(*status_objects.of(error))

    async def tell_peer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            peer = authenticator.peer_identity(request.transport)
            if peer is None or peer.server is None:
                raise Forbidden(
                    "only servers may read what this server trusts", code=refusal_reason(peer)
                )
        except HoldfastError as error:
            return reply(*status_objects.of(error))
        return reply(200, msgspec.json.encode(rotation.report()))

    return {PATH: serve, PEERS_PATH: tell_peer}


async def _demand_current(is_current: Callable[[], Awaitable[bool]]) -> None:
    if not await is_current():
        raise Unavailable(
            "this server has lost contact with its store and cannot tell whether your credential "
            "was revoked; try another server"
        )


def _demand(step: str, against: list[str]) -> None:
    if against:
        listed = "\n  ".join(readiness.shorten(against))
        raise Conflict(f"{step} is refused, nothing was changed:\n  {listed}")


def _finish(facts: RotationFacts) -> tuple[str, ...]:
    return tuple(readiness.against_finish(facts))


def _order(seen: SeenClient) -> tuple[int, str]:
    return list(ClientSort).index(seen.sort), seen.name


def _all(hub: WatchHub, cls: type[Kept]) -> list[Kept]:
    found = (readable(cls, it.data) for it in hub.select(ObjectSelection(kind_of_struct(cls))))
    return [it for it in found if it is not None]
