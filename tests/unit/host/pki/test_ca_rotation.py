"""The steps of a rotation: what each does, what prevents it, and what a crash leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.host.api.objects.presentation import Forms
from holdfast.host.audit.accesses import AccessRecorder
from holdfast.host.client.known_servers import KnownServer
from holdfast.host.client.paths import TRUST_HEADER
from holdfast.host.pki import ca_rotation, trust_upkeep
from holdfast.host.pki.ca_keys import KEY, KEYS, CertificateAuthorities, key_file
from holdfast.host.pki.ca_rotation import CaRotation, RotationRequest, RotationStatus, RotationStep
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.first_trust import Trust, establish
from holdfast.host.pki.rotation_readiness import (
    LIVE_S,
    RECENT_S,
    SETTLE_S,
    RotationFacts,
    TrustReport,
    against_finish,
    against_switch,
    unknown_clients,
)
from holdfast.host.pki.trust_bundle import (
    SHORT,
    RotationPhase,
    TrustBundle,
    begin_rotation,
    decode_bundle,
    first_bundle,
    switch_signer,
)
from holdfast.host.pki.trust_seen import OBSERVE_S, ClientSort, SeenClient, SeenClients
from holdfast.host.pki.trust_upkeep import TrustUpkeep, stored_bundle
from holdfast.host.process.files import write_private
from holdfast.host.server.authenticator import Authenticator
from holdfast.host.server.settings import ServerSettings
from holdfast.model.access.identity import Identity
from holdfast.model.errors import Conflict, Invalid, Unavailable
from holdfast.model.kinds.access import Token, TokenPurpose, TokenSpec, TokenStatus
from holdfast.model.kinds.node import Node, NodePhase, NodeStatus
from holdfast.model.meta import ObjectMeta
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.memory import MemoryStore
from tests.patience import PATIENCE_S

NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Plane:
    """Servers over one store, each with its own directory, that can ask each other."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder, self.store = folder, MemoryStore()
        self.servers: dict[str, Server] = {}
        self.away: set[str] = set()
        for name in names:
            self.add(name)

    def add(self, name: str) -> Server:
        pki = self.folder / name / "pki"
        if self.servers and not pki.exists():
            pki.mkdir(parents=True, mode=0o700)
            pki.parent.chmod(0o700)
            self.copy("ca.crt", pki)
            self.copy(KEY, pki)
        self.servers[name] = Server(self, name)
        return self.servers[name]

    def copy(self, file: str, to: Path) -> None:
        one = next(iter(self.servers.values()))
        write_private(to / file, (one.pki / file).read_bytes())

    async def read(self, to: str, path: str, timeout_s: float) -> bytes:
        """Answer what `OtherServers` asks another server."""
        if to in self.away:
            raise Unavailable(f"server {to}: no answer in time")
        return msgspec.json.encode(self.servers[to].rotation.report())


class Server:
    """The trust of one server, without a socket. Its clock is set by the test."""

    def __init__(self, plane: Plane, name: str) -> None:
        self.settings = ServerSettings(data=plane.folder / name, name=name)
        self.pki = self.settings.pki_directory
        self.now_s = 0.0
        trust = establish(self.settings)
        self.authorities = trust.authorities
        self.upkeep = TrustUpkeep(self.settings, trust, plane.store, self._apply)
        self.seen = SeenClients(self.authorities, lambda: self.now_s)
        peers: Any = plane
        self.rotation = CaRotation(
            name,
            self.pki,
            plane.store,
            WatchHub(Forms()),
            self.upkeep,
            self.seen,
            peers,
            lambda: [KnownServer(it, f"https://{it}") for it in plane.servers],
            lambda: datetime.now(UTC) + timedelta(seconds=self.now_s),
        )

    async def _apply(self, fresh: Trust) -> None:
        self.authorities.take(fresh.authorities)

    async def make(self, step: RotationStep, *, force: bool = False) -> RotationStatus:
        return await self.rotation.make(RotationRequest(step, force))

    def observe(self) -> None:
        """Let all components and people send a request after the last step."""
        assert self.seen.observed_s >= 0
        self.now_s += OBSERVE_S + 2 * SETTLE_S


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE_S))


