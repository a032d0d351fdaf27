"""`holdfast audit`: whether the chain of audit records is whole, and what it says.

Both read files: those of a server on this machine, or copies of the directories of all servers. How
far the chain must reach only the plane knows; `verify` asks it, unless it is told.
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

from holdfast.cli.connection import access, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, UsageError, complain, plain, run
from holdfast.cli.plane_parts import data_option
from holdfast.cli.tables import rows
from holdfast.host.audit.segments import FOLDER, verify_segments, parts, records
from holdfast.host.audit.serving import LIMIT_MAX as PAGE
from holdfast.host.audit.serving import PATH as RECORDS_PATH
from holdfast.host.audit.serving import RecordPage, ShownRecord
from holdfast.host.audit.standing import PATH, AuditStatus
from holdfast.host.client import Access
from holdfast.host.client.transport import Transport
from holdfast.model.audit.chain import ChainVerification
from holdfast.model.audit.records import AuditRecord, Head, Mutation, gap_of, mutation_of
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.time import rfc3339

TIMEOUT_S = 10.0
# A record is in the files a moment before the store knows of it, and a server that does not write
# looks every few seconds. What is in the files for longer does not belong there.
CATCH_UP_S = 12.0
LOOK_S = 0.5
LAST = 50
_HEAD = re.compile(r"([0-9]{1,16}):([0-9a-f]{64})")
FORMS = ("table", "json")


@click.group()
def audit() -> None:
    """Who changed what: check that nothing is missing of it, and read it."""


directories_option = click.option(
    "--directory",
    "directories",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    multiple=True,
    help="A directory of audit files; of several servers, all of theirs. [DATA/audit]",
)


@audit.command(epilog="Example: holdfast audit verify --directory one/audit --directory two/audit")
@data_option
@directories_option
@click.option("--head", default="", metavar="NUMBER:HASH", help="Where it must reach. [ask]")
@click.option("--after", default="", metavar="NUMBER:HASH", help="A record known to be good.")
@click.option("--offline", is_flag=True, help="Ask nobody: a cut end is then not found.")
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

    Ends with 0 if it is whole, with 1 and all findings if it is not, or if it says of itself that
    something is missing, and with 3 if the plane cannot be asked how far it must reach.
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
        return _told(found, known, len(parts(folders)))

    return run(command())


def _parsed(option: str, text: str) -> Head:
    found = _HEAD.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{option}: {text[:80]!r} is no record; it reads like 17:6f1e…, as `show` does"
        )
    return Head(number=int(found[1]), hash=found[2])


async def _head(to: Access) -> Head:
    """The furthest that any server knows of. Raises what the last one said if none answers."""
    heads: list[Head] = []
    error: HoldfastError = Unavailable("no server is known")
    for server in to.servers:
        async with Transport(
            msgspec.structs.replace(to, servers=(server,)), agent="holdfast-cli"
        ) as transport:
            try:
                answer = await transport.send("GET", PATH, timeout_s=TIMEOUT_S)
                if not answer.is_good:
                    raise answer.error(may_have_happened=False)
                heads.append(msgspec.json.decode(answer.body, type=AuditStatus).head)
            except HoldfastError as said:
                error = said
            except msgspec.DecodeError as said:
                error = Unavailable(f"an answer that cannot be read: {said}")
    if not heads:
        raise error
    return max(heads, key=lambda it: it.number)


async def _beyond(to: Access, last: int) -> int:
    """How many records the store knows nothing of, once it had time to."""
    beyond = 0
    for _ in range(round(CATCH_UP_S / LOOK_S)):
        beyond = last - (await _head(to)).number
        if beyond <= 0:
            return 0
        await asyncio.sleep(LOOK_S)
    return beyond


def _told(found: ChainVerification, head: Head | None, files: int) -> int:
    for finding in found.findings:
        print(plain(finding, keep=""))
    for gap in found.gaps:
        print(
            f"Revisions {gap.after + 1} to {gap.upto} were never written down: the store had "
            f"forgotten them at {rfc3339(gap.at)}."
        )
    for tenant, count in sorted(_let_go(found).items()):
        print(f"{count} records of tenant {plain(tenant)} were let go of to make room for others.")
    if found.beyond and head is not None:
        print(f"{found.beyond} records at the end are none that the store knows of.")
    if not found.is_whole or found.gaps:
        return complain("the audit is not whole")
    if head is not None and not head.number and not found.last:
        print("The audit is whole: there is no record yet.")
        return ExitCode.DONE
    sure = "" if head is not None else "; whether its end was cut off was not asked"
    print(f"The audit is whole: records {found.first} to {found.last} in {files} files{sure}.")
    return ExitCode.DONE


def _let_go(found: ChainVerification) -> Counter[str]:
    total: Counter[str] = Counter()
    for gone in found.elided:
        total.update(gone.elided)
    return total


# Reading it ---------------------------------------------------------------------------------------


@audit.command(epilog="Example: holdfast audit show --kind secrets --who ann")
@data_option
@directories_option
@click.option("--who", default="", help="Only what this one did.")
@click.option("--verb", default="", help="Only this kind of request, such as Patch.")
@click.option("--kind", default="", help="Only of this kind, by its plural.")
@click.option("-n", "--namespace", default="", help="Only in this tenant.")
@click.option("--name", default="", help="Only of this name.")
@click.option("--last", type=click.IntRange(1), default=LAST, show_default=True)
@click.option("-o", "--output", type=click.Choice(FORMS), default=FORMS[0], show_default=True)
def show(data: Path, directories: tuple[Path, ...], last: int, output: str, **wanted: str) -> int:
    """Show records, the oldest first."""

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
@click.option("--who", default="", help="Only what this one did.")
@click.option("--verb", default="", help="Only this kind of request, such as Exec or Patch.")
@click.option("--kind", default="", help="Only of this kind, by its plural.")
@click.option("-n", "--namespace", default="", help="Only in this tenant; its auditors need it.")
@click.option("--name", default="", help="Only of this name.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only records after this number.")
@click.option("-o", "--output", type=click.Choice(FORMS), default=FORMS[0], show_default=True)
@kubeconfig_option
def list_(after: int, output: str, kubeconfig: Path | None, **wanted: str) -> int:
    """List records that the servers have, the oldest first. Needs no files."""

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
            raise Unavailable(f"an answer that cannot be read: {error}") from None
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
        return (*begin, "", "gap", missing, "the store had forgotten them")
    return _told_row(begin, said)


def _told_row(begin: tuple[str, ...], said: Mutation | None) -> tuple[str, ...]:
    if said is None:
        return (*begin, "", "gap", "", "the store had forgotten what was done")
    what = "/".join(part for part in (said.kind, said.namespace, said.name) if part)
    forced = "forced" if said.forced else ""
    times = f"{said.count} times" if said.count else ""
    from_ = f"from {said.source}" if said.source else ""
    words = (
        *(said.change, forced, said.reason, ", ".join(said.fields)),
        *(times, from_, said.credential),
    )
    return (*begin, said.who, said.verb, what, "; ".join(word for word in words if word))
