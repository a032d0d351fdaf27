"""The archive of decisions: bounded, intact after a kill, and never a delay for others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.host.server.decision_archive import DecisionArchive
from holdfast.model.errors import Unavailable
from holdfast.propose.decision_rounds import ACCEPTED, Case, DecisionRound

DAY_MS = 24 * 3_600_000


def case(namespace: str, *names: str) -> Case:
    count = len(names)
    return Case(
        namespace,
        list(names),
        [f"uid-{name}" for name in names],
        [0] * count,
        [1] * count,
        ["r1"] * count,
        [None] * count,
        nodes=["node-a"] * count,
        results=[ACCEPTED] * count,
    )


def decided(sequence: int, *cases: Case, at_ms: int = 1_000) -> DecisionRound:
    return DecisionRound(
        scheduler="system:scheduler:one",
        scope="scheduler:one",
        epoch=1,
        sequence=sequence,
        decided_ms=at_ms,
        snapshot_revision=7,
        snapshot_age_ms=3,
        salt=5,
        cases=list(cases),
    )


def test_what_is_kept_is_read_the_newest_first(tmp_path: Path) -> None:
    """[M4, M10]"""
    archive = DecisionArchive(tmp_path / "d.db")
    archive.keep([decided(1, case("acme", "a-0")), decided(2, case("other", "b-0"))], 2_000)
    archive.keep([decided(3, case("acme", "c-0"), case("other", "d-0"))], 2_000)
    everything = [it.case.replicas[0] for it in archive.page("", None, 10)]
    assert everything == ["c-0", "d-0", "b-0", "a-0"]
    assert [it.case.replicas[0] for it in archive.page("acme", None, 10)] == ["c-0", "a-0"]
    assert [it.case.replicas[0] for it in archive.page("other", (3, 2), 10)] == ["b-0"]
    found = archive.round(decided(3).name)
    assert found == decided(3, case("acme", "c-0"), case("other", "d-0"))
    assert archive.round("d-0-0-0") is None


def test_other_users_read_none_of_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        archive = DecisionArchive(tmp_path / "d.db")
        archive.keep([decided(1, case("acme", "a-0"))], 2_000)
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
        archive.close()
    finally:
        os.umask(before)


def test_a_round_that_comes_again_is_kept_once(tmp_path: Path) -> None:
    """The last version counts. [M4]"""
    archive = DecisionArchive(tmp_path / "d.db")
    late = case("acme", "a-0")
    late.results = [""]
    archive.keep([decided(1, late)], 2_000)
    archive.keep([decided(1, case("acme", "a-0"))], 2_000)
    (found,) = archive.page("acme", None, 10)
    assert found.case.results == [ACCEPTED]
    archive.close()
    before = archive.bytes
    assert archive.page("acme", None, 10)
    assert archive.bytes == before, "what is counted is what is there"


def test_the_oldest_go_when_it_is_too_much(tmp_path: Path) -> None:
    archive = DecisionArchive(tmp_path / "d.db", bytes_max=20_000)
    for sequence in range(1, 400):
        archive.keep([decided(sequence, case("acme", *(f"r{sequence}-{n}" for n in range(3))))], 1)
    assert archive.bytes <= 20_000
    newest = archive.page("acme", None, 1)[0].round.sequence
    assert newest == 399
    assert archive.round(decided(1).name) is None
    assert (tmp_path / "d.db").stat().st_size <= 2 * 64 * 4_096


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    archive = DecisionArchive(tmp_path / "d.db", age_max_ms=DAY_MS)
    archive.keep([decided(1, case("acme", "a-0"), at_ms=1_000)], 2_000)
    archive.keep([decided(2, case("acme", "b-0"), at_ms=2 * DAY_MS)], 2 * DAY_MS)
    assert [it.round.sequence for it in archive.page("", None, 9)] == [2]


def test_a_killed_writer_leaves_a_file_that_goes_on(tmp_path: Path) -> None:
    """Earlier rounds are there; of the one being written all or nothing."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.unit.host.server.test_decision_archive import case, decided\n"
        "from holdfast.host.server.decision_archive import DecisionArchive\n"
        "archive = DecisionArchive(Path(sys.argv[1]))\n"
        "for sequence in range(1, 100_000):\n"
        "    archive.keep([decided(sequence, case('acme', f'r{sequence}-0'))], 1)\n"
        "    if sequence == 50:\n"
        "        print('fifty', flush=True)\n"
    )
    path = tmp_path / "d.db"
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, env=dict(os.environ)
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"fifty\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    archive = DecisionArchive(path)
    sequences = [it.round.sequence for it in archive.page("", None, 100_000)]
    assert sequences == list(range(len(sequences), 0, -1))
    assert len(sequences) >= 50
    archive.keep([decided(len(sequences) + 1, case("acme", "next-0"))], 1)
    assert archive.page("", None, 1)[0].case.replicas == ["next-0"]


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 400, b"SQLite format 3\0rest"])
def test_a_file_that_cannot_be_read_is_moved_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "d.db"
    path.write_bytes(content)
    archive = DecisionArchive(path)
    archive.keep([decided(1, case("acme", "a-0"))], 1)
    assert [it.round.sequence for it in archive.page("", None, 9)] == [1]
    if content:
        assert (tmp_path / "d.db.broken").read_bytes() == content


def test_a_place_that_cannot_be_written_is_said_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.write_bytes(b"a file where a directory should be")
    archive = DecisionArchive(folder / "d.db")
    with pytest.raises(Unavailable, match="archive of decisions"):
        archive.keep([decided(1, case("acme", "a-0"))], 1)
    with pytest.raises(Unavailable, match="archive of decisions"):
        archive.page("", None, 1)
    folder.unlink()
    archive.keep([decided(1, case("acme", "a-0"))], 1)
    assert len(archive.page("", None, 9)) == 1


def test_one_round_that_is_larger_than_all_that_may_be_kept_does_no_harm(tmp_path: Path) -> None:
    """The limit of the file acts like a full disk."""
    archive = DecisionArchive(tmp_path / "d.db", bytes_max=4_096)
    archive.keep([decided(1, case("acme", "a-0"))], 1)
    huge = [os.urandom(16).hex() for _ in range(40_000)]
    with pytest.raises(Unavailable, match="full"):
        archive.keep([decided(2, case("acme", *huge))], 1)
    archive.keep([decided(3, case("acme", "c-0"))], 1)
    assert archive.page("", None, 1)[0].round.sequence == 3
