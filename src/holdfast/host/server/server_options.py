"""The options of a server: one table, and the settings that they make.

`python -m holdfast.host serve` takes them with argparse, `holdfast server` and `holdfast up` with
click; `up` passes them on to the server that it starts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from holdfast.host.component.options import duration
from holdfast.host.server import (
    client_timeouts,
    fence_options,
    observation_options,
    work_options,
)
from holdfast.host.server.settings import (
    QUIET,
    REFUSALS,
    REFUSE,
    WHEN_BEHIND,
    AuditRetention,
    Encryption,
    EtcdAccess,
    ListenAddress,
    ServerSettings,
)
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.plane import Plane, PlaneRole

ETCD_ACCESS = ("ca-file", "cert-file", "key-file", "user", "password-file")


class ServerOption(msgspec.Struct, frozen=True):
    """One option.

    `type` is str, int or Path, or bool for a flag. `is_repeated` means that it may be given several
    times. `command_default` is the default of the `holdfast` command where it differs.
    """

    name: str
    help: str = ""
    default: str | int | None = None
    type: type = str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    is_repeated: bool = False
    command_default: str = ""

    @property
    def field(self) -> str:
        """Its name among the parsed arguments."""
        return self.name.replace("-", "_")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


OPTIONS: tuple[ServerOption, ...] = (
    ServerOption("listen", "HOST:PORT", "127.0.0.1:6443"),
    ServerOption("store", "sqlite:PATH, memory:, or etcd://H:P,… [DATA/store.db]", ""),
    ServerOption("name", "The server's name among its peers.", ""),
    # The same as in `model.plane`.
    ServerOption("plane", "The plane's name, the same on all of its servers.", "main"),
    ServerOption(
        "plane-role",
        "What the plane is responsible for: everything, what is global, or one region.",
        PlaneRole.BOTH.value,
        choices=tuple(role.value for role in PlaneRole),
    ),
    ServerOption(
        "plane-region", "The region of a plane's nodes; required for the role region.", ""
    ),
    ServerOption("pki", "Directory of the certificate authority. [DATA/pki]", type=Path),
    ServerOption("advertise", "https://HOST:PORT that others use.", ""),
    ServerOption("cert-name", "An additional name in the certificate.", is_repeated=True),
    # The same as `certificates.LEAF_LIFE`.
    ServerOption(
        "certificate-life",
        "Lifetime of node certificates; the server's own live for 7d at most.",
        "365d",
    ),
    # The same as in `model.access.credential_life`.
    ServerOption("token-life-max", "The longest lifetime of a bearer token.", "366d"),
    ServerOption(
        "audit-behind",
        "What to do when the audit cannot be written for long.",
        REFUSE,
        choices=WHEN_BEHIND,
    ),
    ServerOption("refusals", "Whether refused changes are logged.", QUIET, choices=REFUSALS),
    # These two are the same as in `settings.AuditRetention`.
    ServerOption("audit-keep", "How long audit files are kept.", "90d"),
    ServerOption("audit-keep-mib", "How many MiB of audit files are kept.", 1_024, int),
    ServerOption(
        "audit-export",
        "Send audit records there: file:DIR, syslog://H:P, syslog+tls://H:P, https://…",
        "",
        metavar="TARGET",
    ),
    ServerOption("audit-export-token-file", "A bearer token for an https export.", type=Path),
    ServerOption(
        "encryption-key-file",
        "The keys that Secrets are encrypted with. [PKI/encryption.keys]",
        type=Path,
    ),
    ServerOption(
        "encryption-kms",
        "A command that wraps data keys, instead of a file.",
        "",
        metavar="COMMAND",
    ),
    ServerOption("no-encryption", "Store Secrets in plain text from now on.", type=bool),
    ServerOption(
        "oidc",
        "The OpenID Connect issuers whose tokens are accepted.",
        type=Path,
        metavar="FILE",
    ),
    ServerOption(
        work_options.DEFAULT_OPTION,
        _sentence(work_options.DEFAULT_HELP),
        "",
        command_default=work_options.DEFAULT,
    ),
    ServerOption(
        work_options.MINIMUM_OPTION,
        _sentence(work_options.MINIMUM_HELP),
        "",
        command_default=work_options.MINIMUM,
    ),
    ServerOption("etcd-prefix", "The prefix of all keys in etcd.", EtcdAccess().prefix),
    *(ServerOption(f"etcd-{it}") for it in ETCD_ACCESS),
    ServerOption(
        "etcd-quota-bytes",
        "etcd's own --quota-backend-bytes, where its version does not tell it.",
        EtcdAccess().quota_bytes,
        int,
    ),
    *(
        ServerOption(name, _sentence(meaning), metavar="SECONDS")
        for name, (_, meaning) in (
            *fence_options.OPTIONS.items(),
            *client_timeouts.OPTIONS.items(),
        )
    ),
    ServerOption(fence_options.DRIFT, "The largest drift of a clock.", metavar="PPM"),
    ServerOption(
        fence_options.ZONE_SILENCE, _sentence(fence_options.ZONE_SILENCE_HELP), metavar="SECONDS"
    ),
    ServerOption(
        observation_options.OPTION, _sentence(observation_options.MEANING), metavar="SECONDS"
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options of a server."""
    parser.add_argument("--data", type=Path, default=Path("data"), help="The data directory.")
    for option in OPTIONS:
        name = f"--{option.name}"
        if option.type is bool:
            parser.add_argument(name, action="store_true", help=option.help)
        elif option.is_repeated:
            parser.add_argument(name, action="append", default=[], help=option.help)
        else:
            parser.add_argument(
                name,
                type=option.type,
                default=option.default,
                metavar=option.metavar,
                help=option.help,
            )


def server_arguments(given: dict[str, Any]) -> tuple[str, ...]:
    """The command line of a server with these values, without its address.

    An empty value means none, except where the `holdfast` command has a default of its own.
    """
    made = ["--data", str(given["data"])]
    for option in OPTIONS:
        value = given[option.field]
        if option.type is bool:
            made += [f"--{option.name}"] if value else []
        elif option.name != "listen":
            values = value if isinstance(value, tuple) else (value,)
            is_kept = bool(option.command_default)
            made += [f"--{option.name}={it}" for it in values if is_kept or it not in (None, "")]
    return tuple(made)


def _role_of(given: str) -> PlaneRole:
    roles = {role.value: role for role in PlaneRole}
    if given not in roles:
        error = FieldError("--plane-role", given[:80], f"must be one of {', '.join(roles)}")
        raise Invalid(str(error), (error,))
    return roles[given]


def settings_of(arguments: argparse.Namespace) -> ServerSettings:
    """Return the settings on the command line. Raises Invalid."""
    return ServerSettings(
        data=arguments.data,
        listen=ListenAddress.parse(arguments.listen),
        store=arguments.store,
        name=arguments.name,
        plane=Plane(arguments.plane, _role_of(arguments.plane_role), arguments.plane_region),
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
        observation_age_max_ms=observation_options.age_max_ms_of(arguments),
        zone_silence_max_ms=fence_options.zone_silence_max_ms_of(arguments),
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
