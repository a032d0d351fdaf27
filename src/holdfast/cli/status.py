"""`holdfast status`: whether the plane works, part by part, and what is wrong if it does not.

Asks every server that the kubeconfig names, for what it knows itself: nothing here needs the store,
so that a plane without one can still be looked at. Servers that it does not name are known to the
others by their leases, and so are components that were there. `standing` judges what is found.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli import tables
from holdfast.cli.connection import access, given_access, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, complain, plain, run
from holdfast.cli.health_report import PlaneFacts, ReportLine, ServerHealth, judged, verdict
from holdfast.host.audit.standing import PATH as AUDIT_PATH
from holdfast.host.audit.standing import AuditStatus
from holdfast.host.client import Access
from holdfast.host.client.paths import collection
from holdfast.host.client.questions import HEARTBEATS_PATH, PULSES_PATH, QUARANTINE_PATH
from holdfast.host.client.transport import Transport
from holdfast.model.encoding.wire import readable
from holdfast.model.errors import HoldfastError
from holdfast.model.heartbeat import HeartbeatReport
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.meta import AnyObject
from holdfast.model.pulse import Pulses
from holdfast.model.quarantine import Quarantine
from holdfast.model.registry import kind_of_struct

# A server that cannot reach its store takes some seconds to say so.
TIMEOUT_S = 10.0
FORMS = ("table", "json")
# Most replicas are in one of these states, and then there is no copy of them out of sight.
_WELL = (State.PENDING, State.RUNNING, State.SUCCEEDED)
_TROUBLED = ",".join(f"status.state!={state.value}" for state in _WELL)
Found = TypeVar("Found")


class _List(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] = []


@click.command(epilog="Example: holdfast status || echo the plane needs somebody")
@click.option("-o", "--output", type=click.Choice(FORMS), default=FORMS[0], show_default=True)
@kubeconfig_option
def status(output: str, kubeconfig: Path | None) -> int:
    """Show how the plane is doing: servers, store, schedulers, controllers, nodes, queue.

    Ends with 0 if all works, with 1 if something is wrong, and with 3 if no server answers.
    """

    async def command() -> int:
        facts = await _known_facts(kubeconfig)
        lines = judged(facts)
        if output == "json":
            print(msgspec.json.encode({"verdict": verdict(lines), "lines": lines}).decode())
        else:
            _print(lines)
        if all(server.error for server in facts.servers):
            return complain("no server answers", ExitCode.UNREACHABLE)
        return ExitCode.DONE if verdict(lines) else ExitCode.FAILED

    return run(command())


async def _known_facts(kubeconfig: Path | None) -> PlaneFacts:
    """What the server says that the kubeconfig names; if it is silent, what the others say."""
    facts = await gathered(given_access(kubeconfig))
    known = access(kubeconfig)
    if not all(it.error for it in facts.servers) or len(known.servers) == 1:
        return facts
    found = await gathered(known)
    # Of one that is only remembered and silent, its lease says more.
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


async def gathered(to: Access) -> PlaneFacts:
    """All that can be found out about the plane."""
    asked = [msgspec.structs.replace(to, servers=(server,)) for server in to.servers]
    found = await asyncio.gather(*(_asked(one) for one in asked))
    servers = tuple(server for server, _ in found)
    unknown: dict[str, str] = {}
    answers = [answers for server, answers in found if not server.error]

    def all_of(what: str) -> tuple[Any, ...] | None:
        """What the servers said of something, unless none of them said anything."""
        said = [it[what] for it in answers]
        good = tuple(it for it in said if not isinstance(it, HoldfastError))
        if said and not good:
            unknown[what] = said[0].message
        return good or None

    pulses, heard = all_of("pulses"), all_of("heartbeats")
    nodes, workloads = all_of("nodes"), all_of("workloads")
    audit, leases = all_of("audit"), all_of("leases")
    quarantine, replicas = all_of("quarantine"), all_of("replicas")
    return PlaneFacts(
        servers,
        pulses,
        heard,
        # They tell the same, and the first one is enough.
        nodes[0] if nodes is not None else None,
        workloads[0] if workloads is not None else None,
        replicas[0] if replicas is not None else None,
        audit,
        leases[0] if leases is not None else None,
        quarantine,
        unknown,
    )


async def _asked(to: Access) -> tuple[ServerHealth, dict[str, Any]]:
    """One server: how it is, and what it says of the plane."""
    async with Transport(to, agent="holdfast-cli") as transport:
        began = time.monotonic()
        try:
            answer = await transport.send(
                "GET", "/readyz", query={"verbose": "1"}, timeout_s=TIMEOUT_S
            )
        except HoldfastError as error:
            return ServerHealth(to.servers[0], error=error.message), {}
        took_ms = round((time.monotonic() - began) * 1_000)
        checks = _checks(answer.body.decode(errors="replace"))
        said = await asyncio.gather(
            _told(transport, PULSES_PATH, Pulses),
            _told(transport, HEARTBEATS_PATH, HeartbeatReport),
            _listed(transport, Node),
            _listed(transport, Workload),
            _listed(transport, Replica, _TROUBLED),
            _told(transport, AUDIT_PATH, AuditStatus),
            _listed(transport, Lease),
            _told(transport, QUARANTINE_PATH, Quarantine),
        )
        names = ("pulses", "heartbeats", "nodes", "workloads", "replicas", "audit", "leases")
        told = zip((*names, "quarantine"), said, strict=True)
        return ServerHealth(to.servers[0], took_ms, checks), dict(told)


def _checks(text: str) -> dict[str, bool]:
    """What /readyz says, check by check."""
    found: dict[str, bool] = {}
    for line in text.splitlines():
        mark, name = line[:3], line[3:].partition(" ")[0]
        if mark in ("[+]", "[-]") and name:
            found[name] = mark == "[+]"
    return found


async def _told(transport: Transport, path: str, cls: type[Found]) -> Found | HoldfastError:
    try:
        body = await _read(transport, path, {})
        return msgspec.json.decode(body, type=cls)
    except HoldfastError as error:
        return error
    except msgspec.DecodeError as error:
        return HoldfastError(f"an answer that cannot be read: {error}")


async def _listed(
    transport: Transport, cls: type[AnyObject], fields: str = ""
) -> tuple[AnyObject, ...] | HoldfastError:
    """All objects of a kind, or those with these fields, as this server has them in memory."""
    try:
        path = collection(kind_of_struct(cls), "")
        chosen = {"fieldSelector": fields} if fields else {}
        body = await _read(transport, path, {"resourceVersion": "0", **chosen})
        items = msgspec.json.decode(body, type=_List).items
        # One that cannot be read is told by the quarantine, and hides no others.
        return tuple(it for item in items if (it := readable(cls, bytes(item))) is not None)
    except HoldfastError as error:
        return error
    except msgspec.DecodeError as error:
        return HoldfastError(f"an answer that cannot be read: {error}")


async def _read(transport: Transport, path: str, query: dict[str, str]) -> bytes:
    answer = await transport.send("GET", path, query=query, timeout_s=TIMEOUT_S)
    if not answer.is_good:
        raise answer.error(may_have_happened=False)
    return answer.body
