"""Opens the store of a server, or says why it cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.commit.authority import DEFAULT_LIMITS, GroupLimits
from holdfast.commit.record_encoding import decode, decode_or_none, encode
from holdfast.host.server.settings import ETCD, MEMORY, SQLITE, EtcdAccess, ServerSettings
from holdfast.model import keys
from holdfast.model.errors import Forbidden, Invalid, RecordUnreadable
from holdfast.model.plane import Plane, record_of, store_refusal
from holdfast.model.plane_format import too_new
from holdfast.model.transaction import ABSENT, Compare, CompareFailed, Put, Record, Transaction
from holdfast.store.contract import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

# etcd limits a transaction, so a group of requests is cut to about what one holds.
ETCD_REQUESTS_MAX = 64


async def open_store(
    settings: ServerSettings, on_failure: Callable[[str], None], warn: Callable[[str], None]
) -> Store:
    """Return the store of these settings.

    `on_failure` is called when an embedded store has stopped for good, `warn` with warnings for the
    operator. Raises Unavailable, Forbidden or Invalid, each with a message for people.
    """
    where = settings.store
    if where == MEMORY:
        warn("The store is in memory only: everything is lost when this server ends.")
        return MemoryStore()
    if where.startswith(ETCD):
        return await _open_etcd(where.removeprefix(ETCD), settings.etcd, warn)
    path = Path(where.removeprefix(SQLITE)) if where else settings.data / "store.db"
    return await SqliteStore.open(path, on_failure=on_failure)


async def _open_etcd(endpoints: str, access: EtcdAccess, warn: Callable[[str], None]) -> Store:
    try:
        from holdfast.store.etcd import EtcdConfig, EtcdStore
    except ImportError as error:
        raise Invalid(
            f"the etcd client is not installed ({error}): run pip install 'holdfast[etcd]'"
        ) from error
    named = tuple(part.strip() for part in endpoints.split(",") if part.strip())
    # Certificates imply TLS; the endpoints themselves need no scheme.
    scheme = "https://" if access.ca_file or access.cert_file else ""
    config = EtcdConfig(
        endpoints=tuple(e if "://" in e else f"{scheme}{e}" for e in named),
        prefix=access.prefix,
        ca_file=access.ca_file,
        cert_file=access.cert_file,
        key_file=access.key_file,
        user=access.user,
        password=_password(access),
        quota_bytes=access.quota_bytes,
    )
    config.check()
    for warning in tls_warnings(config.endpoints):
        warn(warning)
    store = await EtcdStore.open(config)
    for warning in store.warnings:
        warn(warning)
    return store


def tls_warnings(endpoints: Sequence[str]) -> tuple[str, ...]:
    """Return a warning if etcd is reached over a network without TLS."""
    plain = [it for it in endpoints if not it.startswith("https://") and not _is_local(it)]
    if not plain:
        return ()
    text = (
        f"etcd at {', '.join(plain)} is reached without TLS: everyone on that network can read "
        "every Secret and change every object. Use --etcd-ca-file, --etcd-cert-file and "
        "--etcd-key-file"
    )
    return (text,)


def _is_local(endpoint: str) -> bool:
    host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _password(access: EtcdAccess) -> str | None:
    """Read the password from a file: on a command line all users could read it."""
    if access.password_file is None:
        return None
    try:
        return Path(access.password_file).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, ValueError) as error:
        raise Invalid(f"--etcd-password-file cannot be read: {error}") from error


def limits_for(store: Store) -> GroupLimits:
    """Return how large a group of requests this store accepts."""
    most = getattr(store, "max_ops", None)
    if most is None:
        return DEFAULT_LIMITS
    # A transaction has one write more than compares: the audit record.
    return GroupLimits(requests_max=ETCD_REQUESTS_MAX, compares_max=max(1, most - 1))


async def demand_format(store: Store) -> int:
    """Raise Forbidden if this version is too old for the format of the store. Return the revision
    of the format."""
    record = await _record(store, keys.plane_format())
    if record is None:
        return ABSENT
    found = decode_or_none(record)
    # An unreadable format record allows no writes either, but can be repaired here.
    why = too_new(found.format) if found is not None else ""
    if why:
        raise Forbidden(why)
    return record.modified


async def demand_plane(store: Store, plane: Plane) -> bool:
    """Raise Forbidden if the store belongs to another plane. Return whether it has an owner."""
    record = await _record(store, keys.plane_record())
    if record is None:
        return False
    try:
        why = store_refusal(decode(record.key, record.value), plane)
    except RecordUnreadable as error:
        # Perhaps a later version wrote it, which knows planes of another role.
        why = (
            f"{error.message}: install the version that the other servers have, or restore a "
            "backup if the record is damaged"
        )
    if why:
        raise Forbidden(why)
    return True


async def take_over_store(store: Store, plane: Plane) -> None:
    """Write down that the store belongs to this plane, unless that is known already.

    Raises Forbidden if another server was faster, for another plane.
    """
    while not await demand_plane(store, plane):
        compares = (
            Compare(keys.plane_record(), ABSENT),
            Compare(keys.plane_format(), await demand_format(store)),
        )
        put = Put(keys.plane_record(), encode(record_of(plane)))
        if not isinstance(await store.txn(Transaction(compares, (put,))), CompareFailed):
            return


async def _record(store: Store, key: str) -> Record | None:
    page = await store.range(key, key + "\0", limit=1)
    return next(iter(page.records), None)
