"""The `holdfast` command: its subcommands, and how it exits."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import click

from holdfast import __version__
from holdfast.cli.exit_codes import CODES_TEXT, ExitCode, complain_of_bug

EPILOG = f"""\
\b
A first try, in two terminals:
  holdfast up
  holdfast apply -f examples/hello.yaml && holdfast get workloads,replicas,nodes

\b
{CODES_TEXT}"""


# Modules are loaded on use: otherwise `get` would spend half a second loading server code.
COMMANDS = {
    "up": "holdfast.cli.up",
    "status": "holdfast.cli.status",
    "capacity": "holdfast.cli.capacity",
    "get": "holdfast.cli.objects",
    "explain": "holdfast.cli.explain",
    "apply": "holdfast.cli.objects",
    "scale": "holdfast.cli.objects",
    "delete": "holdfast.cli.objects",
    "logs": "holdfast.cli.inside",
    "exec": "holdfast.cli.inside",
    "cordon": "holdfast.cli.nodes",
    "uncordon": "holdfast.cli.nodes",
    "drain": "holdfast.cli.nodes",
    "repair": "holdfast.cli.repair",
    "upgrade": "holdfast.cli.upgrade",
    "token": "holdfast.cli.tokens",
    "node": "holdfast.cli.revoke",
    "user": "holdfast.cli.revoke",
    "audit": "holdfast.cli.audit",
    "backup": "holdfast.cli.backup",
    "verify": "holdfast.cli.backup",
    "restore": "holdfast.cli.backup",
    "encryption": "holdfast.cli.encryption",
    "ca": "holdfast.cli.ca",
    "component": "holdfast.cli.ca",
    "server": "holdfast.cli.plane_parts",
    "scheduler": "holdfast.cli.plane_parts",
    "controllers": "holdfast.cli.plane_parts",
    "agent": "holdfast.cli.plane_parts",
    "sim": "holdfast.cli.sim",
    "version": "holdfast.cli.objects",
}


class Commands(click.Group):
    """The commands, in the order in which a new user needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        # `exec` is a builtin of Python.
        name = cmd_name if cmd_name != "exec" else "exec_"
        found: click.Command = getattr(importlib.import_module(module), name)
        return found


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def root() -> None:
    """Holdfast keeps services and jobs running on many machines."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        given = list(arguments) if arguments is not None else None
        code = root.main(args=given, prog_name="holdfast", standalone_mode=False)
    except click.Abort:
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Exception as bug:  # noqa: BLE001 - also a failure while a command is loaded
        return complain_of_bug(bug)
    return code if isinstance(code, int) else ExitCode.DONE
