"""`holdfast encryption`: which key is current, and that no key is shown or lost by mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.store.encryption.key_file import read


def test_keys_are_added_used_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    for line in ("add-key FILE", "add-key FILE --name k2", "add-key FILE", "use-key FILE k2"):
        assert main(["encryption", *line.replace("FILE", str(file)).split()]) == 0
    assert [key.name for key in read(file)] == ["k2", "key-1", "key-3"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert main(["encryption", "remove-key", str(file), "key-1"]) == 0
    assert main(["encryption", "list-keys", str(file)]) == 0
    said = capsys.readouterr().out
    assert said.endswith("k2\nkey-3\n")
    assert file.read_text().split()[1] not in said


@pytest.mark.parametrize(
    "line, code",
    [
        ("add-key FILE --name key-1", 2),
        ("add-key FILE --name a/b", 1),
        ("use-key FILE nix", 1),
        ("remove-key FILE key-1", 2),
        ("list-keys FILE.nix", 1),
    ],
)
def test_what_would_lose_a_key_is_refused(tmp_path: Path, line: str, code: int) -> None:
    file = tmp_path / "keys"
    assert main(["encryption", "add-key", str(file)]) == 0
    before = file.read_bytes()
    assert main(["encryption", *line.replace("FILE", str(file)).split()]) == code
    assert file.read_bytes() == before
