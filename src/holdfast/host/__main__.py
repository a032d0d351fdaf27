"""`python -m holdfast.host`: run one process of the plane in the foreground until a signal.

SIGTERM and SIGINT stop it in order. A second signal ends it at once, which loses nothing that was
acknowledged. The exit code is 0 after a stop, and 1 with a message when the process cannot go on.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from holdfast.host.component.options import add_components
from holdfast.host.process.foreground import complain, say, until_signal
from holdfast.host.server.server_options import add_options, settings_of
from holdfast.host.server.settings import ServerSettings
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.host.server.server_process import ServerProcess


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(prog="python -m holdfast.host", description=__doc__)
    commands = root.add_subparsers(dest="command", required=True)
    add_components(commands)
    serve = commands.add_parser("serve", help="run one server")
    add_options(serve)
    serve.set_defaults(run=lambda arguments: run_server(settings_of(arguments)))
    return root


async def run_server(settings: ServerSettings) -> int:
    """Run a server until a signal or a failure. Return the exit code."""
    # Imported on use: the server's modules would take a third of an agent's memory.
    from holdfast.host.server.server_process import ServerProcess

    server = ServerProcess(settings, say)
    return await until_signal(server, lambda: _greet(server))


def _greet(server: ServerProcess) -> None:
    say(f"Holdfast is ready at {server.url}")
    say(f"The administrator's kubeconfig is {server.kubeconfig}")
    say(f"Try: kubectl --kubeconfig {server.kubeconfig} api-resources --api-group holdfast.dev")


async def _run(arguments: argparse.Namespace) -> int:
    code: int = await arguments.run(arguments)
    return code


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. Return the exit code."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s"
    )
    try:
        return asyncio.run(_run(parser().parse_args(arguments)))
    except HoldfastError as error:
        return complain(error.message)
    except OSError as error:
        return complain(f"{error.filename or 'the system'}: {error.strerror or error}")


if __name__ == "__main__":
    sys.exit(main())
