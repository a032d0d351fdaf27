"""Users of tenants: each has one, on disk before it is used, and no number is ever given twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from holdfast.host.process import files
from holdfast.host.runtime import run_as
from holdfast.host.runtime.run_as import (
    BLOCK,
    DEFAULT,
    RunAs,
    UserRange,
    default_range,
    parse_range,
)
from holdfast.model.errors import Invalid, Unavailable

NUMBERS = UserRange(5_000, 5_009)


def agent(tmp_path: Path, name: str = "n1", used: tuple[int, ...] = ()) -> RunAs:
    folder = tmp_path / name
    folder.mkdir(mode=0o700, exist_ok=True)
    table = tmp_path / "machine" / "run-as"
    return RunAs(NUMBERS, table, folder / "run-as", lambda: used)


def test_a_tenant_keeps_its_user_and_shares_it_with_none(tmp_path: Path) -> None:
    """Neither with another tenant nor with the same name at another agent of the machine."""
    one, two = agent(tmp_path), agent(tmp_path, "n2")
    given = [it.of(tenant) for it in (one, two) for tenant in ("acme", "rival")]
    assert sorted(given) == [5_000, 5_001, 5_002, 5_003]
    again = [agent(tmp_path, node).of(it) for node in ("n1", "n2") for it in ("acme", "rival")]
    assert again == given


def test_a_number_is_on_disk_before_anyone_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent(tmp_path).prepare()

    def broken(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as here:
        here.setattr(run_as, "write_private", broken)
        with pytest.raises(Unavailable, match="cannot be used"):
            agent(tmp_path).of("acme")
    number = agent(tmp_path).of("acme")
    table = msgspec.json.decode((tmp_path / "machine" / "run-as").read_bytes())
    assert list(table["given"]) == [str(number)]
    assert (tmp_path / "machine" / "run-as").stat().st_mode & 0o777 == 0o600


def test_a_crash_between_table_and_copy_gives_no_second_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = agent(tmp_path)
    one.prepare()

    def stops_before_the_copy(path: Path, content: bytes) -> None:
        if path.parent.name == "n1":
            raise OSError(5, "Input/output error")
        files.write_private(path, content)

    with monkeypatch.context() as here:
        here.setattr(run_as, "write_private", stops_before_the_copy)
        with pytest.raises(Unavailable):
            one.of("acme")
    assert agent(tmp_path).of("acme") == 5_000
    assert agent(tmp_path).of("rival") == 5_001


def test_a_lost_table_passes_no_number_to_another_tenant(tmp_path: Path) -> None:
    """The copy keeps what this agent gave; what is seen in use is given to none."""
    one, two = agent(tmp_path), agent(tmp_path, "n2")
    kept, others = one.of("acme"), two.of("rival")
    (tmp_path / "machine" / "run-as").unlink()
    after = agent(tmp_path, used=(kept, others))
    after.prepare()
    assert after.of("acme") == kept
    assert after.of("rival") not in (kept, others)
    # An agent that lost its own copy as well begins above what is in use, too.
    (tmp_path / "n2" / "run-as").unlink()
    assert agent(tmp_path, "n2").of("rival") not in (kept, others)


def test_an_agent_whose_number_has_passed_to_another_does_not_start(tmp_path: Path) -> None:
    """Without its table the machine could not know; then neither tenant may run there."""
    two = agent(tmp_path, "n2")
    assert two.of("rival") == 5_000
    (tmp_path / "machine" / "run-as").unlink()
    assert agent(tmp_path).of("acme") == 5_000
    with pytest.raises(
        Unavailable, match=r"belongs to tenant rival according to .* and to another"
    ):
        agent(tmp_path, "n2").prepare()
    with pytest.raises(Unavailable, match="belongs to tenant rival"):
        two.of("third")


@pytest.mark.parametrize("text", ["", "{", '{"given": 7}', '{"given": {"x": "y"}}'])
def test_a_table_that_cannot_be_read_is_not_replaced(tmp_path: Path, text: str) -> None:
    one = agent(tmp_path)
    one.prepare()
    (tmp_path / "machine" / "run-as").write_text(text)
    with pytest.raises(Unavailable, match="cannot be used"):
        agent(tmp_path).of("acme")


def test_when_all_are_given_no_further_tenant_runs(tmp_path: Path) -> None:
    one = agent(tmp_path)
    for number in range(10):
        one.of(f"t{number}")
    with pytest.raises(Unavailable, match="wider --run-as-range"):
        one.of("one-more")
    assert one.of("t3") == 5_003


def test_many_threads_and_agents_ask_at_once(tmp_path: Path) -> None:
    asked = [(node, tenant) for node in ("n1", "n2") for tenant in "abcde"] * 3
    agents = {node: agent(tmp_path, node) for node in ("n1", "n2")}
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(lambda it: (it, agents[it[0]].of(it[1])), asked))
    assert len(set(given)) == len({number for _, number in given}) == 10


@pytest.mark.parametrize(
    "text", ["", "5000", "5000-4000", "0-5000", "5-", "a-b", "5000-99999999999", "1000-4294967295"]
)
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="--run-as-range"):
        parse_range(text)


def test_a_range_has_no_user_of_the_machine() -> None:
    with pytest.raises(Invalid, match="own user or group no"):
        parse_range("60000-70000")
    assert parse_range(str(DEFAULT)) == DEFAULT


def test_what_the_machine_sets_aside_is_the_default(tmp_path: Path) -> None:
    users, groups = tmp_path / "subuid", tmp_path / "subgid"
    assert default_range((users, groups)) == DEFAULT
    users.write_text("ann:100000:65536\nroot:300000:10\nholdfast:200000:65536\nbroken\n")
    groups.write_text("ann:100000:65536\nholdfast:1:65536\nroot:300000:10\n")
    assert default_range((users, groups)) == UserRange(300_000, 300_009)
    groups.write_text("holdfast:200000:65536\n")
    assert default_range((users, groups)) == UserRange(200_000, 265_535)


WIDE = UserRange(1_000_000, 1_000_000 + 4 * BLOCK - 1)


def wide(
    tmp_path: Path, name: str = "n1", numbers: UserRange = WIDE, used: tuple[int, ...] = ()
) -> RunAs:
    folder = tmp_path / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return RunAs(numbers, tmp_path / "machine" / "run-as", folder / "run-as", lambda: used)


def test_the_users_of_a_tenant_s_containers_are_its_alone(tmp_path: Path) -> None:
    """A block for each tenant of each agent, beside all users of processes."""
    one, two = wide(tmp_path), wide(tmp_path, "n2")
    firsts = [it.block_of(tenant) for it, tenant in ((one, "acme"), (one, "rival"), (two, "acme"))]
    assert firsts == [WIDE.first + BLOCK * number for number in (1, 2, 3)]
    assert wide(tmp_path).block_of("rival") == firsts[1]
    assert max(one.of("acme"), one.of("rival"), two.of("acme")) < firsts[0]
    with pytest.raises(Unavailable, match="give the agent a wider"):
        two.block_of("rival")


def test_a_block_in_use_keeps_its_user_from_another_tenant_when_the_table_is_lost(
    tmp_path: Path,
) -> None:
    """What runs in a container has numbers of its block, and its row is gone."""
    in_use = WIDE.first + 2 * BLOCK + 33
    assert wide(tmp_path, used=(in_use,)).of("acme") == WIDE.first + 2


@pytest.mark.parametrize("moved", [10 * BLOCK, -10 * BLOCK, 1, -BLOCK])
def test_a_range_that_does_not_have_a_user_that_was_given_is_refused_at_the_start(
    tmp_path: Path, moved: int
) -> None:
    """The block of that user would lie outside the range, or below 0."""
    assert wide(tmp_path).of("acme") == WIDE.first
    other = UserRange(WIDE.first + moved, WIDE.last + moved)
    with pytest.raises(Unavailable, match=r"--run-as-range .* does not contain the user 1000000"):
        wide(tmp_path, numbers=other).prepare()
    # One that has it is taken, however wide it is.
    wide(tmp_path, numbers=UserRange(WIDE.first, WIDE.last + BLOCK)).prepare()


def test_ranges_that_overlap_give_no_number_to_two_tenants(tmp_path: Path) -> None:
    """Agents of one machine may be given different ones."""
    block = wide(tmp_path).block_of("acme")
    inner = UserRange(block, block + 3)
    with pytest.raises(Unavailable, match="wider"):
        wide(tmp_path, "n2", inner).of("rival")
    later = UserRange(WIDE.first + 2 * BLOCK, WIDE.first + 2 * BLOCK + 9)
    assert wide(tmp_path, "n3", later).of("other") == later.first
    with pytest.raises(Unavailable, match="the same --run-as-range"):
        wide(tmp_path).block_of("rival")
