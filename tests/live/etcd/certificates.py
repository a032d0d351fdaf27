"""A certificate authority with a server and a client certificate, made for one test run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificates(folder: Path, hosts: str = "IP:127.0.0.1") -> Path:
    """Make ca, server, client and stranger (of another authority) as .pem and .key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    folder.mkdir()
    for authority in ("ca", "other-ca"):
        _openssl(
            folder,
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", f"/CN={authority}"),
            *("-keyout", f"{authority}.key", "-out", f"{authority}.pem"),
        )
    for name, authority in (("server", "ca"), ("client", "ca"), ("stranger", "other-ca")):
        usage = "serverAuth,clientAuth" if name == "server" else "clientAuth"
        (folder / "extensions").write_text(f"subjectAltName={hosts}\nextendedKeyUsage={usage}\n")
        _openssl(
            folder,
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        _openssl(
            folder,
            *("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", "-days", "2"),
            *("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial"),
            *("-extfile", "extensions"),
        )
    return folder


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
