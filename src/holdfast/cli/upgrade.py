"""`holdfast upgrade`: the versions of the plane's parts, and the last step of an upgrade."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast.cli import tables
from holdfast.cli.command_table import Section
from holdfast.cli.connection import kubeconfig_option, transport
from holdfast.cli.exit_codes import ExitCode, UsageError, plain, run
from holdfast.host.client.answers import HttpAnswer
from holdfast.host.client.request_calls import FORMAT_PATH, UPGRADE_PATH
from holdfast.host.client.transport import Transport
from holdfast.model.errors import HoldfastError
from holdfast.model.plane_format import RaiseRequest, Upgrade, is_older

SECTION = Section.UPKEEP
TIMEOUT_S = 60.0
_JSON = {"Content-Type": "application/json"}


@click.group()
def upgrade() -> None:
    """The versions of the plane's parts, and the last step of an upgrade."""


@upgrade.command(epilog="Example: holdfast upgrade status")
@kubeconfig_option
def status(kubeconfig: Path | None) -> int:
    """Show the version of each part, and the format of the plane.

    Exits with 1 while a part has an older version.
    """

    async def command() -> int:
        async with transport(kubeconfig) as to:
            found = await _read(to)
        _print(found)
        return ExitCode.FAILED if found.older() else ExitCode.DONE

    return run(command())


@upgrade.command(epilog="Example: holdfast upgrade finish --reason 'all nodes run 0.2.0' --yes")
@click.option("--reason", default="", help="The reason, for the audit.")
@click.option("--yes", is_flag=True, help="Make the change, not only show it.")
@kubeconfig_option
def finish(reason: str, yes: bool, kubeconfig: Path | None) -> int:
    """Raise the format of the plane to the newest that its version supports.

    From then on older versions cannot write to this plane. Only a backup leads back.
    """
    return run(_finish(reason, yes, kubeconfig))


async def _finish(reason: str, yes: bool, kubeconfig: Path | None) -> int:
    if yes and not reason.strip():
        raise UsageError("--reason: required with --yes; it is written to the audit")
    async with transport(kubeconfig) as to:
        found = await _read(to)
        _print(found)
        refusal = found.refusal()
        if refusal:
            print(plain(f"\nNothing was changed: {refusal}.", keep=""))
            return ExitCode.FAILED
        if not yes:
            print("\nNothing was changed. Make a backup, then add --reason and --yes.")
            return ExitCode.DONE
        while found.format < found.newest:
            found = await raise_format(to, RaiseRequest(found.format + 1, reason))
    print(f"\nThe plane has format {found.format}; older versions can no longer write to it.")
    return ExitCode.DONE


def _print(found: Upgrade) -> None:
    rows = []
    for it in found.parts:
        age = "older" if is_older(it.version, found.version) else "-"
        rows.append((it.part, it.name, it.version or "unknown", "gone" if it.is_gone else age))
    for line in tables.rows(("PART", "NAME", "VERSION", "STATE"), rows):
        print(plain(line, keep=""))
    print(
        f"\nThe plane has format {found.format}; the server's version {found.version} supports "
        f"formats up to {found.newest}."
    )


async def _read(to: Transport) -> Upgrade:
    answer = await to.send("GET", UPGRADE_PATH, timeout_s=TIMEOUT_S)
    return _decoded(answer, is_write=False)


async def raise_format(to: Transport, wanted: RaiseRequest) -> Upgrade:
    """Raise the format of the plane. Raises the server's refusal."""
    body = msgspec.json.encode(wanted)
    answer = await to.send("POST", FORMAT_PATH, body=body, headers=_JSON, timeout_s=TIMEOUT_S)
    return _decoded(answer, is_write=True)


def _decoded(answer: HttpAnswer, *, is_write: bool) -> Upgrade:
    if not answer.is_good:
        raise answer.error(may_have_happened=is_write)
    try:
        return msgspec.json.decode(answer.body, type=Upgrade)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"the server sent an unreadable answer: {error}") from None
