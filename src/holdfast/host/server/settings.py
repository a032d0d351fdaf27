"""The settings of one server process."""

from __future__ import annotations

import ipaddress
import re
import socket
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast.host.pki.certificates import LEAF_LIFE
from holdfast.host.server import fence_options, observation_options
from holdfast.host.server.client_timeouts import ClientTimeouts
from holdfast.host.server.work_options import WorkRules
from holdfast.model.access.credential_life import TOKEN_LIFE_MAX_MS
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import ZONE_SILENCE_MAX_MS
from holdfast.model.observation_age import OBSERVATION_AGE_MAX_MS
from holdfast.model.plane import Plane
from holdfast.model.validation.names import NAME_MAX

MEMORY = "memory:"
ETCD = "etcd://"
SQLITE = "sqlite:"
# etcd's default quota (--quota-backend-bytes).
ETCD_QUOTA_BYTES = 2 << 30
# The same as in `store.etcd.config`, which needs etcd's client to be installed.
ETCD_PREFIX = "/holdfast/"
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
# What happens when the audit cannot be written for long.
REFUSE, FORGET = "refuse", "forget"
WHEN_BEHIND = (REFUSE, FORGET)
# Whether refused changes are logged.
QUIET, LOG = "quiet", "log"
REFUSALS = (QUIET, LOG)
# A journal has files of 64 MiB, of which the last is never removed.
AUDIT_LIFE_MIN, AUDIT_LIFE_MAX = timedelta(days=1), timedelta(days=3_650)
AUDIT_BYTES_MIN = 128 << 20
# A shorter certificate would expire on its way to the client; none outlives the authority.
LIFE_MIN, LIFE_MAX = timedelta(seconds=3), timedelta(days=3_650)
TOKEN_LIFE_MAX = timedelta(milliseconds=TOKEN_LIFE_MAX_MS)
# A server can sign and renew its own certificates while it runs, so they are short-lived and a
# stolen one is soon worthless.
SERVER_LIFE = timedelta(days=7)
# Servers know each other by names below this domain, which are never resolved: a server proves by
# such a name in its certificate that it is the intended one, whatever its address.
PEER_DOMAIN = "server.holdfast.internal"


def peer_host(server: str) -> str:
    """Return the name in a server's certificate by which other servers know it."""
    return f"{server}.{PEER_DOMAIN}"


def host_of(address: str) -> str:
    """Return the host of an address such as https://10.0.0.1:6443; empty if it is not one."""
    try:
        parts = urlsplit(address)
        good = parts.scheme == "https" and parts.port != 0 and parts.username is None
    except ValueError:
        return ""
    return parts.hostname or "" if good and parts.path in ("", "/") and not parts.query else ""


class EtcdAccess(msgspec.Struct, frozen=True):
    """How to authenticate to etcd; its endpoints are elsewhere."""

    prefix: str = ETCD_PREFIX
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    user: str | None = None
    password_file: str | None = None
    quota_bytes: int = ETCD_QUOTA_BYTES


class Encryption(msgspec.Struct, frozen=True):
    """How Secrets are encrypted at rest.

    key_file: the keys; by default the embedded store has some in the directory of the certificate
        authority, made at the first start.
    kms: a command that wraps data keys, instead of a file.
    off: write plain records from now on, and rewrite the existing ones.
    """

    key_file: Path | None = None
    kms: str = ""
    off: bool = False


class AuditRetention(msgspec.Struct, frozen=True):
    """How long a server keeps its part of the audit, and where it exports it.

    life, bytes: whichever limit is reached first.
    export: a directory, a syslog server or an https address; records are removed only after they
        were exported.
    token_file: the bearer token for an https address.
    """

    life: timedelta = timedelta(days=90)
    bytes: int = 1 << 30
    export: str = ""
    token_file: Path | None = None

    def check(self) -> None:
        """Raises Invalid."""
        if not AUDIT_LIFE_MIN <= self.life <= AUDIT_LIFE_MAX:
            rule = f"must be from {AUDIT_LIFE_MIN.days}d to {AUDIT_LIFE_MAX.days}d"
            given = FieldError("--audit-keep", str(self.life), rule)
            raise Invalid(str(given), (given,))
        if self.bytes < AUDIT_BYTES_MIN:
            rule = f"must be at least {AUDIT_BYTES_MIN >> 20}"
            given = FieldError("--audit-keep-mib", str(self.bytes >> 20), rule)
            raise Invalid(str(given), (given,))


