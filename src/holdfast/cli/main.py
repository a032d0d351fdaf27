"""The `holdfast` command: all its commands, and its way out."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast import __version__
from holdfast.cli import objects, parts
from holdfast.cli.ending import CODES_TEXT, Code
from holdfast.cli.tokens import token
from holdfast.cli.up import up

EPILOG = f"""\
\b
A first try, in two terminals:
  holdfast up
  holdfast apply -f examples/hello.yaml && holdfast get workloads,replicas,nodes

\b
{CODES_TEXT}"""


@click.group(
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def root() -> None:
    """Holdfast keeps services and jobs running on many machines."""


for _command in (
    up,
    objects.get,
    objects.apply,
    objects.scale,
    objects.delete,
    token,
    parts.server,
    parts.scheduler,
    parts.controllers,
    parts.agent,
    objects.version,
):
    root.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    try:
        given = list(arguments) if arguments is not None else None
        code = root.main(args=given, prog_name="holdfast", standalone_mode=False)
    except click.Abort:
        return Code.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return code if isinstance(code, int) else Code.DONE
