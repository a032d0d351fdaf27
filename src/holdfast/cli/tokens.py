"""The commands about tokens, with which nodes join and users and services authenticate."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from holdfast.cli.command_table import Section
from holdfast.cli.connection import client, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, UsageError, invalid_as_usage_error, run, warn
from holdfast.cli.tables import rows
from holdfast.host.client import AsyncClient
from holdfast.host.component.options import duration
from holdfast.host.pki.bearer_tokens import create_bearer, groups_for
from holdfast.host.pki.join_tokens import create_token
from holdfast.host.pki.kubeconfig import kubeconfig as kubeconfig_of
from holdfast.host.pki.trust_bundle import current_authorities
from holdfast.host.process.files import write_private
from holdfast.model.errors import Missing
from holdfast.model.kinds.access import Token, TokenPurpose
from holdfast.model.registry import SYSTEM_NAMESPACE

SECTION = Section.ACCESS
LOOPBACK = ("https://127.", "https://localhost", "https://[::1]")
JOIN_TTL, BEARER_TTL = "1h", "30d"
NAMESPACE = ("-n", "--namespace")


@click.group()
def token() -> None:
    """Tokens with which new nodes join, and with which users and services authenticate."""


@token.command(
    epilog="Examples: holdfast token create --node web-1 --ttl 30m; "
    "holdfast token create --user ann --tenant risk --write ann.kubeconfig"
)
@click.option("--node", default="", help="The only node that may join with it.")
@click.option("--any", "anyone", is_flag=True, help="For any node that is new to the plane.")
@click.option("--user", default="", help="The user or service that the token authenticates.")
@click.option("--group", multiple=True, help="With --user: a group of the user.")
@click.option("--tenant", multiple=True, help="With --user: a tenant that the user works in.")
@click.option(
    *NAMESPACE,
    default=SYSTEM_NAMESPACE,
    help="With --user: the tenant that owns the user, in full tenant:TENANT:NAME.",
)
@click.option("--ttl", default="", help=f"Its lifetime: 90s, 2d. [{JOIN_TTL}; {BEARER_TTL}]")
@click.option(
    "--write",
    type=click.Path(path_type=Path),
    help="With --user: write a kubeconfig with the token instead of printing it.",
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
    """Create a token and print it once. The plane stores only a hash of it."""

    async def command() -> int:
        if [bool(node), anyone, bool(user)].count(True) != 1:
            raise UsageError("--node, --any, --user: exactly one of them is required")
        is_own = namespace != SYSTEM_NAMESPACE
        if not user and (group or tenant or is_own or write is not None):
            raise UsageError("--group, --tenant, --namespace, --write: require --user")
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


async def _join(to: AsyncClient, node: str, lasts: timedelta, given: str, quiet: bool) -> int:
    """Print the command with which the node joins."""
    text = await create_token(to, node, lasts)
    server = to.access.servers[0]
    if quiet:
        print(text)
        return ExitCode.DONE
    named = ["--name", node] if node else []
    # The token is not an argument, which all users of that machine can read: `printf` is a shell
    # builtin, not a process. In one line, so that further options can be appended.
    line = shlex.join(["holdfast", "agent", "--server", server, *named, "--token-file", "-"])
    print(f"printf '%s\\n' {shlex.quote(text)} | {line}")
    warn(f"Run this within {given} on the machine that joins. The token is valid for one node.")
    if server.startswith(LOOPBACK):
        warn(f"Only this machine can reach {server}; see `holdfast up --listen`.")
    return ExitCode.DONE


async def _bearer(to: AsyncClient, text: str, made: Token, write: Path | None, quiet: bool) -> int:
    """Print the token, or write a kubeconfig with it."""
    user = made.spec.user
    if write is None:
        print(text)
    else:
        access = to.access
        # Not the authorities of this client: its kubeconfig may be older than a rotation.
        authorities, _ = await current_authorities(to.transport, access.ca)
        content = kubeconfig_of(access.servers[0], authorities, text, user=user)
        write_private(write, content)
        print(f"{write} authenticates its bearer as {user}")
    if not quiet:
        # The plane may have shortened its lifetime.
        warn(
            f"The token authenticates its bearer as {user} until {_ends(made)}. It is not stored "
            "and cannot be shown again."
        )
    return ExitCode.DONE


@token.command(name="list")
@click.option(*NAMESPACE, default="", help="Only tokens of this tenant.")
@kubeconfig_option
def list_tokens(namespace: str, kubeconfig: Path | None) -> int:
    """Show all tokens and their state. Their secrets are not stored anywhere."""

    async def command() -> int:
        async with client(kubeconfig) as to:
            found = (await to.list(Token, namespace)).objects
        now = datetime.now(UTC)
        if not found:
            warn("There are no tokens.")
            return ExitCode.DONE
        body = [
            (
                _name(it),
                _for(it),
                it.spec.purpose.value,
                _groups(it),
                _ends(it),
                token_state(it, now),
            )
            for it in found
        ]
        print("\n".join(rows(("NAME", "FOR", "PURPOSE", "GROUPS", "EXPIRES", "STATE"), body)))
        return ExitCode.DONE

    return run(command())


@token.command()
@click.argument("name")
@kubeconfig_option
def revoke(name: str, kubeconfig: Path | None) -> int:
    """Revoke a token. Open connections of its bearer end, too.

    A node that has joined with the token is not affected; see `holdfast node revoke`. A tenant's
    own token is named TENANT/NAME.
    """

    async def command() -> int:
        async with client(kubeconfig) as to:
            await _revoke(to, name)
        print(f"token {name} is revoked")
        return ExitCode.DONE

    return run(command())


async def _revoke(to: AsyncClient, name: str) -> None:
    namespace, _, own = name.rpartition("/")
    try:
        await to.patch(Token, own, namespace or SYSTEM_NAMESPACE, {"spec": {"revoked": True}})
    except Missing as error:
        raise Missing(
            f"there is no token {name[:127]!r}; `holdfast token list` lists the tokens"
        ) from error


def token_state(of: Token, now: datetime) -> str:
    """The state of a token, in a word or two."""
    if of.status.used_by:
        return f"used by {of.status.used_by}"
    if of.spec.revoked:
        return "revoked"
    if of.spec.expires is not None and of.spec.expires <= now:
        return "expired"
    return "unused" if of.spec.purpose is TokenPurpose.JOIN else "valid"


def _name(of: Token) -> str:
    return of.name if of.namespace == SYSTEM_NAMESPACE else f"{of.namespace}/{of.name}"


def _for(of: Token) -> str:
    return of.spec.node or of.spec.user or "*"


def _groups(of: Token) -> str:
    return ",".join(of.spec.groups) or "-"


def _ends(of: Token) -> str:
    return of.spec.expires.isoformat(timespec="seconds") if of.spec.expires else "-"
