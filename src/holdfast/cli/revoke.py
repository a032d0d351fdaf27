"""The commands that end what was issued to a node or to somebody: `node revoke`, `user revoke`.

Each writes the Revocation of that identity. All servers refuse its certificates and tokens from
then on and end its open streams within seconds; what is issued later counts.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast.agent.secret_values import secret_names
from holdfast.cli.connection import client, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, UsageError, plain, run, warn
from holdfast.host.client import Client
from holdfast.host.pki.node_join import WHO_PATH
from holdfast.model.access import identity as who
from holdfast.model.access.credential_life import revocation_name
from holdfast.model.errors import Conflict, Missing
from holdfast.model.kinds.access import Revocation, RevocationSpec
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason

_reason_option = click.option("--reason", default="", help="Why, for people.")


@click.group()
def node() -> None:
    """The machines of a plane. See also: cordon, uncordon, drain, token create --node."""


@node.command(name="revoke", epilog="Example: holdfast node revoke web-1 --reason 'disk stolen'")
@click.argument("name")
@_reason_option
@kubeconfig_option
def revoke_node(name: str, reason: str, kubeconfig: Path | None) -> int:
    """Let a node in no more: end its certificates. Its work stops and is placed elsewhere.

    With a new token it may join again; deleting a node ends its certificates, too.
    """

    async def command() -> int:
        async with client(kubeconfig) as to:
            try:
                await to.get(Node, name)
            except Missing:
                warn(f"There is no node {name}; whatever it was given is revoked all the same.")
            await revoked(to, who.agent(name).name, reason)
            print(f"node {plain(name)} is revoked: all of its certificates until now")
            exposed = await exposed_secrets(to, name)
        if exposed:
            print("Work that is bound to it was given these Secrets. Change their values:")
            for namespace, secret in exposed:
                print(f"  {plain(namespace)}/{plain(secret)}")
        return ExitCode.DONE

    return run(command())


@click.group()
def user() -> None:
    """People and services, and the components of a plane. See also: token create --user."""


@user.command(name="revoke", epilog="Example: holdfast user revoke ann --reason 'left the team'")
@click.argument("name")
@_reason_option
@click.option("--myself", is_flag=True, help="Mean it also if that is who you are.")
@kubeconfig_option
def revoke_user(name: str, reason: str, myself: bool, kubeconfig: Path | None) -> int:
    """End all certificates and tokens that somebody has; what is issued later counts again."""

    async def command() -> int:
        async with client(kubeconfig) as to:
            if not myself and await _own_name(to) == name:
                raise UsageError(
                    f"you are {name}: this locks you out until somebody else issues a new "
                    "certificate or token; --myself means it"
                )
            await revoked(to, name, reason)
        print(f"user {plain(name)} is revoked: all certificates and tokens until now")
        return ExitCode.DONE

    return run(command())


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Standing(msgspec.Struct, frozen=True, rename="camel"):
    user_info: _User = _User()


class _Review(msgspec.Struct, frozen=True):
    status: _Standing = _Standing()


async def _own_name(to: Client) -> str:
    answer = await to.transport.send("POST", WHO_PATH, body=b"{}")
    if not answer.is_good:
        raise answer.error(may_have_happened=False)
    return msgspec.json.decode(answer.body, type=_Review).status.user_info.username


async def exposed_secrets(to: Client, node: str) -> list[tuple[str, str]]:
    """Namespace and name of each Secret that a node may have read for work that is bound to it.

    What was bound there before and is gone is not known any more.
    """
    replicas = await to.list(Replica, fields=f"status.binding.node={node}")
    bound = replicas.objects
    found = {(it.namespace, name) for it in bound for name in secret_names(it.spec.template)}
    return sorted(found)


async def revoked(to: Client, name: str, reason: str) -> None:
    """End all that was issued to an identity until now. Now is what the authority's clock says."""
    made = Revocation(
        ObjectMeta(name=revocation_name(name)), spec=RevocationSpec(user=name, reason=reason)
    )
    try:
        await to.create(made)
    except Conflict as error:
        if error.code != Reason.EXISTS:
            raise
        again = {"spec": {"before": None, "reason": reason}}
        await to.patch(Revocation, made.name, "", again)
