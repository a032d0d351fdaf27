"""Which plane a command speaks to, and as whom.

`--kubeconfig` first, then KUBECONFIG, then the file that `holdfast up` writes into its data
directory: on the machine of a first try nothing has to be said.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.host.client import Access, Client, from_kubeconfig
from holdfast.model.errors import Invalid
from holdfast.observe.retry import RetryPolicy

DATA_VARIABLE = "HOLDFAST_DATA"
DATA = "data"
# A person waits: three tries at a server that refuses connections take less than a second.
PATIENCE = RetryPolicy(tries_max=3, looks_max=6, deadline_ms=15_000, try_ms=10_000)

Command = TypeVar("Command", bound=Callable[..., Any])


def kubeconfig_option(command: Command) -> Command:
    """The option of every command that speaks to a plane."""
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help=f"Where the plane is and who you are. [else $KUBECONFIG, else "
        f"${DATA_VARIABLE}/kubeconfig, else {DATA}/kubeconfig]",
    )(command)


def located(kubeconfig: Path | None) -> Path:
    """The kubeconfig to use. Raises Invalid when there is none."""
    if kubeconfig is not None:
        return kubeconfig
    # As with kubectl it may be a list; files that are not there are passed over.
    named = [Path(it) for it in os.environ.get("KUBECONFIG", "").split(os.pathsep) if it]
    for path in named:
        if path.exists():
            return path
    if named:
        raise Invalid(f"KUBECONFIG: {named[0]} is not there; `holdfast up` prints where its own is")
    path = Path(os.environ.get(DATA_VARIABLE) or DATA) / "kubeconfig"
    if not path.exists():
        raise Invalid(
            f"which plane? There is no {path} here, KUBECONFIG is not set and --kubeconfig is not "
            "given; `holdfast up` prints where its own is"
        )
    return path


def access(kubeconfig: Path | None) -> Access:
    """Where and as whom. Raises Invalid."""
    return from_kubeconfig(located(kubeconfig))


def client(kubeconfig: Path | None) -> Client:
    """A client, to be used as an async context manager. Raises Invalid."""
    return Client(access(kubeconfig), policy=PATIENCE, agent="holdfast-cli")
