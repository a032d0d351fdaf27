"""`holdfast component certificate`: all that a component needs, and no key of the authority."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from holdfast.cli.main import root
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.component_credentials import access_of


def ran(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(root, ["component", "certificate", *arguments], standalone_mode=False)
    return int(done.return_value or 0), done.output


def test_a_component_gets_its_certificates_into_a_directory_of_its_own(tmp_path: Path) -> None:
    pki, out = tmp_path / "pki", tmp_path / "out"
    given = ("scheduler", "--name", "a", "--pki", str(pki), "--out", str(out))
    code, said = ran(*given)
    assert code != 0
    assert "has no ca.key; run this where the plane's authority is" in said
    assert not pki.exists()
    CertificateAuthority.open(pki)
    code, said = ran(*given)
    assert (code, f"Start it with --pki {out}" in said) == (0, True)
    first = access_of(("https://a:1",), out, "system:scheduler:a")
    assert not list(out.glob("ca*.key"))
    assert ran(*given)[0] == 0
    assert access_of(("https://a:1",), out, "system:scheduler:a") == first
    code, said = ran(*given[:5], "--out", str(pki))
    assert code != 0
    assert "is the key of the plane's authority" in said
