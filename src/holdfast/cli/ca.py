"""`holdfast ca`: the certificate authorities of a plane, and their rotation.

docs/security.md has the runbook.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from holdfast.cli import tables
from holdfast.cli.command_table import Section
from holdfast.cli.connection import (
    given_access,
    kubeconfig_option,
    kubeconfig_path,
    transport,
)
from holdfast.cli.exit_codes import ExitCode, UsageError, plain, run, warn
from holdfast.host.client.server_access import DATA, with_authorities
from holdfast.host.client.transport import Transport
from holdfast.host.pki.ca_rotation import PATH, RotationRequest, RotationStatus, RotationStep
from holdfast.host.pki.certificates import RENEW_FROM, moment
from holdfast.host.pki.component_credentials import (
    AGENT,
    CONTROLLERS,
    SCHEDULER,
    file_name,
    has_authority,
    identities,
    provide,
    refuse_authority,
)
from holdfast.host.pki.trust_bundle import SHORT, RotationPhase, fetch_bundle
from holdfast.host.process.files import write_private
from holdfast.model.errors import HoldfastError

SECTION = Section.ACCESS
# A server waits until the others have followed.
TIMEOUT_S = 90.0
PARTS_MAX = 100


@click.group()
def ca() -> None:
    """The certificate authorities that a plane trusts, and the rotation to a new one."""


@ca.command(epilog="Example: holdfast ca status")
@kubeconfig_option
def status(kubeconfig: Path | None) -> int:
    """Show the trusted authorities, which of them signs, and which clients need the old one."""

    async def command() -> int:
        async with transport(kubeconfig) as to:
            answer = await to.send("GET", PATH, timeout_s=TIMEOUT_S)
            if not answer.is_good:
                raise answer.error(may_have_happened=False)
            _show(_decoded(answer.body))
        return ExitCode.DONE

    return run(command())


@ca.group()
def rotate() -> None:
    """Replace the certificate authority in steps: begin, switch, finish."""


@rotate.command(epilog="Example: holdfast ca rotate begin")
@kubeconfig_option
def begin(kubeconfig: Path | None) -> int:
    """Create a new authority that all parts trust, and that signs nothing yet."""
    return run(_step(RotationRequest(RotationStep.BEGIN), kubeconfig))


@rotate.command(epilog="Example: holdfast ca rotate switch")
@kubeconfig_option
def switch(kubeconfig: Path | None) -> int:
    """Let the new authority sign. Refused until all parts trust it."""
    return run(_step(RotationRequest(RotationStep.SWITCH), kubeconfig))


@rotate.command(epilog="Example: holdfast ca rotate finish")
@click.option("--force", is_flag=True, help="Cut off clients that still need the old authority.")
@kubeconfig_option
def finish(force: bool, kubeconfig: Path | None) -> int:
    """Stop trusting the old authority. Refused while a client is known to need it."""
    return run(_step(RotationRequest(RotationStep.FINISH, force), kubeconfig))


@rotate.command(epilog="Example: holdfast ca rotate abort")
@kubeconfig_option
def abort(kubeconfig: Path | None) -> int:
    """Remove the new authority before it signs."""
    return run(_step(RotationRequest(RotationStep.ABORT), kubeconfig))


@ca.command(name="kubeconfig", epilog="Example: holdfast ca kubeconfig --kubeconfig ann.kubeconfig")
@kubeconfig_option
def renew_kubeconfig(kubeconfig: Path | None) -> int:
    """Write the authorities that the plane trusts now into a kubeconfig.

    Run it during a rotation, for each kubeconfig that was given to a user. A new authority is
    accepted only if it is signed by one that the file already trusts.
    """

    async def command() -> int:
        path, access = kubeconfig_path(kubeconfig), given_access(kubeconfig)
        async with Transport(access, agent="holdfast-cli") as to:
            found = await fetch_bundle(to, access.ca)
        write_private(path, with_authorities(path, found.pem))
        known = ", ".join(it[:SHORT] for it in found.fingerprints)
        print(f"{path} trusts {known}")
        return ExitCode.DONE

    return run(command())


async def _step(request: RotationRequest, kubeconfig: Path | None) -> int:
    async with transport(kubeconfig) as to:
        answer = await to.send(
            "POST",
            PATH,
            body=msgspec.json.encode(request),
            headers={"Content-Type": "application/json"},
            timeout_s=TIMEOUT_S,
        )
        if not answer.is_good:
            raise answer.error(may_have_happened=answer.code >= 500)
        found = _decoded(answer.body)
    for sentence in found.cut_off:
        warn(f"cut off: {sentence}")
    _show(found)
    print(_advice(request.step))
    return ExitCode.DONE


def _advice(step: RotationStep) -> str:
    match step:
        case RotationStep.BEGIN:
            return (
                "\nAll parts take the new authority within seconds. Where servers do not share a "
                "pki directory, copy its key to each of them. Then: holdfast ca rotate switch"
            )
        case RotationStep.SWITCH:
            return (
                "\nThe new authority signs, and the parts renew their certificates now. Renew the "
                "kubeconfigs that users have (holdfast ca kubeconfig). Then: holdfast ca rotate "
                "finish"
            )
        case RotationStep.FINISH:
            return "\nThe old authority is no longer trusted, and the servers have removed its key."
        case RotationStep.ABORT:
            return "\nThe rotation is aborted."


def _show(found: RotationStatus) -> None:
    lines = [f"Generation {found.generation}, {found.phase.value}"]
    lines += tables.rows(
        ("AUTHORITY", "EXPIRES", "USED FOR", "KEY AT"),
        [
            (
                it.fingerprint[:SHORT],
                f"{it.expires:%Y-%m-%d}",
                _used_for(signs=it.signs, serves=it.serves),
                ",".join(on.server for on in found.servers if it.fingerprint in on.held) or "-",
            )
            for it in found.authorities
        ],
    )
    if found.phase is not RotationPhase.STABLE:
        lines += ["", *_parts(found)]
    for title, sentences in (
        ("Switch would be refused:", found.against_switch),
        ("Finish would be refused:", found.against_finish),
        ("May need the old authority:", found.unknown),
    ):
        lines += ["", title, *(f"  {it}" for it in sentences)] if sentences else []
    print("\n".join(plain(line, keep="") for line in lines))


def _used_for(*, signs: bool, serves: bool) -> str:
    uses = [use for use, is_so in (("signs", signs), ("servers present it", serves)) if is_so]
    return ", ".join(uses) or "trusted"


def _parts(found: RotationStatus) -> list[str]:
    names = {it.fingerprint: it.fingerprint[:SHORT] for it in found.authorities}
    body = [
        (it.server, "server", "-", f"generation {it.generation}", it.trouble or "-")
        for it in found.servers
    ]
    body += [
        (
            it.name,
            it.sort.value,
            names.get(it.authority, "token"),
            ",".join(it.trusts) if it.trusts is not None else "unknown",
            f"{datetime.fromtimestamp(it.at_s, UTC):%H:%M:%SZ}",
        )
        for it in found.parts[:PARTS_MAX]
    ]
    lines = tables.rows(("PART", "KIND", "CERTIFICATE OF", "TRUSTS", "SEEN"), body)
    left = len(found.parts) - PARTS_MAX
    return [*lines, *([f"and {left} more"] if left > 0 else [])]


def _decoded(body: bytes) -> RotationStatus:
    try:
        return msgspec.json.decode(body, type=RotationStatus)
    except msgspec.DecodeError as error:
        raise HoldfastError(f"the server sent an unreadable answer: {error}") from None


# `holdfast component certificate`: the client certificates of schedulers, controllers and agents.
#
# It runs where the plane's authority is, usually on a server's machine. The operator copies the
# directory that it creates to the component's machine, which never has the authority's key.


@click.group()
def component() -> None:
    """The certificates of schedulers, controllers and agents."""


@component.command(
    epilog="Example: holdfast component certificate scheduler --pki data/pki --out scheduler-pki"
)
@click.argument("part", type=click.Choice((SCHEDULER, CONTROLLERS, AGENT)))
@click.option("--name", default="main", show_default=True, help="The name of instance or node.")
@click.option(
    "--pki",
    type=click.Path(path_type=Path),
    default=f"{DATA}/pki",
    show_default=True,
    help="The authority's directory.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Output directory.")
def certificate(part: str, name: str, pki: Path, out: Path) -> int:
    """Issue the certificates of one component into its own directory.

    Run it again to renew them: those that are still valid for a while are kept. A running component
    loads new ones by itself.
    """

    async def command() -> int:
        if not await asyncio.to_thread(has_authority, pki):
            raise UsageError(f"--pki: {pki} has no ca.key; run this where the plane's authority is")
        refuse_authority(out, part, "give --out another directory")
        names = identities(part, name)
        provide(pki, out, names)
        shown = (out / f"{file_name(names[0])}.crt").read_bytes()
        print(
            f"{out} has the certificates of {part} {name}. Start it with --pki {out}. Issue them "
            f"again from {moment(shown, RENEW_FROM):%Y-%m-%d} on, and before "
            f"{moment(shown, 1):%Y-%m-%d}."
        )
        return ExitCode.DONE

    return run(command())
