"""`holdfast repair`: records in quarantine, and what an operator can do about them.

Each change is shown first and done with --yes alone, on the record as it was looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli import tables
from holdfast.cli.connection import FailoverTransport, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, UsageError, plain, run
from holdfast.host.client.questions import QUARANTINE_PATH, REPAIRS_PATH
from holdfast.host.client.transport import Transport
from holdfast.model.errors import HoldfastError, Missing
from holdfast.model.quarantine import SHOW, Quarantine, Quarantined, Repair, Repaired
from holdfast.model.requests import RepairAction

TIMEOUT_S = 60.0
Found = TypeVar("Found")
_yes_option = click.option("--yes", is_flag=True, help="Do it. Without this it is only shown.")
_reason_option = click.option("--reason", default="", help="Why, for the audit.")


@click.group()
def repair() -> None:
    """Records that are wrong: look at them, recount or restore them, release them."""


@repair.command(name="list", epilog="Example: holdfast repair list")
@kubeconfig_option
def list_(kubeconfig: Path | None) -> int:
    """List the records in quarantine. Ends with 1 if there are any."""

    async def command() -> int:
        async with FailoverTransport(kubeconfig) as to:
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
    """Show why a record is in quarantine, the evidence, and what the record says."""

    async def command() -> int:
        async with FailoverTransport(kubeconfig) as to:
            note = _note(await _read(to), record)
            found = await _asked(to, Repair(record, SHOW))
        lines = [
            f"{note.key} is in quarantine since {note.since:%Y-%m-%dT%H:%M:%SZ}",
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
    """Let a ledger say what the objects add up to."""
    return run(_repair(record, RepairAction.RECOUNT, reason, yes, kubeconfig))


@repair.command(epilog="Example: holdfast repair restore objects/nodes/n1 --reason 'ticket 7'")
@click.argument("record")
@_reason_option
@_yes_option
@kubeconfig_option
def restore(record: str, reason: str, yes: bool, kubeconfig: Path | None) -> int:
    """Bring back the last form of a record that can be read. Recount its ledgers after that."""
    return run(_repair(record, RepairAction.RESTORE, reason, yes, kubeconfig))


@repair.command(epilog="Example: holdfast repair release ledgers/node/n1 --reason 'checked' --yes")
@click.argument("record")
@_reason_option
@_yes_option
@kubeconfig_option
def release(record: str, reason: str, yes: bool, kubeconfig: Path | None) -> int:
    """Take a record out of quarantine as it is."""
    return run(_repair(record, RepairAction.RELEASE, reason, yes, kubeconfig))


async def _repair(
    record: str, action: RepairAction, reason: str, yes: bool, kubeconfig: Path | None
) -> int:
    if yes and not reason.strip():
        raise UsageError("--reason: say why; it is written to the audit")
    async with FailoverTransport(kubeconfig) as to:
        shown = await _asked(to, Repair(record, action.value))
        print("\n".join(plain(line, keep="") for line in _told(shown)))
        if not yes:
            print("\nNothing was changed. Add --reason and --yes to do it.")
            return ExitCode.DONE
        # What was shown and nothing else: if somebody wrote the record meanwhile, it is refused.
        wish = Repair(record, action.value, reason, dry_run=False, seen=shown.seen)
        await _asked(to, wish)
    print(f"\n{plain(record, keep='')} is out of quarantine.")
    return ExitCode.DONE


def _told(found: Repaired) -> list[str]:
    if found.before == found.after:
        lines = [f"{found.key} stays as it is: {_json(found.before)}"]
    else:
        lines = [
            f"{found.key} is, as of revision {found.seen}",
            f"  {_json(found.before)}",
            f"and should be, as of revision {found.source}",
            f"  {_json(found.after)}",
        ]
    if found.disagreements:
        lines.append("still to be repaired after that")
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


async def _asked(to: Transport, wish: Repair) -> Repaired:
    answer = await to.send(
        "POST",
        REPAIRS_PATH,
        body=msgspec.json.encode(wish),
        headers={"Content-Type": "application/json"},
        timeout_s=TIMEOUT_S,
    )
    if not answer.is_good:
        raise answer.error(may_have_happened=not wish.dry_run)
    return _decoded(answer.body, Repaired)


def _decoded(body: bytes, cls: type[Found]) -> Found:
    try:
        return msgspec.json.decode(body, type=cls)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"an answer that cannot be read: {error}") from None