def test_a_server_alone_rotates_its_authority_and_forgets_the_old_key(tmp_path: Path) -> None:
    async def story() -> None:
        one = Plane(tmp_path, "one").servers["one"]
        old = one.authorities.signer.pem
        found = await one.make(RotationStep.BEGIN)
        assert (found.generation, found.phase) == (1, RotationPhase.BEGUN)
        assert one.authorities.signer.pem == old
        # It has not observed for long enough to know who is there.
        with pytest.raises(Conflict, match="observes clients for 15 s more"):
            await one.make(RotationStep.SWITCH)
        one.observe()
        assert (await one.make(RotationStep.SWITCH)).phase is RotationPhase.SWITCHED
        assert one.authorities.signer.pem != old == one.authorities.server_signer.pem
        one.observe()
        found = await one.make(RotationStep.FINISH)
        assert (found.phase, len(found.authorities)) == (RotationPhase.STABLE, 1)
        assert old not in one.authorities.pem
        assert [it.name for it in one.pki.glob(KEYS)] == [KEY]
        assert CertificateAuthority.open(one.pki).pem == one.authorities.pem

    play(story())


def test_before_the_switch_everything_can_be_undone_and_after_it_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        one = Plane(tmp_path, "one").servers["one"]
        old = one.authorities.pem
        await one.make(RotationStep.BEGIN)
        found = await one.make(RotationStep.ABORT)
        assert (found.phase, one.authorities.pem) == (RotationPhase.STABLE, old)
        with pytest.raises(Conflict, match="'no rotation' and cannot be aborted"):
            await one.make(RotationStep.ABORT)
        await one.make(RotationStep.BEGIN)
        one.observe()
        await one.make(RotationStep.SWITCH)
        with pytest.raises(Conflict, match="certificates of the new authority are in use"):
            await one.make(RotationStep.ABORT)

    play(story())


@pytest.mark.parametrize("step", [RotationStep.SWITCH, RotationStep.FINISH])
def test_a_step_out_of_its_turn_is_refused_also_by_force(
    tmp_path: Path, step: RotationStep
) -> None:
    async def story() -> None:
        one = Plane(tmp_path, "one").servers["one"]
        with pytest.raises(Conflict, match="is in the phase 'no rotation'"):
            await one.make(step)
        await one.make(RotationStep.BEGIN)
        if step is RotationStep.FINISH:
            with pytest.raises(Conflict, match="is in the phase 'begun'"):
                await one.make(step, force=True)
        else:
            with pytest.raises(Invalid, match="force: only applies to finish"):
                await one.make(step, force=True)
        with pytest.raises(Conflict, match="a rotation is in progress already"):
            await one.make(RotationStep.BEGIN)
        assert one.authorities.bundle.phase is RotationPhase.BEGUN

    play(story())


def test_every_server_needs_the_key_of_the_new_authority_before_it_signs(tmp_path: Path) -> None:
    """The message names the missing file and the server; it is used without a restart."""

    async def story() -> None:
        plane = Plane(tmp_path, "one", "two")
        one, two = plane.servers.values()
        plane.away.add("two")
        with pytest.raises(Conflict, match="server two cannot be asked"):
            await one.make(RotationStep.BEGIN)
        plane.away.clear()
        await one.make(RotationStep.BEGIN)
        file = key_file(one.authorities.bundle.fingerprints[-1])
        one.observe()
        with pytest.raises(Conflict, match="server two uses generation 0 of the trust bundle"):
            await one.make(RotationStep.SWITCH)
        await two.upkeep.look()
        two.observe()
        with pytest.raises(Conflict, match=f"server two has no key .* copy {file}"):
            await one.make(RotationStep.SWITCH)
        with pytest.raises(Conflict, match=f"server two has no key .* copy {file}"):
            await two.make(RotationStep.SWITCH)
        plane.copy(file, two.pki)
        await two.upkeep.look()
        assert (await two.make(RotationStep.SWITCH)).phase is RotationPhase.SWITCHED
        await one.upkeep.look()
        assert one.authorities.signer.pem == two.authorities.signer.pem

    play(story())


