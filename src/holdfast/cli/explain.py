"""`holdfast explain`: why a replica does not progress, who acts next, and by when.

The command asks every server in the kubeconfig, since each server knows only the heartbeats that it
received itself, and shows the most complete answer.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from holdfast.cli.command_table import Section
from holdfast.cli.connection import PATIENCE, access, kubeconfig_option
from holdfast.cli.documents import kind_and_name
from holdfast.cli.exit_codes import ExitCode, UsageError, plain, run
from holdfast.cli.health_report import span
from holdfast.cli.objects import namespace_option
from holdfast.explain.answer import Explanation, StuckReason
from holdfast.host.client import Access, AsyncClient
from holdfast.host.client.paths import one
from holdfast.model.errors import HoldfastError
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.replica import Replica
from holdfast.model.registry import kind_of_struct
from holdfast.model.time import wall_ms

SECTION = Section.OBJECTS
FORMS = ("text", "json")
SUBRESOURCE = "explanation"
_REPLICA = kind_of_struct(Replica)


@click.command(epilog="Example: holdfast explain replica web-0-0")
@click.argument("kind")
@click.argument("name", default="")
@namespace_option
@click.option("-o", "--output", type=click.Choice(FORMS), default=FORMS[0], show_default=True)
@kubeconfig_option
def explain(kind: str, name: str, namespace: str, output: str, kubeconfig: Path | None) -> int:
    """Explain why a replica does not progress: where it stopped, who acts next, and by when."""

    async def command() -> int:
        what, named = kind_and_name(kind, name)
        _demand_replica(what, named)
        to = access(kubeconfig)
        found = await explanation(to, namespace or to.namespace, named)
        if output == "json":
            print(msgspec.json.encode(found).decode())
        else:
            now_ms = wall_ms(datetime.now(UTC))
            print("\n".join(plain(line, keep="") for line in text_lines(found, now_ms)))
        return ExitCode.DONE

    return run(command())


def _demand_replica(kind: Kind, name: str) -> None:
    if kind is not _REPLICA:
        raise UsageError(f"KIND: {kind.singular!r} must be replica: only replicas are explained")
    if not name:
        raise UsageError("NAME: must be the name of a replica; `holdfast get replicas` shows them")


async def explanation(to: Access, namespace: str, name: str) -> Explanation:
    """The most complete answer of all servers. Raises the first error if none answers."""
    each = [msgspec.structs.replace(to, servers=(server,)) for server in to.servers]
    found = await asyncio.gather(
        *(_read(it, namespace, name) for it in each), return_exceptions=True
    )
    answers = [it for it in found if isinstance(it, Explanation)]
    for error in found:
        if isinstance(error, BaseException) and not (answers and isinstance(error, HoldfastError)):
            raise error
    return min(answers, key=lambda it: (it.finding.why is StuckReason.UNTOLD, len(it.unknown)))


async def _read(to: Access, namespace: str, name: str) -> Explanation:
    async with AsyncClient(to, policy=PATIENCE, agent="holdfast-cli") as client:
        body = await client.read(one(_REPLICA, namespace, name, SUBRESOURCE))
    try:
        return msgspec.json.decode(body, type=Explanation)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"the server sent an unreadable answer: {error}") from None


# Text ---------------------------------------------------------------------------------------------


def text_lines(found: Explanation, now_ms: int) -> list[str]:
    """The answer as lines of text."""
    say = found.finding
    where = f"{found.namespace}/{found.name}"
    lines = [f"{where} is {found.state.value}, as of revision {found.revision}"]
    rows = [
        ("stopped at", say.leg.value),
        ("because", f"{say.why.value}: {say.message}"),
        ("next move", say.owner),
        ("by", _by(found, now_ms)),
        ("then", say.then),
        ("verdict", say.verdict),
        ("nearest miss", say.nearest_miss),
        ("smallest change", say.smallest_change),
    ]
    lines += [f"  {what:<16}{text}" for what, text in rows if text]
    lines.append("evidence")
    lines += [f"  {it.what}{_as_of(it.revision, it.age_ms)}: {it.says}" for it in found.signs]
    lines += [f"  {what}: unknown, {why}" for what, why in sorted(found.unknown.items())]
    if found.timeline:
        lines.append("timeline")
    for step in found.timeline:
        why = ": ".join(it for it in (step.reason, step.evidence) if it)
        at = f"{step.at:%Y-%m-%dT%H:%M:%SZ}"
        lines.append(f"  {at} {step.to.value} by {step.by} at revision {step.revision}: {why}")
    return lines


def _by(found: Explanation, now_ms: int) -> str:
    deadline = found.finding.deadline
    if deadline is None:
        why = found.finding.no_deadline
        return f"no deadline: {why}" if why else ""
    left_ms = wall_ms(deadline) - now_ms
    when = f"in {span(left_ms)}" if left_ms >= 0 else f"{span(-left_ms)} ago: overdue"
    return f"{deadline:%Y-%m-%dT%H:%M:%SZ} ({when})"


def _as_of(revision: int, age_ms: int | None) -> str:
    parts = [f"revision {revision}"] if revision else []
    parts += [f"{span(age_ms)} ago"] if age_ms is not None else []
    return f" ({', '.join(parts)})" if parts else ""
