"""`holdfast audit`: checks that the chain of audit records is complete, and shows the records.

`verify` and `show` read files: those of a server on this machine, or copies of the directories of
all servers. Only the plane knows the last record; `verify` asks it, unless --head is given.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlencode

import click
import msgspec

from holdfast.cli.command_table import Section
from holdfast.cli.connection import access, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, UsageError, complain, plain, run
from holdfast.cli.plane_parts import data_option
from holdfast.cli.tables import rows
from holdfast.host.audit.records_route import LIMIT_MAX as PAGE
from holdfast.host.audit.records_route import PATH as RECORDS_PATH
from holdfast.host.audit.records_route import RecordPage, ShownRecord
from holdfast.host.audit.segments import FOLDER, parts, records, verify_segments
from holdfast.host.audit.status_route import PATH, AuditStatus
from holdfast.host.client import Access
from holdfast.host.client.transport import Transport
from holdfast.model.audit.audit_records import AuditRecord, Head, Mutation, gap_of, mutation_of
from holdfast.model.audit.chain import ChainVerification
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.time import rfc3339

SECTION = Section.ACCESS
TIMEOUT_S = 10.0
# A record is in the files a moment before it is in the store, and a server that does not write
# reads the store every few seconds. A record that is only in the files for longer is not genuine.
CATCH_UP_S = 12.0
LOOK_S = 0.5
LAST = 50
_HEAD = re.compile(r"([0-9]{1,16}):([0-9a-f]{64})")
FORMS = ("table", "json")


@click.group()
def audit() -> None:
    """Who changed what: check that the audit is complete, and read it."""


directories_option = click.option(
    "--directory",
    "directories",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    multiple=True,
    help="A directory of audit files; repeat it for each server. [DATA/audit]",
)


@audit.command(epilog="Example: holdfast audit verify --directory one/audit --directory two/audit")
@data_option
@directories_option
@click.option("--head", default="", metavar="NUMBER:HASH", help="The last record. [ask the plane]")
@click.option("--after", default="", metavar="NUMBER:HASH", help="A record known to be good.")
@click.option("--offline", is_flag=True, help="Do not ask the plane: a cut end is not detected.")
@kubeconfig_option
def verify(
    data: Path,
    directories: tuple[Path, ...],
    head: str,
    after: str,
    offline: bool,
    kubeconfig: Path | None,
) -> int:
    """Check the chain: find every record that was removed, changed, added or moved.

    Exits with 0 if it is complete, with 1 and all findings if it is not or if it records a gap, and
    with 3 if the plane cannot be asked for the last record.
    """

    async def command() -> int:
        folders = directories or (data / FOLDER,)
        since = _parsed("--after", after) if after else None
        known = _parsed("--head", head) if head else None
        asks = None if offline or known is not None else access(kubeconfig)
        if asks is not None:
            known = await _head(asks)
        found = await asyncio.to_thread(verify_segments, folders, known, since)
        if asks is not None and found.beyond:
            found.beyond = await _beyond(asks, found.last)
        return _report(found, known, len(parts(folders)))

    return run(command())


def _parsed(option: str, text: str) -> Head:
    found = _HEAD.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{option}: {text[:80]!r} must be a record's NUMBER:HASH such as 17:6f1e…, as in the "
            "output of `holdfast audit show`"
        )
    return Head(number=int(found[1]), hash=found[2])


async def _head(to: Access) -> Head:
    """The highest record that any server knows. Raises the last error if none answers."""
    heads: list[Head] = []
    error: HoldfastError = Unavailable("the kubeconfig names no server")
    for server in to.servers:
        async with Transport(
            msgspec.structs.replace(to, servers=(server,)), agent="holdfast-cli"
        ) as transport:
            try:
                answer = await transport.send("GET", PATH, timeout_s=TIMEOUT_S)
                if not answer.is_good:
                    raise answer.error(may_have_happened=False)
                heads.append(msgspec.json.decode(answer.body, type=AuditStatus).head)
            except HoldfastError as failure:
                error = failure
            except msgspec.DecodeError as failure:
                error = Unavailable(f"the server sent an unreadable answer: {failure}")
    if not heads:
        raise error
    return max(heads, key=lambda it: it.number)


async def _beyond(to: Access, last: int) -> int:
    """The number of records that the store does not know, once it had time to catch up."""
    beyond = 0
    for _ in range(round(CATCH_UP_S / LOOK_S)):
        beyond = last - (await _head(to)).number
        if beyond <= 0:
            return 0
        await asyncio.sleep(LOOK_S)
    return beyond


def _report(found: ChainVerification, head: Head | None, files: int) -> int:
    for finding in found.findings:
        print(plain(finding, keep=""))
    for gap in found.gaps:
        print(
            f"Revisions {gap.after + 1} to {gap.upto} have no records: the store had compacted "
            f"them at {rfc3339(gap.at)}."
        )
    for tenant, count in sorted(_dropped(found).items()):
        print(f"{count} records of tenant {plain(tenant)} were dropped to make room for others.")
    if found.beyond and head is not None:
        print(f"{found.beyond} records at the end are unknown to the store.")
    if not found.is_whole or found.gaps:
        return complain("the audit is incomplete")
    if head is not None and not head.number and not found.last:
        print("The audit is complete: it has no records yet.")
        return ExitCode.DONE
    sure = "" if head is not None else "; a cut end was not checked for"
    print(f"The audit is complete: records {found.first} to {found.last} in {files} files{sure}.")
    return ExitCode.DONE


def _dropped(found: ChainVerification) -> Counter[str]:
    total: Counter[str] = Counter()
    for gone in found.elided:
        total.update(gone.elided)
    return total


# Reading it ---------------------------------------------------------------------------------------


@audit.command(epilog="Example: holdfast audit show --kind secrets --who ann")
@data_option
@directories_option
@click.option("--who", default="", help="Only changes of this user.")
@click.option("--verb", default="", help="Only this type of request, such as Patch.")
@click.option("--kind", default="", help="Only this kind, by its plural.")
@click.option("-n", "--namespace", default="", help="Only this tenant.")
@click.option("--name", default="", help="Only objects with this name.")
@click.option("--last", type=click.IntRange(1), default=LAST, show_default=True)
@click.option("-o", "--output", type=click.Choice(FORMS), default=FORMS[0], show_default=True)
def show(data: Path, directories: tuple[Path, ...], last: int, output: str, **wanted: str) -> int:
    """Show records from files, the oldest first."""

    async def command() -> int:
        folders = directories or (data / FOLDER,)
        found = deque(_matching(folders, wanted), maxlen=last)
        if output == "json":
            for record, _ in found:
                print(msgspec.json.encode(record).decode())
            return ExitCode.DONE
        heading = ("NUMBER", "REVISION", "AT", "WHO", "VERB", "WHAT", "MORE")
        print("\n".join(rows(heading, [_row(*one) for one in found])))
        return ExitCode.DONE

    return run(command())


@audit.command(name="list", epilog="Example: holdfast audit list -n risk --verb Exec")
@click.option("--who", default="", help="Only changes of this user.")
@click.option("--verb", default="", help="Only this type of request, such as Exec or Patch.")
@click.option("--kind", default="", help="Only this kind, by its plural.")
@click.option("-n", "--namespace", default="", help="Only this tenant; required for its auditors.")
@click.option("--name", default="", help="Only objects with this name.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only records after this number.")
@click.option("-o", "--output", type=click.Choice(FORMS), default=FORMS[0], show_default=True)
@kubeconfig_option
def list_(after: int, output: str, kubeconfig: Path | None, **wanted: str) -> int:
    """List records of the servers, the oldest first. Needs no files."""

    async def command() -> int:
        query = {field: value for field, value in wanted.items() if value}
        found: dict[int, ShownRecord] = {}
        to = access(kubeconfig)
        for server in to.servers:
            one = msgspec.structs.replace(to, servers=(server,))
            async with Transport(one, agent="holdfast-cli") as transport:
                found |= {it.number: it async for it in _served(transport, query, after)}
        shown = [found[number] for number in sorted(found)]
        if output == "json":
            for it in shown:
                print(msgspec.json.encode(it).decode())
            return ExitCode.DONE
        heading = ("NUMBER", "REVISION", "AT", "WHO", "VERB", "WHAT", "MORE")
        lines = [
            _told_row((str(it.number), str(it.revision), rfc3339(it.at)), it.said) for it in shown
        ]
        print("\n".join(plain(line, keep="") for line in rows(heading, lines)))
        return ExitCode.DONE

    return run(command())


async def _served(
    transport: Transport, query: dict[str, str], after: int
) -> AsyncIterator[ShownRecord]:
    """All records of one server that match, page by page."""
    while True:
        path = f"{RECORDS_PATH}?{urlencode({**query, 'after': after, 'limit': PAGE})}"
        answer = await transport.send("GET", path, timeout_s=TIMEOUT_S)
        if not answer.is_good:
            raise answer.error(may_have_happened=False)
        try:
            page = msgspec.json.decode(answer.body, type=RecordPage)
        except msgspec.DecodeError as error:
            raise Unavailable(f"the server sent an unreadable answer: {error}") from None
        for it in page.records:
            yield it
        if page.after <= after:
            return
        after = page.after


def _matching(
    folders: tuple[Path, ...], wanted: dict[str, str]
) -> Iterator[tuple[AuditRecord, Mutation | None]]:
    asked = {field: value for field, value in wanted.items() if value}
    for record in records(folders):
        said = mutation_of(record) if not record.is_gap else None
        if said is None and asked:
            continue
        if said is None or all(getattr(said, field) == it for field, it in asked.items()):
            yield record, said


def _row(record: AuditRecord, said: Mutation | None) -> tuple[str, ...]:
    begin = (str(record.number), str(record.revision), rfc3339(record.at))
    if said is None:
        gap = gap_of(record)
        missing = f"revisions {gap.after + 1} to {gap.upto}"
        return (*begin, "", "gap", missing, "the store had compacted them")
    return _told_row(begin, said)


def _told_row(begin: tuple[str, ...], said: Mutation | None) -> tuple[str, ...]:
    if said is None:
        return (*begin, "", "gap", "", "the store had compacted the changes")
    what = "/".join(part for part in (said.kind, said.namespace, said.name) if part)
    forced = "forced" if said.forced else ""
    times = f"{said.count} times" if said.count else ""
    from_ = f"from {said.source}" if said.source else ""
    details = (
        *(said.change, forced, said.reason, ", ".join(said.fields)),
        *(times, from_, said.credential),
    )
    return (*begin, said.who, said.verb, what, "; ".join(it for it in details if it))
