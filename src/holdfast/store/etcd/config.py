"""The configuration of an etcd cluster: its endpoints, credentials and key prefix.

The host fills this in from its own configuration and passes it to `EtcdStore.open`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.model.errors import FieldError, Invalid

PREFIX_DEFAULT = "/holdfast/"

# etcd's own defaults (--max-txn-ops, --max-request-bytes, --quota-backend-bytes); a cluster may
# have others.
MAX_TXN_OPS_DEFAULT = 128
MAX_REQUEST_BYTES_DEFAULT = 1_572_864
QUOTA_BYTES_DEFAULT = 2 << 30


class EtcdConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to reach a cluster.

    Endpoints are `host:port`, `http://host:port` or `https://host:port`; a CA file or an https
    endpoint turns TLS on for all of them. `cert_file` and `key_file` are the client certificate,
    `user` and `password` etcd's own authentication.
    """

    endpoints: tuple[str, ...]
    prefix: str = PREFIX_DEFAULT
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    user: str | None = None
    password: str | None = None
    max_txn_ops: int = MAX_TXN_OPS_DEFAULT
    max_request_bytes: int = MAX_REQUEST_BYTES_DEFAULT
    # At this size etcd accepts no more writes; a size that members report takes precedence.
    quota_bytes: int = QUOTA_BYTES_DEFAULT
    # For reads, fates and all other calls without a time-out in the contract.
    call_timeout_s: float = 5.0

    def __repr__(self) -> str:
        # The default form would print the password into logs and errors.
        return (
            f"EtcdConfig(endpoints={self.endpoints!r}, prefix={self.prefix!r}, user={self.user!r})"
        )

    def check(self) -> None:
        """Raise Invalid, which names every wrong field, for what cannot work."""
        errors = [*_endpoint_errors(self.endpoints)]
        if not (self.prefix.endswith("/") and self.prefix.isascii()):
            errors.append(FieldError("prefix", self.prefix, "must be ASCII and end with a slash"))
        if (self.cert_file is None) != (self.key_file is None):
            errors.append(FieldError("cert_file", "", "needs key_file, and the other way round"))
        if (self.user is None) != (self.password is None):
            errors.append(FieldError("user", "", "needs a password, and the other way round"))
        if self.cert_file is not None and not self.tls:
            errors.append(FieldError("cert_file", "", "needs https endpoints or a ca_file"))
        if errors:
            summary = "; ".join(map(str, errors))
            raise Invalid(f"the etcd configuration is invalid: {summary}", tuple(errors))

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.ca_file is not None or any(e.startswith("https://") for e in self.endpoints)

    def targets(self) -> tuple[str, ...]:
        """The endpoints as gRPC wants them, without a scheme."""
        return tuple(endpoint.split("://", 1)[-1].rstrip("/") for endpoint in self.endpoints)

    def certificates(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """CA, key and certificate chain as read from their files."""
        paths = (self.ca_file, self.key_file, self.cert_file)
        try:
            ca, key, chain = (Path(path).read_bytes() if path else None for path in paths)
        except OSError as error:
            raise Invalid(f"a certificate file cannot be read: {error}") from error
        return ca, key, chain


def _endpoint_errors(endpoints: tuple[str, ...]) -> list[FieldError]:
    if not endpoints:
        return [FieldError("endpoints", "", "at least one is needed")]
    errors = []
    for i, endpoint in enumerate(endpoints):
        scheme, sep, rest = endpoint.rpartition("://")
        host, _, port = rest.rstrip("/").rpartition(":")
        if (sep and scheme not in {"http", "https"}) or not host or not port.isdigit():
            rule = "must be host:port, http://host:port or https://host:port"
            errors.append(FieldError(f"endpoints[{i}]", endpoint, rule))
    if len({endpoint.startswith("https://") for endpoint in endpoints}) > 1:
        errors.append(FieldError("endpoints", "", "http and https cannot be mixed"))
    return errors