class ListenAddress(msgspec.Struct, frozen=True):
    """An address to listen on; port 0 takes any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Parse `HOST:PORT`, with an IPv6 address in brackets."""
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            raise Invalid(f"{text!r} is not an address: use HOST:PORT, such as 127.0.0.1:6443")
        return cls(host, int(port))

    @property
    def is_everywhere(self) -> bool:
        """Return whether it is all addresses of this computer, and so none for a client."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def url(self, port: int) -> str:
        """Return the URL for clients on this computer."""
        return self._url("127.0.0.1" if self.is_everywhere else self.host, port)

    def url_for_others(self, port: int) -> str:
        """Return the URL for other computers, as far as it is known."""
        return self._url(socket.gethostname() if self.is_everywhere else self.host, port)

    @staticmethod
    def _url(host: str, port: int) -> str:
        return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One server.

    data: the directory of everything that it stores.
    store: `sqlite:PATH`, `memory:`, or `etcd://HOST:PORT,HOST:PORT`; empty means DATA/store.db.
    name: its name among its peers, unique in the plane.
    plane: the plane that it serves; the same on all servers of the plane.
    pki: the directory of the authority and the certificates; empty means DATA/pki.
    advertise: the address for other processes, if it differs from the one it listens on.
    names: additional names in its certificate.
    fence: when work on a silent node counts as stopped; the same on all servers of a plane.
    observation_age_max_ms: the greatest age of an observation on which components may act; the
        same on all servers of a plane.
    zone_silence_max_ms: for how long a zone of which most nodes are silent is held back; the same
        on all servers of a plane.
    patience: how long clients may take to send and to read.
    certificate_life: of the certificates that it issues to nodes.
    token_life_max: the longest life of a bearer token after its creation.
    audit_behind: what to do when the audit cannot be written for long: `refuse` changes, or
        `forget` what was not written.
    refusals: whether forbidden changes (403) are logged: `quiet` or `log`.
    encryption: how Secrets are encrypted at rest.
    oidc: the file that names the OpenID Connect issuers whose tokens are accepted.
    audit: how long the audit is kept, and where it is exported.
    work: the resources of work that does not state them; the same on all servers of a plane.
    """

    data: Path
    listen: ListenAddress = ListenAddress("127.0.0.1", 6443)
    store: str = ""
    name: str = ""
    plane: Plane = Plane()
    pki: Path | None = None
    advertise: str = ""
    names: tuple[str, ...] = ()
    etcd: EtcdAccess = EtcdAccess()
    fence: FenceTiming = FenceTiming()
    observation_age_max_ms: int = OBSERVATION_AGE_MAX_MS
    zone_silence_max_ms: int = ZONE_SILENCE_MAX_MS
    patience: ClientTimeouts = ClientTimeouts()
    certificate_life: timedelta = LEAF_LIFE
    token_life_max: timedelta = TOKEN_LIFE_MAX
    audit_behind: str = REFUSE
    refusals: str = QUIET
    encryption: Encryption = Encryption()
    oidc: Path | None = None
    audit: AuditRetention = AuditRetention()
    work: WorkRules = WorkRules()

    @property
    def server_certificate_life(self) -> timedelta:
        """Return the life of its own certificates, which need no distribution."""
        return min(self.certificate_life, SERVER_LIFE)

    @property
    def certificate_life_max(self) -> timedelta:
        """Return the longest life of any certificate; those of components live for a year."""
        return max(self.certificate_life, LEAF_LIFE)

    def check(self) -> None:
        """Check all settings. Raises Invalid."""
        if not _NAME.fullmatch(self.server_name) or len(self.server_name) > NAME_MAX:
            raise Invalid(
                f"{self.server_name!r} is not a name for a server: use at most {NAME_MAX} "
                "lower-case letters, digits and -"
            )
        if self.store and not self.store.startswith((SQLITE, MEMORY, ETCD)):
            raise Invalid(
                f"--store {self.store!r}: must be sqlite:PATH, memory: or etcd://HOST:PORT,…"
            )
        fence_options.check(self.fence)
        observation_options.check(self.observation_age_max_ms)
        fence_options.check_zone_silence(self.zone_silence_max_ms)
        if not LIFE_MIN <= self.certificate_life <= LIFE_MAX:
            rule = f"must be from {LIFE_MIN.seconds}s to {LIFE_MAX.days}d"
            given = FieldError("--certificate-life", str(self.certificate_life), rule)
            raise Invalid(str(given), (given,))
        if not LIFE_MIN <= self.token_life_max <= TOKEN_LIFE_MAX:
            rule = f"must be from {LIFE_MIN.seconds}s to {TOKEN_LIFE_MAX.days}d"
            given = FieldError("--token-life-max", str(self.token_life_max), rule)
            raise Invalid(str(given), (given,))
        if self.audit_behind not in WHEN_BEHIND:
            given = FieldError("--audit-behind", self.audit_behind[:40], "must be refuse or forget")
            raise Invalid(str(given), (given,))
        if self.refusals not in REFUSALS:
            given = FieldError("--refusals", self.refusals[:40], "must be quiet or log")
            raise Invalid(str(given), (given,))
        self.audit.check()
        if self.encryption.kms and self.encryption.key_file is not None:
            raise Invalid("--encryption-kms: cannot be used together with --encryption-key-file")
        if self.advertise and not host_of(self.advertise):
            raise Invalid(
                f"--advertise {self.advertise!r} is not an address: use https://HOST:PORT"
            )

    @property
    def pki_directory(self) -> Path:
        return self.pki if self.pki is not None else self.data / "pki"

    @property
    def server_name(self) -> str:
        """Return the given name, or this computer's."""
        return self.name or socket.gethostname().lower().partition(".")[0] or "server"

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """Return every name by which a client may address this server."""
        hostname = socket.gethostname().lower()
        advertised = host_of(self.advertise)
        names = ["localhost", "127.0.0.1", "::1", hostname, advertised, *self.names]
        names.append(peer_host(self.server_name))
        if not self.listen.is_everywhere:
            names.append(self.listen.host)
        return tuple(dict.fromkeys(name for name in names if name))
