"""Nothing leads out of a directory: not a path, not a link, not a tree that is removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.host.runtime import safe_paths
from holdfast.model.errors import Invalid


@pytest.mark.parametrize(
    "path", ["", "/", "/a", "a/", "a//b", ".", "..", "a/..", "a/./b", "a\x00b", "/".join("a" * 200)]
)
def test_a_path_that_is_not_plain_and_relative_is_refused(path: str) -> None:
    with pytest.raises(Invalid, match=r"files\.path"):
        safe_paths.parts(path, "files.path")


def test_the_way_down_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    with safe_paths.folder(inside) as fd:
        with pytest.raises(NotADirectoryError), safe_paths.descend(["link", "a"], fd, None):
            pass
        with safe_paths.descend(["a", "b"], fd, None) as below:
            safe_paths.write_new("f", below, b"x", 0o640)
        with pytest.raises(FileExistsError):
            safe_paths.write_new("link", fd, b"x", 0o600)
    assert list(outside.iterdir()) == []
    assert (inside / "a" / "b" / "f").stat().st_mode & 0o777 == 0o640


def test_a_link_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "real").mkdir()
    with pytest.raises(OSError), safe_paths.folder(tmp_path / "link"):
        pass
    with safe_paths.folder(tmp_path) as fd:
        assert safe_paths.folders(fd) == ["real"]


def test_removing_a_tree_removes_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "f").touch()
    tree = tmp_path / "tree" / "a" / "b"
    tree.mkdir(parents=True)
    (tree / "out").symlink_to(tmp_path / "precious")
    (tmp_path / "tree" / "up").symlink_to("..")
    tree.parent.chmod(0)
    with safe_paths.folder(tmp_path) as fd:
        safe_paths.remove("tree", fd)
        safe_paths.remove("tree", fd)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["f", "precious"]


def test_a_tree_deeper_than_descriptors_or_paths_go_is_removed(tmp_path: Path) -> None:
    """Work chose how deep its tree is; what cannot be removed fills the disk for good."""
    with safe_paths.folder(tmp_path) as fd:
        at = os.dup(fd)
        for level in range(2_500):
            # A name that the removal itself would choose, and a directory that is closed.
            os.mkdir("lifted-1", dir_fd=at)
            os.close(os.open("f", os.O_CREAT, dir_fd=at))
            below = os.open("lifted-1", os.O_RDONLY, dir_fd=at)
            if level % 7 == 0:
                os.fchmod(below, 0o700)
            os.close(at)
            at = below
        os.close(at)
        safe_paths.remove("lifted-1", fd)
        safe_paths.remove("f", fd)
    assert list(tmp_path.iterdir()) == []


def test_a_small_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x" * 100)
    (tmp_path / "link").symlink_to("f")
    with safe_paths.folder(tmp_path) as fd:
        assert safe_paths.read("f", fd, 10) == "x" * 10
        assert safe_paths.read("absent", fd, 10) is None
        with pytest.raises(OSError):
            safe_paths.read("link", fd, 10)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / ".f.new").write_text("left by a crash")
    with safe_paths.folder(tmp_path) as fd:
        safe_paths.write_synced("f", fd, b"new")
    assert (tmp_path / "f").read_text() == "new"
    assert not (tmp_path / ".f.new").exists()
