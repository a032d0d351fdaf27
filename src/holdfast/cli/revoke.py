"""The commands that revoke the credentials of a node or a user: `node revoke`, `user revoke`.

Each writes the Revocation of that identity. All servers refuse its present certificates and tokens
from then on and end its open streams within seconds; credentials that are issued later are valid.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast.agent.secret_values import secret_names
from holdfast.cli.command_table import Section
from holdfast.cli.connection import client, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, UsageError, plain, run, warn
from holdfast.host.client import AsyncClient
from holdfast.host.pki.node_join import WHO_PATH
from holdfast.model.access import identity as who
from holdfast.model.access.credential_life import revocation_name
from holdfast.model.errors import Conflict, Missing
from holdfast.model.kinds.access import Revocation, RevocationSpec
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason

SECTION = Section.ACCESS
_reason_option = click.option("--reason", default="", help="The reason, recorded on the object.")


@click.group()
def node() -> None:
    """The machines of a plane. See also: cordon, uncordon, drain, token create --node."""


@node.command(name="revoke", epilog="Example: holdfast node revoke web-1 --reason 'disk stolen'")
@click.argument("name")
@_reason_option
@kubeconfig_option
def revoke_node(name: str, reason: str, kubeconfig: Path | None) -> int:
    """Revoke all certificates of a node. Its work stops and is placed elsewhere.

    With a new token the node may join again. Deleting a node revokes its certificates, too.
    """

    async def command() -> int:
        async with client(kubeconfig) as to:
            try:
                await to.get(Node, name)
            except Missing:
                warn(f"There is no node {name}; its certificates are revoked nevertheless.")
            await revoke_identity(to, who.agent(name).name, reason)
            print(f"node {plain(name)}: all certificates issued until now are revoked")
            exposed = await exposed_secrets(to, name)
        if exposed:
            print("Work bound to the node could read these Secrets. Change their values:")
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
@click.option("--myself", is_flag=True, help="Allow revoking your own credentials.")
@kubeconfig_option
def revoke_user(name: str, reason: str, myself: bool, kubeconfig: Path | None) -> int:
    """Revoke all certificates and tokens of a user. Those that are issued later are valid."""

    async def command() -> int:
        async with client(kubeconfig) as to:
            if not myself and await _own_name(to) == name:
                raise UsageError(
                    f"NAME: you are {name}: this locks you out until someone else issues you a new "
                    "certificate or token; add --myself to do it"
                )
            await revoke_identity(to, name, reason)
        print(f"user {plain(name)}: all certificates and tokens issued until now are revoked")
        return ExitCode.DONE

    return run(command())


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Standing(msgspec.Struct, frozen=True, rename="camel"):
    user_info: _User = _User()


class _Review(msgspec.Struct, frozen=True):
    status: _Standing = _Standing()


async def _own_name(to: AsyncClient) -> str:
    answer = await to.transport.send("POST", WHO_PATH, body=b"{}")
    if not answer.is_good:
        raise answer.error(may_have_happened=False)
    return msgspec.json.decode(answer.body, type=_Review).status.user_info.username


async def exposed_secrets(to: AsyncClient, node: str) -> list[tuple[str, str]]:
    """Namespace and name of each Secret that a node may have read for work that is bound to it.

    Work that was bound there before and is gone is no longer known.
    """
    replicas = await to.list(Replica, fields=f"status.binding.node={node}")
    bound = replicas.objects
    found = {(it.namespace, name) for it in bound for name in secret_names(it.spec.template)}
    return sorted(found)


async def revoke_identity(to: AsyncClient, name: str, reason: str) -> None:
    """Revoke all credentials of an identity until now, by the authority's clock."""
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
