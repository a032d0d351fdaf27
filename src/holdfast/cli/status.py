"""`holdfast status`: whether the plane works, part by part, and what is wrong if it does not.

Asks every server in the kubeconfig for what it has in memory: no answer needs the store, so that
the command also works on a plane whose store is down. Other servers, and components that ran
before, are known by their leases. `health_report` makes the report from the answers.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli import tables
from holdfast.cli.command_table import Section
from holdfast.cli.connection import access, given_access, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, complain, plain, run
from holdfast.cli.health_report import PlaneFacts, ReportLine, ServerHealth, report_lines, verdict
from holdfast.host.audit.status_route import PATH as AUDIT_PATH
from holdfast.host.audit.status_route import AuditStatus
from holdfast.host.client import Access
from holdfast.host.client.paths import collection
from holdfast.host.client.request_calls import HEARTBEATS_PATH, PULSES_PATH, QUARANTINE_PATH
from holdfast.host.client.transport import Transport
from holdfast.model.encoding.wire import readable
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.meta import AnyObject
from holdfast.model.nodes.heartbeat import HeartbeatReport
from holdfast.model.pulse import Pulses
from holdfast.model.quarantine import Quarantine
from holdfast.model.registry import kind_of_struct

SECTION = Section.STATE
# A server that cannot reach its store takes some seconds to answer.
TIMEOUT_S = 10.0
FORMS = ("table", "json")
# Most replicas are in one of these states, in which no copy of them can run unobserved.
_WELL = (State.PENDING, State.RUNNING, State.SUCCEEDED)
_TROUBLED = ",".join(f"status.state!={state.value}" for state in _WELL)
Found = TypeVar("Found")


class _List(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] = []


@click.command(epilog="Example: holdfast status || echo the plane needs attention")
@click.option("-o", "--output", type=click.Choice(FORMS), default=FORMS[0], show_default=True)
@kubeconfig_option
def status(output: str, kubeconfig: Path | None) -> int:
    """Show the health of the plane: servers, store, schedulers, controllers, nodes, queue.

    Exits with 0 if everything works, with 1 if something is wrong, and with 3 if no server answers.
    """

    async def command() -> int:
        facts = await _known_facts(kubeconfig)
        lines = report_lines(facts)
        if output == "json":
            print(msgspec.json.encode({"verdict": verdict(lines), "lines": lines}).decode())
        else:
            _print(lines)
        if all(server.error for server in facts.servers):
            return complain("no server answers", ExitCode.UNREACHABLE)
        return ExitCode.DONE if verdict(lines) else ExitCode.FAILED

    return run(command())


async def _known_facts(kubeconfig: Path | None) -> PlaneFacts:
    """The facts from the server in the kubeconfig; if it is silent, from the remembered servers."""
    facts = await gather_facts(given_access(kubeconfig))
    known = access(kubeconfig)
    if not all(it.error for it in facts.servers) or len(known.servers) == 1:
        return facts
    found = await gather_facts(known)
    # For a server that is only remembered and does not answer, its lease says more.
    given, *others = found.servers
    answering = [it for it in others if not it.error]
    return msgspec.structs.replace(found, servers=(given, *answering))


def _print(lines: list[ReportLine]) -> None:
    heading = ("PART", "NAME", "STATE", "MORE")
    body = [(it.part, it.name, it.state, it.more) for it in lines]
    print("\n".join(tables.rows(heading, body)))
    print()
    wrong = [it for it in lines if it.wrong]
    if not wrong:
        print(verdict(lines))
        return
    print(f"{len(wrong)} {'thing is' if len(wrong) == 1 else 'things are'} wrong:")
    for it in wrong:
        print(plain(f"  {it.part} {it.name}: {it.wrong}", keep=""))


async def gather_facts(to: Access) -> PlaneFacts:
    """All that the servers know about the plane."""
    each = [msgspec.structs.replace(to, servers=(server,)) for server in to.servers]
    found = await asyncio.gather(*(_ask_server(one) for one in each))
    servers = tuple(server for server, _ in found)
    unknown: dict[str, str] = {}
    answers = [answers for server, answers in found if not server.error]

    def all_of(what: str) -> tuple[Any, ...] | None:
        """The good answers of all servers to one question; None if there is none."""
        given = [it[what] for it in answers]
        good = tuple(it for it in given if not isinstance(it, HoldfastError))
        if given and not good:
            unknown[what] = given[0].message
        return good or None

    pulses, heartbeats = all_of("pulses"), all_of("heartbeats")
    nodes, workloads = all_of("nodes"), all_of("workloads")
    audit, leases = all_of("audit"), all_of("leases")
    quarantine, replicas = all_of("quarantine"), all_of("replicas")
    return PlaneFacts(
        servers,
        pulses,
        heartbeats,
        # All servers have the same objects, so the first answer is enough.
        nodes[0] if nodes is not None else None,
        workloads[0] if workloads is not None else None,
        replicas[0] if replicas is not None else None,
        audit,
        leases[0] if leases is not None else None,
        quarantine,
        unknown,
    )


async def _ask_server(to: Access) -> tuple[ServerHealth, dict[str, Any]]:
    """The health of one server, and its answers about the plane."""
    async with Transport(to, agent="holdfast-cli") as transport:
        began = time.monotonic()
        try:
            answer = await transport.send(
                "GET", "/readyz", query={"verbose": "1"}, timeout_s=TIMEOUT_S
            )
        except HoldfastError as error:
            return ServerHealth(to.servers[0], error=error.message), {}
        took_ms = round((time.monotonic() - began) * 1_000)
        checks = readyz_checks(answer.body.decode(errors="replace"))
        answers = await asyncio.gather(
            _get(transport, PULSES_PATH, Pulses),
            _get(transport, HEARTBEATS_PATH, HeartbeatReport),
            _list(transport, Node),
            _list(transport, Workload),
            _list(transport, Replica, _TROUBLED),
            _get(transport, AUDIT_PATH, AuditStatus),
            _list(transport, Lease),
            _get(transport, QUARANTINE_PATH, Quarantine),
        )
        names = ("pulses", "heartbeats", "nodes", "workloads", "replicas", "audit", "leases")
        named = zip((*names, "quarantine"), answers, strict=True)
        return ServerHealth(to.servers[0], took_ms, checks), dict(named)


def readyz_checks(text: str) -> dict[str, bool]:
    """The checks of /readyz by name."""
    found: dict[str, bool] = {}
    for line in text.splitlines():
        mark, name = line[:3], line[3:].partition(" ")[0]
        if mark in ("[+]", "[-]") and name:
            found[name] = mark == "[+]"
    return found


async def _get(transport: Transport, path: str, cls: type[Found]) -> Found | HoldfastError:
    try:
        body = await _read(transport, path, {})
        return msgspec.json.decode(body, type=cls)
    except HoldfastError as error:
        return error
    except msgspec.DecodeError as error:
        return HoldfastError(f"the server sent an unreadable answer: {error}")


async def _list(
    transport: Transport, cls: type[AnyObject], fields: str = ""
) -> tuple[AnyObject, ...] | HoldfastError:
    """All objects of a kind, or those with these fields, as this server has them in memory."""
    try:
        path = collection(kind_of_struct(cls), "")
        chosen = {"fieldSelector": fields} if fields else {}
        body = await _read(transport, path, {"resourceVersion": "0", **chosen})
        items = msgspec.json.decode(body, type=_List).items
        # The quarantine reports an unreadable object; it must not hide the others.
        return tuple(it for item in items if (it := readable(cls, bytes(item))) is not None)
    except HoldfastError as error:
        return error
    except msgspec.DecodeError as error:
        return HoldfastError(f"the server sent an unreadable answer: {error}")


async def _read(transport: Transport, path: str, query: dict[str, str]) -> bytes:
    answer = await transport.send("GET", path, query=query, timeout_s=TIMEOUT_S)
    if not answer.is_good:
        raise answer.error(may_have_happened=False)
    return answer.body
