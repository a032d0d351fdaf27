"""The `holdfast` command: its subcommands, and how it exits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import click

from holdfast import __version__
from holdfast.cli.command_table import all_commands, find_command
from holdfast.cli.exit_codes import CODES_TEXT, ExitCode, complain_of_bug

EPILOG = f"""\
\b
A first try, in two terminals:
  holdfast up
  holdfast apply -f examples/hello.yaml && holdfast get workloads,replicas,nodes

\b
{CODES_TEXT}"""


class Commands(click.Group):
    """The commands, each loaded on use: otherwise `get` would load all of a server's code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [command.name for command in all_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = find_command(cmd_name)
        return found.load() if found is not None else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands under their headings, without loading one of them."""
        commands = all_commands()
        limit = formatter.width - 6 - max(len(it.name) for it in commands)
        for section, found in groupby(commands, key=lambda it: it.section):
            rows = [(it.name, it.short_help(limit)) for it in found]
            with formatter.section(section.value):
                formatter.write_dl(rows)


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
