"""The credentials of components: a certificate and a key file for each identity.

On a machine with the plane's authority, `provide` issues them into a separate directory: `ca.crt`
and, for each identity, its certificate and key. `holdfast up` does so before it starts a component,
`holdfast component certificate` for components elsewhere. A component never has the authority's
key: with it, a compromised process could pose as any identity. Agents usually join with a token
instead (`host/pki/node_join`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast.host.client.server_access import Access
from holdfast.host.pki.ca_keys import BUNDLE, CertificateAuthorities
from holdfast.host.pki.certificates import CLIENT, RENEW_BY, RENEW_FROM, moment
from holdfast.host.pki.first_trust import alone
from holdfast.host.pki.node_join import MOMENT
from holdfast.host.pki.trust_bundle import issuer_of
from holdfast.host.process.files import private_directory, write_private
from holdfast.model.access import identity as who
from holdfast.model.errors import HoldfastError, Invalid
from holdfast.model.machine import Rng

AUTHORITY, AUTHORITY_KEYS = "ca.crt", "ca*.key"
SCHEDULER, CONTROLLERS, AGENT = "scheduler", "controllers", "agent"


def checked_name(name: str) -> str:
    """Return the name of a component if it can be part of an identity. Raises Invalid."""
    if not who.acts_as(who.scheduler(name)):
        raise Invalid(f"{name[:63]!r} is not a name: use lower-case letters, digits, - and .")
    return name


def identities(part: str, name: str) -> tuple[str, ...]:
    """Return the identities of a process of this kind and name. Raises Invalid."""
    if part == SCHEDULER:
        return (who.scheduler(checked_name(name)).name,)
    if part == AGENT:
        return (who.agent(checked_name(name)).name,)
    # Imported on use: only this function needs the controllers.
    from holdfast.correct.all_controllers import all_controllers
    from holdfast.host.component.time_zones import zones

    return tuple(it.identity for it in all_controllers(zones))


def file_name(identity: str) -> str:
    """Return the base name of an identity's files. No part of an identity has an underscore."""
    return identity.replace(":", "_")


def issue(pki: Path, identity: str, into: Path | None = None, file: str = "") -> tuple[Path, Path]:
    """Return the certificate and key of an identity, issued again if needed: beside the authority,
    or in another directory, and under another name if given.
    """
    directory = private_directory(pki)
    with alone(directory):
        signer = CertificateAuthorities.open(directory).signer
        return signer.keep(into or directory, file or file_name(identity), identity, CLIENT)


def provide(pki: Path, into: Path, names: Iterable[str], file: str = "") -> None:
    """Write the certificates of these identities, and what they trust, to a separate directory.

    Certificates that are not due for renewal stay as they are.
    """
    private_directory(into)
    for name in names:
        issue(pki, name, into, file)
    # The bundle first, as in `trust_seen`: it names the generation of the certificates.
    for source in filter(Path.exists, (pki / BUNDLE, pki / AUTHORITY)):
        trusted, kept = source.read_bytes(), into / source.name
        if not kept.exists() or kept.read_bytes() != trusted:
            write_private(kept, trusted)


def has_authority(directory: Path) -> bool:
    """Return whether a key of the authority is here."""
    return any(directory.glob(AUTHORITY_KEYS))


def refuse_authority(directory: Path, part: str, advice: str) -> None:
    """Raise Invalid if a key of the authority is in a component's directory.

    An attacker with its process, its directory or a backup of it could pose as any identity.
    """
    for path in sorted(directory.glob(AUTHORITY_KEYS)):
        raise Invalid(f"{path} is the key of the plane's authority, which no {part} has: {advice}")


def access_of(servers: tuple[str, ...], pki: Path, identity: str) -> Access:
    """Return the access of an identity by its files. Raises Invalid."""
    certificate, key = (pki / f"{file_name(identity)}.{end}" for end in ("crt", "key"))
    try:
        access = Access(
            servers=servers,
            ca=(pki / "ca.crt").read_bytes(),
            certificate=certificate.read_bytes(),
            key=key.read_bytes(),
        )
    except OSError as error:
        raise Invalid(
            f"{identity} has no certificate in {pki}: {error.filename}: {error.strerror}"
        ) from error
    access.check()
    return access


