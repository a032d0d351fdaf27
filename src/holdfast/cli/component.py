"""`holdfast component certificate`: what a scheduler, controllers or an agent show to the servers.

It runs where the plane's authority is, usually on a server's machine. The directory that it makes
is taken to the machine of the component, which never has the authority's key.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from holdfast.cli.ending import Code, Misused, run
from holdfast.cli.reaching import DATA
from holdfast.host.certificates import RENEW_FROM, moment
from holdfast.host.credentials import (
    AGENT,
    CONTROLLERS,
    SCHEDULER,
    file_name,
    has_authority,
    identities,
    provide,
    refuse_authority,
)


@click.group()
def component() -> None:
    """The certificates of schedulers, controllers and agents."""


@component.command(
    epilog="Example: holdfast component certificate scheduler --pki data/pki --out scheduler-pki"
)
@click.argument("part", type=click.Choice((SCHEDULER, CONTROLLERS, AGENT)))
@click.option("--name", default="main", show_default=True, help="Its name, or the node's.")
@click.option(
    "--pki",
    type=click.Path(path_type=Path),
    default=f"{DATA}/pki",
    show_default=True,
    help="The authority's directory.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where they are put.")
def certificate(part: str, name: str, pki: Path, out: Path) -> int:
    """Issue the certificates of one component into a directory of its own.

    Run it again to renew them: those that are good for a while yet stay. A component that runs
    takes new ones up by itself.
    """

    async def command() -> int:
        if not await asyncio.to_thread(has_authority, pki):
            raise Misused(f"--pki: {pki} has no ca.key; run this where the plane's authority is")
        refuse_authority(out, part, "give --out another directory")
        names = identities(part, name)
        provide(pki, out, names)
        shown = (out / f"{file_name(names[0])}.crt").read_bytes()
        print(
            f"{out} has the certificates of {part} {name}. Start it with --pki {out}. Issue them "
            f"again from {moment(shown, RENEW_FROM):%Y-%m-%d} on, and before "
            f"{moment(shown, 1):%Y-%m-%d}."
        )
        return Code.DONE

    return run(command())
