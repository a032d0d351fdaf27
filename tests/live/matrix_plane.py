"""One live server with one of everything in it, and a line to it for every identity of the matrix.

`tools/matrix_rows.py` lists identities and what they may do, `matrix_wishes.py` what is asked in
each cell: something that succeeds for those who may, and changes nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.host.client.paths import OPERATION_HEADER, TERM_HEADER
from holdfast.host.pki.certificates import CertificateAuthority, IssuedCertificate, Purpose
from holdfast.host.server.authentication import secret_hash
from holdfast.model.access.identity import ADMINS, AUDITORS, MONITORS, OPERATORS
from tests.canaries import canary, plant
from tests.inner_plane import GROUP, target
from tests.lines import Answer, Line, Wish
from tests.live.plane_process import PlaneProcess
from tests.oidc_issuer import HttpsIssuer, Signer
from tests.patience import PATIENCE_S
from tools.matrix_rows import CONTROLLERS

TEAM = f"{GROUP}/namespaces/team-a"
SYSTEM = "holdfast-system"
TEMPLATE: dict[str, Any] = {
    "command": ["sleep", "60"],
    "serviceToken": {"file": "token"},
    "env": [{"name": "P", "secret": {"name": "probe", "key": "k"}}],
}
FUTURE = "2099-01-01T00:00:00Z"
# A replica that is on no node: it may be bound, and no agent has to be asked for its log.
WAITING = "web-2-0"
# The node that the replica is on, which cannot be deleted therefore, and one that can be.
BUSY, IDLE = "n1", "n2"
# Names and groups of those who have a certificate of their own.
CERTIFIED: dict[str, tuple[str, tuple[str, ...]]] = {
    "admin": ("ann", (ADMINS,)),
    "operator": ("otto", (OPERATORS,)),
    "auditor": ("aude", (AUDITORS,)),
    "monitor": ("moni", (MONITORS,)),
    "owner-a": ("oda", ()),
    "editor-a": ("eda", ("tenant:team-a",)),
    "viewer-a": ("vera", ()),
    "editor-b": ("edb", ("tenant:team-b",)),
    "group-a": ("gina", ("tenant:team-a:editors",)),
    "stranger": ("stan", ()),
    "node-1": ("system:node:n1", ()),
    "node-2": ("system:node:n2", ()),
    "scheduler": ("system:scheduler:one", ()),
    "server": ("system:server:two", ()),
    "no-component": ("system:controller:none", ()),
    "revoked-certificate": ("rita", (ADMINS,)),
    **{f"controller-{it}": (f"system:controller:{it}", ()) for it in CONTROLLERS},
}


def soon() -> str:
    """A time that is not over before the test is, and not too far ahead for a deadline."""
    return (datetime.now(UTC) + timedelta(minutes=20)).strftime("%Y-%m-%dT%H:%M:%SZ")


class MatrixPlane:
    """Use `start`, then `ask`. `objects` has what was made, by plural and name."""

    def __init__(self, folder: Path) -> None:
        self._signer = Signer("one")
        self._issuer = HttpsIssuer(folder / "issuer", self._signer)
        self._issuers = folder / "issuers.yaml"
        self._server = PlaneProcess(folder / "plane", "--oidc", str(self._issuers))
        self._folder = folder
        self.lines: dict[str, Line] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        # The leases of components, as their writes name them.
        self._terms: dict[str, str] = {}
        self._operations = 0

    async def start(self) -> None:
        await self._issuer.__aenter__()
        config = {
            "issuer": self._issuer.url,
            "audiences": ["holdfast"],
            "userPrefix": "corp:",
            "groupsPrefix": "corp:",
            "groupsClaim": "groups",
            "tenants": {"team": ["team-a"]},
            "caFile": str(self._issuer.ca_file),
        }
        self._issuers.write_bytes(msgspec.json.encode({"issuers": [config]}))
        await self._server.start()
        ours = CertificateAuthority.open(self._server.data / "pki")
        for identity, (name, groups) in CERTIFIED.items():
            self._connect(identity, ours, ours.issue(name, groups=groups))
        self._connect("anonymous", ours, None)
        self._connect("no-token", ours, None, f"{SYSTEM}.none.{secrets.token_urlsafe(32)}")
        past = datetime.now(UTC) - timedelta(days=2)
        late = ours.issue("ann", groups=(ADMINS,), life=timedelta(days=1), now=past)
        self._connect("expired-certificate", ours, late)
        theirs = CertificateAuthority.open(self._folder / "theirs")
        self._connect("other-authority", ours, theirs.issue("ann", groups=(ADMINS,)))
        server = ours.issue("ann", Purpose(server_names=("localhost",)), (ADMINS,))
        self._connect("wrong-usage", ours, server)
        await self._furnish()
        await self._tokens(ours)
        await self._signed(ours)
        await self._look_again()

    def _connect(
        self,
        identity: str,
        ours: CertificateAuthority,
        issued: IssuedCertificate | None,
        token: str = "",
    ) -> None:
        self.lines[identity] = Line(self._server.url, ours.pem, issued, token)

    async def stop(self) -> None:
        for line in self.lines.values():
            line.hang_up()
        await self._server.stop()
        await self._issuer.__aexit__(None, None, None)

    async def ask(self, identity: str, wish: Wish) -> Answer:
        """As this identity; a component names the lease that it holds and an operation."""
        if identity in self._terms and wish.method != "GET":
            self._operations += 1
            named = {TERM_HEADER: self._terms[identity]}
            named[OPERATION_HEADER] = f"{identity}/{self._operations}"
            wish = msgspec.structs.replace(wish, headers={**wish.headers, **named})
        return await self.lines[identity].send_patiently(wish)

    async def _lease(self, identity: str) -> Any:
        scope = CERTIFIED[identity][0].removeprefix("system:")
        asked = {"scope": scope, "duration_ms": 600_000}
        lease = await self._request(identity, type="AcquireLease", **asked)
        self._terms[identity] = f"{lease['spec']['epoch']} {scope}"
        return lease

    # What there is -------------------------------------------------------------------------------

    async def made(self, identity: str, path: str, body: Any) -> Any:
        """Something that must be accepted."""
        answer = await self.ask(identity, Wish("POST", path, body))
        assert answer.code in (200, 201), (identity, path, answer.body)
        return answer.body

    async def _object(self, identity: str, path: str, **body: Any) -> Any:
        """One object of the plural that the path ends in; it is kept to be looked up."""
        body.setdefault("metadata", {}).setdefault("name", "probe")
        found = await self.made(identity, path, body)
        self.objects[path.rpartition("/")[2]] = found
        return found

    async def _request(self, identity: str, **body: Any) -> Any:
        found = await self.made(identity, f"{GROUP}/requests", body)
        return found["objects"][0]

    async def _furnish(self) -> None:
        admin = "admin"
        for controller in CONTROLLERS:
            await self._lease(f"controller-{controller}")
        for team in ("team-b", "team-a"):
            await self._object(admin, f"{GROUP}/tenants", metadata={"name": team})
        await self._object(admin, f"{TEAM}/quotas", metadata={"name": "default"})
        await self._object(admin, f"{GROUP}/priorityclasses", spec={"value": 1})
        await self._object(admin, f"{GROUP}/regions")
        await self._object(admin, f"{GROUP}/schedulerpolicies")
        await self._object(admin, f"{GROUP}/admissionpolicies")
        grant = {"tenant": "team-a", "region": "probe", "expires": FUTURE}
        await self._object(admin, f"{GROUP}/grants", spec=grant)
        scope = {"tenants": ["team-a"], "workloads": ["web"]}
        pause = {"type": "Pause", "scope": scope, "reason": "a test", "expires": soon()}
        await self._object("editor-a", f"{TEAM}/overrides", spec=pause)
        promise = {"promise": {"workload": "web", "serving": 1}}
        await self._object("editor-a", f"{TEAM}/commitments", spec=promise)
        await self._object("editor-a", f"{TEAM}/secrets", stringData={"k": canary("matrix")})
        about = {"kind": "Workload", "namespace": "team-a", "name": "web"}
        told = {"involvedObject": about, "reason": "Told"}
        await self._object("controller-events", f"{TEAM}/events", **told)
        rules = [{"resources": ["events"], "verbs": ["get"]}]
        await self._object(admin, f"{TEAM}/roles", rules=rules)
        await self._bindings()
        await self._work()

    async def _bindings(self) -> None:
        for identity, role in (("owner-a", "tenant-admin"), ("viewer-a", "tenant-viewer")):
            await self._object(
                "admin",
                f"{TEAM}/rolebindings",
                metadata={"name": identity},
                subjects=[{"kind": "User", "name": CERTIFIED[identity][0]}],
                roleRef={"name": role, "namespace": SYSTEM},
            )

    async def _work(self) -> None:
        """A workload of which one replica runs on n1, with all that goes with it."""
        for node in ("n2", "n1"):
            spec = {"region": "probe", "capacity": {"cpu": "8", "memory": "8Gi"}}
            agent = f"node-{node[1]}"
            given = {"kind": "Node", "apiVersion": "holdfast.dev/v1", "metadata": {"name": node}}
            found = await self._request(agent, type="RegisterNode", node={**given, "spec": spec})
            self.objects["nodes"] = found
        web = await self._object(
            "editor-a",
            f"{TEAM}/workloads",
            metadata={"name": "web"},
            spec={"template": TEMPLATE, "replicas": 5},
        )
        self.objects["leases"] = await self._lease("scheduler")
        spec = {"workload": "web", "workloadUid": web["metadata"]["uid"], "template": TEMPLATE}
        replica, self.objects["waiting"], held = [
            await self._object(
                "controller-workload",
                f"{TEAM}/replicas",
                metadata={"name": f"web-{ordinal}-0"},
                spec={**spec, "ordinal": ordinal},
            )
            for ordinal in (0, 2, 3)
        ]
        term = {"scope": "scheduler:one", "epoch": 1}
        place = {
            "node": "n1",
            "node_uid": self.objects["nodes"]["metadata"]["uid"],
            "term": term,
        }
        bound = await self._request("scheduler", type="Bind", target=target(replica), **place)
        self.objects["reserved"] = await self._request(
            "scheduler", type="Reserve", target=target(held), deadline=soon(), **place
        )
        self.objects["replicas"] = await self._request(
            "node-1", type="Move", target=target(bound), to="Running", incarnation=1
        )
        owner = {"kind": "Workload", "name": "web", "uid": web["metadata"]["uid"]}
        self.objects["reservations"] = await self._request(
            "scheduler",
            type="HoldCapacity",
            namespace="team-a",
            owner=owner,
            intent="recovery",
            claims=[],
            deadline=soon(),
            term=term,
            operation="held",
        )
        revision = {"workload": "web", "number": 1, "digest": "abc", "template": TEMPLATE}
        await self._object("controller-rollout", f"{TEAM}/workloadrevisions", spec=revision)
        await self._object("controller-endpoints", f"{TEAM}/endpoints")

    async def _look_again(self) -> None:
        """All objects as they are now: writes of components rest on the version that they saw."""
        for key, obj in self.objects.items():
            metadata = obj["metadata"]
            plural = "replicas" if key in ("waiting", "reserved") else key
            space = metadata.get("namespace", "")
            place = f"{GROUP}/namespaces/{space}/{plural}" if space else f"{GROUP}/{plural}"
            answer = await self.ask("admin", Wish("GET", f"{place}/{metadata['name']}"))
            assert answer.code == 200, (key, answer.body)
            self.objects[key] = answer.body

    async def _signed(self, ours: CertificateAuthority) -> None:
        """Those who show a signed token: of an issuer, and of the work itself."""
        now_s = time.time()
        claims = {"iss": self._issuer.url, "aud": "holdfast", "sub": "olga", "groups": ["team"]}
        person = self._signer.token({**claims, "iat": now_s, "exp": now_s + 3_600})
        self._connect("oidc-a", ours, None, person)
        replica = self.objects["replicas"]["metadata"]
        wanted = {"uid": replica["uid"], "attempt": 0}
        given = await self.made("node-1", f"{TEAM}/replicas/{replica['name']}/token", wanted)
        self._connect("work-a", ours, None, given["token"])
        deadline = time.monotonic() + PATIENCE_S
        look = Wish("GET", f"{TEAM}/workloads")
        # The keys of an issuer are fetched in the background.
        while (answer := await self.ask("oidc-a", look)).code != 200:
            assert time.monotonic() < deadline, answer.body
            await asyncio.sleep(0.1)

    # Those who are let in no more ----------------------------------------------------------------

    async def _tokens(self, ours: CertificateAuthority) -> None:
        ends = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
        for identity, more in (
            ("expired-token", {"expires": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}),
            ("revoked-token", {}),
        ):
            secret = plant(secrets.token_urlsafe(32))
            token = {"user": "ann", "groups": [ADMINS], "hash": secret_hash(secret), **more}
            path = f"{GROUP}/namespaces/{SYSTEM}/tokens"
            await self._object("admin", path, metadata={"name": identity}, spec=token)
            self._connect(identity, ours, None, f"{SYSTEM}.{identity}.{secret}")
            answer = await self.ask(identity, Wish("GET", f"{GROUP}/nodes"))
            assert answer.code == 200, (identity, answer.body)
        gone = Wish("DELETE", f"{GROUP}/namespaces/{SYSTEM}/tokens/revoked-token")
        assert (await self.ask("admin", gone)).code == 200
        theirs = {"hash": secret_hash(secrets.token_urlsafe(32)), "user": "tenant:team-a:tom"}
        await self._object("admin", f"{TEAM}/tokens", spec=theirs)
        assert (await self.ask("revoked-certificate", Wish("GET", f"{GROUP}/nodes"))).code == 200
        revoked = {"user": CERTIFIED["revoked-certificate"][0]}
        name = {"name": f"user.{revoked['user']}"}
        await self._object("admin", f"{GROUP}/revocations", metadata=name, spec=revoked)
        await asyncio.sleep((ends - datetime.now(UTC)).total_seconds() + 0.1)