# Renews the certificates of a component while it runs.
#
# `component/build` starts one for each process. The first certificates come from `node_join` or
# from `provide`; `client/api_client` uses the new ones. Each is renewed in the middle part of its
# life, at a random moment, so that a thousand agents started on one day do not renew on one day. A
# failed renewal is repeated, more often the less time is left, until the certificate expires. When
# another authority signs (`trust_seen`), all are renewed within seconds.

# Clocks may be set, and a suspended computer counts no sleep, so the time is checked this often.
LOOK_S = 60.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.2, 3_600.0
# A failed renewal is repeated after this part of the remaining time.
TRIES = 16
# When another authority signs, all renew within this time; failed ones retry at this interval.
HURRY_S = 10.0

Renew = Callable[[str, Access], Awaitable[Access]]
Take = Callable[[str, Access], Awaitable[None]]


class CertificateRenewal:
    """See the comment above. `renew` returns the next access, or the same one."""

    def __init__(
        self, accesses: Mapping[str, Access], renew: Renew, take: Take, rng: Rng | None = None
    ) -> None:
        self._renew, self._take = renew, take
        self._rng: Rng = rng if rng is not None else random.SystemRandom()
        self._accesses = {name: it for name, it in accesses.items() if it.certificate}
        self._wake, self._turn = asyncio.Event(), asyncio.Lock()
        # The authorities to trust, and the name of the one that signs, once known.
        self._ca, self._signer = b"", ""
        # When each is renewed next, by the wall clock.
        self.due_s = {name: self._first(it) for name, it in self._accesses.items()}
        # Why a certificate cannot be renewed, for the operator; empty when all can.
        self.trouble = ""

    async def run(self) -> None:
        """Run until cancelled."""
        while self.due_s:
            now_s = _now_s()
            left_s = min(self.due_s.values()) - now_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_S, max(PAUSE_MIN_S, left_s))):
                    await self._wake.wait()
            self._wake.clear()
            for name in [name for name, at_s in self.due_s.items() if at_s <= _now_s()]:
                await self.turn(name)

    async def trust(self, ca: bytes, signer: str) -> None:
        """Trust these authorities from now on, and soon present certificates of this one."""
        async with self._turn:
            self._ca = ca
            for name, access in list(self._accesses.items()):
                self._accesses[name] = msgspec.structs.replace(access, ca=ca)
                await self._take(name, self._accesses[name])
        self.expect(signer)

    def expect(self, signer: str) -> None:
        """Renew certificates that are not from the authority with this name."""
        self._signer = signer
        for name, access in self._accesses.items():
            self.due_s[name] = min(self.due_s[name], self._first(access))
        self._wake.set()

    async def turn(self, name: str) -> None:
        """Renew one certificate now, and use it from now on."""
        async with self._turn:
            await self._renew_now(name)

    async def _renew_now(self, name: str) -> None:
        before = self._accesses[name]
        try:
            after = await self._renew(name, before)
            if self._ca:
                after = msgspec.structs.replace(after, ca=self._ca)
            if after.certificate == before.certificate:
                self._fail(name, "no new certificate was put there")
                return
            await self._take(name, after)
        except HoldfastError as error:
            self._fail(name, error.message)
        except OSError as error:
            self._fail(name, error.strerror or str(error))
        else:
            self._accesses[name], self.due_s[name] = after, self._first(after)
            self.trouble = ""

    def _is_of_signer(self, access: Access) -> bool:
        return not self._signer or issuer_of(access.certificate) == self._signer

    def _first(self, access: Access) -> float:
        if not self._is_of_signer(access):
            return _now_s() + HURRY_S * self._rng.random()
        share = RENEW_FROM + (RENEW_BY - RENEW_FROM) * self._rng.random()
        return moment(access.certificate, share).timestamp()

    def _fail(self, name: str, why: str) -> None:
        ends = moment(self._accesses[name].certificate, 1)
        left_s = ends.timestamp() - _now_s()
        verb = "ends" if left_s > 0 else "ended"
        self.trouble = f"the certificate of {name} {verb} at {ends:{MOMENT}}: {why}"
        pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, left_s / TRIES if left_s > 0 else LOOK_S))
        if not self._is_of_signer(self._accesses[name]):
            pause_s = min(pause_s, HURRY_S)
        self.due_s[name] = _now_s() + pause_s * (0.5 + self._rng.random() / 2)


def _now_s() -> float:
    return datetime.now(UTC).timestamp()
