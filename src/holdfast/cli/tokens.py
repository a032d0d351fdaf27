"""The commands about join tokens: create, list, revoke."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

import click

from holdfast.cli.ending import Code, Misused, judged_as_usage, run, warn
from holdfast.cli.reaching import client, kubeconfig_option
from holdfast.cli.tables import rows
from holdfast.host.client import Client
from holdfast.host.join_tokens import create_token
from holdfast.host.options import duration
from holdfast.model.errors import Missing
from holdfast.model.kinds.token import Token, TokenPurpose
from holdfast.model.registry import SYSTEM_NAMESPACE

LOOPBACK = ("https://127.", "https://localhost", "https://[::1]")


@click.group()
def token() -> None:
    """Tokens with which new nodes join."""


@token.command(epilog="Example: holdfast token create --node web-1 --ttl 30m")
@click.option("--node", default="", help="The only node that may join with it.")
@click.option("--any", "anyone", is_flag=True, help="For any node that is new to the plane.")
@click.option("--ttl", default="1h", show_default=True, help="How long it may wait: 90s, 30m, 2d.")
@click.option("-q", "--quiet", is_flag=True, help="Print the token alone.")
@kubeconfig_option
def create(node: str, anyone: bool, ttl: str, quiet: bool, kubeconfig: Path | None) -> int:
    """Make a token, and show once the command with which the node joins."""

    async def command() -> int:
        if bool(node) == anyone:
            raise Misused("--node: must be given, or --any, and not both")
        async with client(kubeconfig) as to:
            with judged_as_usage():
                lasts = duration("--ttl", ttl)
            text = await create_token(to, node, lasts)
            server = to.access.servers[0]
        if quiet:
            print(text)
            return Code.DONE
        named = ["--name", node] if node else []
        print(shlex.join(["holdfast", "agent", "--server", server, "--token", text, *named]))
        warn(f"Run this within {ttl} on the machine that joins. The token is good for one node.")
        if server.startswith(LOOPBACK):
            warn(f"{server} is reached from this machine only; see `holdfast up --listen`.")
        return Code.DONE

    return run(command())


@token.command(name="list")
@kubeconfig_option
def list_tokens(kubeconfig: Path | None) -> int:
    """Show all join tokens and what became of them. Their secrets are not kept anywhere."""

    async def command() -> int:
        async with client(kubeconfig) as to:
            found = await to.list(Token, SYSTEM_NAMESPACE)
        joins = [it for it in found.objects if it.spec.purpose is TokenPurpose.JOIN]
        now = datetime.now(UTC)
        if not joins:
            warn("There are no join tokens.")
            return Code.DONE
        body = [(it.name, it.spec.node or "*", _ends(it), fate(it, now)) for it in joins]
        print("\n".join(rows(("NAME", "NODE", "EXPIRES", "STATE"), body)))
        return Code.DONE

    return run(command())


@token.command()
@click.argument("name")
@kubeconfig_option
def revoke(name: str, kubeconfig: Path | None) -> int:
    """Take a token back. A node that has joined with it stays what it is."""

    async def command() -> int:
        async with client(kubeconfig) as to:
            await _revoke(to, name)
        print(f"token {name} is revoked")
        return Code.DONE

    return run(command())


async def _revoke(to: Client, name: str) -> None:
    try:
        await to.patch(Token, name, SYSTEM_NAMESPACE, {"spec": {"revoked": True}})
    except Missing as error:
        raise Missing(
            f"there is no token {name[:63]!r}; `holdfast token list` shows all"
        ) from error


def fate(of: Token, now: datetime) -> str:
    """What became of a token, in a word or two."""
    if of.status.used_by:
        return f"used by {of.status.used_by}"
    if of.spec.revoked:
        return "revoked"
    if of.spec.expires is not None and of.spec.expires <= now:
        return "expired"
    return "waits"


def _ends(of: Token) -> str:
    return of.spec.expires.isoformat(timespec="seconds") if of.spec.expires else "-"
