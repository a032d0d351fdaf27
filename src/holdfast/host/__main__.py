"""`python -m holdfast.host serve`: one server in the foreground, until a signal.

SIGTERM and SIGINT stop it in order; a second one ends it at once, which loses nothing that was
acknowledged. It exits with 0 after a stop, with 1 and a sentence when it could not go on.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from holdfast.host import timing
from holdfast.host.plane import Plane
from holdfast.host.settings import EtcdAccess, Listen, Settings
from holdfast.model.errors import HoldfastError

AT_ONCE = 130


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _complain(text: str) -> int:
    sys.stderr.write(f"holdfast: {text}\n")
    sys.stderr.flush()
    return 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(prog="python -m holdfast.host", description=__doc__)
    serve = root.add_subparsers(dest="command", required=True).add_parser(
        "serve", help="run one server"
    )
    serve.add_argument("--data", type=Path, default=Path("data"), help="where everything is kept")
    serve.add_argument("--listen", default="127.0.0.1:6443", help="HOST:PORT")
    serve.add_argument(
        "--store",
        default="",
        help="sqlite:PATH (DATA/store.db if nothing is said), memory:, or etcd://HOST:PORT,…",
    )
    serve.add_argument("--name", default="", help="this server's name among its peers")
    serve.add_argument(
        "--pki", type=Path, help="directory of the authority, where servers share one"
    )
    serve.add_argument("--advertise", default="", help="https://HOST:PORT for others")
    serve.add_argument(
        "--cert-name", action="append", default=[], help="a further name in the certificate"
    )
    serve.add_argument("--etcd-prefix", default=EtcdAccess().prefix)
    for option in ("ca-file", "cert-file", "key-file", "user", "password-file"):
        serve.add_argument(f"--etcd-{option}")
    timing.add_options(serve)
    return root


def settings_of(arguments: argparse.Namespace) -> Settings:
    """What the command line says. Raises Invalid."""
    return Settings(
        data=arguments.data,
        listen=Listen.parse(arguments.listen),
        store=arguments.store,
        name=arguments.name,
        pki=arguments.pki,
        advertise=arguments.advertise,
        names=tuple(arguments.cert_name),
        etcd=EtcdAccess(
            arguments.etcd_prefix,
            arguments.etcd_ca_file,
            arguments.etcd_cert_file,
            arguments.etcd_key_file,
            arguments.etcd_user,
            arguments.etcd_password_file,
        ),
        fence=timing.timing_of(arguments),
    )


async def serve(settings: Settings) -> int:
    """Run until a signal or a failure; the exit code."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(AT_ONCE)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    plane = Plane(settings, _say)
    starting = asyncio.create_task(plane.start())
    signalled = asyncio.create_task(stopping.wait())
    await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return 0
    starting.result()
    _greet(plane)
    failed = asyncio.create_task(plane.wait())
    await asyncio.wait([failed, signalled], return_when=asyncio.FIRST_COMPLETED)
    sentence = failed.result() if failed.done() else ""
    failed.cancel()
    signalled.cancel()
    await plane.stop()
    if sentence:
        return _complain(sentence)
    _say("Stopped.")
    return 0


def _greet(plane: Plane) -> None:
    _say(f"Holdfast is ready at {plane.url}")
    _say(f"The administrator's kubeconfig is {plane.kubeconfig}")
    _say(f"Try: kubectl --kubeconfig {plane.kubeconfig} api-resources --api-group holdfast.dev")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s"
    )
    try:
        return asyncio.run(serve(settings_of(parser().parse_args(arguments))))
    except HoldfastError as error:
        return _complain(error.message)
    except OSError as error:
        return _complain(f"{error.filename or 'the system'}: {error.strerror or error}")


if __name__ == "__main__":
    sys.exit(main())
