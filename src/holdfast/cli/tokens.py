"""The commands about tokens, with which nodes join and people and services show who they are."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from holdfast.cli.connection import client, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, UsageError, invalid_as_usage_error, run, warn
from holdfast.cli.tables import rows
from holdfast.host.client import Client
from holdfast.host.component.options import duration
from holdfast.host.pki.bearer_tokens import create_bearer, groups_for
from holdfast.host.pki.join_tokens import create_token
from holdfast.host.pki.kubeconfig import kubeconfig as kubeconfig_of
from holdfast.host.pki.trust_bundle import current_authorities
from holdfast.host.process.files import write_private
from holdfast.model.errors import Missing
from holdfast.model.kinds.access import Token, TokenPurpose
from holdfast.model.registry import SYSTEM_NAMESPACE

LOOPBACK = ("https://127.", "https://localhost", "https://[::1]")
JOIN_TTL, BEARER_TTL = "1h", "30d"
NAMESPACE = ("-n", "--namespace")


@click.group()
def token() -> None:
    """Tokens with which new nodes join, and with which people and services show who they are."""


@token.command(
    epilog="Examples: holdfast token create --node web-1 --ttl 30m; "
    "holdfast token create --user ann --tenant risk --write ann.kubeconfig"
)
@click.option("--node", default="", help="The only node that may join with it.")
@click.option("--any", "anyone", is_flag=True, help="For any node that is new to the plane.")
@click.option("--user", default="", help="Who its bearer is: a person or a service.")
@click.option("--group", multiple=True, help="With --user: a group that the bearer is in.")
@click.option("--tenant", multiple=True, help="With --user: a tenant that the bearer works in.")
@click.option(
    *NAMESPACE,
    default=SYSTEM_NAMESPACE,
    help="With --user: the tenant whose own user it is, in full tenant:TENANT:NAME.",
)
@click.option("--ttl", default="", help=f"How long it is good: 90s, 2d. [{JOIN_TTL}; {BEARER_TTL}]")
@click.option(
    "--write",
    type=click.Path(path_type=Path),
    help="With --user: write a kubeconfig with the token, instead of showing it.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the token alone.")
@kubeconfig_option
def create(
    node: str,
    anyone: bool,
    user: str,
    group: tuple[str, ...],
    tenant: tuple[str, ...],
    namespace: str,
    ttl: str,
    write: Path | None,
    quiet: bool,
    kubeconfig: Path | None,
) -> int:
    """Make a token and show it once. Only a hash of it is kept."""

    async def command() -> int:
        if [bool(node), anyone, bool(user)].count(True) != 1:
            raise UsageError("--node: must be given, or --any, or --user, and only one of them")
        is_own = namespace != SYSTEM_NAMESPACE
        if not user and (group or tenant or is_own or write is not None):
            raise UsageError("--group, --tenant, --namespace and --write: are for --user")
        if tenant and is_own:
            raise UsageError(
                "--tenant: a tenant's own users get their rights from its role bindings"
            )
        given = ttl or (BEARER_TTL if user else JOIN_TTL)
        with invalid_as_usage_error():
            lasts = duration("--ttl", given)
        async with client(kubeconfig) as to:
            if user:
                groups = groups_for(group, tenant)
                text, made = await create_bearer(to, user, groups, lasts, namespace)
                return await _bearer(to, text, made, write, quiet)
            return await _join(to, node, lasts, given, quiet)

    return run(command())


async def _join(to: Client, node: str, lasts: timedelta, given: str, quiet: bool) -> int:
    """Show the command with which the node joins."""
    text = await create_token(to, node, lasts)
    server = to.access.servers[0]
    if quiet:
        print(text)
        return ExitCode.DONE
    named = ["--name", node] if node else []
    # Not among the arguments, which all users of that machine can read: `printf` is no process of
    # its own. In one line, so that further options can be written behind it.
    line = shlex.join(["holdfast", "agent", "--server", server, *named, "--token-file", "-"])
    print(f"printf '%s\\n' {shlex.quote(text)} | {line}")
    warn(f"Run this within {given} on the machine that joins. The token is good for one node.")
    if server.startswith(LOOPBACK):
        warn(f"{server} is reached from this machine only; see `holdfast up --listen`.")
    return ExitCode.DONE


async def _bearer(to: Client, text: str, made: Token, write: Path | None, quiet: bool) -> int:
    """Show the token, or write the file with which its bearer reaches the plane."""
    user = made.spec.user
    if write is None:
        print(text)
    else:
        access = to.access
        # Not what this client trusts: its kubeconfig may be older than a rotation.
        authorities, _ = await current_authorities(to.transport, access.ca)
        content = kubeconfig_of(access.servers[0], authorities, text, user=user)
        write_private(write, content)
        print(f"{write} lets its bearer in as {user}")
    if not quiet:
        # The plane may have shortened its life.
        warn(f"Whoever has it is {user} until {_ends(made)}; it is shown this once, and not kept.")
    return ExitCode.DONE


@token.command(name="list")
@click.option(*NAMESPACE, default="", help="Those of one tenant.")
@kubeconfig_option
def list_tokens(namespace: str, kubeconfig: Path | None) -> int:
    """Show all tokens and what became of them. Their secrets are not kept anywhere."""

    async def command() -> int:
        async with client(kubeconfig) as to:
            found = (await to.list(Token, namespace)).objects
        now = datetime.now(UTC)
        if not found:
            warn("There are no tokens.")
            return ExitCode.DONE
        body = [
            (_name(it), _for(it), it.spec.purpose.value, _groups(it), _ends(it), fate(it, now))
            for it in found
        ]
        print("\n".join(rows(("NAME", "FOR", "PURPOSE", "GROUPS", "EXPIRES", "STATE"), body)))
        return ExitCode.DONE

    return run(command())


@token.command()
@click.argument("name")
@kubeconfig_option
def revoke(name: str, kubeconfig: Path | None) -> int:
    """Take a token back: its bearer is nobody from now on, also where he is connected.

    A node that has joined with one stays what it is; see `holdfast node revoke`. A tenant's own
    token is named TENANT/NAME.
    """

    async def command() -> int:
        async with client(kubeconfig) as to:
            await _revoke(to, name)
        print(f"token {name} is revoked")
        return ExitCode.DONE

    return run(command())


async def _revoke(to: Client, name: str) -> None:
    namespace, _, own = name.rpartition("/")
    try:
        await to.patch(Token, own, namespace or SYSTEM_NAMESPACE, {"spec": {"revoked": True}})
    except Missing as error:
        raise Missing(
            f"there is no token {name[:127]!r}; `holdfast token list` shows all"
        ) from error


def fate(of: Token, now: datetime) -> str:
    """What became of a token, in a word or two."""
    if of.status.used_by:
        return f"used by {of.status.used_by}"
    if of.spec.revoked:
        return "revoked"
    if of.spec.expires is not None and of.spec.expires <= now:
        return "expired"
    return "waits" if of.spec.purpose is TokenPurpose.JOIN else "good"


def _name(of: Token) -> str:
    return of.name if of.namespace == SYSTEM_NAMESPACE else f"{of.namespace}/{of.name}"


def _for(of: Token) -> str:
    return of.spec.node or of.spec.user or "*"


def _groups(of: Token) -> str:
    return ",".join(of.spec.groups) or "-"


def _ends(of: Token) -> str:
    return of.spec.expires.isoformat(timespec="seconds") if of.spec.expires else "-"
