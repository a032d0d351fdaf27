"""`holdfast repair`: records in quarantine, and what an operator can do about them.

Each change is shown first and made only with --yes, on the record as it was shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli import tables
from holdfast.cli.command_table import Section
from holdfast.cli.connection import kubeconfig_option, transport
from holdfast.cli.exit_codes import ExitCode, UsageError, plain, run
from holdfast.host.client.request_calls import QUARANTINE_PATH, REPAIRS_PATH
from holdfast.host.client.transport import Transport
from holdfast.model.errors import HoldfastError, Missing
from holdfast.model.quarantine import SHOW, Quarantine, Quarantined, Repair, Repaired
from holdfast.model.requests import RepairAction

SECTION = Section.UPKEEP
TIMEOUT_S = 60.0
Found = TypeVar("Found")
_yes_option = click.option("--yes", is_flag=True, help="Make the change, not only show it.")
_reason_option = click.option("--reason", default="", help="The reason, for the audit.")


@click.group()
def repair() -> None:
    """Records in quarantine: show, recount, restore or release them."""


@repair.command(name="list", epilog="Example: holdfast repair list")
@kubeconfig_option
def list_(kubeconfig: Path | None) -> int:
    """List the records in quarantine. Exits with 1 if there are any."""

    async def command() -> int:
        async with transport(kubeconfig) as to:
            found = await _read(to)
        rows = [
            (it.key, it.reason, f"{it.since:%Y-%m-%dT%H:%M:%SZ}", it.message)
            for it in found.records
        ]
        rows += [(key, "Damaged", "", why) for key, why in found.unreadable.items()]
        if not rows:
            print("No record is in quarantine.")
            return ExitCode.DONE
        heading = ("RECORD", "FOUND", "SINCE", "WHAT IS WRONG")
        print("\n".join(plain(line, keep="") for line in tables.rows(heading, rows)))
        return ExitCode.FAILED

    return run(command())


@repair.command(epilog="Example: holdfast repair show ledgers/node/n1")
@click.argument("record")
@kubeconfig_option
def show(record: str, kubeconfig: Path | None) -> int:
    """Show why a record is in quarantine, the evidence, and the record itself."""

    async def command() -> int:
        async with transport(kubeconfig) as to:
            note = _note(await _read(to), record)
            found = await _request(to, Repair(record, SHOW))
        lines = [
            f"{note.key} has been in quarantine since {note.since:%Y-%m-%dT%H:%M:%SZ}",
            f"  reason    {note.reason}",
            f"  message   {note.message}",
            f"  found by  {note.request}",
            "evidence",
            *(f"  {it.key} as of revision {it.revision}" for it in note.evidence),
            f"the record as of revision {found.seen}",
            f"  {_json(found.before)}",
        ]
        print("\n".join(plain(line, keep="") for line in lines))
        return ExitCode.DONE

    return run(command())


@repair.command(epilog="Example: holdfast repair recount ledgers/node/n1 --reason 'ticket 7' --yes")
@click.argument("record")
@_reason_option
@_yes_option
@kubeconfig_option
def recount(record: str, reason: str, yes: bool, kubeconfig: Path | None) -> int:
    """Recount a ledger from the objects."""
    return run(_repair(record, RepairAction.RECOUNT, reason, yes, kubeconfig))


@repair.command(epilog="Example: holdfast repair restore objects/nodes/n1 --reason 'ticket 7'")
@click.argument("record")
@_reason_option
@_yes_option
@kubeconfig_option
def restore(record: str, reason: str, yes: bool, kubeconfig: Path | None) -> int:
    """Restore the last readable version of a record. Recount its ledgers after that."""
    return run(_repair(record, RepairAction.RESTORE, reason, yes, kubeconfig))


@repair.command(epilog="Example: holdfast repair release ledgers/node/n1 --reason 'checked' --yes")
@click.argument("record")
@_reason_option
@_yes_option
@kubeconfig_option
def release(record: str, reason: str, yes: bool, kubeconfig: Path | None) -> int:
    """Release a record from quarantine unchanged."""
    return run(_repair(record, RepairAction.RELEASE, reason, yes, kubeconfig))


async def _repair(
    record: str, action: RepairAction, reason: str, yes: bool, kubeconfig: Path | None
) -> int:
    if yes and not reason.strip():
        raise UsageError("--reason: required with --yes; it is written to the audit")
    async with transport(kubeconfig) as to:
        shown = await _request(to, Repair(record, action.value))
        print("\n".join(plain(line, keep="") for line in _text_lines(shown)))
        if not yes:
            print("\nNothing was changed. Add --reason and --yes to make the change.")
            return ExitCode.DONE
        # The server refuses the change if the record was written since it was shown.
        change = Repair(record, action.value, reason, dry_run=False, seen=shown.seen)
        await _request(to, change)
    print(f"\n{plain(record, keep='')} is no longer in quarantine.")
    return ExitCode.DONE


def _text_lines(found: Repaired) -> list[str]:
    if found.before == found.after:
        lines = [f"{found.key} does not change: {_json(found.before)}"]
    else:
        lines = [
            f"{found.key} is, as of revision {found.seen}",
            f"  {_json(found.before)}",
            f"and should be, as of revision {found.source}",
            f"  {_json(found.after)}",
        ]
    if found.disagreements:
        lines.append("still to repair after that")
        lines += [f"  {it}" for it in found.disagreements]
    return lines


def _note(found: Quarantine, record: str) -> Quarantined:
    for it in found.records:
        if it.key == record:
            return it
    raise Missing(f"{record} is not in quarantine; `holdfast repair list` shows what is")


def _json(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def _read(to: Transport) -> Quarantine:
    answer = await to.send("GET", QUARANTINE_PATH, timeout_s=TIMEOUT_S)
    if not answer.is_good:
        raise answer.error(may_have_happened=False)
    return _decoded(answer.body, Quarantine)


async def _request(to: Transport, repair: Repair) -> Repaired:
    answer = await to.send(
        "POST",
        REPAIRS_PATH,
        body=msgspec.json.encode(repair),
        headers={"Content-Type": "application/json"},
        timeout_s=TIMEOUT_S,
    )
    if not answer.is_good:
        raise answer.error(may_have_happened=not repair.dry_run)
    return _decoded(answer.body, Repaired)


def _decoded(body: bytes, cls: type[Found]) -> Found:
    try:
        return msgspec.json.decode(body, type=cls)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"the server sent an unreadable answer: {error}") from None