def test_two_who_begin_at_once_make_one_authority(tmp_path: Path) -> None:
    """The later one is refused, and leaves no key."""

    async def story() -> None:
        plane = Plane(tmp_path, "one", "two")
        servers = plane.servers.values()
        told = await asyncio.gather(
            *(it.make(RotationStep.BEGIN) for it in servers), return_exceptions=True
        )
        assert {type(it) for it in told} == {RotationStatus, Conflict}, told
        for it in servers:
            await it.upkeep.look()
        bundles = {it.authorities.bundle for it in servers}
        (bundle,) = bundles
        assert bundle.generation == 1
        new = key_file(bundle.fingerprints[-1])
        kept = sorted(path.name for it in servers for path in it.pki.glob(KEYS))
        assert kept == sorted([KEY, KEY, new])

    play(story())


def test_a_finish_that_waits_for_a_server_goes_on_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that trusts only the new authority must not meet a server with the old one."""
    monkeypatch.setattr(ca_rotation, "FOLLOW_S", 0.0)

    async def story() -> None:
        plane = Plane(tmp_path, "one", "two")
        one, two = plane.servers.values()
        await one.make(RotationStep.BEGIN)
        plane.copy(key_file(one.authorities.bundle.fingerprints[-1]), two.pki)
        await two.upkeep.look()
        for it in (one, two):
            it.observe()
        await one.make(RotationStep.SWITCH)
        await two.upkeep.look()
        one.observe()
        with pytest.raises(Unavailable, match=r"generation 3: two\. .*No client is cut off yet"):
            await one.make(RotationStep.FINISH)
        assert one.authorities.bundle.phase is RotationPhase.FINISHING
        assert len(one.authorities.bundle.authorities) == 2
        # The process that did it may be gone; any server goes on.
        await two.upkeep.look()
        one = plane.servers["one"] = Server(plane, "one")
        await one.upkeep.look()
        one.observe()
        one.observe()
        found = await two.make(RotationStep.FINISH, force=True)
        assert found.phase is RotationPhase.STABLE
        # It is done, and says who still trusts the old authority for a moment.
        assert "do not follow generation 4: one" in found.cut_off[-1]
        await one.upkeep.look()
        assert one.authorities.pem == two.authorities.pem
        assert len(one.authorities.bundle.authorities) == 1

    play(story())


def test_a_finish_never_ends_a_rotation_that_began_while_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would leave the plane with an authority that no client trusts yet."""
    monkeypatch.setattr(ca_rotation, "FOLLOW_S", 0.0)

    async def story() -> None:
        plane = Plane(tmp_path, "one", "two")
        one, two = plane.servers.values()
        await one.make(RotationStep.BEGIN)
        plane.copy(key_file(one.authorities.bundle.fingerprints[-1]), two.pki)
        await two.upkeep.look()
        for it in (one, two):
            it.observe()
        await one.make(RotationStep.SWITCH)
        await two.upkeep.look()
        for it in (one, two):
            it.observe()
        report, is_done = plane.read, False

        async def slow(to: str, path: str, timeout_s: float) -> bytes:
            """While the first server waits, the second one finishes and begins again."""
            nonlocal is_done
            if not is_done and one.authorities.bundle.phase is RotationPhase.FINISHING:
                is_done = True
                await two.make(RotationStep.FINISH, force=True)
                await two.make(RotationStep.BEGIN)
                # As where servers share a directory.
                key = key_file(two.authorities.bundle.fingerprints[-1])
                write_private(one.pki / key, (two.pki / key).read_bytes())
                await one.upkeep.look()
            return await report(to, path, timeout_s)

        monkeypatch.setattr(plane, "read", slow)
        with pytest.raises(Conflict, match="another step was made meanwhile"):
            await one.make(RotationStep.FINISH)
        bundle = decode_bundle((await stored_bundle(plane.store))[0])
        assert (is_done, bundle.generation, bundle.phase) == (True, 5, RotationPhase.BEGUN)

    play(story())


class Crash(Exception):
    """The process ends here."""


