"""The commands about objects: get, apply, scale, delete, version."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast import __version__
from holdfast.cli import apply as applying
from holdfast.cli import get as getting
from holdfast.cli.command_table import Section
from holdfast.cli.connection import client, kubeconfig_option
from holdfast.cli.documents import documents, kind_and_name
from holdfast.cli.exit_codes import ExitCode, UsageError, code_of, complain, run
from holdfast.host.client import AsyncClient, DeletedObject
from holdfast.model.errors import HoldfastError
from holdfast.model.kind_declaration import Kind

SECTION = Section.OBJECTS
namespace_option = click.option(
    "-n", "--namespace", default="", help="The tenant's namespace. [that of the kubeconfig]"
)


@click.command(epilog="Example: holdfast get replicas -l holdfast.dev/workload=hello -o wide")
@click.argument("kind")
@click.argument("name", default="")
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in all namespaces.")
@click.option(
    "-o",
    "--output",
    default=getting.TABLE,
    metavar="|".join((*getting.FORMS, getting.VALUE + "FIELD")),
    help="Output format; value=status.state prints one field of each object.",
)
@click.option("-w", "--watch", is_flag=True, help="Print changes as they happen, until Ctrl-C.")
@click.option("-l", "--selector", default="", help="Only objects with these labels: k=v,k2!=v2.")
@click.option("--field-selector", default="", help="Only these objects: metadata.name=hello.")
@kubeconfig_option
def get(
    kind: str,
    name: str,
    namespace: str,
    all_namespaces: bool,
    output: str,
    watch: bool,
    selector: str,
    field_selector: str,
    kubeconfig: Path | None,
) -> int:
    """Show objects. KIND is a kind such as workloads, wl or node; separate several by commas."""

    async def command() -> int:
        form = getting.form_of(output)
        kinds = [kind_and_name(one, name) for one in kind.split(",")]
        async with client(kubeconfig) as to:
            requests = [
                _options(
                    to,
                    *named,
                    namespace=namespace,
                    everywhere=all_namespaces,
                    labels=selector,
                    fields=field_selector,
                    form=form,
                )
                for named in kinds
            ]
            await _show(to, requests, watch)
        return ExitCode.DONE

    return run(command())


def _options(
    to: AsyncClient,
    kind: Kind,
    name: str,
    *,
    namespace: str,
    everywhere: bool,
    labels: str,
    fields: str,
    form: str,
) -> getting.GetOptions:
    if everywhere and (name or namespace):
        given = f"NAME: {name!r}" if name else f"--namespace: {namespace!r}"
        raise UsageError(f"{given} cannot be combined with --all-namespaces")
    if name and (labels or fields):
        raise UsageError(f"NAME: {name!r} cannot be combined with a selector")
    where = "" if everywhere or not kind.namespaced else namespace or to.access.namespace
    return getting.GetOptions(
        kind=kind, name=name, namespace=where, labels=labels, fields=fields, form=form
    )


async def _show(to: AsyncClient, requests: list[getting.GetOptions], watches: bool) -> None:
    if watches:
        if len(requests) > 1:
            raise UsageError("KIND: --watch takes one kind only")
        await getting.watch(to, requests[0])
    for number, options in enumerate(requests):
        if number and options.form in (getting.TABLE, getting.WIDE):
            print()
        await getting.get(to, options)


@click.command(epilog="Example: holdfast apply -f examples/hello.yaml")
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    help="A file with YAML or JSON documents, a folder of such files, or - for standard input.",
)
@namespace_option
@click.option("--force", is_flag=True, help="Take over fields that others have set.")
@click.option("--dry-run", is_flag=True, help="Let the server decide, but change nothing.")
@click.option("--manager", default=applying.MANAGER, help="The field manager to record.")
@kubeconfig_option
def apply(
    files: tuple[str, ...],
    namespace: str,
    force: bool,
    dry_run: bool,
    manager: str,
    kubeconfig: Path | None,
) -> int:
    """Create or change objects as the documents state (server-side apply)."""

    async def command() -> int:
        found = [document for file in files for document in documents(file)]
        async with client(kubeconfig) as to:
            options = applying.ApplyOptions(
                namespace=namespace or to.access.namespace,
                manager=manager,
                force=force,
                dry=dry_run,
            )
            return await applying.apply_all(to, found, options)

    return run(command())


@click.command(epilog="Example: holdfast scale workload hello --replicas 3")
@click.argument("kind")
@click.argument("name", default="")
@click.option("--replicas", type=click.IntRange(min=0), required=True, help="How many to run.")
@namespace_option
@kubeconfig_option
def scale(kind: str, name: str, replicas: int, namespace: str, kubeconfig: Path | None) -> int:
    """Set the number of replicas of a workload."""

    async def command() -> int:
        found, called = _one(kind, name)
        if not found.scale:
            raise UsageError(f"KIND: {found.plural} cannot be scaled; only workloads can")
        async with client(kubeconfig) as to:
            await to.scale(found.struct, called, namespace or to.access.namespace, replicas)
        print(f"{found.singular}.holdfast.dev/{called} scaled to {replicas}")
        return ExitCode.DONE

    return run(command())


@click.command(epilog="Example: holdfast delete workload hello")
@click.argument("kind")
@click.argument("name", default="")
@namespace_option
@kubeconfig_option
def delete(kind: str, name: str, namespace: str, kubeconfig: Path | None) -> int:
    """Delete an object. Running work is stopped first."""

    async def command() -> int:
        found, called = _one(kind, name)
        async with client(kubeconfig) as to:
            where = (namespace or to.access.namespace) if found.namespaced else ""
            left = await to.delete(found.struct, called, where)
        goes = "deleted" if isinstance(left, DeletedObject) else "is being deleted"
        print(f"{found.singular}.holdfast.dev/{called} {goes}")
        return ExitCode.DONE

    return run(command())


def _one(kind: str, name: str) -> tuple[Kind, str]:
    found, called = kind_and_name(kind, name)
    if not called:
        raise UsageError(f"NAME: required; `holdfast get {found.plural}` lists the names")
    return found, called


@click.command()
@kubeconfig_option
def version(kubeconfig: Path | None) -> int:
    """Show the version of this command and of the server."""

    async def command() -> int:
        print(f"client {__version__}", flush=True)
        try:
            async with client(kubeconfig) as to:
                body = await to.read("/version")
        except HoldfastError as error:
            return complain(f"the server version is unknown: {error.message}", code_of(error))
        version = msgspec.json.decode(body, type=_Version).git_version
        kubernetes, _, own = version.partition("+holdfast-")
        print(f"server {own or 'unknown'} (API of Kubernetes {kubernetes})")
        return ExitCode.DONE

    return run(command())


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = "unknown"
