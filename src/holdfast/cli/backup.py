"""`holdfast backup`, `restore` and `verify`: copies of a plane's data, and back."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli.command_table import Section
from holdfast.cli.exit_codes import (
    ExitCode,
    UsageError,
    complain,
    invalid_as_usage_error,
    run,
    warn,
)
from holdfast.cli.plane_parts import data_option
from holdfast.host.audit.segments import FOLDER
from holdfast.host.server import backups
from holdfast.host.server.backups import Backup, Manifest, VerifiedBackup
from holdfast.host.server.server_options import ETCD_ACCESS
from holdfast.host.server.settings import (
    ETCD,
    ETCD_PREFIX,
    MEMORY,
    SQLITE,
    EtcdAccess,
    ServerSettings,
)
from holdfast.host.server.store_opening import open_store

SECTION = Section.UPKEEP
# Shows the progress of what takes longer than a second, on standard error.

# Shorter work shows nothing; where standard error is not a terminal, a line now and then is enough.
FIRST_S = 1.0
TERMINAL_S, LINES_S = 0.2, 5.0
LOOK_S = 0.2
Result = TypeVar("Result")


class ProgressDisplay:
    """Shows the user what is in progress. Any thread may report to it."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._next_s = self._began_s + FIRST_S
        self._width = 0
        self._now: tuple[str, float] = ("", 0.0)

    def report(self, what: str, share: float = 0.0) -> None:
        """Set what is in progress, and the share that is done; 0 where that is unknown."""
        self._now = what, share

    async def during(self, work: Awaitable[Result]) -> Result:
        """Wait for the work, and show its progress."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=LOOK_S)
                self._show()
        finally:
            if self._width:
                sys.stderr.write(f"\r{'':<{self._width}}\r")
                sys.stderr.flush()
        return task.result()

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        return await self.during(asyncio.to_thread(work))

    def _show(self) -> None:
        now_s = time.monotonic()
        what, share = self._now
        if now_s < self._next_s or not what:
            return
        self._next_s = now_s + (TERMINAL_S if self._is_terminal else LINES_S)
        far = f"{share:.0%}" if share else f"{now_s - self._began_s:.0f} s"
        text = f"{what} … {far}"
        if self._is_terminal:
            sys.stderr.write(f"\r{text:<{self._width}}")
            self._width = len(text)
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


MIB = 1 << 20
# The revision bump of a restored etcd, the same as in `store.sqlite.backup`.
BUMP = 1_000_000_000
Command = TypeVar("Command", bound=Callable[..., Any])
_backup_argument = click.argument(
    "backup", type=click.Path(path_type=Path, exists=True, file_okay=False)
)


def _store_options(command: Command) -> Command:
    chosen = [click.option(f"--etcd-{it}") for it in ETCD_ACCESS]
    chosen.append(click.option("--etcd-prefix", default=ETCD_PREFIX, show_default=True))
    chosen.append(
        click.option("--store", default="", help="sqlite:PATH or etcd://H:P,… [DATA/store.db]")
    )
    for option in chosen:
        command = option(command)
    return command


@click.command(name="backup", epilog="Example: holdfast backup /mnt/backups/monday")
@click.argument("target", type=click.Path(path_type=Path))
@data_option
@_store_options
@click.option(
    "--audit-directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    multiple=True,
    help="Audit files of a server; repeat it for each server. [DATA/audit]",
)
@click.option("--plain-secrets", is_flag=True, help="Allow Secrets that are not encrypted.")
def backup(
    target: Path, data: Path, audit_directory: tuple[Path, ...], plain_secrets: bool, **given: Any
) -> int:
    """Copy store and audit, as of one revision, to a new directory. Servers may keep running.

    A backup contains no keys: keep DATA/pki and the encryption keys in another place.
    """

    async def command() -> int:
        with invalid_as_usage_error():
            settings = _settings(data, given)
        audits = audit_directory or (data / FOLDER,)
        progress = ProgressDisplay()
        made = datetime.now(UTC).isoformat(timespec="seconds")
        draft = Backup(target, plain=plain_secrets, tell=progress.report)
        try:
            if settings.store.startswith(ETCD):
                store: Any = await open_store(settings, lambda _: None, warn)
                try:
                    manifest = await progress.during(draft.from_etcd(store, audits, made))
                finally:
                    await store.close()
            else:
                path = settings.store.removeprefix(SQLITE)
                source = Path(path) if path else data / backups.STORE
                manifest = await progress.in_thread(lambda: draft.from_sqlite(source, audits, made))
        finally:
            draft.discard()
        print(f"{target} is a backup of {_described(manifest)}.")
        print(f"Keep elsewhere: {_keys(manifest)}")
        return ExitCode.DONE

    return run(command())


def _settings(data: Path, given: dict[str, Any]) -> ServerSettings:
    access = EtcdAccess(
        given["etcd_prefix"],
        *(given[f"etcd_{it.replace('-', '_')}"] for it in ETCD_ACCESS),
    )
    settings = ServerSettings(data=data, store=given["store"], etcd=access)
    settings.check()
    if settings.store.startswith(MEMORY):
        raise UsageError("--store: an in-memory store cannot be backed up")
    return settings


@click.command(epilog="Example: holdfast verify /mnt/backups/monday")
@_backup_argument
def verify(backup: Path) -> int:
    """Read a whole backup and check it. Needs no key and no server.

    Exits with 0 if it is complete, with 1 if any part was changed or is missing.
    """

    async def command() -> int:
        progress = ProgressDisplay()
        found = await progress.in_thread(lambda: backups.check(backup, progress.report))
        print(f"{backup} is a backup of {_described(found.manifest)}, {found.bytes / MIB:.1f} MiB.")
        print(f"A restore needs: {_keys(found.manifest)}")
        return _report_audit(found)

    return run(command())


@click.command(epilog="Example: holdfast restore /mnt/backups/monday --data /srv/holdfast")
@_backup_argument
@data_option
def restore(backup: Path, data: Path) -> int:
    """Restore a backup into an empty data directory. No server may run on it.

    Put `pki` there first. Otherwise the server creates a new certificate authority and a new key,
    with which it cannot read the encrypted Secrets.
    """

    async def command() -> int:
        progress = ProgressDisplay()
        found = await progress.in_thread(lambda: backups.restore(backup, data, progress.report))
        print(f"{data} is restored from a backup of {_described(found.manifest)}.")
        print(f"A server on it needs: {_keys(found.manifest)}")
        if found.manifest.store == "etcd":
            print(_etcd_steps(backup))
        return _report_audit(found)

    return run(command())


def _described(manifest: Manifest) -> str:
    return (
        f"{'an embedded store' if manifest.store == 'sqlite' else 'etcd'} as of {manifest.made}, "
        f"revision {manifest.revision}, made by holdfast {manifest.version}, with "
        f"{manifest.secrets} Secrets"
    )


def _keys(manifest: Manifest) -> str:
    named = ", ".join(repr(it) for it in manifest.encryption_keys)
    needed = ["the certificate authority (pki/ca.crt, pki/ca*.key, pki/ca.bundle)"]
    if named:
        needed.append(f"the encryption key {named}")
    if manifest.plain:
        needed.append(f"a protected place: {manifest.plain} Secrets in it are not encrypted")
    return "; ".join(needed) + "."


def _report_audit(found: VerifiedBackup) -> int:
    for finding in found.audit:
        print(finding)
    if found.audit:
        return complain("the audit in this backup is incomplete")
    if found.audit_to:
        print(f"Its audit is complete: records {found.audit_from} to {found.audit_to}.")
    else:
        print("Its audit has no records.")
    return ExitCode.DONE


def _etcd_steps(backup: Path) -> str:
    return (
        "Restore etcd itself with its own tool, on each member, while no member runs:\n"
        f"    etcdutl snapshot restore {backup / backups.SNAPSHOT} --data-dir DIRECTORY \\\n"
        "        --name NAME --initial-cluster NAME=URL,… --initial-advertise-peer-urls URL \\\n"
        f"        --bump-revision {BUMP} --mark-compacted\n"
        "Start the members on these directories, then the servers."
    )