@pytest.mark.parametrize("at", ["publish_bundle", "_kept"])
def test_a_crash_in_any_step_leaves_it_done_or_not_done_and_it_can_be_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Before the store has it, and before the server follows the store."""
    where = ca_rotation if at == "publish_bundle" else trust_upkeep

    def crash(*given: object) -> None:
        raise Crash

    async def stepped(plane: Plane, step: RotationStep, phase: RotationPhase) -> None:
        server = plane.servers["one"]
        with monkeypatch.context() as broken:
            broken.setattr(where, at, crash)
            with pytest.raises(Crash):
                await server.make(step)
        # The next life finds keys that fit what is trusted, whatever else lies there.
        server = plane.servers["one"] = Server(plane, "one")
        await server.upkeep.look()
        assert server.authorities.signer.pem in server.authorities.pem
        server.observe()
        if server.authorities.bundle.phase is not phase:
            await server.make(step)
        assert server.authorities.bundle.phase is phase
        assert server.authorities.server_signer.pem in server.authorities.pem

    async def story() -> None:
        plane = Plane(tmp_path, "one")
        old = plane.servers["one"].authorities.pem
        for step, phase in (
            (RotationStep.BEGIN, RotationPhase.BEGUN),
            (RotationStep.ABORT, RotationPhase.STABLE),
            (RotationStep.BEGIN, RotationPhase.BEGUN),
            (RotationStep.SWITCH, RotationPhase.SWITCHED),
            (RotationStep.FINISH, RotationPhase.STABLE),
        ):
            plane.servers["one"].observe()
            await stepped(plane, step, phase)
        assert old not in plane.servers["one"].authorities.pem

    play(story())


def test_a_server_that_was_away_for_a_whole_rotation_reports_what_to_copy(tmp_path: Path) -> None:
    """It trusts no authority that could vouch for the new one."""

    async def story() -> None:
        plane = Plane(tmp_path, "one", "two")
        one, two = plane.servers["one"], plane.servers.pop("two")
        await one.make(RotationStep.BEGIN)
        one.observe()
        await one.make(RotationStep.SWITCH)
        one.observe()
        await one.make(RotationStep.FINISH)
        with pytest.raises(Invalid, match="not signed by a certificate authority trusted here"):
            await two.upkeep.look()
        for file in ("ca.crt", KEY, "ca.bundle"):
            plane.copy(file, two.pki)
        two = plane.add("two")
        await two.upkeep.look()
        assert two.authorities.bundle == one.authorities.bundle
        assert decode_bundle((await stored_bundle(plane.store))[0]) == one.authorities.bundle

    play(story())


# Who stands against a step ---------------------------------------------------------------------


class Parts:
    """A plane with two authorities as its servers have seen it."""

    def __init__(self, folder: Path, phase: RotationPhase) -> None:
        self.old, self.new = (
            CertificateAuthority.open(folder / it).fingerprint for it in ("old", "new")
        )
        bundle = first_bundle(CertificateAuthority.open(folder / "old").pem)
        self.bundle = begin_rotation(
            bundle, CertificateAuthority.open(folder / "new").pem, NOW - HOUR
        )
        if phase is RotationPhase.SWITCHED:
            self.bundle = switch_signer(self.bundle, NOW - HOUR / 2)
        self.both = (self.old[:SHORT], self.new[:SHORT])

    def report(self, *seen: SeenClient, **changes: Any) -> TrustReport:
        usual: dict[str, Any] = {
            "server": "one",
            "generation": self.bundle.generation,
            "held": (self.old, self.new),
            "observed_s": OBSERVE_S,
            "seen": seen,
        }
        return TrustReport(**(usual | changes))

    def seen(
        self,
        name: str,
        sort: ClientSort,
        authority: str = "",
        trusts: tuple[str, ...] | None = None,
        ago_s: float = 1.0,
    ) -> SeenClient:
        return SeenClient(name, sort, authority, trusts, NOW.timestamp() - ago_s)

    def facts(self, *reports: TrustReport, **more: Any) -> RotationFacts:
        return RotationFacts(self.bundle, reports, now=NOW, **more)


def node(name: str, phase: NodePhase = NodePhase.READY) -> Node:
    return Node(ObjectMeta(name=name), status=NodeStatus(phase=phase))


def test_a_switch_waits_until_all_that_run_trust_the_new_authority(tmp_path: Path) -> None:
    """Servers, components and nodes, each by name; what is not running is not waited for."""
    it = Parts(tmp_path, RotationPhase.BEGUN)
    old_only = (it.old[:SHORT],)
    seen = (
        it.seen("system:scheduler:main", ClientSort.COMPONENT, it.old, it.both),
        it.seen("system:scheduler:late", ClientSort.COMPONENT, it.old, old_only),
        it.seen("system:scheduler:gone", ClientSort.COMPONENT, it.old, old_only, LIVE_S + 1),
        it.seen("system:controller:old", ClientSort.COMPONENT, it.old),
        it.seen("system:node:n1", ClientSort.NODE, it.old, it.both),
        it.seen("system:node:n2", ClientSort.NODE, it.old, old_only),
    )
    nodes = (node("n1"), node("n2"), node("n3"), node("n4", NodePhase.UNKNOWN))
    late = it.report(server="two", generation=0)
    blind = it.report(server="three", observed_s=1.0)
    against = against_switch(it.facts(it.report(*seen), late, blind, nodes=nodes))
    assert [text.partition(" ")[2].split()[0] for text in against] == [
        "two",
        "three",
        "system:scheduler:late",
        "system:controller:old",
        "n2",
        "n3",
    ]
    # What another server has seen later counts.
    newer = it.seen("system:node:n2", ClientSort.NODE, it.old, it.both, 0.0)
    both = it.facts(it.report(*seen), it.report(newer, server="two"), nodes=nodes[:2])
    assert [text for text in against_switch(both) if "node n2" in text] == []


def test_nothing_stands_against_a_step_that_cuts_no_client_off(tmp_path: Path) -> None:
    it = Parts(tmp_path, RotationPhase.BEGUN)
    seen = it.seen("system:node:n1", ClientSort.NODE, it.old, it.both)
    assert against_switch(it.facts(it.report(seen), nodes=(node("n1"),))) == []
    it = Parts(tmp_path, RotationPhase.SWITCHED)
    seen = it.seen("system:node:n1", ClientSort.NODE, it.new, it.both)
    assert against_finish(it.facts(it.report(seen), nodes=(node("n1"),))) == []


def token(purpose: TokenPurpose, created: datetime, **status: Any) -> Token:
    meta = ObjectMeta(name="t", namespace="holdfast-system", creation_timestamp=created)
    spec = TokenSpec(purpose=purpose, user="ann", expires=NOW + HOUR)
    return Token(meta, spec=spec, status=TokenStatus(**status))


def test_a_finish_names_all_that_are_known_to_need_the_old_authority(tmp_path: Path) -> None:
    """Also nodes that are away, people, work and join tokens."""
    it = Parts(tmp_path, RotationPhase.SWITCHED)
    old_only = (it.old[:SHORT],)
    seen = (
        it.seen("system:scheduler:main", ClientSort.COMPONENT, it.old, it.both),
        it.seen("system:node:n1", ClientSort.NODE, it.old, it.both),
        it.seen("admin", ClientSort.PERSON, it.old),
        it.seen("admin", ClientSort.PERSON, it.new),
        it.seen("long-ago", ClientSort.PERSON, it.old, ago_s=RECENT_S + 1),
        it.seen("ann", ClientSort.PERSON, "", old_only),
        it.seen("bob", ClientSort.PERSON, "", it.both),
        it.seen("tenant:risk:workload:web (web-0)", ClientSort.WORK, it.old),
        it.seen("tenant:risk:workload:web (web-1)", ClientSort.WORK, it.new),
        it.seen("tenant:risk:workload:web (web-2)", ClientSort.WORK, it.old, ago_s=RECENT_S + 1),
    )
    nodes = (node("n1"), node("n2", NodePhase.UNKNOWN))
    tokens = (
        token(TokenPurpose.JOIN, NOW - 2 * HOUR),
        token(TokenPurpose.JOIN, NOW - 2 * HOUR, used_at=NOW - HOUR, used_by="n1"),
        token(TokenPurpose.JOIN, NOW),
        token(TokenPurpose.BEARER, NOW - 2 * HOUR),
    )
    facts = it.facts(it.report(*seen), nodes=nodes, tokens=tokens)
    against = against_finish(facts)
    begins = (
        "component system:scheduler:main presents a certificate of the old",
        "node n1 presents a certificate of the old",
        "node n2 (Unknown) has no certificate of the new authority",
        "user admin presented a certificate of the old authority at 11:59:59Z",
        "user ann trusted only the old authority",
        "work tenant:risk:workload:web (web-0) presented a service token of the old",
        "join token t for any node names the old authority",
    )
    assert len(against) == len(begins), against
    for text, begin in zip(against, begins, strict=True):
        assert text.startswith(begin)
    # What trusts a file that was handed out before is not known; it is said, and is no bar.
    (told,) = unknown_clients(facts)
    assert told.startswith("token holdfast-system/t of ann predates the rotation")


def test_people_are_held_to_what_they_show_after_the_switch_alone(tmp_path: Path) -> None:
    """Before the switch no other certificate was available, nor at that moment."""
    it = Parts(tmp_path, RotationPhase.SWITCHED)
    made = NOW - timedelta(seconds=60)
    bundle: TrustBundle = msgspec.structs.replace(it.bundle, switched=made)
    for ago_s in (61.0, 60.0, 61.0 - SETTLE_S):
        early = it.seen("admin", ClientSort.PERSON, it.old, ago_s=ago_s)
        assert against_finish(RotationFacts(bundle, (it.report(early),), now=NOW)) == []
    # A finish right after a switch waits until something can be seen.
    soon = RotationFacts(bundle, (it.report(),), now=made + timedelta(seconds=1))
    assert against_finish(soon) == ["certificates of people are observed for 19 s more; wait"]
    late = it.seen("admin", ClientSort.PERSON, it.old, ago_s=59.0 - SETTLE_S)
    assert len(against_finish(RotationFacts(bundle, (it.report(late),), now=NOW))) == 1


def test_what_a_server_has_seen_ends_with_the_rotation(tmp_path: Path) -> None:
    authorities = CertificateAuthorities.open(tmp_path)
    seen = SeenClients(authorities, lambda: 5.0)
    seen.token_shown("tenant:risk:workload:web", "web-0", authorities.bundle.signs)
    assert seen.all() == ()
    new, _ = CertificateAuthority.new()
    both = begin_rotation(authorities.bundle, new.pem)
    authorities.take(CertificateAuthorities(both, authorities.held))
    seen.token_shown("tenant:risk:workload:web", "web-0", authorities.bundle.signs)
    assert [(it.name, it.sort) for it in seen.all()] == [
        ("tenant:risk:workload:web (web-0)", ClientSort.WORK)
    ]
    authorities.take(CertificateAuthorities(first_bundle(new.pem), {new.fingerprint: new}))
    assert seen.all() == ()


class Ann(Authenticator):
    """Accepts one person, whatever the credential."""

    def __call__(self, request: object) -> Identity:
        return Identity(name="ann")


def test_a_person_fills_no_servers_memory_of_what_parts_trust(tmp_path: Path) -> None:
    """A client that names other authorities with each request would evict all nodes."""
    authorities = CertificateAuthorities.open(tmp_path)
    new, _ = CertificateAuthority.new()
    both = begin_rotation(authorities.bundle, new.pem)
    authorities.take(CertificateAuthorities(both, authorities.held))
    seen = SeenClients(authorities, lambda: 5.0)
    seen.authenticator = Ann(WatchHub(Forms()))
    old, newest = (it[:SHORT] for it in both.fingerprints)
    for number in range(100):
        for said in (f"{number:016x}", f"{newest},{number:016x},{old}"):
            headers = {TRUST_HEADER: said}
            request: Any = SimpleNamespace(headers=headers, transport=None)
            seen.observe(request, 200, 0.0)
    assert [it.trusts for it in seen.all()] == [(), (old, newest)]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_server_that_may_have_missed_a_revocation_rotates_nothing(
    tmp_path: Path, method: str
) -> None:
    """A revoked administrator could do it while the server is cut off from the store. [B5]"""

    async def story() -> None:
        plane = Plane(tmp_path, "one")
        accesses = AccessRecorder(plane.store)
        serve = ca_rotation.handlers(
            plane.servers["one"].rotation,
            Ann(WatchHub(Forms())),
            lambda identity, verb, path: True,
            accesses,
            stale,
        )[ca_rotation.PATH]
        request: Any = SimpleNamespace(method=method)
        answer: Any = await serve(request)
        assert answer.status == 503
        assert b"cannot tell whether your credential was revoked" in answer.body
        assert (await stored_bundle(plane.store))[0] == b""

    async def stale() -> bool:
        return False

    play(story())
