"""The commands that look into a running replica: logs, exec.

They use the same API as kubectl, so that both show the same. `terminal_session` is the terminal of
`exec`.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

import click

from holdfast.cli import terminal_session
from holdfast.cli.command_table import Section
from holdfast.cli.connection import client, kubeconfig_option
from holdfast.cli.exit_codes import ExitCode, UsageError, run
from holdfast.cli.objects import namespace_option
from holdfast.host.client import LogOptions

SECTION = Section.OBJECTS
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SINCE = re.compile(r"([0-9]{1,9})([smhd]?)", re.ASCII)


@click.command(epilog="Example: holdfast logs hello-0-0 --follow --since 10m")
@click.argument("replica")
@namespace_option
@click.option("-f", "--follow", is_flag=True, help="Print new output as it comes, until it ends.")
@click.option("--tail", type=click.IntRange(0), help="Only the last lines, this many.")
@click.option("--since", default="", help="Only newer output than this: 30s, 10m, 2h.")
@click.option("--since-time", default="", help="Only output since a time: 2026-11-16T08:00:00Z.")
@click.option("--limit-bytes", type=click.IntRange(1), help="At most this many bytes.")
@click.option("--timestamps", is_flag=True, help="Show the time of each line.")
@click.option("-p", "--previous", is_flag=True, help="The run before the last restart.")
@kubeconfig_option
def logs(
    replica: str,
    namespace: str,
    follow: bool,
    tail: int | None,
    since: str,
    since_time: str,
    limit_bytes: int | None,
    timestamps: bool,
    previous: bool,
    kubeconfig: Path | None,
) -> int:
    """Show the output of a replica."""

    async def command() -> int:
        options = LogOptions(
            follow=follow,
            tail=tail,
            since_s=_seconds(since) if since else None,
            since_time=since_time,
            limit_bytes=limit_bytes,
            timestamps=timestamps,
            previous=previous,
        )
        async with (
            client(kubeconfig) as to,
            contextlib.aclosing(to.log_bytes(replica, namespace, options)) as pieces,
        ):
            async for piece in pieces:
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        return ExitCode.DONE

    return run(command())


def _seconds(text: str) -> int:
    """A duration in seconds. Raises UsageError."""
    found = _SINCE.fullmatch(text)
    if found is None or not int(found[1]):
        raise UsageError(f"--since: {text[:40]!r} must be a duration such as 30s, 10m or 2h")
    return int(found[1]) * _UNITS[found[2] or "s"]


@click.command(
    name="exec",
    context_settings={"ignore_unknown_options": True},
    epilog="Example: holdfast exec -it hello-0-0 -- sh",
)
@click.option("-i", "--stdin", "has_input", is_flag=True, help="Pass standard input to it.")
@click.option("-t", "--tty", "has_terminal", is_flag=True, help="Give it a terminal.")
@namespace_option
@kubeconfig_option
@click.argument("replica")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(
    replica: str,
    command: tuple[str, ...],
    namespace: str,
    has_input: bool,
    has_terminal: bool,
    kubeconfig: Path | None,
) -> int:
    """Run a command inside a replica. Exits with the exit code of that command."""

    async def enter() -> int:
        if has_terminal and not (has_input and os.isatty(0)):
            raise UsageError("--tty: requires --stdin and a terminal as standard input")
        async with (
            client(kubeconfig) as to,
            to.exec_session(
                replica, command, namespace, has_input=has_input, has_terminal=has_terminal
            ) as session,
        ):
            return await terminal_session.join(
                session, has_input=has_input, has_terminal=has_terminal
            )

    return run(enter())
