"""`holdfast encryption`: the keys that Secrets are encrypted with, in a file.

To change the key of a plane: add one, give the file to all servers, wait until they have read it,
then use it. The servers encrypt everything with it; after that the old one may be removed.
"""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.exit_codes import ExitCode, UsageError, run
from holdfast.host.process.files import write_private
from holdfast.model.errors import Missing
from holdfast.store.encryption.key_file import Key, encoded, new_key, read

_file_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.group()
def encryption() -> None:
    """The keys that Secrets are encrypted with at rest."""


@encryption.command(name="add-key", epilog="Example: holdfast encryption add-key keys --name k2")
@_file_argument
@click.option("--name", default="", help="The name of the key. [key-N]")
def add_key(file: Path, name: str) -> int:
    """Add a key to a file, made if need be. It only reads until `use-key` says otherwise."""

    async def command() -> int:
        there = _there(file)
        made = new_key(name or f"key-{len(there) + 1}")
        if made.name in [key.name for key in there]:
            raise UsageError(f"--name: {file} has a key {made.name!r} already")
        write_private(file, encoded([*there, made]))
        print(f"{file} has the key {made.name!r} now. Give the file to all servers.")
        return ExitCode.DONE

    return run(command())


@encryption.command(name="use-key", epilog="Example: holdfast encryption use-key keys k2")
@_file_argument
@click.argument("name")
def use_key(file: Path, name: str) -> int:
    """Encrypt with this key from now on. All servers must have it already."""

    async def command() -> int:
        used, others = _taken_out(file, name)
        write_private(file, encoded([used, *others]))
        print(f"{name!r} is the current key in {file}. Servers take it up within seconds.")
        return ExitCode.DONE

    return run(command())


@encryption.command(name="remove-key", epilog="Example: holdfast encryption remove-key keys k1")
@_file_argument
@click.argument("name")
def remove_key(file: Path, name: str) -> int:
    """Remove a key. Backups that were made with it cannot be read without it any more."""

    async def command() -> int:
        _, others = _taken_out(file, name)
        if not others or read(file)[0].name == name:
            raise UsageError(f"{name!r} is the current key in {file}: use another one first")
        write_private(file, encoded(others))
        print(f"{file} does not have the key {name!r} any more.")
        return ExitCode.DONE

    return run(command())


@encryption.command(name="list-keys", epilog="Example: holdfast encryption list-keys keys")
@_file_argument
def list_keys(file: Path) -> int:
    """Show the names of the keys in a file, the current one first."""

    async def command() -> int:
        print("\n".join(key.name for key in read(file)))
        return ExitCode.DONE

    return run(command())


def _there(file: Path) -> tuple[Key, ...]:
    return read(file) if file.exists() else ()


def _taken_out(file: Path, name: str) -> tuple[Key, list[Key]]:
    there = read(file)
    found = [key for key in there if key.name == name]
    if not found:
        raise Missing(f"{file} has no key {name!r}; `holdfast encryption list-keys` shows them")
    return found[0], [key for key in there if key.name != name]
