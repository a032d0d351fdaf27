"""The lock: every package has an exact version and the hashes of its files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools.lock_versions import FILE, merged, normal, pins, rendered, reported

ROOT = Path(__file__).parents[2]
LOCKED = (ROOT / FILE).read_text()


def test_every_line_of_the_lock_has_hashes() -> None:
    """What is installed is what was locked."""
    entries = re.split(r"\n(?=\S)", LOCKED.rstrip("\n"))
    packages = [it for it in entries if not it.startswith("#")]
    assert len(packages) > 50
    assert [normal(it) for it in pins(LOCKED)] == [normal(it.partition(" ")[0]) for it in packages]
    form = re.compile(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+")
    assert not [it for it in packages if not form.fullmatch(it)]


def test_every_dependency_is_in_the_lock_and_it_is_installed_by_hash() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["etcd"], *extras["dev"]]
    names = {re.split(r"[<>=\[]", it)[0].lower() for it in wanted} - {"holdfast"}
    assert names <= {normal(it).partition("==")[0] for it in pins(LOCKED)}
    assert (
        "--require-hashes --requirement constraints.txt" in (ROOT / "tools/make-venv").read_text()
    )


def test_a_package_without_a_known_file_is_not_locked() -> None:
    hashes = {"a-b==1": {"00", "11"}}
    assert rendered(["A_b==1"], hashes).endswith(
        "A_b==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n"
    )
    with pytest.raises(ValueError, match="no wheel of c==2"):
        rendered(["A_b==1", "c==2"], hashes)


def test_hashes_come_from_the_index_or_from_the_file_itself(tmp_path: Path) -> None:
    wheel = tmp_path / "d 1.whl"
    wheel.write_bytes(b"wheel")
    told = {"archive_info": {"hashes": {"sha256": "ab"}}, "url": "https://index/x.whl"}
    here = {"archive_info": {}, "url": wheel.as_uri()}
    report = {
        "install": [
            {"metadata": {"name": "X.y", "version": "1"}, "download_info": told},
            {"metadata": {"name": "d", "version": "1"}, "download_info": here},
        ]
    }
    found = dict(reported(report))
    assert found["x-y==1"] == "ab"
    assert len(found["d==1"]) == 64
    assert merged([{"a==1": {"x"}}, {"a==1": {"y"}, "b==1": {"z"}}]) == {
        "a==1": {"x", "y"},
        "b==1": {"z"},
    }
