"""`holdfast encryption`: the keys that Secrets are encrypted with, in a file.

To change the key of a plane: add a key, copy the file to all servers, wait until they have read it,
then use the key. The servers encrypt everything with it; after that the old one may be removed.
"""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.command_table import Section
from holdfast.cli.exit_codes import ExitCode, UsageError, run
from holdfast.host.process.files import write_private
from holdfast.model.errors import Missing
from holdfast.store.encryption.key_file import Key, encode_keys, new_key, read

SECTION = Section.ACCESS
_file_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.group()
def encryption() -> None:
    """The keys that Secrets are encrypted with at rest."""


@encryption.command(name="add-key", epilog="Example: holdfast encryption add-key keys --name k2")
@_file_argument
@click.option("--name", default="", help="The name of the key. [key-N]")
def add_key(file: Path, name: str) -> int:
    """Add a key to a file, created if necessary. The key only decrypts until `use-key`."""

    async def command() -> int:
        there = _there(file)
        made = new_key(name or f"key-{len(there) + 1}")
        if made.name in [key.name for key in there]:
            raise UsageError(f"--name: {file} already has a key {made.name!r}")
        write_private(file, encode_keys([*there, made]))
        print(f"{file} now has the key {made.name!r}. Copy the file to all servers.")
        return ExitCode.DONE

    return run(command())


@encryption.command(name="use-key", epilog="Example: holdfast encryption use-key keys k2")
@_file_argument
@click.argument("name")
def use_key(file: Path, name: str) -> int:
    """Encrypt with this key from now on. All servers must have it already."""

    async def command() -> int:
        used, others = _split(file, name)
        write_private(file, encode_keys([used, *others]))
        print(f"{name!r} is the current key in {file}. Servers load it within seconds.")
        return ExitCode.DONE

    return run(command())


@encryption.command(name="remove-key", epilog="Example: holdfast encryption remove-key keys k1")
@_file_argument
@click.argument("name")
def remove_key(file: Path, name: str) -> int:
    """Remove a key. Backups that were made with it can no longer be read without it."""

    async def command() -> int:
        _, others = _split(file, name)
        if not others or read(file)[0].name == name:
            raise UsageError(
                f"NAME: {name!r} is the current key in {file}; make another key current first "
                "with `holdfast encryption use-key`"
            )
        write_private(file, encode_keys(others))
        print(f"{file} no longer has the key {name!r}.")
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


def _split(file: Path, name: str) -> tuple[Key, list[Key]]:
    """The named key of a file, and the others. Raises Missing."""
    there = read(file)
    found = [key for key in there if key.name == name]
    if not found:
        raise Missing(f"{file} has no key {name!r}; `holdfast encryption list-keys` shows them")
    return found[0], [key for key in there if key.name != name]
