"""What a first start makes, and what later ones leave as it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.host.settings import Settings
from holdfast.host.trust import establish, write_kubeconfig

URL = "https://127.0.0.1:6443"


def test_a_second_start_finds_everything_as_the_first_left_it(tmp_path: Path) -> None:
    """[C7.4]"""
    settings = Settings(data=tmp_path / "data", name="one")
    path = write_kubeconfig(settings, establish(settings), URL)
    before = {file: file.stat().st_mtime_ns for file in (path, *(path.parent / "pki").iterdir())}
    write_kubeconfig(settings, establish(settings), URL)
    after = {file: file.stat().st_mtime_ns for file in (path, *(path.parent / "pki").iterdir())}
    assert after == before


def test_servers_that_share_a_directory_and_start_together_have_one_authority(
    tmp_path: Path,
) -> None:
    """[C7.4]"""
    servers = [
        Settings(data=tmp_path / name, name=name, pki=tmp_path / "pki") for name in ("a", "b", "c")
    ]
    with ThreadPoolExecutor(3) as threads:
        trusts = list(threads.map(establish, servers))
    assert len({trust.authority.pem for trust in trusts}) == 1
    assert len({trust.server for trust in trusts}) == 3
    assert len({trust.admin.certificate for trust in trusts}) == 1
