"""`python -m holdfast.host`: run one process of the plane in the foreground until a signal.

SIGTERM and SIGINT stop it in order. A second signal ends it at once, which loses nothing that was
acknowledged. The exit code is 0 after a stop, and 1 with a message when the process cannot go on.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.host.component.options import add_components, duration
from holdfast.host.process.foreground import complain, say, until_signal
from holdfast.host.server import client_timeouts, fence_options, work_options
from holdfast.host.server.settings import (
    QUIET,
    REFUSE,
    AuditRetention,
    Encryption,
    EtcdAccess,
    ListenAddress,
    ServerSettings,
)
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.host.server.server_process import ServerProcess

# The same as `certificates.LEAF_LIFE`.
LIFE = "365d"
# The same as in `model.access.credential_life`.
TOKEN_LIFE = "366d"
# The same as in `settings.AuditRetention`.
AUDIT_KEEP, AUDIT_KEEP_MIB = "90d", 1_024


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(prog="python -m holdfast.host", description=__doc__)
    commands = root.add_subparsers(dest="command", required=True)
    add_components(commands)
    serve = commands.add_parser("serve", help="run one server")
    serve.add_argument("--data", type=Path, default=Path("data"), help="where everything is kept")
    serve.add_argument("--listen", default="127.0.0.1:6443", help="HOST:PORT")
    serve.add_argument(
        "--store",
        default="",
        help="sqlite:PATH (default: DATA/store.db), memory:, or etcd://HOST:PORT,…",
    )
    serve.add_argument("--name", default="", help="this server's name among its peers")
    serve.add_argument(
        "--pki", type=Path, help="directory of the certificate authority, if servers share one"
    )
    serve.add_argument("--advertise", default="", help="https://HOST:PORT for others")
    serve.add_argument(
        "--cert-name", action="append", default=[], help="an additional name in the certificate"
    )
    serve.add_argument(
        "--certificate-life", default=LIFE, help="of node certificates; its own live 7d at most"
    )
    serve.add_argument(
        "--token-life-max", default=TOKEN_LIFE, help="the longest life of a bearer token"
    )
    serve.add_argument(
        "--audit-behind",
        default=REFUSE,
        help="what to do when the audit cannot be written for long: refuse changes, or forget",
    )
    serve.add_argument(
        "--refusals", default=QUIET, help="quiet, or log: write each forbidden change to the log"
    )
    serve.add_argument("--audit-keep", default=AUDIT_KEEP, help="how long audit files are kept")
    serve.add_argument(
        "--audit-keep-mib", type=int, default=AUDIT_KEEP_MIB, help="how much of them is kept (MiB)"
    )
    serve.add_argument("--audit-export", default="", help="where audit records are sent")
    serve.add_argument("--audit-export-token-file", type=Path, help="a token for an https export")
    serve.add_argument("--encryption-key-file", type=Path, help="the keys that encrypt Secrets")
    serve.add_argument(
        "--encryption-kms", default="", help="a command that wraps data keys, instead of a file"
    )
    serve.add_argument(
        "--no-encryption", action="store_true", help="store Secrets in plain text from now on"
    )
    serve.add_argument("--oidc", type=Path, help="a file that names OpenID Connect issuers")
    # The command `holdfast server` has its own defaults for these two options.
    serve.add_argument(work_options.DEFAULT_OPTION, default="", help=work_options.DEFAULT_HELP)
    serve.add_argument(work_options.MINIMUM_OPTION, default="", help=work_options.MINIMUM_HELP)
    serve.add_argument("--etcd-prefix", default=EtcdAccess().prefix)
    for option in ("ca-file", "cert-file", "key-file", "user", "password-file"):
        serve.add_argument(f"--etcd-{option}")
    serve.add_argument("--etcd-quota-bytes", type=int, default=EtcdAccess().quota_bytes)
    fence_options.add_options(serve)
    client_timeouts.add_options(serve)
    serve.set_defaults(run=lambda arguments: run_server(settings_of(arguments)))
    return root


def settings_of(arguments: argparse.Namespace) -> ServerSettings:
    """Return the settings on the command line. Raises Invalid."""
    return ServerSettings(
        data=arguments.data,
        listen=ListenAddress.parse(arguments.listen),
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
            arguments.etcd_quota_bytes,
        ),
        fence=fence_options.timing_of(arguments),
        patience=client_timeouts.patience_of(arguments),
        certificate_life=duration("--certificate-life", arguments.certificate_life),
        token_life_max=duration("--token-life-max", arguments.token_life_max),
        audit_behind=arguments.audit_behind,
        refusals=arguments.refusals,
        audit=AuditRetention(
            life=duration("--audit-keep", arguments.audit_keep),
            bytes=arguments.audit_keep_mib << 20,
            export=arguments.audit_export,
            token_file=arguments.audit_export_token_file,
        ),
        encryption=Encryption(
            arguments.encryption_key_file, arguments.encryption_kms, arguments.no_encryption
        ),
        oidc=arguments.oidc,
        work=work_options.work_rules(arguments.default_resources, arguments.minimum_resources),
    )


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
