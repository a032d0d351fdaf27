"""The command line itself: helps, usage, and that nothing wrong ends in a traceback."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.cli.command_table import all_commands
from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.main import main
from holdfast.cli.tokens import token_state
from holdfast.cli.up import up
from holdfast.host.__main__ import parser
from holdfast.host.server.server_options import server_arguments, settings_of
from holdfast.model.kinds.access import Token, TokenPurpose, TokenSpec, TokenStatus
from holdfast.model.meta import ObjectMeta


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests never talk to a plane of the developer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)


@pytest.mark.parametrize(
    "command",
    [
        *(it.name for it in all_commands()),
        *("token create", "token list", "token revoke", "node revoke", "user revoke"),
    ],
)
def test_every_command_has_a_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert f"Usage: holdfast {command}" in capsys.readouterr().out


def test_the_help_lists_all_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {it.name} " in said for it in all_commands())
    assert all(f"{code.value} " in said for code in ExitCode)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {__version__}\n"


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("nix", "No such command 'nix'"),
        ("get", "Missing argument 'KIND'"),
        ("get wl --nix", "No such option"),
        ("get worklods", "did you mean workloads?"),
        ("get wl -o xml", "--output: 'xml' must be one of"),
        ("get wl/a b", "already contains a name"),
        ("scale wl a --replicas -1", "-1 is not in the range"),
        ("scale node a --replicas 1", "nodes cannot be scaled"),
        ("delete wl", "NAME: required"),
        ("drain", "Missing argument 'NODE'"),
        ("drain n --deadline soon", "--deadline: soon: must be a duration"),
        ("token create", "--node, --any, --user: exactly one of them is required"),
        ("token create --user a --any", "--node, --any, --user: exactly one of them is required"),
        ("token create --any --group g", "--group, --tenant, --namespace, --write: require"),
        ("token create --user a --ttl soon", "--ttl: soon: must be a duration"),
        ("token create --user a --tenant b -n c", "--tenant: a tenant's own users get their"),
        ("user revoke", "Missing argument 'NAME'"),
        ("up --agents 65", "65 is not in the range"),
        ("up --listen 7", "'7' is not an address"),
        ("up --fence-after 1", "--fence-after: 1: must be at least"),
        ("up --store nix", "must be sqlite:PATH"),
        ("server --name UPPER", "is not a name for a server"),
        ("scheduler", "Missing option '--server'"),
        ("agent --server http://x", "--server: http://x: must begin with https://"),
        ("agent --server https://x --capacity cpu", "--capacity: cpu: must be KEY=VALUE"),
        ("agent --server https://x --capacity cpu=x,memory=1Gi", "--capacity: cpu=x"),
    ],
)
def test_a_wrong_command_line_is_reported_and_ends_with_2(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == ExitCode.USAGE
    caught = capsys.readouterr()
    assert sentence in caught.err
    assert caught.out == ""


def test_a_plane_without_a_name_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["get", "nodes"]) == ExitCode.FAILED
    assert "no kubeconfig: data/kubeconfig does not exist" in capsys.readouterr().err
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    assert main(["get", "nodes"]) == ExitCode.FAILED
    assert "KUBECONFIG: /nowhere/config does not exist" in capsys.readouterr().err
    assert main(["get", "nodes", "--kubeconfig", "mine"]) == ExitCode.FAILED
    assert "the kubeconfig mine cannot be read" in capsys.readouterr().err


def test_a_missing_file_is_reported_before_any_server_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["apply", "-f", "nix.yaml"]) == ExitCode.FAILED
    assert (
        capsys.readouterr().err == "holdfast: nix.yaml cannot be read: No such file or directory\n"
    )


def test_the_server_of_up_is_started_with_what_up_was_given() -> None:
    line = "--data d --cert-name a --cert-name b --self-stop-after 7 --etcd-user u --name s1"
    given = up.make_context("up", line.split()).params
    settings = settings_of(parser().parse_args(["serve", *server_arguments(given)]))
    assert settings.names == ("a", "b")
    assert settings.fence.self_stop_after_ms == 7_000
    assert (settings.name, settings.etcd.user, settings.data) == ("s1", "u", Path("d"))


def test_the_outcome_of_a_token_is_shown() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    later, earlier = now + timedelta(hours=1), now - timedelta(hours=1)

    def of(spec: TokenSpec, used_by: str = "") -> str:
        status = TokenStatus(used_by=used_by)
        return token_state(Token(ObjectMeta(name="t"), spec=spec, status=status), now)

    assert of(TokenSpec(expires=later)) == "valid"
    assert of(TokenSpec(purpose=TokenPurpose.JOIN, expires=later)) == "unused"
    assert of(TokenSpec(expires=earlier)) == "expired"
    assert of(TokenSpec(expires=later, revoked=True)) == "revoked"
    assert of(TokenSpec(expires=earlier), "n1") == "used by n1"
